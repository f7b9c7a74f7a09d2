// SPDX-License-Identifier: Apache-2.0
// The agent: what a worker decides. It does no I/O and has no clock and no threads. The worker's
// daemon, and in tests the simulator, feed it events and carry out its actions in order.
//
//             OPEN              Challenge                Registered
//   AWAY ───────────► GREETING ───────────► REGISTERING ────────────► ATTACHED
//    ▲                   │                       │                       │
//    │  CLOSED           │                       │                       │
//    ├───────────────────┴───────────────────────┴───────────────────────┤
//    │  CLOSED                            silence of a lease             │
//    ├──────────────── CLOSING ◄─────────────────────────────────────────┤
//    │  CLEARED: a new incarnation                Fenced                 │
//    └──────────────── FENCED ◄──────────────────────────────────────────┘
//                      kills its ranks and proves by ranks.lock that none lives
//
// DONE is reached from every state: when it was asked to stop and nothing is left to do, or when
// another worker with this host's id, a twin, has fenced it.
//
// Attempts live on through AWAY and every reconnect: their ranks keep stepping. What the ranks
// asked, put and were answered, and how they ended, is remembered while their attempt lives and is
// brought with every Register.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/attempt/life.h"
#include "common/attempt/page.h"
#include "common/base/arena.h"
#include "common/base/err.h"
#include "proto/weft.pb-c.h"

struct agent;

struct agent_config {
    unsigned char seed[32];
    const char *incarnation; // new at every start
    const char *cluster;     // durable once known; null: none yet
    // What this host is: its id (32 hex digits, durable), name, devices and the like. The agent adds
    // nonce, cluster, incarnation, draining and attempts when it registers.
    const Weft__V1__Register *about;
    int64_t grace_ns; // for SIGTERM's drain
};
struct agent *agent_new(const struct agent_config *c);
void agent_free(struct agent *a);

enum agent_event_kind {
    AGENT_EV_OPEN,    // the stream to the coordinator is open
    AGENT_EV_CLOSED,  // it has ended, or could not be opened: text
    AGENT_EV_DOWN,    // down
    AGENT_EV_SPAWNED, // slot, pid; or ok false and text
    AGENT_EV_FRAME,   // slot: a rank's frame
    AGENT_EV_ENDED,   // slot's process was reaped: code, signal, log
    AGENT_EV_PAGE,    // slot: its page, when it changed
    AGENT_EV_STORAGE, // storage: done
    AGENT_EV_CLEARED, // ranks.lock proves that no rank lives; incarnation: the new one
    AGENT_EV_LOG,     // chunk: lines that were asked for
    AGENT_EV_TERM,    // asked to stop: drain within the grace, then exit. A second one: at once
    AGENT_EV_ROOM,    // room: of this host's file systems
    AGENT_EV_TICK,
    AGENT_EVENTS
};
// How the worker's process ends. 70 is worth another start, 76 and 78 are not.
enum worker_exit {
    WORKER_EXIT_ASKED = 0,
    WORKER_EXIT_INTERNAL = 70,
    WORKER_EXIT_FENCED = 76,
    WORKER_EXIT_CONFIG = 78,
};

enum agent_room_of { AGENT_ROOM_STATE, AGENT_ROOM_CHECKPOINTS, AGENT_ROOMS };
struct agent_room { // bytes of the file system of each; size 0: not known
    int64_t free[AGENT_ROOMS], size[AGENT_ROOMS];
};
struct agent_event {
    enum agent_event_kind kind;
    int64_t now_ns;
    int slot; // of a rank's process: given by AGENT_SPAWN, used again after AGENT_EV_ENDED
    bool ok;
    int pid, code, signal;
    const char *text, *log, *incarnation;
    const Weft__V1__Down *down;
    const Weft__Rank__Frame *frame;
    const struct page_view *page;
    const Weft__V1__StorageDone *storage;
    const Weft__V1__LogChunk *chunk;
    struct agent_room room;
};

enum agent_action_kind {
    AGENT_CONNECT,    // open the stream (after wait_ns)
    AGENT_DISCONNECT, // close it, because of `text`; AGENT_EV_CLOSED comes
    AGENT_SEND,       // up
    AGENT_SPAWN,      // slot: a rank by `spawn`
    AGENT_FRAME,      // slot: frame down
    AGENT_KILL,       // slot: signal
    AGENT_STORAGE,    // storage: a durable act, answered by AGENT_EV_STORAGE
    AGENT_LOGS,       // log: tail, answered by AGENT_EV_LOG
    AGENT_CLEAR,      // kill what lives, take ranks.lock alone, make a new incarnation
    AGENT_REMEMBER,   // cluster: durable, before the next action
    AGENT_FORGET,     // job, attempt: its run directory may go
    AGENT_EXIT,       // with `code`, because of `text`, after what was sent has left
};
struct agent_spawn {
    const char *job;
    uint64_t attempt;
    int rank, device;
    const char *kind;
    const Weft__Rank__Assign *assign; // whole, rank filled in; sent to the rank after its Hello
};
struct agent_action {
    enum agent_action_kind kind;
    int64_t wait_ns;
    int slot, signal, code;
    const Weft__V1__Up *up;
    const Weft__Rank__Frame *frame;
    const struct agent_spawn *spawn;
    const Weft__V1__Storage *storage;
    const Weft__V1__LogAsk *log;
    const char *cluster, *job, *text;
    uint64_t attempt;
};
struct agent_out { // all memory is the arena's
    struct arena *arena;
    int n, cap;
    struct agent_action *v;
};
// The first event is AGENT_EV_TICK: it answers with AGENT_CONNECT.
void agent_step(struct agent *g, const struct agent_event *ev, struct agent_out *out);
int64_t agent_due(const struct agent *g); // when the next TICK does something; 0: nothing
int agent_living(const struct agent *g);  // processes not reaped
