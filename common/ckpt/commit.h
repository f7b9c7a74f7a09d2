// SPDX-License-Identifier: Apache-2.0
// The decisions of a checkpoint's life: when it is ordered, committed, aborted, deleted. Pure: no
// I/O, no clock (time arrives as an event's `now_ns`), no threads. The attempt's leader feeds it events,
// and the coordinator carries out the actions in order; it first writes down what must be durable first.
//
//             1             2           3             4            5
//   (nothing) ──► PREPARING ──► ORDERED ──► COMMITTED ──► DELETING ──► GONE
//                     │ 6          │ 7
//                     └─────┬──────┘
//                           ▼
//                        ABORTED
//
//   1  the first report arrives
//   2  every rank's report is in: the writer is ordered to commit
//   3  the writer has sealed the checkpoint and given it its name
//   4  retention: enough newer ones are good
//   5  the writer has removed it
//   6  a shard failed, the deadline passed, or the attempt ended
//   7  the writer failed
//
// LOST is a COMMITTED or DELETING one whose folder somebody removed, as a report of a later save
// says. Should the next fence list it after all, it is COMMITTED.
//
// The last save of a job is tried again until its saves have failed for `patience_ns`: with a
// report of a greater try an ABORTED one is PREPARING again. An answer to an older try says so.
//
// ORDERED is left only by the writer's answer or by what the next fence lists, because the
// directory is the truth. The first answer for a step is final; a repeated report gets that answer
// again. At most one checkpoint is open, that is PREPARING or ORDERED. A DELETING one is never
// restored from.
#pragma once
#include "common/base/arena.h"
#include "common/base/err.h"
#include "common/ckpt/manifest.h"
#include "common/ckpt/store.h"

enum commit_state {
    COMMIT_PREPARING,
    COMMIT_ORDERED,
    COMMIT_COMMITTED,
    COMMIT_ABORTED,
    COMMIT_DELETING,
    COMMIT_GONE, // deleted; kept so that a late report still gets its answer
    COMMIT_LOST, // somebody removed the folder that it was in; kept for the same reason
    COMMIT_STATES
};
const char *commit_state_name(enum commit_state s);

struct commit_config {
    int nranks;
    int64_t deadline_ns; // from the first report to the last; 0: none
    int keep;            // newest good ones kept; 0: all
    int64_t keep_every;  // steps that are multiples of it are kept too; 0: none
    bool keep_best;      // and the one of the least loss
    int64_t steps;       // of the job: its last save is tried again; 0: not known
    int64_t patience_ns; // how long saves may fail
};

struct commit_record {
    struct store_entry id;
    enum commit_state state;
    bool bad;      // found damaged: counts for nothing in retention
    bool scored;   // there was an evaluation at its step, with
    double loss;   // this loss, a finite one
    bool retry;    // DELETING: the order failed, it goes out again
    int tries;     // how often it was begun before
    bool failed;   // ABORTED, by the storage or who writes to it
    bool again;    // ABORTED, and all are to try again
    char why[200]; // ABORTED
};

struct commit {
    struct commit_config config;
    int64_t attempt;
    int n, cap;
    struct commit_record *records; // by (attempt, step), ascending
    int open;                      // index of the PREPARING or ORDERED one, −1: none
    int64_t opened_ns;
    bool *reported;     // [nranks] of the open one
    int64_t failing_ns; // when the first save in a row failed; 0: none
};

enum commit_event_kind {
    COMMIT_EV_SHARD,       // report
    COMMIT_EV_DONE,        // the writer's answer: id, ok, text
    COMMIT_EV_TICK,        // time passed
    COMMIT_EV_ATTEMPT_END, // the attempt is over
    COMMIT_EV_BAD,         // id was found damaged
    COMMIT_EV_SCORE,       // id, loss: what its manifest says; what a report said stays
    COMMIT_EV_DELETED,     // id; ok: gone from the directory
    COMMIT_EVENTS
};
struct commit_event {
    enum commit_event_kind kind;
    int64_t now_ns;
    struct store_entry id;             // SHARD, DONE, BAD, SCORE, DELETED
    double loss;                       // SCORE
    const struct shard_report *report; // SHARD; borrowed for the call
    bool ok;
    const char *text;
};

enum commit_action_kind {
    COMMIT_DO_ORDER,     // send Commit with the reports to the writer; may come again
    COMMIT_DO_COMMITTED, // send to `rank` (−1: all)
    COMMIT_DO_ABORTED,   // send to `rank` (−1: all); `text` is why. To all: the writer removes it
    COMMIT_DO_DELETE,    // record DELETING durably, then order the deletion
    COMMIT_DO_LOST,      // report: `text` says which checkpoints somebody removed, `id` when
};
struct commit_action {
    enum commit_action_kind kind;
    struct store_entry id;
    int rank;
    int tries;   // ABORTED: which
    bool failed; // ABORTED: the storage, or who writes to it, failed; else nobody did
    bool again;  // ABORTED: it is the last save, all try again
    bool late;   // ABORTED: saves fail for longer than the job has patience
    char text[200];
};
struct commit_actions {
    int n, cap;
    struct commit_action *v; // the arena's
};

void commit_init(struct commit *c, const struct commit_config *config);
void commit_clear(struct commit *c);
// A new attempt begins. `scan` is what the fence listed: those are COMMITTED (or DELETING, if that
// was decided before), and every other record is forgotten.
void commit_fence(struct commit *c, int64_t attempt, const struct store_entry *scan, int n);
// After a restart of the leader: the records that were kept durably (in any order), at `attempt`. The
// open one waits for its reports again; its deadline begins at `now_ns`.
void commit_restore(struct commit *c, int64_t attempt, const struct commit_record *records, int n,
                    int64_t now_ns);
// Actions are appended to `out`, their memory is the arena's.
void commit_step(struct commit *c, const struct commit_event *ev, struct arena *a,
                 struct commit_actions *out);

const struct commit_record *commit_find(const struct commit *c, struct store_entry id);
const struct commit_record *commit_newest(const struct commit *c); // COMMITTED and not bad, or null
// What "best" means wherever it is said: of the checkpoints that are good and were evaluated the one of
// the least loss, the oldest of equals. They are offered from the oldest on; a zeroed one has seen none.
struct commit_best {
    const void *which; // the caller's; null: there is none
    double loss;
};
void commit_best_offer(struct commit_best *b, const void *which, bool good, bool evaluated,
                       double loss);
// That of the records (good: COMMITTED and not bad), or null.
const struct commit_record *commit_best(const struct commit *c);
int64_t commit_deadline(const struct commit *c); // when a TICK is due, 0: none
