// SPDX-License-Identifier: Apache-2.0
// The registry of a job's checkpoints: what the attempts' leaders decide (common/ckpt/commit.h),
// kept as rows. The directory decides what exists; rows index it, and the fence's list replaces
// them. Inside coordinator/ only.
#pragma once
#include "common/attempt/leader.h"
#include "coordinator/decide/job_record.h"

void checkpoint_load(struct job_record *j, const struct checkpoint_record *k);
// None counts as damaged any more, of a job without an attempt: its bytes may have been put back, and
// ranks find out.
void checkpoint_forgive(struct job_record *j);
// What the records say, for the leader of an attempt that begins or is resumed; the step's arena.
void checkpoint_remember(const struct job_record *j, struct leader_memory *out);
void checkpoint_write(struct job_record *j, const struct commit *m); // as rows: what has changed
