// SPDX-License-Identifier: Apache-2.0
// A server and a client of common/rpc in one process, both owned by the test's thread, and three
// methods, one of each shape, over messages of weft.proto.
#pragma once
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/rpc/rpc.h"
#include "proto/weft.pb-c.h"
#include "tests/unit/unit.h"

#define PATIENCE (60 * CLOCK_S) // a watchdog: nothing here takes long

enum { ACT, LOGS, ATTACH, NMETHODS };
static const struct rpc_method methods[NMETHODS] = {
    {"/weft.v1.Weft/Act", RPC_UNARY, &weft__v1__act_request__descriptor,
     &weft__v1__act_reply__descriptor, RPC_CLIENT | RPC_ADMIN, 0, 0},
    {"/weft.v1.Weft/Logs", RPC_SERVER_STREAM, &weft__v1__logs_request__descriptor,
     &weft__v1__log_lines__descriptor, RPC_CLIENT, 0, 0},
    {"/weft.v1.Hosts/Attach", RPC_BIDI, &weft__v1__up__descriptor, &weft__v1__down__descriptor,
     RPC_WORKER, 0, 0},
};

struct pair {
    struct rpc *server_rpc, *client_rpc;
    struct rpc_server *server;
    struct rpc_channel *channel;
    char bound[200];
    struct rpc_server_options serve;
    struct rpc_channel_options dial;
};

static inline void must(int rc, const struct err *e)
{
    if (rc)
        fail_msg("%s", e->text);
}

static inline void pair_serve(struct pair *p)
{
    struct err e = {0};
    must(rpc_open(&p->server_rpc, &e), &e);
    p->serve.methods = methods;
    p->serve.nmethods = NMETHODS;
    must(rpc_serve(p->server_rpc, &p->serve, &p->server, p->bound, sizeof p->bound, &e), &e);
    p->serve.address = p->bound; // the next one takes its place
}

static inline void pair_dial(struct pair *p)
{
    struct err e = {0};
    must(rpc_open(&p->client_rpc, &e), &e);
    p->dial.address = p->bound;
    must(rpc_dial(p->client_rpc, &p->dial, &p->channel, &e), &e);
}

static inline void pair_open(struct pair *p, const char *address)
{
    p->serve.address = address;
    pair_serve(p);
    pair_dial(p);
}

static inline void pair_close(struct pair *p)
{
    rpc_close(p->client_rpc);
    rpc_close(p->server_rpc);
}

// The next event, whatever it is; clear it.
static inline struct rpc_event next_event(struct rpc *r)
{
    struct rpc_event ev;
    int64_t end = clock_mono_ns() + PATIENCE;
    while (!rpc_next(r, &ev)) {
        if (clock_mono_ns() > end)
            fail_msg("no event came");
        rpc_wait(r, CLOCK_S);
    }
    return ev;
}

static inline const char *kind_name(enum rpc_event_kind k)
{
    static const char *const names[] = {"call", "message", "end", "room", "closed"};
    return names[k];
}

static inline struct rpc_event expect_event(struct rpc *r, enum rpc_event_kind kind)
{
    struct rpc_event ev = next_event(r);
    if (ev.kind != kind)
        fail_msg("got %s (code %d, '%s') in place of %s", kind_name(ev.kind), ev.code, ev.text,
                 kind_name(kind));
    return ev;
}

// Takes the next event, which must be of this kind, and gives its call.
static inline uint64_t pass_event(struct rpc *r, enum rpc_event_kind kind)
{
    struct rpc_event ev = expect_event(r, kind);
    uint64_t call = ev.call;
    rpc_event_clear(&ev);
    return call;
}

static inline void expect_closed(struct rpc *r, enum rpc_code code)
{
    struct rpc_event ev = expect_event(r, RPC_CLOSED);
    if (ev.code != code)
        fail_msg("closed with %d ('%s') in place of %d", ev.code, ev.text, code);
    rpc_event_clear(&ev);
}

// Skips what a stream still brings; the code it closes with.
static inline enum rpc_code skip_to_closed(struct rpc *r)
{
    for (;;) {
        struct rpc_event ev = next_event(r);
        enum rpc_event_kind kind = ev.kind;
        enum rpc_code code = ev.code;
        rpc_event_clear(&ev);
        if (kind == RPC_CLOSED)
            return code;
    }
}

static inline uint64_t call_act(struct pair *p, const char *target)
{
    Weft__V1__ActRequest m;
    weft__v1__act_request__init(&m);
    m.target = (char *)(uintptr_t)target;
    return rpc_call(p->channel, &methods[ACT], &m.base, PATIENCE, false, p);
}

// Answers the one call that waits at the server with what it asked.
static inline void serve_act(struct pair *p)
{
    Weft__V1__ActReply reply;
    weft__v1__act_reply__init(&reply);
    struct rpc_event ev = expect_event(p->server_rpc, RPC_CALL);
    assert_ptr_equal(ev.method, &methods[ACT]);
    reply.target = ((Weft__V1__ActRequest *)(void *)ev.message)->target;
    rpc_reply(p->server_rpc, ev.call, &reply.base);
    rpc_event_clear(&ev);
    expect_closed(p->server_rpc, RPC_OK);
}

static inline void expect_reply(struct pair *p, const char *target)
{
    struct rpc_event ev = expect_event(p->client_rpc, RPC_MESSAGE);
    assert_string_equal(((Weft__V1__ActReply *)(void *)ev.message)->target, target);
    assert_ptr_equal(ev.user, p);
    rpc_event_clear(&ev);
    expect_closed(p->client_rpc, RPC_OK);
}

static inline int send_down(struct pair *p, uint64_t call, uint64_t seq)
{
    Weft__V1__HeartbeatAck ack;
    weft__v1__heartbeat_ack__init(&ack);
    Weft__V1__Down down;
    weft__v1__down__init(&down);
    ack.seq = seq;
    down.body_case = WEFT__V1__DOWN__BODY_ACK;
    down.ack = &ack;
    return rpc_send(p->server_rpc, call, &down.base, NULL);
}

static inline int send_up(struct pair *p, uint64_t call, uint64_t seq)
{
    Weft__V1__Heartbeat beat;
    weft__v1__heartbeat__init(&beat);
    Weft__V1__Up up;
    weft__v1__up__init(&up);
    beat.seq = seq;
    up.body_case = WEFT__V1__UP__BODY_HEARTBEAT;
    up.heartbeat = &beat;
    return rpc_send(p->client_rpc, call, &up.base, NULL);
}

static inline uint64_t seq_up(const struct rpc_event *ev)
{
    const Weft__V1__Up *up = (const void *)ev->message;
    assert_int_equal(up->body_case, WEFT__V1__UP__BODY_HEARTBEAT);
    return up->heartbeat->seq;
}

static inline uint64_t seq_down(const struct rpc_event *ev)
{
    const Weft__V1__Down *down = (const void *)ev->message;
    assert_int_equal(down->body_case, WEFT__V1__DOWN__BODY_ACK);
    return down->ack->seq;
}

static inline uint64_t call_attach(struct pair *p, bool wait_ready)
{
    return rpc_call(p->channel, &methods[ATTACH], NULL, 0, wait_ready, NULL);
}
