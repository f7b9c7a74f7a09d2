// SPDX-License-Identifier: Apache-2.0
// The leader of a placed attempt (common/attempt/leader.h) as the coordinator runs it: what it
// decides becomes frames to hosts, rows of checkpoints, the job's story and its faults.
#pragma once
#include "common/attempt/leader.h"
#include "coordinator/attempt.h"

// Hosts and ranks of the attempt are known; the records of checkpoints come from the rows.
void attempt_make_leader(struct attempt *at, enum leader_state state);
void attempt_name_places(struct attempt *at); // of its ranks, for people: hosts may have new names

// An event for the leader, and what it decides about it.
void attempt_lead(struct attempt *at, struct leader_event ev);
