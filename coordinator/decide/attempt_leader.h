// SPDX-License-Identifier: Apache-2.0
// The leader of a placed attempt (common/attempt/leader.h) as the coordinator runs it: what it
// decides becomes frames to hosts, rows of checkpoints, the job's history and facts to settle. Inside
// coordinator/ only.
#pragma once
#include "common/attempt/leader.h"
#include "coordinator/decide/attempt.h"

// An event for the leader, and what it decides about it.
void attempt_lead(struct attempt *at, struct leader_event ev);

// Enters END or STOP: the leader learns that the ranks are asked to leave, or, when nobody waits
// for them any more, that nothing of them counts.
void attempt_leave(struct attempt *at, enum attempt_phase phase);
// RUNNING or STARTING → DRAINING(goal): stop at one step, save, within the grace.
void attempt_drain(struct attempt *at, enum job_state goal, const struct job_note *n,
                   const char *why);
// No process of it lives there: the host has confirmed it, or was fenced.
void attempt_host_gone(struct attempt *at, struct attempt_host *h);
// After attempt_restore: enters the phase that the row says.
void attempt_resume(struct attempt *at);
