// SPDX-License-Identifier: Apache-2.0
// The agent's actions, and among them the messages to the coordinator. Both are built in the arena
// of the actions: what they take of the agent's own memory is copied, since actions outlive the
// step.
#include <string.h>

#include "common/attempt/frame.h"
#include "common/base/clock.h"
#include "common/base/protocol_rule.h"
#include "worker/agent/agent_state.h"

#define UP(name, CASE, member, ptr)                           \
    Weft__V1__Up *name = arena_new(out->arena, Weft__V1__Up); \
    weft__v1__up__init(name);                                 \
    name->body_case = WEFT__V1__UP__BODY_##CASE;              \
    name->member = (ptr)
#define NEW(name, Type, type)                                 \
    Weft__##Type *name = arena_new(out->arena, Weft__##Type); \
    weft__##type##__init(name)

struct agent_action *agent_act(struct agent_out *out, enum agent_action_kind kind)
{
    out->v = arena_grow(out->arena, out->v, sizeof *out->v, out->n, &out->cap);
    struct agent_action *a = &out->v[out->n++];
    *a = (struct agent_action){.kind = kind};
    return a;
}

static void send_up(struct agent_out *out, Weft__V1__Up *up)
{
    agent_act(out, AGENT_SEND)->up = up;
}

static char *dup_text(struct agent_out *out, const char *s)
{
    return arena_strdup(out->arena, s ? s : "");
}

static bool is_attached(const struct agent *g)
{
    return g->state == AGENT_ATTACHED;
}

// ---- parts of messages ----

static void fill_devices(const struct agent *g, Weft__V1__Register *m, struct agent_out *out)
{
    m->devices = arena_array(out->arena, Weft__V1__Device *, g->c.ndevices + 1);
    for (int i = 0; i < g->c.ndevices; i++) {
        NEW(d, V1__Device, v1__device);
        d->index = i;
        d->kind = dup_text(out, g->c.devices[i].kind);
        d->model = dup_text(out, g->c.devices[i].model);
        d->memory = g->c.devices[i].memory;
        d->isa = dup_text(out, g->c.devices[i].isa);
        d->driver = dup_text(out, g->c.devices[i].driver);
        d->pci = dup_text(out, g->c.devices[i].pci);
        d->uuid = dup_text(out, g->c.devices[i].uuid);
        d->peers = dup_text(out, g->c.devices[i].peers);
        m->devices[m->n_devices++] = d;
    }
    m->lacks = arena_array(out->arena, Weft__V1__Lack *, g->c.nlacks + 1);
    for (int i = 0; i < g->c.nlacks; i++) {
        NEW(l, V1__Lack, v1__lack);
        l->kind = dup_text(out, g->c.lacks[i].kind);
        l->why = dup_text(out, g->c.lacks[i].why);
        m->lacks[m->n_lacks++] = l;
    }
}

static Weft__Rank__Progress *make_progress(const struct agent *g, const struct attempt_rank *r,
                                           struct agent_out *out)
{
    Weft__Rank__Progress *p = arena_new(out->arena, Weft__Rank__Progress);
    frame_from_view(&r->view, "", p);
    p->rank = r->rank;
    p->collective_text = dup_text(out, r->view.collective_text);
    p->host = dup_text(out, g->c.name);
    return p;
}

static Weft__V1__RankEnd *make_end(const struct local_attempt *at, const struct attempt_rank *r,
                                   struct agent_out *out)
{
    NEW(m, V1__RankEnd, v1__rank_end);
    m->job = dup_text(out, at->job);
    m->epoch = at->epoch;
    m->rank = r->rank;
    m->code = r->end.code;
    m->signal = r->end.signal;
    m->unreached = r->end.unreached;
    m->why = dup_text(out, r->end.why);
    m->log = dup_text(out, r->end.log);
    m->step = r->end.step;
    m->where = dup_text(out, r->end.where);
    return m;
}

static Weft__V1__RankHere *make_rank(const struct agent *g, const struct local_attempt *at,
                                     const struct attempt_rank *r, struct agent_out *out)
{
    NEW(h, V1__RankHere, v1__rank_here);
    h->rank = r->rank;
    h->device = r->device;
    h->pid = r->pid;
    if ((h->ended = r->ended))
        h->end = make_end(at, r, out);
    if (r->seen)
        h->progress = make_progress(g, r, out);
    return h;
}

static Weft__V1__RankFrame *make_frame(const struct local_attempt *at, int rank,
                                       const Weft__Rank__Frame *f, struct agent_out *out)
{
    NEW(m, V1__RankFrame, v1__rank_frame);
    m->job = dup_text(out, at->job);
    m->epoch = at->epoch;
    m->rank = rank;
    m->frame = message_dup(out->arena, &f->base);
    return m;
}

static int list_length(const struct list *l)
{
    int n = 0;
    for (const struct list *it = l->next; it != l; it = it->next)
        n++;
    return n;
}

bool agent_repeats_frame(const Weft__Rank__Frame *f)
{
    return (WEFT_RULE(shard_repeated) || f->body_case != WEFT__RANK__FRAME__BODY_SHARD_DONE) &&
           (WEFT_RULE(barrier_brought) || f->body_case != WEFT__RANK__FRAME__BODY_BARRIER_DONE);
}

// ---- registering: Register brings all that is remembered, so it counts as sent ----

static Weft__V1__RankFrame **copy_frames(const struct local_attempt *at, struct list *l,
                                         int64_t now, size_t *n, struct agent_out *out)
{
    Weft__V1__RankFrame **v = arena_array(out->arena, Weft__V1__RankFrame *, list_length(l) + 1);
    *n = 0;
    list_for_each (it, l) {
        struct attempt_frame *f = list_entry(it, struct attempt_frame, link);
        f->sent_ns = now;
        if (agent_repeats_frame(f->frame))
            v[(*n)++] = make_frame(at, f->rank, f->frame, out);
    }
    return v;
}

// Register says what was put; the answer that is still missing is asked for when attached.
static void copy_puts(struct local_attempt *at, Weft__V1__AttemptHere *h, struct agent_out *out)
{
    h->puts = arena_array(out->arena, Weft__Rank__KvPut *, list_length(&at->puts) + 1);
    list_for_each (it, &at->puts) {
        struct attempt_frame *f = list_entry(it, struct attempt_frame, link);
        h->puts[h->n_puts++] = message_dup(out->arena, &f->frame->kv_put->base);
        f->sent_ns = UNSENT;
    }
}

static Weft__V1__AttemptHere *describe_attempt(const struct agent *g, struct local_attempt *at,
                                               int64_t now, struct agent_out *out)
{
    NEW(h, V1__AttemptHere, v1__attempt_here);
    h->job = dup_text(out, at->job);
    h->epoch = at->epoch;
    h->reaped = at->reaped;
    h->ranks = arena_array(out->arena, Weft__V1__RankHere *, at->nranks + 1);
    for (int i = 0; i < at->nranks; i++) {
        h->ranks[h->n_ranks++] = make_rank(g, at, &at->ranks[i], out);
        if (at->ranks[i].ended)
            at->ranks[i].end_sent_ns = now;
    }
    if (at->reaped)
        at->reaped_sent_ns = now;
    copy_puts(at, h, out);
    h->asked = copy_frames(at, &at->questions, now, &h->n_asked, out);
    h->answered = copy_frames(at, &at->answers, now, &h->n_answered, out);
    return h;
}

void send_hello(struct agent *g, struct agent_out *out)
{
    NEW(m, V1__Hello, v1__hello);
    m->host = dup_text(out, g->c.host);
    m->incarnation = dup_text(out, g->incarnation);
    m->cluster = dup_text(out, g->cluster);
    UP(up, HELLO, hello, m);
    send_up(out, up);
}

// Sends Register to the cluster that challenged: a worker that knows no cluster yet joins this one.
void send_register(struct agent *g, const Weft__V1__Challenge *c, int64_t now,
                   struct agent_out *out)
{
    struct list *all = &g->attempts.all;
    NEW(m, V1__Register, v1__register);
    m->nonce = dup_text(out, c->nonce);
    m->cluster = dup_text(out, c->cluster);
    m->host = dup_text(out, g->c.host);
    m->incarnation = dup_text(out, g->incarnation);
    m->name = dup_text(out, g->c.name);
    m->version = dup_text(out, g->c.version);
    m->rack = dup_text(out, g->c.rack);
    m->memory = g->c.memory;
    m->cores = g->c.cores;
    m->data_root = dup_text(out, g->c.data_root);
    m->checkpoint_root = dup_text(out, g->c.checkpoint_root);
    m->address = dup_text(out, g->c.address);
    m->address_doubt = dup_text(out, g->c.address_doubt);
    m->share = dup_text(out, g->c.share);
    m->draining = g->terms > 0;
    fill_devices(g, m, out);
    m->attempts = arena_array(out->arena, Weft__V1__AttemptHere *, list_length(all) + 1);
    list_for_each (it, all) {
        struct local_attempt *at = list_entry(it, struct local_attempt, link);
        m->attempts[m->n_attempts++] = describe_attempt(g, at, now, out);
    }
    UP(up, REGISTER, register_, m);
    send_up(out, up);
}

// ---- attached ----

void send_heartbeat(struct agent *g, int64_t now, struct agent_out *out)
{
    if (!is_attached(g))
        return;
    NEW(m, V1__Heartbeat, v1__heartbeat);
    m->seq = ++g->heartbeat_seq;
    m->ranks = arena_array(out->arena, Weft__V1__RankHere *, g->attempts.living + 1);
    for (int s = 0; s < g->attempts.nslots; s++) {
        struct process_slot slot = g->attempts.slots[s];
        if (slot.attempt)
            m->ranks[m->n_ranks++] = make_rank(g, slot.attempt, slot.rank, out);
    }
    g->heartbeat_at_ns = now;
    g->heartbeat_now = false;
    UP(up, HEARTBEAT, heartbeat, m);
    send_up(out, up);
}

bool agent_has_progress(const struct agent *g)
{
    for (int s = 0; s < g->attempts.nslots; s++)
        if (g->attempts.slots[s].attempt && g->attempts.slots[s].rank->view_changed)
            return true;
    return false;
}

void send_progress(struct agent *g, int64_t now, struct agent_out *out)
{
    if (!is_attached(g))
        return;
    list_for_each (it, &g->attempts.all) {
        struct local_attempt *at = list_entry(it, struct local_attempt, link);
        NEW(m, V1__Progresses, v1__progresses);
        m->job = dup_text(out, at->job);
        m->epoch = at->epoch;
        m->ranks = arena_array(out->arena, Weft__Rank__Progress *, at->nranks + 1);
        for (int i = 0; i < at->nranks; i++) {
            if (at->ranks[i].view_changed)
                m->ranks[m->n_ranks++] = make_progress(g, &at->ranks[i], out);
            at->ranks[i].view_changed = false;
        }
        if (!m->n_ranks)
            continue;
        UP(up, PROGRESS, progress, m);
        send_up(out, up);
    }
    g->progress_at_ns = now;
}

void send_frame(struct agent *g, const struct local_attempt *at, int rank,
                const Weft__Rank__Frame *f, struct agent_out *out)
{
    if (!is_attached(g))
        return;
    UP(up, FRAME, frame, make_frame(at, rank, f, out));
    send_up(out, up);
}

void send_end(struct agent *g, const struct local_attempt *at, const struct attempt_rank *r,
              struct agent_out *out)
{
    if (!is_attached(g))
        return;
    UP(up, RANK_END, rank_end, make_end(at, r, out));
    send_up(out, up);
}

void send_reaped(struct agent *g, const char *job, uint64_t epoch, struct agent_out *out)
{
    if (!is_attached(g))
        return;
    NEW(m, V1__Reaped, v1__reaped);
    m->job = dup_text(out, job);
    m->epoch = epoch;
    m->incarnation = dup_text(out, g->incarnation);
    UP(up, REAPED, reaped, m);
    send_up(out, up);
}

void send_leaving(struct agent *g, int64_t now, struct agent_out *out)
{
    if (!is_attached(g))
        return;
    NEW(m, V1__Leaving, v1__leaving);
    m->grace_ms = g->term_ns > now ? (g->term_ns - now) / CLOCK_MS : 0;
    UP(up, LEAVING, leaving, m);
    send_up(out, up);
}

void send_storage(struct agent *g, const Weft__V1__StorageDone *d, struct agent_out *out)
{
    if (!is_attached(g))
        return;
    UP(up, STORAGE, storage, message_dup(out->arena, &d->base));
    send_up(out, up);
}

void send_log(struct agent *g, const Weft__V1__LogChunk *c, struct agent_out *out)
{
    if (!is_attached(g))
        return;
    UP(up, LOG, log, message_dup(out->arena, &c->base));
    send_up(out, up);
}
