// SPDX-License-Identifier: Apache-2.0
// The phases before the first Start: hosts prove that they see one storage, and one of them fences
// the folder and lists what is committed there. Inside coordinator/ only.
#pragma once
#include "coordinator/decide/attempt.h"

// A host's answer; one that is not of the phase and the attempt at hand is ignored.
void attempt_storage(struct attempt *at, struct attempt_host *h, const Weft__V1__StorageDone *d);
void attempt_storage_overdue(struct attempt *at); // the phase's time is over
