// SPDX-License-Identifier: Apache-2.0
// The agent's actions, and among them the messages to the coordinator. A message borrows what it
// says from the agent; send_up copies it whole into the arena of the actions, which outlive the step.

#include "common/attempt/frame.h"
#include "common/base/clock.h"
#include "common/base/protocol_rule.h"
#include "worker/agent/agent_state.h"

#define SEND_UP(CASE, member_, ptr)                                 \
    send_up(g,                                                      \
            &(Weft__V1__Up){.base = {&weft__v1__up__descriptor},    \
                            .body_case = WEFT__V1__UP__BODY_##CASE, \
                            .member_ = (ptr)},                      \
            out)

struct agent_action *agent_act(struct agent_out *out, enum agent_action_kind kind)
{
    out->v = arena_grow(out->arena, out->v, sizeof *out->v, out->n, &out->cap);
    struct agent_action *a = &out->v[out->n++];
    *a = (struct agent_action){.kind = kind};
    return a;
}

// But for Hello and Register nothing goes up unless the agent is attached.
static void send_up(const struct agent *g, const Weft__V1__Up *up, struct agent_out *out)
{
    if (g->state == AGENT_ATTACHED || up->body_case == WEFT__V1__UP__BODY_HELLO ||
        up->body_case == WEFT__V1__UP__BODY_REGISTER)
        agent_act(out, AGENT_SEND)->up = message_dup(out->arena, &up->base);
}

// ---- parts of messages ----

static Weft__Rank__Progress *make_progress(const struct attempt_rank *r, struct agent_out *out)
{
    Weft__Rank__Progress *p = arena_new(out->arena, Weft__Rank__Progress);
    frame_from_view(&r->view, p);
    p->rank = r->rank;
    return p;
}

static Weft__V1__RankHere *make_rank(const struct attempt_rank *r, struct agent_out *out)
{
    Weft__V1__RankHere *h = arena_new(out->arena, Weft__V1__RankHere);
    weft__v1__rank_here__init(h);
    h->rank = r->rank;
    h->device = r->device;
    h->pid = r->pid;
    h->ended = r->end != NULL;
    h->end = r->end;
    if (r->seen)
        h->progress = make_progress(r, out);
    return h;
}

bool agent_repeats_frame(const Weft__Rank__Frame *f)
{
    return (WEFT_RULE(shard_repeated) || f->body_case != WEFT__RANK__FRAME__BODY_SHARD_DONE) &&
           (WEFT_RULE(barrier_brought) || f->body_case != WEFT__RANK__FRAME__BODY_BARRIER_DONE);
}

// ---- registering: Register brings all that is remembered, so it counts as sent ----

static Weft__V1__RankFrame **list_frames(const struct local_attempt *at, struct list *l,
                                         int64_t now, size_t *n, struct agent_out *out)
{
    Weft__V1__RankFrame **v = arena_array(out->arena, Weft__V1__RankFrame *, list_length(l) + 1);
    *n = 0;
    list_for_each (it, l) {
        struct attempt_frame *f = list_entry(it, struct attempt_frame, link);
        f->sent_ns = now;
        if (!agent_repeats_frame(f->frame))
            continue;
        Weft__V1__RankFrame *m = v[(*n)++] = arena_new(out->arena, Weft__V1__RankFrame);
        weft__v1__rank_frame__init(m);
        m->job = at->job;
        m->attempt = at->number;
        m->rank = f->rank;
        m->frame = f->frame;
    }
    return v;
}

static Weft__V1__AttemptHere *describe_attempt(struct local_attempt *at, int64_t now,
                                               struct agent_out *out)
{
    Weft__V1__AttemptHere *h = arena_new(out->arena, Weft__V1__AttemptHere);
    weft__v1__attempt_here__init(h);
    h->job = at->job;
    h->attempt = at->number;
    h->reaped = at->reaped;
    h->ranks = arena_array(out->arena, Weft__V1__RankHere *, at->nranks + 1);
    for (int i = 0; i < at->nranks; i++) {
        h->ranks[h->n_ranks++] = make_rank(&at->ranks[i], out);
        if (at->ranks[i].end)
            at->ranks[i].end_sent_ns = now;
    }
    if (at->reaped)
        at->reaped_sent_ns = now;
    h->puts = arena_array(out->arena, Weft__Rank__KvPut *, list_length(&at->puts) + 1);
    list_for_each (it, &at->puts) { // the answer that is still missing is asked for when attached
        struct attempt_frame *f = list_entry(it, struct attempt_frame, link);
        h->puts[h->n_puts++] = f->frame->kv_put;
        f->sent_ns = UNSENT;
    }
    h->asked = list_frames(at, &at->questions, now, &h->n_asked, out);
    h->answered = list_frames(at, &at->answers, now, &h->n_answered, out);
    return h;
}

void send_hello(struct agent *g, struct agent_out *out)
{
    V1_NEW(Hello, hello, m);
    m.host = g->about->host;
    m.incarnation = g->incarnation;
    m.cluster = frame_text(g->cluster);
    SEND_UP(HELLO, hello, &m);
}

// Sends Register to the cluster that challenged: a worker that knows no cluster yet joins this one.
void send_register(struct agent *g, const Weft__V1__Challenge *c, int64_t now,
                   struct agent_out *out)
{
    struct list *all = &g->attempts.all;
    Weft__V1__Register m = *g->about;
    m.nonce = c->nonce;
    m.cluster = c->cluster;
    m.incarnation = g->incarnation;
    m.draining = g->terms > 0;
    m.attempts = arena_array(out->arena, Weft__V1__AttemptHere *, list_length(all) + 1);
    list_for_each (it, all) {
        struct local_attempt *at = list_entry(it, struct local_attempt, link);
        m.attempts[m.n_attempts++] = describe_attempt(at, now, out);
    }
    SEND_UP(REGISTER, register_, &m);
}

// ---- attached ----

void send_heartbeat(struct agent *g, int64_t now, struct agent_out *out)
{
    if (g->state != AGENT_ATTACHED)
        return;
    V1_NEW(Heartbeat, heartbeat, m);
    m.seq = ++g->heartbeat_seq;
    m.ranks = arena_array(out->arena, Weft__V1__RankHere *, g->attempts.living + 1);
    for (int s = 0; s < g->attempts.nslots; s++)
        if (g->attempts.slots[s].attempt)
            m.ranks[m.n_ranks++] = make_rank(g->attempts.slots[s].rank, out);
    m.state_free = g->room.free[AGENT_ROOM_STATE];
    m.state_size = g->room.size[AGENT_ROOM_STATE];
    m.checkpoints_free = g->room.free[AGENT_ROOM_CHECKPOINTS];
    m.checkpoints_size = g->room.size[AGENT_ROOM_CHECKPOINTS];
    g->heartbeat_at_ns = now;
    g->heartbeat_now = false;
    SEND_UP(HEARTBEAT, heartbeat, &m);
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
    if (g->state != AGENT_ATTACHED)
        return;
    list_for_each (it, &g->attempts.all) {
        struct local_attempt *at = list_entry(it, struct local_attempt, link);
        V1_NEW(Progresses, progresses, m);
        m.job = at->job;
        m.attempt = at->number;
        m.ranks = arena_array(out->arena, Weft__Rank__Progress *, at->nranks + 1);
        for (int i = 0; i < at->nranks; i++) {
            if (at->ranks[i].view_changed)
                m.ranks[m.n_ranks++] = make_progress(&at->ranks[i], out);
            at->ranks[i].view_changed = false;
        }
        if (m.n_ranks)
            SEND_UP(PROGRESS, progress, &m);
    }
    g->progress_at_ns = now;
}

void send_frame(struct agent *g, const struct local_attempt *at, int rank,
                const Weft__Rank__Frame *f, struct agent_out *out)
{
    V1_NEW(RankFrame, rank_frame, m);
    m.job = at->job;
    m.attempt = at->number;
    m.rank = rank;
    m.frame = (Weft__Rank__Frame *)(uintptr_t)f;
    SEND_UP(FRAME, frame, &m);
}

void send_end(struct agent *g, const struct attempt_rank *r, struct agent_out *out)
{
    SEND_UP(RANK_END, rank_end, r->end);
}

void send_reaped(struct agent *g, const char *job, uint64_t attempt, struct agent_out *out)
{
    V1_NEW(Reaped, reaped, m);
    m.job = frame_text(job);
    m.attempt = attempt;
    m.incarnation = g->incarnation;
    SEND_UP(REAPED, reaped, &m);
}

void send_leaving(struct agent *g, int64_t now, struct agent_out *out)
{
    V1_NEW(Leaving, leaving, m);
    m.grace_ms = g->term_ns > now ? (g->term_ns - now) / CLOCK_MS : 0;
    SEND_UP(LEAVING, leaving, &m);
}

void send_storage(struct agent *g, const Weft__V1__StorageDone *d, struct agent_out *out)
{
    SEND_UP(STORAGE, storage, (Weft__V1__StorageDone *)(uintptr_t)d);
}

void send_log(struct agent *g, const Weft__V1__LogChunk *c, struct agent_out *out)
{
    SEND_UP(LOG, log, (Weft__V1__LogChunk *)(uintptr_t)c);
}
