// SPDX-License-Identifier: Apache-2.0
// What agents tell of attempts; see frames.h.
//
// After a restart of the coordinator an agent brings everything its ranks asked, put and were
// answered: answers first (an answer brought is the answer), then keys, then questions.
#include "coordinator/frames.h"
#include "coordinator/found_jobs.h"

#include <stdio.h>
#include <string.h>

#include "common/base/protocol_rule.h"
#include "coordinator/checkpoint.h"
#include "coordinator/host.h"
#include "coordinator/outbox.h"

enum { BLAME_MS = 1500, FLUSH_S = 10 };

// ---- down ----

static void send_one(struct attempt *at, const struct attempt_host *h, int rank,
                     const Weft__Rank__Frame *f)
{
    union {
        const Weft__Rank__Frame *from;
        Weft__Rank__Frame *to;
    } frame = {.from = f};
    V1_NEW(RankFrame, rank_frame, body);
    if (h->reaped || !host_is(h->host, h->incarnation))
        return;
    body.job = frame_text(at->job->id);
    body.epoch = at->job->epoch;
    body.rank = rank;
    body.frame = frame.to;
    DOWN(d, FRAME, frame, &body);
    out_down(at->job->coord, h->host->conn, &d);
}

void frames_send(struct attempt *at, int rank, const Weft__Rank__Frame *f)
{
    if (rank >= 0) {
        send_one(at, &at->hosts[at->ranks[rank].host], rank, f);
        return;
    }
    for (int i = 0; i < at->nhosts; i++)
        send_one(at, &at->hosts[i], -1, f);
}

static void send_sync(struct coord *c, struct host *host, const char *job, uint64_t epoch)
{
    V1_NEW(Sync, sync, s);
    s.job = frame_text(job);
    s.epoch = epoch;
    DOWN(d, SYNC, sync, &s);
    out_down(c, host->conn, &d);
}

// An attempt that is not ours, or not any more: nothing of it may live.
static void send_away(struct coord *c, struct host *host, const char *job, uint64_t epoch)
{
    V1_NEW(Stop, stop, s);
    s.job = frame_text(job);
    s.epoch = epoch;
    s.reason = frame_text("this attempt is over");
    DOWN(d, STOP, stop, &s);
    out_down(c, host->conn, &d);
}

// ---- whose it is ----

struct told { // of one attempt by the agent of one of its hosts
    struct attempt *at;
    struct attempt_host *h;
};

static bool find(struct coord *c, struct host *host, const char *job, uint64_t epoch,
                 struct told *out)
{
    struct job_record *j = job_find(c, job);
    out->at = j ? j->attempt : NULL;
    if (!out->at || j->epoch != epoch)
        return false;
    out->h = attempt_find_host(out->at, host);
    return out->h != NULL;
}

// Before the first Start nobody can have this attempt, unless the database was set back to a time
// before it: what an agent then tells is of another attempt with the same number, and the fence
// will find a greater one.
static bool has_begun(const struct told *t)
{
    return t->at->phase >= PHASE_START;
}

static bool is_of(const struct told *t, int rank)
{
    return rank >= 0 && rank < t->at->nranks && &t->at->hosts[t->at->ranks[rank].host] == t->h;
}

// ---- progress ----

// A rank's page is the rank's to write: no step of its is beyond the job.
static int64_t step_within(const struct attempt *at, int64_t step)
{
    int64_t last = at->job->steps;
    return step < -1 ? -1 : step > last ? last : step;
}

static void see(struct told *t, const Weft__Rank__Progress *p)
{
    struct attempt *at = t->at;
    if (!is_of(t, p->rank))
        return;
    struct attempt_rank *k = &at->ranks[p->rank];
    struct page_view v = {.rank = p->rank,
                          .step = step_within(at, p->step),
                          .phase = p->phase,
                          .microbatch = p->microbatch,
                          .state = p->state,
                          .ops = p->ops,
                          .coll_entered = p->coll_entered,
                          .coll_left = p->coll_left,
                          .awaits = p->awaits,
                          .awaits_entered = p->awaits_entered,
                          .heartbeat_ns = p->heartbeat_ns};
    snprintf(v.coll_text, sizeof v.coll_text, "%s", p->coll_text);
    t->h->started = true;
    k->view = v;
    k->seen = true;
    if (!k->ended)
        watch_see(&at->watch, p->rank, &v, at->job->coord->now_ns);
    if (p->rank == 0 && at->job->state == JOB_RUNNING)
        job_save_state(at->job, v.state == RANK_SAVING);
}

// ---- a rank's end ----

static enum fault_kind kind_of(int code)
{
    if (code == RANK_EXIT_CONFIG)
        return FAULT_CONFIG;
    return code == RANK_EXIT_DATA ? FAULT_DATA : FAULT_RANK;
}

static void blame_later(struct attempt *at, int rank)
{
    if (at->blame_ns)
        return;
    at->blame_ns = at->job->coord->now_ns + BLAME_MS * CLOCK_MS;
    at->blame_rank = rank;
}

static void all_left(struct attempt *at)
{
    struct fault f = {.kind = FAULT_OUTSIDE, .event = EVENT_LOST, .rank = -1};
    snprintf(f.text, sizeof f.text,
             "all ranks have left and the last checkpoint is not acknowledged");
    attempt_fault(at, &f);
}

static void rank_failed(struct attempt *at, const Weft__V1__RankEnd *e)
{
    char where[400], sign[40];
    const struct attempt_rank *k = &at->ranks[e->rank];
    attempt_where(at, e->rank, where, sizeof where);
    if (e->signal)
        snprintf(sign, sizeof sign, "signal %d", e->signal);
    else
        snprintf(sign, sizeof sign, "exit %d", e->code);
    struct fault f = {.kind = e->signal ? FAULT_RANK : kind_of(e->code),
                      .event = EVENT_FAILED,
                      .rank = e->rank,
                      .host = host_name(at->hosts[k->host].host),
                      .sign = sign,
                      .log = e->log};
    snprintf(f.text, sizeof f.text, "%s ended with %s, %s%s%s", where, sign,
             e->signal ? "killed" : rank_exit_text(e->code), e->why[0] ? ": " : "", e->why);
    attempt_fault(at, &f);
}

static void mark_ended(struct told *t, const Weft__V1__RankEnd *e)
{
    struct attempt *at = t->at;
    struct attempt_rank *k = &at->ranks[e->rank];
    k->ended = true;
    k->code = e->code;
    snprintf(k->why, sizeof k->why, "%s", e->why);
    int64_t step = step_within(at, e->step);
    k->view.step = step > k->view.step ? step : k->view.step;
    t->h->started = true;
    at->alive--;
    watch_gone(&at->watch, e->rank);
    host_idle(at->job->coord, t->h->host, k->device);
}

static void on_rank_end(struct told *t, const Weft__V1__RankEnd *e)
{
    struct attempt *at = t->at;
    if (!is_of(t, e->rank) || at->ranks[e->rank].ended)
        return;
    mark_ended(t, e);
    bool own_cause = e->signal || (e->code != RANK_EXIT_DONE && e->code != RANK_EXIT_LOST &&
                                   e->code != RANK_EXIT_DRAINED);
    bool runs = at->phase == PHASE_START || at->phase == PHASE_RUN;
    bool killed = at->phase == PHASE_STOP && at->grace_ms == 0;
    if (own_cause && !killed)
        rank_failed(at, e);
    else if (runs && e->code != RANK_EXIT_DONE)
        blame_later(at, e->rank);
    else if (runs && at->alive == 0 && !at->blame_ns)
        all_left(at);
    else
        attempt_settle(at);
}

static void on_reaped(struct coord *c, struct host *host, const Weft__V1__Reaped *r)
{
    struct told t;
    bool own = !WEFT_RULE(incarnation) || !strcmp(r->incarnation, host->incarnation);
    if (own && find(c, host, r->job, r->epoch, &t) && has_begun(&t)) {
        int alive = t.at->alive;
        attempt_reaped(t.at, t.h);
        bool runs = t.at->phase == PHASE_START || t.at->phase == PHASE_RUN;
        struct fault f = {
            .kind = FAULT_OUTSIDE, .event = EVENT_LOST, .rank = -1, .host = host_name(host)};
        snprintf(f.text, sizeof f.text, "host %s has no rank of the attempt any more",
                 host_name(host));
        if (runs && t.at->alive < alive)
            attempt_fault(t.at, &f);
        else
            attempt_settle(t.at);
    }
    send_sync(c, host, r->job, r->epoch);
}

// ---- frames of ranks ----

static void on_ready(struct attempt *at)
{
    struct fault f = {.kind = FAULT_CONFIG, .event = EVENT_FAILED, .rank = -1};
    if (!at->board.agreed || at->phase != PHASE_START)
        return;
    if (!at->board.agreed[0]) {
        attempt_running(at);
        return;
    }
    snprintf(f.text, sizeof f.text, "the ranks do not run the same plan: %.400s", at->board.agreed);
    attempt_fault(at, &f);
}

static void take_report(struct job_record *j, const Weft__Rank__StepReport *r)
{
    j->report.known = true;
    j->report.loss = r->loss;
    j->report.tokens_per_s = r->tokens_per_s;
    j->report.samples_per_s = r->samples_per_s;
    if (!r->evaluated)
        return;
    j->report.evaluated = true;
    j->report.eval_loss = r->eval_loss;
    j->report.eval_accuracy = r->eval_accuracy;
}

static void on_report(struct attempt *at, const Weft__Rank__StepReport *r)
{
    struct job_record *j = at->job;
    struct coord *c = j->coord;
    if (r->step < 0 || r->step > j->steps)
        return;
    take_report(j, r);
    c->steps += r->step > j->last_step ? r->step - j->last_step : 0;
    if (r->step > j->last_step)
        j->last_step = r->step;
    if (c->now_ns - j->flushed_ns >= FLUSH_S * CLOCK_S)
        job_touch(j);
    V1_NEW(WatchUpdate, watch_update, update);
    union {
        const Weft__Rank__StepReport *from;
        Weft__Rank__StepReport *to;
    } report = {.from = r};
    update.report = report.to;
    out_publish(c, j->id, &update);
}

static void on_frame(struct told *t, int rank, const Weft__Rank__Frame *f)
{
    struct attempt *at = t->at;
    if (!is_of(t, rank) || at->phase < PHASE_START)
        return;
    t->h->started = true;
    switch (f->body_case) {
    case WEFT__RANK__FRAME__BODY_KV_PUT:
        board_put(&at->board, rank, f->kv_put->key, f->kv_put->value);
        return;
    case WEFT__RANK__FRAME__BODY_KV_GET:
        board_get(&at->board, rank, f->kv_get->key);
        return;
    case WEFT__RANK__FRAME__BODY_BARRIER:
        board_barrier(&at->board, rank, f->barrier, at->job->coord->now_ns);
        return;
    case WEFT__RANK__FRAME__BODY_READY:
        board_ready(&at->board, rank, f->ready->plan_hash);
        on_ready(at);
        return;
    case WEFT__RANK__FRAME__BODY_STEP_REPORT:
        if (rank == 0)
            on_report(at, f->step_report);
        return;
    case WEFT__RANK__FRAME__BODY_SHARD_DONE:
        checkpoint_shard(at, rank, f->shard_done);
        return;
    case WEFT__RANK__FRAME__BODY_COMMIT_DONE:
    case WEFT__RANK__FRAME__BODY_DELETED:
        if (rank == 0)
            checkpoint_writer(at, f);
        return;
    case WEFT__RANK__FRAME__BODY_PROGRESS:
        if (f->progress->rank == rank)
            see(t, f->progress);
        return;
    default:
        return; // Log, Exit: the agent tells them its own way
    }
}

// ---- up ----

void frames_up(struct coord *c, struct host *host, const Weft__V1__Up *up)
{
    struct told t;
    switch (up->body_case) {
    case WEFT__V1__UP__BODY_FRAME:
        if (up->frame->frame && find(c, host, up->frame->job, up->frame->epoch, &t))
            on_frame(&t, up->frame->rank, up->frame->frame);
        return;
    case WEFT__V1__UP__BODY_STORAGE:
        if (up->storage->op == WEFT__V1__STORAGE_OP__STORAGE_FIND)
            found_take(c, host, up->storage);
        else if (find(c, host, up->storage->job, up->storage->epoch, &t))
            attempt_storage(t.at, t.h, up->storage);
        return;
    case WEFT__V1__UP__BODY_PROGRESS:
        if (find(c, host, up->progress->job, up->progress->epoch, &t) && has_begun(&t))
            for (size_t i = 0; i < up->progress->n_ranks; i++)
                see(&t, up->progress->ranks[i]);
        return;
    case WEFT__V1__UP__BODY_RANK_END:
        if (find(c, host, up->rank_end->job, up->rank_end->epoch, &t) && has_begun(&t))
            on_rank_end(&t, up->rank_end);
        else
            send_away(c, host, up->rank_end->job, up->rank_end->epoch);
        return;
    case WEFT__V1__UP__BODY_REAPED:
        on_reaped(c, host, up->reaped);
        return;
    default:
        return;
    }
}

// ---- a registration ----

static bool still_there(struct coord *c, struct host *host, const Weft__V1__AttemptHere *h,
                        struct told *t)
{
    return find(c, host, h->job, h->epoch, t);
}

static void take_board(struct told *t, const Weft__V1__AttemptHere *h)
{
    for (size_t i = 0; i < h->n_answered; i++)
        if (h->answered[i]->frame)
            board_recall(&t->at->board, h->answered[i]->frame);
    on_ready(t->at);
}

// Whose rank it is does not matter: a key has one writer, and asking again shows who.
static void take_put(struct told *t, const Weft__Rank__KvPut *p)
{
    FRAME_BODY(value, KvValue, kv_value);
    value.key = p->key;
    value.value = p->value;
    FRAME(f, KV_VALUE, kv_value, &value);
    board_recall(&t->at->board, &f);
}

static void take_attempt(struct coord *c, struct host *host, const Weft__V1__AttemptHere *h,
                         struct told *t)
{
    t->h->started = true;
    for (size_t i = 0; i < h->n_ranks; i++)
        if (h->ranks[i]->progress)
            see(t, h->ranks[i]->progress);
    take_board(t, h);
    for (size_t i = 0; i < h->n_puts && still_there(c, host, h, t); i++)
        take_put(t, h->puts[i]);
    for (size_t i = 0; i < h->n_asked && still_there(c, host, h, t); i++)
        if (h->asked[i]->frame)
            on_frame(t, h->asked[i]->rank, h->asked[i]->frame);
    for (size_t i = 0; i < h->n_ranks && still_there(c, host, h, t); i++)
        if (h->ranks[i]->ended && h->ranks[i]->end)
            on_rank_end(t, h->ranks[i]->end);
}

// An attempt of an epoch that this database does not know: it was lost or set back. What lives here
// answers for the epoch in the row, so that grows only when nothing does.
static void meet_epoch(struct coord *c, const Weft__V1__AttemptHere *h)
{
    struct job_record *j = job_find(c, h->job);
    if (!j || h->epoch <= j->epoch || h->epoch > EPOCH_MOST)
        return;
    struct fault f = {.kind = FAULT_OUTSIDE, .event = EVENT_LOST, .rank = -1};
    snprintf(f.text, sizeof f.text, "a newer attempt of this job is known to a host");
    j->met_epoch = h->epoch;
    job_touch(j);
    if (j->attempt)
        attempt_fault(j->attempt, &f);
}

static void on_here(struct coord *c, struct host *host, const Weft__V1__AttemptHere *h)
{
    struct told t;
    V1_NEW(Reaped, reaped, r);
    bool known = find(c, host, h->job, h->epoch, &t) && has_begun(&t);
    if (known && !t.h->reaped)
        take_attempt(c, host, h, &t);
    else if (!known)
        meet_epoch(c, h);
    if (h->reaped) {
        r.job = h->job;
        r.epoch = h->epoch;
        r.incarnation = host->incarnation;
        on_reaped(c, host, &r);
    } else if (!known || t.h->reaped) {
        send_away(c, host, h->job, h->epoch);
    }
}

static bool is_listed(const Weft__V1__Register *r, const struct job_record *j)
{
    for (size_t i = 0; i < r->n_attempts; i++)
        if (!strcmp(r->attempts[i]->job, j->id) && r->attempts[i]->epoch == j->epoch)
            return true;
    return false;
}

// An attempt that runs there by our knowledge, and the agent has never heard of it.
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
    struct told t;
    for (size_t i = 0; i < r->n_attempts; i++)
        if (find(c, host, r->attempts[i]->job, r->attempts[i]->epoch, &t))
            t.h->back = true;
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
