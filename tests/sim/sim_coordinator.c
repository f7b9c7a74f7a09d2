// SPDX-License-Identifier: Apache-2.0
// The coordinator's main loop around the real decider: a turn takes what has come in, commits what
// that wrote in one transaction, and only then sends. It may die between any two of these.
#include <stdio.h>
#include <string.h>

#include "common/base/err.h"
#include "tests/sim/mutate.h"
#include "tests/sim/sim_check.h"
#include "tests/sim/sim_world.h"
#include "tests/support/text_facts.h"

struct sim_coordinator_input {
    struct sim_coordinator_input *next;
    enum coord_event_kind kind;
    uint64_t conn;
    const uint8_t *data;
    size_t len;
    struct call *call;
};
struct turn { // one batch on its way
    struct world *w;
    struct arena arena;
    struct coord_out out;
};

static void begin_turn(void *arg, uint64_t life);

static void soon(struct sim_coordinator *b)
{
    if (b->turning)
        return;
    b->turning = true;
    proc_after(b->proc, sim_between(&b->w->sim, 5000, 200000), begin_turn, b, b->life);
}

static void push(struct sim_coordinator *b, struct sim_coordinator_input in)
{
    struct sim_coordinator_input *i = arena_dup(&b->w->sim.arena, &in, sizeof in);
    if (b->first)
        b->last->next = i;
    else
        b->first = i;
    b->last = i;
    soon(b);
}

void sim_coordinator_hear(struct world *w, enum coord_event_kind kind, uint64_t conn,
                          const uint8_t *data, size_t len)
{
    if (w->coordinator.proc)
        push(&w->coordinator,
             (struct sim_coordinator_input){.kind = kind, .conn = conn, .data = data, .len = len});
}

void sim_coordinator_call(struct world *w, struct call *c)
{
    if (w->coordinator.proc)
        push(&w->coordinator, (struct sim_coordinator_input){
                                  .kind = c->submit ? COORD_EV_SUBMIT : COORD_EV_ACT, .call = c});
}

// ---- one event ----
static void take_up(struct sim_coordinator *b, const struct sim_coordinator_input *in,
                    struct coord_event *ev, struct coord_out *out)
{
    Weft__V1__Up *up = weft__v1__up__unpack(NULL, in->len, in->data);
    PRE(up);
    if (b->w->sim.tracing)
        trace_up(b->w, in->conn, up);
    ev->up = up;
    coord_step(b->coord, ev, out);
    weft__v1__up__free_unpacked(up, NULL);
}

static void take_call(struct sim_coordinator *b, struct call *c, struct coord_event *ev,
                      struct coord_out *out)
{
    Weft__V1__SubmitRequest s;
    Weft__V1__ActRequest a;
    ev->call = c->id;
    ev->who = "sim";
    ev->role = "admin";
    weft__v1__submit_request__init(&s);
    weft__v1__act_request__init(&a);
    s.request_id = a.request_id = c->request;
    if (c->submit) {
        s.resolved = c->variant->resolved;
        ev->submit = &s;
        PRE(add_facts(out->arena, ev, NULL));
    } else {
        a.verb = c->verb;
        a.target = c->target;
        ev->act = &a;
    }
    coord_step(b->coord, ev, out);
}

static void take(struct sim_coordinator *b, const struct sim_coordinator_input *in,
                 struct coord_out *out)
{
    struct sim *s = &b->w->sim;
    struct coord_event ev = {.kind = in->kind,
                             .now_ns = s->now,
                             .wall_ms = s->wall0_ms + (s->now - 1000 * S) / MS,
                             .conn = in->conn};
    if (in->kind == COORD_EV_UP)
        take_up(b, in, &ev, out);
    else if (in->call)
        take_call(b, in->call, &ev, out);
    else
        coord_step(b->coord, &ev, out);
}

// ---- what it decided ----
static struct call *call_of(struct world *w, uint64_t id)
{
    struct call *c = w->calls;
    while (c && c->id != id)
        c = c->next;
    return c;
}

static void reply(struct world *w, const struct coord_action *a)
{
    struct call *c = call_of(w, a->call);
    uint8_t data[4096];
    if (!c)
        return;
    if (a->kind == COORD_REFUSE) {
        client_refused(c, a->code, a->text);
        return;
    }
    size_t n = protobuf_c_message_get_packed_size(a->reply);
    PRE(n <= sizeof data);
    protobuf_c_message_pack(a->reply, data);
    client_answered(c, data, n);
}

static void carry_out(struct world *w, const struct coord_out *out)
{
    for (int i = 0; i < out->nactions; i++) {
        const struct coord_action *a = &out->actions[i];
        switch (a->kind) {
        case COORD_SEND:
            check_down(w, a->conn, a->down);
            net_down(w, a->conn, a->down);
            break;
        case COORD_DROP:
            TRACE(&w->sim, "coordinator", "drops stream %d: %s", (int)a->conn, a->text);
            net_coordinator_drops(w, a->conn);
            break;
        case COORD_REPLY:
        case COORD_REFUSE:
            reply(w, a);
            break;
        case COORD_POST:
        case COORD_PUBLISH:
            break;
        }
    }
}

// ---- turns ----
static void arm(struct sim_coordinator *b);

static void end_turn(struct turn *t)
{
    arena_clear(&t->arena);
}

static void second(void *arg, uint64_t life)
{
    struct turn *t = arg;
    struct sim_coordinator *b = &t->w->coordinator;
    (void)life;
    if (MUTATED(reply_after_commit))
        dbase_commit(t->w->db, t->out.rows, t->out.nrows);
    else
        carry_out(t->w, &t->out);
    end_turn(t);
    b->turn = NULL;
    b->turning = false;
    if (b->first)
        soon(b);
    arm(b);
}

static void first(void *arg, uint64_t life)
{
    struct turn *t = arg;
    struct sim_coordinator *b = &t->w->coordinator;
    struct sim *s = &t->w->sim;
    if (MUTATED(reply_after_commit))
        carry_out(t->w, &t->out);
    else
        dbase_commit(t->w->db, t->out.rows, t->out.nrows);
    if (t->out.nrows)
        world_moment(t->w, MOMENT_SEND, NULL);
    if (b->proc)
        proc_after(b->proc, t->out.nrows ? sim_between(s, 1000, 300000) : 0, second, t, life);
}

static void run_turn(struct sim_coordinator *b, struct turn *t)
{
    struct sim *s = &b->w->sim;
    b->turn = t;
    b->turning = true;
    if (t->out.nrows)
        world_moment(b->w, MOMENT_COMMIT, NULL);
    proc_after(b->proc, t->out.nrows ? sim_between(s, 100000, 3 * MS) : 0, first, t, b->life);
}

static struct turn *new_turn(struct sim_coordinator *b)
{
    struct turn *t = arena_new(&b->w->sim.arena, struct turn);
    arena_init(&t->arena);
    t->w = b->w;
    t->out.arena = &t->arena;
    return t;
}

static void begin_turn(void *arg, uint64_t life)
{
    struct sim_coordinator *b = arg;
    struct sim *s = &b->w->sim;
    (void)life;
    struct turn *t = new_turn(b);
    int most = 1 + sim_below(s, 16);
    for (int i = 0; i < most && b->first; i++) {
        struct sim_coordinator_input *in = b->first;
        b->first = in->next;
        take(b, in, &t->out);
    }
    int64_t due = coord_due(b->coord);
    if (due && due <= s->now)
        take(b, &(struct sim_coordinator_input){.kind = COORD_EV_TICK}, &t->out);
    run_turn(b, t);
}

static void ticks(void *arg, uint64_t due)
{
    struct sim_coordinator *b = arg;
    if (b->timer != (int64_t)due)
        return;
    b->timer = 0;
    soon(b);
}

static void arm(struct sim_coordinator *b)
{
    int64_t now = b->w->sim.now, due = coord_due(b->coord);
    if (!due)
        return;
    due = due > now ? due : now + MS;
    if (b->timer && b->timer <= due)
        return;
    b->timer = due;
    proc_after(b->proc, due - now, ticks, b, (uint64_t)due);
}

// ---- life ----
void sim_coordinator_start(struct world *w)
{
    struct sim_coordinator *b = &w->coordinator;
    struct sim *s = &w->sim;
    struct coord_config c = {
        .cluster = *b->cluster ? b->cluster : NULL, .lease_ns = w->lease, .restored = b->restored};
    for (size_t i = 0; i < sizeof c.seed; i += 4) {
        uint32_t word = sim_word(s);
        memcpy(c.seed + i, &word, 4);
    }
    TRACE(s, "coordinator", "begins");
    b->w = w;
    b->restored = false;
    b->life++;
    b->proc = arena_new(&s->arena, struct proc);
    proc_init(b->proc, s, "coordinator");
    b->first = b->last = NULL;
    b->timer = 0;
    b->coord = coord_new(&c);
    dbase_load(w->db, b->coord);
    struct turn *t = new_turn(b);
    coord_started(b->coord, s->now, s->wall0_ms + (s->now - 1000 * S) / MS, &t->out);
    snprintf(b->cluster, sizeof b->cluster, "%s", coord_cluster(b->coord));
    run_turn(b, t);
}

void sim_coordinator_die(struct world *w)
{
    struct sim_coordinator *b = &w->coordinator;
    if (!b->proc)
        return;
    TRACE(&w->sim, "coordinator", "dies");
    proc_die(b->proc);
    b->proc = NULL;
    if (b->turn)
        end_turn(b->turn);
    b->turn = NULL;
    b->turning = false;
    coord_free(b->coord);
    b->coord = NULL;
    net_coordinator_died(w);
}
