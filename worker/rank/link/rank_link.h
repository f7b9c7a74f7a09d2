// SPDX-License-Identifier: Apache-2.0
// The link: a rank's connection to its host's agent, which stands for the coordinator that leads the
// attempt, over one stream socket.
//
// A control thread owns the descriptor. It also owns SIGTERM and SIGINT (blocked everywhere else),
// which ask for a stop as a Stop frame does. Every call below may come from any thread. Calls may
// wait for an answer, but never for the socket: frames are queued, up to a bound, and a new step
// report replaces one that was not sent yet.
//
// When the agent goes away, or says that the attempt has lost a rank, the link is *lost* for good:
// link_lost() says why, on_lost is called once (on the control thread: call world_abort there, so
// that a blocked collective ends), and every waiting call returns ERR_PEER with that text.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/ckpt/manifest.h"
#include "common/ckpt/store.h"
#include "worker/rank/link/assignment.h"
#include "worker/rank/link/metrics_file.h"

struct link;
struct progress_page;
struct Weft__Rank__Frame;
struct Weft__Rank__Answer;

// Takes the socket and says Hello. Blocks SIGTERM and SIGINT in the calling thread (call it before
// other threads start).
int link_open(int fd, struct link **out, struct err *e);
// Waits for Assign and fills in what it holds; strings go to a->arena, `job` stays null.
int link_assign(struct link *l, struct assignment *a, int64_t deadline_ns, struct err *e);
// Sends Exit(code, why) and waits a moment for it to leave; then closes. Null is fine.
void link_close(struct link *l, int code, const char *why);

// ---- the end ----
// Null, or the text that names who was lost (valid until link_close).
const char *link_lost(const struct link *l);
// Waits up to wait_ns until the link is lost, and returns the text: a collective that failed says
// only that a peer is gone, while the leader knows which one and where. Null when it is not lost.
const char *link_lost_wait(struct link *l, int64_t wait_ns);
// If the link is lost already, fn is called soon. A null fn takes it back, and returns only when a
// running call has ended.
void link_on_lost(struct link *l, void (*fn)(void *ctx, const char *why), void *ctx);
// True from the first SIGTERM, SIGINT or Stop frame on; raise CONTROL_STOP then. Costs one load.
bool link_stop_requested(const struct link *l);

// ---- before the first step; deadlines are clock_mono_ns() times, 0: none ----
// Once a stop is requested these wait no longer: they return ERR_ABORTED, and the rank should end.
int link_kv_put(struct link *l, const char *key, const char *value, struct err *e);
int link_kv_get(struct link *l, const char *key, char *value, size_t size, int64_t deadline_ns,
                struct err *e);
// As link_kv_get(), but without a deadline, for a value that may take any time. If the rank that is to
// put it dies or hangs, the leader ends the attempt, and this wait with it. Meanwhile the page (null:
// none) shows that this rank lives, so that it is not taken for the one that hangs.
int link_kv_await(struct link *l, const char *key, char *value, size_t size,
                  struct progress_page *page, struct err *e);
// Exit will say that this rank was not found at the address that it published.
void link_unreached(struct link *l, int rank);
// Waits for all ranks of the attempt; (name, seq) is one barrier. ERR_TIMEOUT names the missing
// ranks.
int link_barrier(struct link *l, const char *name, int64_t seq, int64_t deadline_ns, struct err *e);
// Says Ready with the hash of the plan of all stages and waits until every rank has sent the same
// hash; ERR_INVALID names the ranks whose plans differ.
int link_ready(struct link *l, const char *plan_hash, const char *note, int64_t deadline_ns,
               struct err *e);

// ---- of a rank that is asked (assignment.only) ----
// Waits for the next Ask, while the page shows that this rank lives. Null: it was asked to stop. The
// caller frees the frame. ERR_PEER: the link is lost.
int link_await_ask(struct link *l, struct progress_page *page, struct Weft__Rank__Frame **out,
                   struct err *e);
void link_answer(struct link *l, const struct Weft__Rank__Answer *a);

// ---- training ----
void link_step_report(struct link *l, const struct step_row *row); // never blocks

// ---- checkpoints: what snapshot.h asks to send, and the orders that come back ----
void link_shard_done(struct link *l, const struct shard_report *r); // r->rank is set here
// Rank 0: the writer's answers (snapshot_ops.commit_done and .deleted).
void link_commit_done(struct link *l, int64_t step, int code, const char *text);
void link_deleted(struct link *l, struct store_entry id, int code);

enum link_event_kind {
    LINK_COMMIT,    // to the writer (rank 0): snapshot_order_commit(step, reports)
    LINK_COMMITTED, // the checkpoint of `step` is durable
    LINK_ABORTED,   // this try of `step` was given up; `text` says why; again: try it once more
    LINK_DELETE,    // to the writer (rank 0): delete `id`, which is not among those to be kept
};
struct link_event {
    enum link_event_kind kind;
    int64_t step;
    const char *text;                   // ABORTED
    int tries;                          // ABORTED: which one, as in struct shard_report
    bool again;                         // ABORTED
    const struct shard_report *reports; // COMMIT: of every rank, in rank order
    struct store_entry id;              // DELETE
};
// fn is called on the control thread and must not wait; the event is borrowed for the call. A null fn
// takes it back, and returns only when a running call has ended. An event that comes while there is
// no fn is lost: set it before the first shard is reported.
void link_on_event(struct link *l, void (*fn)(void *ctx, const struct link_event *ev), void *ctx);
