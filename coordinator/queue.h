// SPDX-License-Identifier: Apache-2.0
// The queue: who is placed next, who is preempted for it.
//
// Order: priority, then submission. The first that cannot be placed *reserves*: of the hosts that
// could take part in it, jobs behind it get nothing; they may only use hosts that it cannot use.
// So a big job is never starved by small ones, and nothing idles that could serve nobody in front.
// Each that waits reserves in its turn. Not in line: who waits for its backoff, and who fits none
// of the known hosts even when they are empty.
//
// The first in line preempts: running jobs of a smaller priority, the smallest first, among equals
// whoever loses least since its last checkpoint, as few as make it fit. It waits for devices that
// are already becoming free before it preempts more.
// A job that recovers takes its place at once, unless one of a greater priority waits.
#pragma once
#include "coordinator/job_record.h"

// One round over all that wait. Whoever is placed or preempted changes what the others find: then
// coord.round_due is set again.
void queue_round(struct coord *c);
// For a job that is new in the queue, when nothing else has changed: true when the last round has
// the answer for it too, which is that it waits. No round is needed then.
bool queue_knows(struct job_record *j);
bool queue_place_now(struct job_record *j); // RECOVERING → STARTING, if devices are free
