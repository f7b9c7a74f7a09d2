// SPDX-License-Identifier: Apache-2.0
// The invariants of checkpoints (I1 to I6, common/ckpt/README.md) and of attempts, checked as
// history is made. Each function is called where the act happens; a broken one ends the schedule
// with sim_fail.
#pragma once
#include "common/ckpt/commit.h"
#include "tests/sim/rank.h"
#include "tests/support/stored_row.h"

struct check;
struct check *check_new(struct world *w);

// Processes.
void check_stopped(struct rank *r); // for good
void check_spawned(struct rank *r);
void check_rank_ended(struct rank *r);
void check_exit_fenced(struct host *h);
// Messages, as they are sent.
void check_up(struct host *h, const Weft__V1__Up *m);
void check_down(struct world *w, uint64_t conn, const Weft__V1__Down *m);
// Rows, as they become durable.
void check_row(struct world *w, const struct stored_row *s);
// The same of a checkpoint's row.
void check_decided(struct world *w, const char *job, struct store_entry id,
                   enum commit_state state);
// Ranks.
void check_shard_done(struct rank *r, int64_t step);
void check_ordered(struct rank *r, const Weft__Rank__Commit *c);
void check_heard(struct rank *r, int64_t step, bool committed);
void check_answered(struct rank *r, int64_t step, int code); // by the writer
void check_barrier(struct rank *r, bool passed);
bool check_restored(struct rank *r);
// The storage.
void check_renamed(void *world, struct disk_node *dir, const char *from, const char *to);
void check_fenced(struct world *w, const char *job, uint64_t attempt, const char *attempt_id,
                  const char *path);
bool check_whole(const char *path, const char *job, struct store_entry id);
void check_after_power_loss(struct world *w);
// The end.
void check_end(struct world *w);

// A readable line a message (trace.c).
void trace_up(struct world *w, uint64_t conn, const Weft__V1__Up *m);
void trace_down(struct host *h, const Weft__V1__Down *m);
void trace_row(struct world *w, const struct stored_row *s);
void trace_leader(struct world *w, int rank, const Weft__Rank__Frame *f); // −1: to all
void trace_rank(const struct rank *r, const Weft__Rank__Frame *f);
const char *storage_word(Weft__V1__StorageOp op); // "FENCE"
