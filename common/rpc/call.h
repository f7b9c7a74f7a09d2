// SPDX-License-Identifier: Apache-2.0
// One RPC at either end. It has three sides, each a small machine of its own:
//
//   read    IDLE ── the owner wants a message ──► BUSY ──┬── a message ───────────────────► IDLE
//                                                        └── the last one, or none ───────► OVER
//   write   IDLE ── something waits ────────────► BUSY ──┬── sent ────────────────────────► IDLE
//                                                        └── status, half-close, failure ─► OVER
//   fate    BUSY from the start ──────────────────────────────────────────────────────────► OVER
//
// fate is OVER when the client has its status. At the server it is OVER when the status has left,
// or when the client cancelled, its deadline passed or its connection was lost.
//
// Each side has at most one batch in flight, and its tag is in this struct. When a batch lands, it
// stores what it brought and ticks the call; a request of the owner ticks it too. call_tick() starts
// what may start. Once fate is OVER nothing more is started, and when nothing flies any more it
// emits RPC_CLOSED and frees the call, so nobody touches a call after a tick.
//
// Cancelling takes effect in the core, which then lands all three sides; no state here is skipped.
// Inside common/rpc/ only.
#pragma once
#include "common/rpc/inside.h"
#include "common/rpc/packet.h"

enum side { SIDE_IDLE, SIDE_BUSY, SIDE_OVER };

struct call {
    struct rpc *r;
    uint64_t id; // 0: the owner does not know it (yet)
    const struct rpc_method *method;
    bool server;
    void *home;         // struct rpc_server or rpc_channel
    struct list link;   // in the home's calls
    struct list asking; // server: in the home's, until the request is here
    void (*emit)(struct call *c, enum rpc_event_kind kind, ProtobufCMessage *m);
    void (*gone)(struct call *c); // the home's farewell, before the call is freed

    // What the owner has asked for; under r->lock.
    struct list asked_link; // in r->asked
    struct packet *first, *last;
    size_t bytes; // that wait
    int waiting;  // messages
    bool full;    // ERR_LIMIT was said: RPC_ROOM is owed
    bool more;    // read the next message
    bool finish;  // after what waits: status or half-close; nothing is queued any more
    bool cancel;
    enum rpc_code code; // how it ends: of finish; then of fate
    char text[RPC_TEXT_MAX];

    // Of the rpc thread alone.
    grpc_call *core;           // null: a client's call not opened yet
    int64_t deadline_ns;       // of a client's call
    int64_t since_ns;          // server: when it came
    bool wait_ready, oversize; // oversize: the request did not fit
    struct loop_tag read_tag, write_tag, fate_tag;
    enum side read, write, fate;
    int flying; // batches
    bool got_headers, sent_headers, sends_last, cancelled, replied;
    grpc_byte_buffer *in;
    struct packet *out;
    grpc_slice details; // of the status that leaves or came
    grpc_status_code status;
    const char *debug;
    int lost; // server: it died before its status left
    grpc_metadata_array headers, trailers;
    struct rpc_peer peer; // server
    bool watching, known; // health: hears of changes; asked about a service of ours
};

struct call *call_new(struct rpc *r, const struct rpc_method *m);
void call_begin(struct call *c, grpc_call *core); // takes core; waits for fate. Then tick
void call_tick(struct call *c);
// Ends it from this side, on the rpc thread, without what waits: the server's status, or a client's
// own verdict. The caller ticks.
void call_fail(struct call *c, enum rpc_code code, const char *text);

// The caller holds the lock.
int call_put(struct call *c, struct packet *p, struct err *e); // takes p
void call_end(struct call *c, enum rpc_code code, const char *text);
// On the rpc thread, without it: a message of the rpc thread's own.
void call_send(struct call *c, const ProtobufCMessage *m);
void call_finish(struct call *c, enum rpc_code code, const char *text);
