// SPDX-License-Identifier: Apache-2.0
// The link: a rank's connection to whoever leads the attempt (in solo mode the lead thread of rank
// 0, later the worker daemon), over one stream descriptor, whatever it came from.
//
// A control thread owns the descriptor; it also owns SIGTERM and SIGINT (blocked everywhere else),
// which ask for a stop like a Stop frame does. Every call below may come from any thread. Calls
// that wait do so on the answer, never on the socket: frames are queued within bounds, and the
// newest step report replaces one not sent yet.
//
// When the leader goes away, or says that the attempt has lost a rank, the link is *lost* for good:
// link_lost() says why, on_lost is called once (on the control thread: call world_abort there, so
// that a blocked collective ends), and every waiting call returns ERR_PEER with that text.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "worker/rank/metrics.h"
#include "worker/rank/rank.h"

struct link;
struct page_view;
struct progress_page;

struct link_options {
    int fd;                           // takes; a connected stream socket
    const char *host;                 // of this rank, for the leader's messages
    const struct progress_page *page; // borrowed; sent along a few times a second. May be null
    int64_t silence_ns;               // a leader that says nothing for so long is lost; 0: never
};
// Blocks SIGTERM and SIGINT in the calling thread (call it before other threads start).
int link_open(const struct link_options *o, struct link **out, struct err *e);
void link_set_page(struct link *l, const struct progress_page *page); // must outlive the link
// Waits for Assign and fills the attempt's part of it; strings go to a->arena, job stays null.
int link_assign(struct link *l, struct attempt *a, int64_t deadline_ns, struct err *e);
// Sends Exit(code, why) and waits a moment for it to leave; then closes. Null is fine.
void link_close(struct link *l, int code, const char *why);

// ---- the end ----
// Null, or the text that names who was lost (valid until link_close).
const char *link_lost(const struct link *l);
// Waits up to wait_ns for the leader's word on what happened: a collective that failed says only
// that a peer is gone, the leader knows who and where. Null when none came.
const char *link_lost_wait(struct link *l, int64_t wait_ns);
// fn is called at once if the link is lost already; null fn takes it back (and returns only when a
// running call has ended).
void link_on_lost(struct link *l, void (*fn)(void *ctx, const char *why), void *ctx);
// True from the first SIGTERM, SIGINT or Stop frame on; raise CONTROL_STOP then. Costs one load.
bool link_stop_requested(const struct link *l);

// ---- bootstrap; deadlines are clock_mono_ns() times ----
int link_kv_put(struct link *l, const char *key, const char *value, struct err *e);
int link_kv_get(struct link *l, const char *key, char *value, size_t size, int64_t deadline_ns,
                struct err *e);
// The same in the shape of world_options.put and .get; ctx is the link.
int link_world_put(void *ctx, const char *key, const char *value, struct err *e);
int link_world_get(void *ctx, const char *key, char *value, size_t size, int64_t deadline_ns,
                   struct err *e);
// All ranks of the attempt; (name, seq) is one barrier. ERR_TIMEOUT names the missing ranks.
int link_barrier(struct link *l, const char *name, int64_t seq, int64_t deadline_ns, struct err *e);
// Says Ready with the hash of the plan of all stages and waits until every rank has said the same;
// ERR_INVALID names the ranks whose plans differ.
int link_ready(struct link *l, const char *plan_hash, int64_t deadline_ns, struct err *e);

// ---- training ----
void link_step_report(struct link *l, const struct step_row *row); // never blocks
void link_log(struct link *l, int level, const char *text);        // never blocks; may be dropped

// ---- checkpoints ----
// This rank's shard of a save: durable when `failed` is null. `record` is what the writer needs for
// the manifest (the shard's own JSON, from ckpt), opaque here.
struct link_shard {
    int rank; // filled on the way up
    int64_t step;
    const char *file; // "shard-00000-of-00002.safetensors"
    uint64_t bytes;
    const char *record;
    const char *failed; // null, or why it could not be written
};
void link_shard_done(struct link *l, const struct link_shard *s);
// The writer's answer to a Commit; failed null: done. Its first answer for a step is final.
void link_commit_done(struct link *l, int64_t step, const char *failed);

enum link_event_kind {
    LINK_COMMIT,    // to the writer (rank 0): seal this checkpoint, then link_commit_done
    LINK_COMMITTED, // acknowledged: `step` is durable
    LINK_ABORTED,   // `step` will not be; `text` says why. Rank 0 removes the directory
    LINK_RETIRE,    // to the writer: retention lets folder `text` go
};
struct link_event {
    enum link_event_kind kind;
    int64_t step;
    char *text;  // ABORTED, RETIRE
    int nshards; // COMMIT: of every rank, in rank order
    struct link_shard *shards;
};
// The next event of this attempt, in order; one thread reads them. ERR_TIMEOUT, ERR_ABORTED after
// link_wake, ERR_PEER when lost (events that came before are handed out first).
int link_next(struct link *l, struct link_event *out, int64_t deadline_ns, struct err *e);
void link_event_clear(struct link_event *ev);
void link_wake(struct link *l); // makes link_next return ERR_ABORTED from now on
