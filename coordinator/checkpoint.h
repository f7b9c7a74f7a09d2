// SPDX-License-Identifier: Apache-2.0
// The registry of a job's checkpoints: common/ckpt's decisions, kept as rows. The directory decides
// what exists; rows index it, and the fence's list replaces them.
#pragma once
#include "coordinator/attempt.h"

void checkpoint_open(struct job_record *j); // before an attempt: from the rows, if it is not yet
void checkpoint_load(struct job_record *j, const struct checkpoint_record *k);
void checkpoint_fenced(struct job_record *j, const Weft__V1__StorageDone *d); // a new epoch's list
const struct commit_record *checkpoint_choose(const struct job_record *j);    // null: none is good
bool checkpoint_all_bad(const struct job_record *j); // there are some, and none is good
void checkpoint_bad(struct job_record *j, struct store_entry id);
void checkpoint_shard(struct attempt *at, int rank, const Weft__Rank__ShardDone *f);
void checkpoint_writer(struct attempt *at, const Weft__Rank__Frame *f); // CommitDone, Deleted
void checkpoint_tick(struct attempt *at);
void checkpoint_over(struct job_record *j);   // the attempt is
void checkpoint_forget(struct job_record *j); // erases its rows
