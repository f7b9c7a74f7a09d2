// SPDX-License-Identifier: Apache-2.0
// The leader of a running attempt. The coordinator runs one for each attempt. It is a decider: no I/O,
// no clock, no threads. What happens comes in as events, what is to be done goes out as actions
// (leader_out.h).
//
//     ranks' frames ──┐                     ┌──► frames to ranks
//     progress pages ─┤                     ├──► records of checkpoints
//     ends of ranks ──┼──► leader_step() ───┼──► all are ready
//     time ───────────┤   board·watch·saves ├──► committed, aborted
//     the owner's will┘                     └──► the culprit
//
// Board, watch and saves know nothing of each other. The leader gives each what concerns it, keeps
// what is known of every rank, and finds out whose fault it is when one of them ends.
//
//                 all are ready, the plans agree
//      JOINING ─────────────────────────────► RUNNING
//         │                                      │
//         ├────────── event STOPPING ────────────┼────► STOPPING
//         │                                      │          │
//         └──────────── event OVER ──────────────┴──────────┴────► OVER
//
//   JOINING    ranks join, put keys, wait at barriers and say which plan they have
//   RUNNING    they train; who stands still, dies or gives up is named
//   STOPPING   they were asked to stop or have no step left: only who fails of its own is named. If
//              they had not all been ready before, none begins
//   OVER       the owner ends it: no checkpoint begins any more, nobody is named, an order to
//              commit that is under way still counts when its answer comes
//
// The first culprit is the only one: naming it changes no state, the owner answers with OVER.
//
// Blame. A rank that ends with a code of its own, by a signal or without a word is the culprit at
// once. One that ends because somebody else did (69) has lost a peer: the leader waits a moment for
// the cause. Only if none comes, or no rank is left, it names that one, and with it the rank that
// it did not reach at its address, if that one lives.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/attempt/leader_out.h"
#include "common/attempt/page.h"
#include "common/ckpt/commit.h"

enum leader_state { LEADER_JOINING, LEADER_RUNNING, LEADER_STOPPING, LEADER_OVER };

enum {
    LEADER_BLAME_MS = 1500, // how long an exit with 69 waits for its cause
    LEADER_STILL_S = 600,   // a page may stand still while starting or saving; a shard may be late
    LEADER_TICK_MS = 200,   // the owner's promise: a TICK at least so often
};

struct leader_config {
    int ranks;
    int64_t steps; // of the job: no rank can have done more; 0: not known
    int64_t hang_after_ns;
    int64_t join_ns; // until every rank has joined
    int keep;        // checkpoints, as in struct commit_config
    int64_t keep_every;
    bool keep_best;
    int64_t patience_ns;
};

// What a leader kept durably, given to the one that continues after a restart.
struct leader_memory {
    int64_t attempt;
    const struct commit_record *records; // in any order
    int nrecords;
    enum leader_state state;
};

enum leader_event_kind {
    LEADER_EV_FENCED, // attempt, scan: a new attempt begins, and this is what its fence listed
    LEADER_EV_BAD,    // id: that checkpoint was found damaged
    LEADER_EV_SCORE,  // id, loss: what an evaluation at its step said, by its manifest
    LEADER_EV_FRAME, // rank, frame: it said this; see leader_hears. From the first on it has joined
    LEADER_EV_PAGE,  // rank, page: its progress page, as last read
    LEADER_EV_ENDED, // rank, code, signal, step, text (why), log
    LEADER_EV_GONE,  // rank: its process is gone, for a reason that is known already
    LEADER_EV_RECALL,   // frame: an answer, or a put, from before this leader had forgotten all
    LEADER_EV_STOPPING, // the owner has asked the ranks to stop, or they have no step left
    LEADER_EV_OVER,     // the owner ends the attempt
    LEADER_EV_TICK,     // time passed; cut_off: some rank cannot be heard at all for now
    LEADER_EVENTS
};
struct leader_event {
    enum leader_event_kind kind;
    int64_t now_ns;
    int rank;
    const Weft__Rank__Frame *frame; // borrowed, as everything here
    const struct page_view *page;
    bool cut_off;
    int code, signal;
    int unreached; // ENDED: 1 + the rank that it did not find at the address that one published
    int64_t step;  // ENDED: where it was; −1 or 0: not known
    const char *text, *log;
    int64_t attempt;
    const struct store_entry *scan; // in any order
    int nscan;
    struct store_entry id;
    double loss;
};

struct leader;
struct leader *leader_new(const struct leader_config *c, int64_t now_ns);
void leader_free(struct leader *l); // null is fine
// Before the first event, of a leader that continues after a restart of its process: what was asked
// and answered comes in again as RECALL and FRAME.
void leader_restore(struct leader *l, const struct leader_memory *m, int64_t now_ns);
// Where a rank is, for people: "host b device 1". Empty until then.
void leader_place(struct leader *l, int rank, const char *place);
void leader_step(struct leader *l, const struct leader_event *ev, struct leader_out *out);

// ---- views: they change nothing ----
bool leader_hears(const Weft__Rank__Frame *f); // of a kind that a rank says to its leader
struct leader_rank {
    char place[200];
    bool joined;
    bool seen; // its page is known
    bool ended;
    int unreached; // of the event ENDED
    char why[400];
    struct page_view view;
};
const struct leader_rank *leader_rank(const struct leader *l, int rank);
int leader_joined(const struct leader *l);         // how many ranks have
int leader_ready(const struct leader *l);          // how many have said which plan they have
int leader_alive(const struct leader *l);          // how many have not ended, joined or not
int64_t leader_shown_step(const struct leader *l); // the greatest of ranks that train; −1
const struct commit *leader_commit(const struct leader *l);
