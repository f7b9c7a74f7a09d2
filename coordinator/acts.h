// SPDX-License-Identifier: Apache-2.0
// What people ask for: submit, and the verbs about jobs and hosts.
#pragma once
#include "coordinator/coord_state.h"

struct job;

void acts_submit(struct coord *c, const struct coord_event *ev);
// A job's record, not yet in any state. known_id (null: a new one) is of a job found again.
struct job_record *acts_make_job(struct coord *c, const struct job *spec, const char *known_id,
                                 const char *owner, const char *base_dir);
void acts_act(struct coord *c, const struct coord_event *ev);
void acts_audit(struct coord *c, const struct coord_event *ev);
