// SPDX-License-Identifier: Apache-2.0
// What agents say about attempts; see frames.h.
//
// After a restart of the coordinator an agent brings everything that its ranks asked, put and were
// answered. The answers are taken first, for what was answered once stays the answer; then the keys,
// then the questions.
#include "coordinator/decide/frames.h"

#include <stdio.h>
#include <string.h>

#include "common/base/protocol_rule.h"
#include "coordinator/decide/attempt_leader.h"
#include "coordinator/decide/attempt_storage.h"
#include "coordinator/decide/host.h"
#include "coordinator/decide/outbox.h"
#include "coordinator/decide/tidy.h"

// ---- down ----

// The attempt is unknown or over: the agent stops whatever lives of it.
static void send_away(struct coord *c, struct host *host, const char *job, uint64_t attempt)
{
    V1_NEW(Stop, stop, s);
    s.job = frame_text(job);
    s.attempt = attempt;
    s.reason = frame_text("this attempt is over");
    DOWN(d, STOP, stop, &s);
    out_down(c, host->conn, &d);
}

// ---- whose it is ----

struct speaker { // a host that speaks of one of its attempts
    struct attempt *at;
    struct attempt_host *h;
};

static bool find_attempt(struct coord *c, struct host *host, const char *job, uint64_t attempt,
                         struct speaker *out)
{
    struct job_record *j = job_find(c, job);
    out->at = j ? j->live : NULL;
    if (!out->at || j->attempt != attempt)
        return false;
    out->h = attempt_find_host(out->at, host);
    return out->h != NULL;
}

// Before the first Start no agent can have this attempt, unless the database was set back to a time
// before it. Then the agent speaks of another attempt with the same number, and the fence will find
// a greater attempt.
static bool has_begun(const struct speaker *t)
{
    return t->at->phase >= PHASE_START;
}

static bool owns_rank(const struct speaker *t, int rank)
{
    return rank >= 0 && rank < t->at->nranks && &t->at->hosts[t->at->ranks[rank].host] == t->h;
}

// ---- what ranks say ----

static void on_frame(struct speaker *t, int rank, const Weft__Rank__Frame *f)
{
    struct attempt *at = t->at;
    if (!owns_rank(t, rank) || at->phase < PHASE_START || !leader_hears(f))
        return;
    t->h->started = true;
    attempt_lead(at, (struct leader_event){.kind = LEADER_EV_FRAME, .rank = rank, .frame = f});
}

// A rank's progress page, as its host passes it on.
static void on_page(struct speaker *t, const Weft__Rank__Progress *p)
{
    struct job_record *j = t->at->job;
    struct page_view v;
    if (!owns_rank(t, p->rank) || t->at->phase < PHASE_START)
        return;
    t->h->started = true;
    frame_to_view(p, &v);
    attempt_lead(t->at, (struct leader_event){.kind = LEADER_EV_PAGE, .rank = p->rank, .page = &v});
    if (p->rank == 0 && j->state == JOB_RUNNING)
        job_save_state(j, leader_rank(t->at->leader, 0)->view.state == RANK_SAVING);
}

static void on_rank_end(struct speaker *t, const Weft__V1__RankEnd *e)
{
    struct attempt *at = t->at;
    if (!owns_rank(t, e->rank) || leader_rank(at->leader, e->rank)->ended)
        return;
    t->h->started = true;
    host_idle(at->job->coord, t->h->host, at->ranks[e->rank].device);
    attempt_lead(at, (struct leader_event){.kind = LEADER_EV_ENDED,
                                           .rank = e->rank,
                                           .code = e->code,
                                           .signal = e->signal,
                                           .unreached = e->unreached,
                                           .step = e->step,
                                           .text = e->why,
                                           .log = e->log});
    attempt_settle(at);
}

static void on_reaped(struct coord *c, struct host *host, const Weft__V1__Reaped *r)
{
    struct speaker t;
    bool own = !WEFT_RULE(incarnation) || !strcmp(r->incarnation, host->incarnation);
    if (own && find_attempt(c, host, r->job, r->attempt, &t) && has_begun(&t)) {
        int alive = leader_alive(t.at->leader);
        attempt_host_gone(t.at, t.h);
        bool runs = t.at->phase == PHASE_START || t.at->phase == PHASE_RUN;
        struct fault f = {
            .kind = FAULT_OUTSIDE, .event = EVENT_LOST, .rank = -1, .host = host_name(host)};
        snprintf(f.text, sizeof f.text, "host %s has no rank of the attempt any more",
                 host_name(host));
        if (runs && leader_alive(t.at->leader) < alive)
            attempt_fault(t.at, &f);
        else
            attempt_settle(t.at);
    }
    V1_NEW(Sync, sync, s);
    s.job = r->job;
    s.attempt = r->attempt;
    DOWN(d, SYNC, sync, &s);
    out_down(c, host->conn, &d);
}

// ---- up ----

void frames_up(struct coord *c, struct host *host, const Weft__V1__Up *up)
{
    struct speaker t;
    switch (up->body_case) {
    case WEFT__V1__UP__BODY_FRAME:
        if (up->frame->frame && find_attempt(c, host, up->frame->job, up->frame->attempt, &t))
            on_frame(&t, up->frame->rank, up->frame->frame);
        return;
    case WEFT__V1__UP__BODY_STORAGE:
        if (up->storage->op == WEFT__V1__STORAGE_OP__STORAGE_TIDY ||
            up->storage->op == WEFT__V1__STORAGE_OP__STORAGE_DELETE)
            tidy_take(c, host, up->storage);
        else if (find_attempt(c, host, up->storage->job, up->storage->attempt, &t))
            attempt_storage(t.at, t.h, up->storage);
        return;
    case WEFT__V1__UP__BODY_PROGRESS:
        if (find_attempt(c, host, up->progress->job, up->progress->attempt, &t) && has_begun(&t))
            for (size_t i = 0; i < up->progress->n_ranks; i++)
                on_page(&t, up->progress->ranks[i]);
        return;
    case WEFT__V1__UP__BODY_RANK_END:
        if (find_attempt(c, host, up->rank_end->job, up->rank_end->attempt, &t) && has_begun(&t))
            on_rank_end(&t, up->rank_end);
        else
            send_away(c, host, up->rank_end->job, up->rank_end->attempt);
        return;
    case WEFT__V1__UP__BODY_REAPED:
        on_reaped(c, host, up->reaped);
        return;
    default:
        return;
    }
}

// ---- a registration ----

static void recall_answer(struct speaker *t, const Weft__Rank__Frame *f)
{
    attempt_lead(t->at, (struct leader_event){.kind = LEADER_EV_RECALL, .frame = f});
}

static void take_attempt(const Weft__V1__AttemptHere *h, struct speaker *t)
{
    t->h->started = true;
    for (size_t i = 0; i < h->n_ranks; i++)
        if (h->ranks[i]->progress)
            on_page(t, h->ranks[i]->progress);
    for (size_t i = 0; i < h->n_answered; i++)
        if (h->answered[i]->frame)
            recall_answer(t, h->answered[i]->frame);
    for (size_t i = 0; i < h->n_puts; i++) { // whichever rank wrote a key: only one does
        FRAME(f, KV_PUT, kv_put, h->puts[i]);
        recall_answer(t, &f);
    }
    for (size_t i = 0; i < h->n_asked; i++)
        if (h->asked[i]->frame)
            on_frame(t, h->asked[i]->rank, h->asked[i]->frame);
    for (size_t i = 0; i < h->n_ranks; i++)
        if (h->ranks[i]->ended && h->ranks[i]->end)
            on_rank_end(t, h->ranks[i]->end);
}

static void on_here(struct coord *c, struct host *host, const Weft__V1__AttemptHere *h)
{
    struct speaker t;
    V1_NEW(Reaped, reaped, r);
    bool known = find_attempt(c, host, h->job, h->attempt, &t) && has_begun(&t);
    if (known && !t.h->reaped)
        take_attempt(h, &t);
    if (h->reaped) {
        r.job = h->job;
        r.attempt = h->attempt;
        r.incarnation = host->incarnation;
        on_reaped(c, host, &r);
    } else if (!known || t.h->reaped) {
        send_away(c, host, h->job, h->attempt);
    }
}

static bool is_listed(const Weft__V1__Register *r, const struct job_record *j)
{
    for (size_t i = 0; i < r->n_attempts; i++)
        if (!strcmp(r->attempts[i]->job, j->id) && r->attempts[i]->attempt == j->attempt)
            return true;
    return false;
}

// The rows say that the attempt runs on this host, and its agent has never heard of it.
static void on_absent(struct attempt *at, struct attempt_host *h)
{
    struct fault f = {
        .kind = FAULT_OUTSIDE, .event = EVENT_LOST, .rank = -1, .host = host_name(h->host)};
    snprintf(f.text, sizeof f.text, "host %s does not know the attempt", host_name(h->host));
    if (at->phase == PHASE_RUN || h->started)
        attempt_fault(at, &f);
    else
        attempt_drive(at);
}

void frames_here(struct coord *c, struct host *host, const Weft__V1__Register *r)
{
    struct speaker t;
    for (size_t i = 0; i < r->n_attempts; i++)
        if (find_attempt(c, host, r->attempts[i]->job, r->attempts[i]->attempt, &t)) {
            t.h->back = true;
            attempt_name_places(t.at); // a lost row of the host had no name
        }
    for (size_t i = 0; i < r->n_attempts; i++)
        on_here(c, host, r->attempts[i]);
    list_for_each (it, &c->live) {
        struct attempt *at = list_entry(it, struct attempt, link);
        struct attempt_host *h = attempt_find_host(at, host);
        if (!h || h->reaped)
            continue;
        h->back = true;
        if (is_listed(r, at->job))
            attempt_drive(at);
        else
            on_absent(at, h);
    }
}
