// SPDX-License-Identifier: Apache-2.0
// What an agent tells its coordinator. Messages are built in the arena of the actions; what they
// borrow from the agent's own memory is copied there, since actions outlive the step.
#include <string.h>

#include "common/attempt/frame.h"
#include "common/base/protocol_rule.h"
#include "worker/agent_in.h"

#define UP(name, CASE, member, ptr)                           \
    Weft__V1__Up *name = arena_new(out->arena, Weft__V1__Up); \
    weft__v1__up__init(name);                                 \
    name->body_case = WEFT__V1__UP__BODY_##CASE;              \
    name->member = (ptr)
#define NEW(name, Type, type)                                 \
    Weft__##Type *name = arena_new(out->arena, Weft__##Type); \
    weft__##type##__init(name)

static void send_up(struct agent_out *out, Weft__V1__Up *up)
{
    agent_act(out, AGENT_SEND)->up = up;
}

static char *text(struct agent_out *out, const char *s)
{
    return arena_strdup(out->arena, s ? s : "");
}

static bool attached(const struct agent *g)
{
    return g->state == AGENT_ATTACHED;
}

// ---- registering ----

void say_hello(struct agent *g, struct agent_out *out)
{
    NEW(m, V1__Hello, v1__hello);
    m->host = text(out, g->c.host);
    m->incarnation = text(out, g->incarnation);
    m->cluster = text(out, g->cluster);
    UP(up, HELLO, hello, m);
    send_up(out, up);
}

static void fill_devices(const struct agent *g, Weft__V1__Register *m, struct agent_out *out)
{
    m->devices = arena_array(out->arena, Weft__V1__Device *, g->c.ndevices + 1);
    for (int i = 0; i < g->c.ndevices; i++) {
        NEW(d, V1__Device, v1__device);
        d->index = i;
        d->kind = text(out, g->c.devices[i].kind);
        d->model = text(out, g->c.devices[i].model);
        d->memory = g->c.devices[i].memory;
        d->isa = text(out, g->c.devices[i].isa);
        d->driver = text(out, g->c.devices[i].driver);
        d->pci = text(out, g->c.devices[i].pci);
        d->uuid = text(out, g->c.devices[i].uuid);
        d->peers = text(out, g->c.devices[i].peers);
        m->devices[m->n_devices++] = d;
    }
}

static Weft__Rank__Progress *progress_of(const struct agent *g, const struct kept_rank *r,
                                         struct agent_out *out)
{
    NEW(p, Rank__Progress, rank__progress);
    p->rank = r->rank;
    p->step = r->view.step;
    p->phase = r->view.phase;
    p->microbatch = r->view.microbatch;
    p->state = r->view.state;
    p->ops = r->view.ops;
    p->coll_entered = r->view.coll_entered;
    p->coll_left = r->view.coll_left;
    p->awaits = r->view.awaits;
    p->awaits_entered = r->view.awaits_entered;
    p->coll_text = text(out, r->view.coll_text);
    p->host = text(out, g->c.name);
    p->heartbeat_ns = r->view.heartbeat_ns;
    return p;
}

static Weft__V1__RankEnd *end_of(const struct kept_rank *r, struct agent_out *out)
{
    return (Weft__V1__RankEnd *)(void *)message_dup(out->arena, &r->end->base);
}

static Weft__V1__RankHere *rank_here(const struct agent *g, const struct kept_rank *r,
                                     struct agent_out *out)
{
    NEW(h, V1__RankHere, v1__rank_here);
    h->rank = r->rank;
    h->device = r->device;
    h->pid = r->pid;
    if ((h->ended = r->end != NULL))
        h->end = end_of(r, out);
    if (r->seen)
        h->progress = progress_of(g, r, out);
    return h;
}

static int length(const struct list *l)
{
    int n = 0;
    for (const struct list *it = l->next; it != l; it = it->next)
        n++;
    return n;
}

static Weft__V1__RankFrame *rank_frame(const struct kept *k, int rank, const Weft__Rank__Frame *f,
                                       struct agent_out *out)
{
    NEW(m, V1__RankFrame, v1__rank_frame);
    m->job = text(out, k->job);
    m->epoch = k->epoch;
    m->rank = rank;
    m->frame = frame_dup(out->arena, f);
    return m;
}

static bool is_brought(const Weft__Rank__Frame *f)
{
    return (WEFT_RULE(shard_repeated) || f->body_case != WEFT__RANK__FRAME__BODY_SHARD_DONE) &&
           (WEFT_RULE(barrier_brought) || f->body_case != WEFT__RANK__FRAME__BODY_BARRIER_DONE);
}

static Weft__V1__RankFrame **frames_of(const struct kept *k, struct list *l, int64_t now, size_t *n,
                                       struct agent_out *out)
{
    Weft__V1__RankFrame **v = arena_array(out->arena, Weft__V1__RankFrame *, length(l) + 1);
    *n = 0;
    list_for_each (it, l) {
        struct kept_frame *f = list_entry(it, struct kept_frame, link);
        if (!is_brought(f->frame))
            continue;
        v[(*n)++] = rank_frame(k, f->rank, f->frame, out);
        f->said_ns = now;
    }
    return v;
}

static void fill_puts(struct kept *k, Weft__V1__AttemptHere *h, struct agent_out *out)
{
    h->puts = arena_array(out->arena, Weft__Rank__KvPut *, length(&k->puts) + 1);
    list_for_each (it, &k->puts) {
        struct kept_frame *f = list_entry(it, struct kept_frame, link);
        h->puts[h->n_puts++] = frame_dup(out->arena, f->frame)->kv_put;
        f->said_ns = INT64_MIN; // an answer that is missing is asked for once registered
    }
}

static Weft__V1__AttemptHere *attempt_here(const struct agent *g, struct kept *k, int64_t now,
                                           struct agent_out *out)
{
    NEW(h, V1__AttemptHere, v1__attempt_here);
    h->job = text(out, k->job);
    h->epoch = k->epoch;
    h->reaped = k->reaped;
    h->ranks = arena_array(out->arena, Weft__V1__RankHere *, k->n + 1);
    for (int i = 0; i < k->n; i++) {
        h->ranks[h->n_ranks++] = rank_here(g, &k->ranks[i], out);
        k->ranks[i].said_ns = now;
    }
    k->said_ns = now;
    fill_puts(k, h, out);
    h->asked = frames_of(k, &k->asked, now, &h->n_asked, out);
    h->answered = frames_of(k, &k->answered, now, &h->n_answered, out);
    return h;
}

// To the cluster that challenged: a worker that knows none yet joins it.
void say_register(struct agent *g, const Weft__V1__Challenge *c, int64_t now, struct agent_out *out)
{
    NEW(m, V1__Register, v1__register);
    m->nonce = text(out, c->nonce);
    m->cluster = text(out, c->cluster);
    m->host = text(out, g->c.host);
    m->incarnation = text(out, g->incarnation);
    m->name = text(out, g->c.name);
    m->version = text(out, g->c.version);
    m->rack = text(out, g->c.rack);
    m->memory = g->c.memory;
    m->data_root = text(out, g->c.data_root);
    m->checkpoint_root = text(out, g->c.checkpoint_root);
    m->address = text(out, g->c.address);
    m->share = text(out, g->c.share);
    m->draining = g->terms > 0;
    fill_devices(g, m, out);
    m->attempts = arena_array(out->arena, Weft__V1__AttemptHere *, length(&g->t.all) + 1);
    list_for_each (it, &g->t.all)
        m->attempts[m->n_attempts++] = attempt_here(g, list_entry(it, struct kept, link), now, out);
    UP(up, REGISTER, register_, m);
    send_up(out, up);
}

// ---- attached ----

void say_heartbeat(struct agent *g, int64_t now, struct agent_out *out)
{
    if (!attached(g))
        return;
    NEW(m, V1__Heartbeat, v1__heartbeat);
    m->seq = ++g->seq;
    m->ranks = arena_array(out->arena, Weft__V1__RankHere *, g->t.living + 1);
    for (int s = 0; s < g->t.nslots; s++)
        if (g->t.slots[s].k)
            m->ranks[m->n_ranks++] = rank_here(g, g->t.slots[s].r, out);
    g->beat_ns = now;
    g->beat_now = false;
    UP(up, HEARTBEAT, heartbeat, m);
    send_up(out, up);
}

bool say_has_progress(const struct agent *g)
{
    for (int s = 0; s < g->t.nslots; s++)
        if (g->t.slots[s].k && g->t.slots[s].r->changed)
            return true;
    return false;
}

void say_progress(struct agent *g, int64_t now, struct agent_out *out)
{
    if (!attached(g))
        return;
    list_for_each (it, &g->t.all) {
        struct kept *k = list_entry(it, struct kept, link);
        NEW(m, V1__Progresses, v1__progresses);
        m->job = text(out, k->job);
        m->epoch = k->epoch;
        m->ranks = arena_array(out->arena, Weft__Rank__Progress *, k->n + 1);
        for (int i = 0; i < k->n; i++) {
            if (k->ranks[i].changed)
                m->ranks[m->n_ranks++] = progress_of(g, &k->ranks[i], out);
            k->ranks[i].changed = false;
        }
        if (!m->n_ranks)
            continue;
        UP(up, PROGRESS, progress, m);
        send_up(out, up);
    }
    g->told_ns = now;
}

void say_frame(struct agent *g, const struct kept *k, int rank, const Weft__Rank__Frame *f,
               struct agent_out *out)
{
    if (!attached(g))
        return;
    UP(up, FRAME, frame, rank_frame(k, rank, f, out));
    send_up(out, up);
}

void say_end(struct agent *g, struct kept_rank *r, int64_t now, struct agent_out *out)
{
    if (!attached(g))
        return;
    r->said_ns = now;
    UP(up, RANK_END, rank_end, end_of(r, out));
    send_up(out, up);
}

void say_reaped(struct agent *g, const char *job, uint64_t epoch, struct agent_out *out)
{
    if (!attached(g))
        return;
    NEW(m, V1__Reaped, v1__reaped);
    m->job = text(out, job);
    m->epoch = epoch;
    m->incarnation = text(out, g->incarnation);
    UP(up, REAPED, reaped, m);
    send_up(out, up);
}

void say_leaving(struct agent *g, int64_t now, struct agent_out *out)
{
    if (!attached(g))
        return;
    NEW(m, V1__Leaving, v1__leaving);
    m->grace_ms = g->term_ns > now ? (g->term_ns - now) / 1000000 : 0;
    UP(up, LEAVING, leaving, m);
    send_up(out, up);
}

void say_storage(struct agent *g, const Weft__V1__StorageDone *d, struct agent_out *out)
{
    if (!attached(g))
        return;
    UP(up, STORAGE, storage, (Weft__V1__StorageDone *)(void *)message_dup(out->arena, &d->base));
    send_up(out, up);
}

void say_log(struct agent *g, const Weft__V1__LogChunk *c, struct agent_out *out)
{
    if (!attached(g))
        return;
    UP(up, LOG, log, (Weft__V1__LogChunk *)(void *)message_dup(out->arena, &c->base));
    send_up(out, up);
}

// ---- again ----

static void frames_again(struct agent *g, struct kept *k, struct list *l, int64_t now,
                         int64_t before_ns, struct agent_out *out)
{
    list_for_each (it, l) {
        struct kept_frame *f = list_entry(it, struct kept_frame, link);
        if (f->answered || f->said_ns > before_ns || !is_brought(f->frame))
            continue;
        say_frame(g, k, f->rank, f->frame, out);
        f->said_ns = now;
    }
}

void say_again(struct agent *g, int64_t now, int64_t before_ns, struct agent_out *out)
{
    if (!attached(g))
        return;
    list_for_each (it, &g->t.all) {
        struct kept *k = list_entry(it, struct kept, link);
        frames_again(g, k, &k->puts, now, before_ns, out);
        frames_again(g, k, &k->asked, now, before_ns, out);
        for (int i = 0; i < k->n; i++)
            if (k->ranks[i].end && k->ranks[i].said_ns <= before_ns)
                say_end(g, &k->ranks[i], now, out);
        if (k->reaped && k->said_ns <= before_ns) {
            k->said_ns = now;
            say_reaped(g, k->job, k->epoch, out);
        }
    }
}
