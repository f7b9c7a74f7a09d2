// SPDX-License-Identifier: Apache-2.0
// What people ask for: submit, and the verbs about jobs and hosts. Each answer is kept (requests.h),
// each call leaves a row in the audit. Inside coordinator/ only.
#pragma once
#include "coordinator/decide/coord_state.h"

void acts_submit(struct coord *c, const struct coord_event *ev);
void acts_check(void); // every verb says what it does in every state
void acts_act(struct coord *c, const struct coord_event *ev);
void acts_audit(struct coord *c, const struct coord_event *ev);
