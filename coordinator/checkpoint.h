// SPDX-License-Identifier: Apache-2.0
// The registry of a job's checkpoints: what the attempts' leaders decide (common/ckpt/commit.h),
// kept as rows, and what it means to the job. The directory decides what exists; rows index it, and
// the fence's list replaces them.
#pragma once
#include "common/attempt/leader.h"
#include "coordinator/attempt.h"

void checkpoint_load(struct job_record *j, const struct checkpoint_record *k);
// What the records say, for the leader of an attempt that begins or goes on; the step's arena.
void checkpoint_remember(const struct job_record *j, struct leader_memory *out);
void checkpoint_write(struct job_record *j, const struct commit *m); // as rows: what has changed
void checkpoint_forget(struct job_record *j);                        // erases its rows

void checkpoint_fenced(struct attempt *at, const Weft__V1__StorageDone *d); // a new epoch's list
bool checkpoint_all_bad(const struct attempt *at); // there are some, and none is good
void checkpoint_committed(struct attempt *at, struct store_entry id);
void checkpoint_aborted(struct attempt *at, struct store_entry id, const char *why);
