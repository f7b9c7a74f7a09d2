// SPDX-License-Identifier: Apache-2.0
// An agent to be fed: one worker with four devices, what it gets and what it asks for.
#pragma once
#include <signal.h>
#include <string.h>

#include "common/attempt/frame.h"
#include "common/attempt/life.h"
#include "common/base/clock.h"
#include "tests/unit/unit.h"
#include "worker/agent/agent.h"

#define LEASE   (10 * CLOCK_S)
#define BEAT    (2 * CLOCK_S)
#define JOB     "j1"
#define UP(x)   WEFT__V1__UP__BODY_##x
#define BODY(x) WEFT__RANK__FRAME__BODY_##x

struct rig {
    struct agent *g;
    struct arena arena;
    struct agent_out out;
    int64_t now;
};

// ---- feeding ----

static inline void feed(struct rig *r, struct agent_event ev)
{
    arena_clear(&r->arena);
    r->out = (struct agent_out){.arena = &r->arena};
    ev.now_ns = r->now;
    agent_step(r->g, &ev, &r->out);
}

static inline void tick(struct rig *r, int64_t later_ns)
{
    r->now += later_ns;
    feed(r, (struct agent_event){.kind = AGENT_EV_TICK});
}

#define DOWN(r, CASE, Type, type, member, ...)                                  \
    do {                                                                        \
        Weft__V1__##Type body_;                                                 \
        Weft__V1__Down down_;                                                   \
        weft__v1__##type##__init(&body_);                                       \
        weft__v1__down__init(&down_);                                           \
        struct Weft__V1__##Type *m = &body_;                                    \
        (void)m;                                                                \
        __VA_ARGS__;                                                            \
        down_.body_case = WEFT__V1__DOWN__BODY_##CASE;                          \
        down_.member = &body_;                                                  \
        feed((r), (struct agent_event){.kind = AGENT_EV_DOWN, .down = &down_}); \
    } while (0)

static inline char *text(const char *s)
{
    return frame_text(s);
}

static inline void hear_frame(struct rig *r, int rank, Weft__Rank__Frame *f)
{
    DOWN(r, FRAME, RankFrame, rank_frame, frame, m->job = text(JOB), m->attempt = 1, m->rank = rank,
         m->frame = f);
}

static inline void say(struct rig *r, int slot, const Weft__Rank__Frame *f)
{
    feed(r, (struct agent_event){.kind = AGENT_EV_FRAME, .slot = slot, .frame = f});
}

// ---- what came out ----

static inline int count(const struct rig *r, enum agent_action_kind kind)
{
    int n = 0;
    for (int i = 0; i < r->out.n; i++)
        n += r->out.v[i].kind == kind;
    return n;
}

static inline const struct agent_action *the(const struct rig *r, enum agent_action_kind kind)
{
    for (int i = 0; i < r->out.n; i++)
        if (r->out.v[i].kind == kind)
            return &r->out.v[i];
    return NULL;
}

static inline const Weft__V1__Up *said(const struct rig *r, int kind)
{
    for (int i = 0; i < r->out.n; i++)
        if (r->out.v[i].kind == AGENT_SEND && (int)r->out.v[i].up->body_case == kind)
            return r->out.v[i].up;
    return NULL;
}

// A rank's frame of a kind on its way up.
static inline const Weft__Rank__Frame *passed(const struct rig *r, int kind)
{
    for (int i = 0; i < r->out.n; i++)
        if (r->out.v[i].kind == AGENT_SEND && r->out.v[i].up->body_case == UP(FRAME) &&
            (int)r->out.v[i].up->frame->frame->body_case == kind)
            return r->out.v[i].up->frame->frame;
    return NULL;
}

static inline const Weft__Rank__Frame *sent_to(const struct rig *r, int slot, int kind)
{
    for (int i = 0; i < r->out.n; i++)
        if (r->out.v[i].kind == AGENT_FRAME && r->out.v[i].slot == slot &&
            (int)r->out.v[i].frame->body_case == kind)
            return r->out.v[i].frame;
    return NULL;
}

// ---- arranging ----

static inline void challenge(struct rig *r, const char *nonce)
{
    DOWN(r, CHALLENGE, Challenge, challenge, challenge, m->cluster = text("c1"),
         m->nonce = text(nonce));
}

static inline void registered(struct rig *r)
{
    DOWN(r, REGISTERED, Registered, registered, registered, m->cluster = text("c1"),
         m->lease_ms = LEASE / CLOCK_MS, m->heartbeat_ms = BEAT / CLOCK_MS);
}

static inline void attach(struct rig *r)
{
    feed(r, (struct agent_event){.kind = AGENT_EV_OPEN});
    challenge(r, "n");
    registered(r);
}

static inline void lose(struct rig *r)
{
    feed(r, (struct agent_event){.kind = AGENT_EV_CLOSED, .text = "gone"});
}

static inline void start_on(struct rig *r, const char *job, uint64_t attempt,
                            const char *incarnation, int ranks, int first_device)
{
    Weft__V1__RankPlace places[4], *refs[4];
    Weft__Rank__Assign assign;
    weft__rank__assign__init(&assign);
    assign.ranks = ranks;
    assign.data_root = text("/theirs");
    assign.store = text("ckpt/test-j1");
    for (int i = 0; i < ranks; i++) {
        weft__v1__rank_place__init(&places[i]);
        places[i].rank = i;
        places[i].device = first_device + i;
        refs[i] = &places[i];
    }
    DOWN(r, START, Start, start, start, m->job = text(job), m->attempt = attempt,
         m->incarnation = text(incarnation), m->n_ranks = (size_t)ranks, m->ranks = refs,
         m->assign = &assign, m->kind = text("cpu"));
}

static inline void start(struct rig *r, uint64_t attempt, int ranks)
{
    start_on(r, JOB, attempt, "i1", ranks, 0);
}

static inline void spawned(struct rig *r, int slot)
{
    feed(r, (struct agent_event){
                .kind = AGENT_EV_SPAWNED, .slot = slot, .ok = true, .pid = 100 + slot});
}

static inline int set_up(void **state)
{
    static struct rig r;
    Weft__V1__Device cpu, gpu;
    Weft__V1__Device *devices[4] = {&cpu, &cpu, &gpu, &gpu}; // each kind counts from 0
    Weft__V1__Register about;
    weft__v1__device__init(&cpu);
    weft__v1__device__init(&gpu);
    weft__v1__register__init(&about);
    cpu.kind = frame_text("cpu");
    gpu.kind = frame_text("cuda");
    gpu.isa = frame_text("sm_90");
    about.host = frame_text("h1");
    about.name = frame_text("host-a");
    about.data_root = frame_text("/mine");
    about.devices = devices;
    about.n_devices = 4;
    struct agent_config c = {.incarnation = "i1", .about = &about, .grace_ns = 30 * CLOCK_S};
    memset(&r, 0, sizeof r);
    arena_init(&r.arena);
    r.g = agent_new(&c);
    r.now = 1000 * CLOCK_S;
    tick(&r, 0);
    assert_int_equal(count(&r, AGENT_CONNECT), 1);
    *state = &r;
    return 0;
}

static inline int tear_down(void **state)
{
    struct rig *r = *state;
    agent_free(r->g);
    arena_clear(&r->arena);
    return 0;
}

static inline struct rig *running(void **state, int ranks) // attached, with attempt 1
{
    struct rig *r = *state;
    attach(r);
    start(r, 1, ranks);
    for (int i = 0; i < ranks; i++)
        spawned(r, i);
    return r;
}
