// SPDX-License-Identifier: Apache-2.0
// The queue: which job is placed next, and which jobs are preempted for it.
//
// Jobs stand in line by priority, then by submission. A job that cannot be placed reserves the hosts
// that could take part in it: jobs behind it may only use hosts that are of no use to it. So small
// jobs never starve a big one, and no device idles that only later jobs could use. Not in line are
// jobs in backoff, and jobs that the known hosts could not take even if they were empty.
//
// The first in line preempts running jobs of a smaller priority: the smallest priority first, among
// equals the job that loses least since its last checkpoint, and as few as make it fit. Before it
// preempts more it waits for devices that are becoming free. A job that recovers takes devices at
// once, unless a job of a greater priority waits. Inside coordinator/ only.
#pragma once
#include "coordinator/decide/job_record.h"

// Plays one round over all jobs that wait. Each job that is placed or preempted changes what the
// others find, so coord.round_due is set again.
void queue_round(struct coord *c);
// Whether the last round has the answer for a job that is new in the queue, when nothing else has
// changed: the job waits, and no round is needed.
bool queue_knows(struct job_record *j);
bool queue_place_now(struct job_record *j); // RECOVERING → STARTING, if devices are free
