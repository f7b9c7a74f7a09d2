// SPDX-License-Identifier: Apache-2.0
// A rank's side of checkpoints: staging, the writer thread, and on rank 0 the orders to commit.
// Inside worker/rank/save/ only.
//
//         begin: the training thread copies to staging
//   idle ────────────────────────────────────────────────► open
//     ▲                                                     │  the writer thread writes the shard,
//     │               Committed or Aborted                  │  syncs it and reports it
//     └─────────────────────────────────────────────────────┘
//
// Where copies are only queued (`later`) the writer begins when snapshot_staged says that they are
// complete; until then neither wait ends. The training thread calls begin, wait and drain; the
// writer calls the ops. A fault of the storage aborts that checkpoint with one line of the log, and
// training continues. The writer never touches frames or the device: the ops hand things over, and
// must be safe to call from its thread and never block for long. While a save is open the rank
// raises the control word's no_save.
#pragma once
#include "common/base/err.h"
#include "common/ckpt/deal.h"
#include "common/ckpt/manifest.h"
#include "common/ckpt/store.h"

struct snapshot;

struct save_point {        // a boundary between steps, where all is saved
    int64_t step, samples; // completed, drawn
    int64_t updates;       // that the optimiser's state has had
    bool evaluated;        // after this step, with
    double eval_loss;
};

struct snapshot_ops {
    void *arg;
    // Training thread, inside begin: copy `bytes` at `at` of part `part`'s local memory to `to`.
    int (*copy)(void *arg, int part, uint64_t at, void *to, uint64_t bytes, struct err *e);
    // Writer thread: send ShardDone (borrowed for the call). code != 0: the shard failed. The link
    // repeats it until answered.
    void (*report)(void *arg, const struct shard_report *r);
    // Writer thread, rank 0: send CommitDone. An order repeated is answered the same.
    void (*commit_done)(void *arg, int64_t step, int code, const char *text);
    // Writer thread, rank 0: a deletion was carried out (code 0) or failed.
    void (*deleted)(void *arg, struct store_entry id, int code);
    // Writer thread, rank 0, may be null: the directory was removed and is there again, without what
    // lies beside checkpoints. Called again at the next save if it fails, and with it the save.
    int (*furnish)(void *arg, struct err *e);
};

struct snapshot_config {
    struct store *store; // borrowed
    // Used to make the directory again if somebody removes it; owner.job null: such a save fails.
    struct store_owner owner;
    const char *root, *attempt_id;
    int rank, nranks;
    int64_t attempt;
    const struct deal_part *parts; // borrowed, as are names within
    int nparts;
    const char *const *specs;    // of the parts; rank 0
    const struct deal *deal;     // borrowed
    const struct manifest *base; // rank 0: the fields a job does not change; borrowed
    struct snapshot_ops ops;
    void *staging; // snapshot_staging_bytes() of host memory; null: allocated here
    bool later;    // ops.copy queues: snapshot_staged follows each begin
};

uint64_t snapshot_staging_bytes(const struct deal *d, int rank);
// Succeeds even without memory for staging. Then `snapshot_can_stage` is false, and a save that is
// begun all the same reports a failed shard.
int snapshot_new(struct snapshot **out, const struct snapshot_config *c, struct err *e);
// Abandons what is open (its directory stays for the next fence), joins the thread.
void snapshot_free(struct snapshot *s);

bool snapshot_can_stage(const struct snapshot *s); // false: set no_save
// True until the answer is there and staging is free again: set no_save.
bool snapshot_open(const struct snapshot *s);
// At a boundary. Precondition: not open. A failed copy is
// the device's failure and comes back; everything of the storage is reported as a failed shard
// instead.
int snapshot_begin(struct snapshot *s, const struct save_point *at, struct err *e);
// Whether the newest answer was Aborted with the wish that all try the same save again.
bool snapshot_again(const struct snapshot *s);

// Call this when all that the newest begin queued has come. Does nothing without one.
void snapshot_staged(struct snapshot *s);

// From the link's frames; any thread. `reports` (nranks, rank order) are copied.
void snapshot_order_commit(struct snapshot *s, int64_t step, const struct shard_report *reports);
void snapshot_order_delete(struct snapshot *s, struct store_entry id);
// For the frames Committed and Aborted. On rank 0 the thread removes an aborted directory.
void snapshot_committed(struct snapshot *s, int64_t step);
void snapshot_aborted(struct snapshot *s, int64_t step, const char *why);
// As snapshot_aborted(), but of one try of `step`: what is said of an older try changes nothing.
void snapshot_try_aborted(struct snapshot *s, int64_t step, int tries, bool again, const char *why);

// Waits until nothing is open: the answer is there and staging is free. ERR_TIMEOUT after
// `timeout_ns` (0: none). `last_ok`, may be null: whether the newest answer was Committed; `e` says
// why not.
int snapshot_wait(struct snapshot *s, int64_t timeout_ns, bool *last_ok, struct err *e);
// Waits as snapshot_wait() does, and until the thread has done all removals and deletions.
int snapshot_drain(struct snapshot *s, int64_t timeout_ns, bool *last_ok, struct err *e);
