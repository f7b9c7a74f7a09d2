// SPDX-License-Identifier: Apache-2.0
// The invariants over what processes, messages and rows do. What they say of the storage is
// sim_check_disk.c. See sim_check.h.
#include "tests/sim/sim_check_in.h"

#include <inttypes.h>
#include <string.h>

#include "common/ckpt/commit.h"
#include "coordinator/decide/words.h"

enum { PATIENCE_S = 150 }; // a rank that stands still for good has been named and killed by then

// ---- what is remembered ----
struct check *check_new(struct world *w)
{
    return arena_new(&w->sim.arena, struct check);
}

struct seen_job *seen_job(struct world *w, const char *id)
{
    struct seen_job *j = w->check->jobs;
    while (j && strcmp(j->id, id) != 0)
        j = j->next;
    if (j)
        return j;
    j = arena_new(&w->sim.arena, struct seen_job);
    memcpy(j->id, id, strnlen(id, sizeof j->id - 1));
    j->next = w->check->jobs;
    w->check->jobs = j;
    return j;
}

struct seen_ckpt *seen_ckpt(struct world *w, const char *job, int64_t attempt, int64_t step)
{
    struct seen_job *j = seen_job(w, job);
    struct seen_ckpt *k = j->ckpts;
    while (k && (k->id.attempt != attempt || k->id.step != step))
        k = k->next;
    if (k)
        return k;
    k = arena_new(&w->sim.arena, struct seen_ckpt);
    k->id = (struct store_entry){attempt, step};
    k->next = j->ckpts;
    j->ckpts = k;
    return k;
}

static bool said_reaped(const struct rank *r)
{
    for (const struct seen_reaped *x = r->w->check->reaped; x; x = x->next)
        if (x->agent == r->agent && x->attempt >= r->attempt && !strcmp(x->job, r->job))
            return true;
    return false;
}

// ---- processes ----
void check_spawned(struct rank *r)
{
    struct sim *s = &r->w->sim;
    for (const struct rank *o = r->host->living; o; o = o->next)
        if (o != r && o->device == r->device)
            sim_fail(s, "two living ranks on device %d of %s: %s and %s", r->device, r->host->name,
                     o->proc.who, r->proc.who);
    if (said_reaped(r))
        sim_fail(s, "%s is spawned after its attempt was said to be reaped", r->proc.who);
    const struct seen_job *j = seen_job(r->w, r->job);
    if (j->fenced < r->attempt)
        sim_fail(s, "%s is spawned before its attempt is fenced", r->proc.who);
}

void check_rank_ended(struct rank *r)
{
    r->w->check->rank_ends++;
}

static void still_there(void *arg, uint64_t tag)
{
    const struct rank *r = arg;
    (void)tag;
    if (!r->proc.dead)
        sim_fail(&r->w->sim, "%s has stood still for %d s and its attempt goes on", r->proc.who,
                 PATIENCE_S);
}

// One that trains is named long before the limit of a rank that starts.
void check_stopped(struct rank *r)
{
    if (r->proc.stopped && r->state >= RANK_RUNNING)
        sim_after(&r->w->sim, PATIENCE_S * S, still_there, r, 0);
}

void check_exit_fenced(struct host *h)
{
    if (!h->twin)
        sim_fail(&h->w->sim, "host %s is lost: it was taken for a twin", h->name);
}

// ---- messages ----
static void note_reaped(struct host *h, const char *job, uint64_t attempt)
{
    struct seen_reaped *x = arena_new(&h->w->sim.arena, struct seen_reaped);
    x->agent = h->proc;
    x->attempt = attempt;
    memcpy(x->job, job, strnlen(job, sizeof x->job - 1));
    x->next = h->w->check->reaped;
    h->w->check->reaped = x;
    for (const struct rank *r = h->living; r; r = r->next)
        if (r->attempt == attempt && !strcmp(r->job, job))
            sim_fail(&h->w->sim, "%s says that its attempt is reaped while %s lives", h->name,
                     r->proc.who);
}

void check_up(struct host *h, const Weft__V1__Up *m)
{
    if (m->body_case == WEFT__V1__UP__BODY_REGISTER)
        world_moment(h->w, MOMENT_REGISTER, h->proc);
    if (m->body_case == WEFT__V1__UP__BODY_REAPED)
        note_reaped(h, m->reaped->job, m->reaped->attempt);
}

static struct host *host_of(struct world *w, uint64_t conn)
{
    struct conn *c = w->conns;
    while (c && c->id != conn)
        c = c->next;
    return c ? c->host : NULL;
}

static bool fenced(const struct world *w, const char *incarnation)
{
    for (const struct seen_fenced *f = w->check->fenced; f; f = f->next)
        if (!strcmp(f->incarnation, incarnation))
            return true;
    return false;
}

static bool gives_device(const Weft__V1__Start *m, int device)
{
    for (size_t i = 0; i < m->n_ranks; i++)
        if (m->ranks[i]->device == device)
            return true;
    return false;
}

// Devices are freed when everything is reaped, and nowhere else.
static void check_devices(struct world *w, const struct host *h, const Weft__V1__Start *m)
{
    if (!h->proc || strcmp(h->incarnation, m->incarnation) != 0 || w->db_harmed)
        return; // it will not listen; or nobody knows what runs
    for (const struct rank *r = h->living; r; r = r->next)
        if (gives_device(m, r->device) && (r->attempt != m->attempt || strcmp(r->job, m->job) != 0))
            sim_fail(&w->sim, "device %d of %s is given away while %s lives on it", r->device,
                     h->name, r->proc.who);
}

static void check_older_attempts(struct world *w, const Weft__V1__Start *m)
{
    for (int i = 0; i < w->nhosts && !w->db_harmed; i++) {
        const struct host *h = &w->hosts[i];
        for (const struct rank *r = h->living; r; r = r->next)
            if (r->attempt < m->attempt && !strcmp(r->job, m->job) && r->agent == h->proc &&
                !fenced(w, h->incarnation))
                sim_fail(&w->sim, "attempt %d of job %.8s is assigned while %s lives, not fenced",
                         (int)m->attempt, m->job, r->proc.who);
    }
}

// What was acknowledged is not trained again.
static void check_choice(struct world *w, const Weft__V1__Start *m)
{
    struct store_entry chosen = {-1, -1};
    (void)store_entry_parse(m->assign->restore, &chosen);
    for (const struct seen_ckpt *k = seen_job(w, m->job)->ckpts; k; k = k->next)
        if (k->acknowledged && !k->deleting && store_entry_compare(k->id, chosen) > 0 &&
            k->id.attempt < (int64_t)m->attempt)
            sim_fail(&w->sim,
                     "attempt %d of job %.8s starts from '%s' though step %d of attempt %d is "
                     "acknowledged",
                     (int)m->attempt, m->job, m->assign->restore, (int)k->id.step,
                     (int)k->id.attempt);
}

static void check_start(struct world *w, const struct host *h, const Weft__V1__Start *m)
{
    struct seen_job *j = seen_job(w, m->job);
    if (m->attempt < j->started && !w->db_harmed) // else its ranks see the greater one and quit
        sim_fail(&w->sim, "attempt %d of job %.8s is assigned after attempt %d", (int)m->attempt,
                 m->job, (int)j->started);
    if (j->started && m->attempt > j->started && w->mix->gentle)
        sim_fail(&w->sim, "job %.8s is restarted and nothing of it had died", m->job);
    j->started = m->attempt;
    // A Start said again may leave in the turn that goes on to the next attempt: its own fence was
    // durable.
    bool again = m->attempt < j->attempt && m->attempt <= j->once_fenced;
    if ((!j->durably_fenced || j->attempt != m->attempt) && !again)
        sim_fail(&w->sim,
                 "attempt %d of job %.8s is assigned and its fence's answer is not durable",
                 (int)m->attempt, m->job);
    check_devices(w, h, m);
    check_older_attempts(w, m);
    check_choice(w, m);
}

static void check_commit_sent(struct world *w, const Weft__V1__RankFrame *f)
{
    const struct seen_ckpt *k = seen_ckpt(w, f->job, (int64_t)f->attempt, f->frame->commit->step);
    if (!k->ordered)
        sim_fail(&w->sim, "the commit of step %d of job %.8s is ordered and that is not durable",
                 (int)k->id.step, f->job);
}

void check_down(struct world *w, uint64_t conn, const Weft__V1__Down *m)
{
    const struct host *h = host_of(w, conn);
    if (h && m->body_case == WEFT__V1__DOWN__BODY_START)
        check_start(w, h, m->start);
    if (h && m->body_case == WEFT__V1__DOWN__BODY_REGISTERED && fenced(w, h->incarnation) &&
        !w->db_harmed)
        sim_fail(&w->sim, "%s is accepted as %.8s, which is fenced", h->name, h->incarnation);
    if (m->body_case == WEFT__V1__DOWN__BODY_FRAME &&
        m->frame->frame->body_case == WEFT__RANK__FRAME__BODY_BARRIER_DONE)
        world_moment(w, MOMENT_BARRIER, NULL);
    if (m->body_case == WEFT__V1__DOWN__BODY_FRAME &&
        m->frame->frame->body_case == WEFT__RANK__FRAME__BODY_COMMIT)
        check_commit_sent(w, m->frame);
}

// ---- rows ----
static bool may_move(enum job_state from, enum job_state to)
{
#define J(x)  JOB_##x
#define TO(x) (1u << J(x))
    static const unsigned table[] = {
        [JOB_NONE] = TO(QUEUED),
        [J(QUEUED)] = TO(STARTING) | TO(HELD) | TO(CANCELLED),
        [J(STARTING)] = TO(RUNNING) | TO(DRAINING) | TO(RECOVERING),
        [J(RUNNING)] = TO(DRAINING) | TO(RECOVERING),
        [J(DRAINING)] = TO(SUCCEEDED) | TO(QUEUED) | TO(HELD) | TO(CANCELLED),
        [J(RECOVERING)] = TO(STARTING) | TO(QUEUED) | TO(HELD) | TO(FAILED) | TO(CANCELLED),
        [J(HELD)] = TO(QUEUED) | TO(CANCELLED),
        [J(SUCCEEDED)] = 0,
        [J(FAILED)] = TO(QUEUED),
        [J(CANCELLED)] = TO(QUEUED),
    };
    return from == to || (table[from] >> to & 1);
}

// Who fails an attempt is named, and it was that one: a rank that only gave up is not named when another
// had failed before.
static void check_culprit(struct world *w, const struct event_record *r)
{
    const struct sim_attempt *at = w->attempts; // the newest first
    while (at && strcmp(at->job, r->job) != 0)
        at = at->next;
    const struct rank *k = at && r->rank >= 0 ? at->rank[r->rank] : NULL;
    bool is_end = r->kind == EVENT_HANG || r->kind == EVENT_FAILED || r->kind == EVENT_LOST;
    if (!k || !is_end || !w->mix->blames)
        return;
    bool any = false; // something had happened
    for (int i = 0; i < at->n; i++)
        any |= at->rank[i] && (at->rank[i]->struck || at->rank[i]->failed_ns);
    if (!any)
        sim_fail(&w->sim, "attempt %d ends and nothing had happened to its ranks: %s",
                 (int)at->number, r->text);
    if (r->kind == EVENT_HANG && !k->struck)
        sim_fail(&w->sim, "nothing had happened to whom the leader names: %s", r->text);
    if (r->kind == EVENT_FAILED && !k->failed_ns)
        sim_fail(&w->sim, "it did not fail of its own: %s", r->text);
    for (int i = 0; i < at->n && strstr(r->text, " gave up: "); i++) {
        const struct rank *o = at->rank[i];
        if (o && o->failed_ns && o->failed_ns < k->ended_ns)
            sim_fail(&w->sim, "rank %d only gave up, and rank %d had failed before it: %s", r->rank,
                     i, r->text);
    }
}

// Each transition is an event; the row is written once a step, whatever happened in it.
static void event_row(struct world *w, const struct event_record *r)
{
    struct seen_job *j = seen_job(w, r->job);
    if (!may_move(j->state, r->state) && !w->db_harmed)
        sim_fail(&w->sim, "job %.8s goes from %s to %s", r->job, job_state_word(j->state),
                 job_state_word(r->state));
    j->state = r->state;
    check_culprit(w, r);
}

static bool is_trained(const struct seen_job *j, int64_t steps)
{
    for (const struct seen_ckpt *k = j->ckpts; k; k = k->next)
        if (k->id.step == steps && k->named)
            return true;
    return false;
}

static void job_row(struct world *w, const struct job_record *r)
{
    struct seen_job *j = seen_job(w, r->id);
    if (j->state != r->state && !w->db_harmed)
        sim_fail(&w->sim, "job %.8s is %s, its last event says %s", r->id, job_state_word(r->state),
                 job_state_word(j->state));
    if (r->attempt < j->attempt && !w->db_harmed)
        sim_fail(&w->sim, "the attempt of job %.8s goes from %d back to %d", r->id, (int)j->attempt,
                 (int)r->attempt);
    if (r->state == J(SUCCEEDED) && !is_trained(j, r->steps))
        sim_fail(&w->sim, "job %.8s has succeeded and nobody saved its last step", r->id);
    j->state = r->state;
    j->attempt = r->attempt;
    j->durably_fenced = r->fenced;
    if (r->fenced && r->attempt > j->once_fenced)
        j->once_fenced = r->attempt;
    j->exists = true;
}

void check_decided(struct world *w, const char *job, struct store_entry id, enum commit_state state)
{
    struct seen_ckpt *k = seen_ckpt(w, job, id.attempt, id.step);
    switch (state) {
    case COMMIT_ORDERED:
        k->ordered = true;
        break;
    case COMMIT_COMMITTED:
        if (!k->named)
            sim_fail(&w->sim, "step %d.a%d of job %.8s is acknowledged and not there", (int)id.step,
                     (int)id.attempt, job);
        k->acknowledged = true;
        world_moment(w, MOMENT_ACKNOWLEDGED, NULL);
        break;
    case COMMIT_ABORTED:
        if (k->acknowledged && !w->db_harmed) // else the next fence finds it again
            sim_fail(&w->sim, "step %d.a%d of job %.8s was acknowledged and is now aborted",
                     (int)id.step, (int)id.attempt, job);
        break;
    case COMMIT_DELETING:
        k->deleting = true;
        break;
    default:
        break;
    }
}

static void fenced_row(struct world *w, const struct row *r)
{
    const char *incarnation = row_value(r, "incarnation")->data;
    struct seen_fenced *f = arena_new(&w->sim.arena, struct seen_fenced);
    memcpy(f->incarnation, incarnation, strnlen(incarnation, sizeof f->incarnation - 1));
    f->next = w->check->fenced;
    w->check->fenced = f;
    if (w->mix->gentle)
        sim_fail(&w->sim, "a host is fenced (%s) though it never was away for a lease",
                 row_value(r, "why")->data);
}

void check_row(struct world *w, const struct stored_row *s)
{
    if (w->sim.tracing)
        trace_row(w, s);
    if (s->row.erase)
        return;
    if (s->row.kind == ROW_JOB)
        job_row(w, s->job);
    else if (s->row.kind == ROW_EVENT)
        event_row(w, s->event);
    else if (s->row.kind == ROW_CHECKPOINT)
        check_decided(w, s->checkpoint->job, s->checkpoint->id, s->checkpoint->state);
    else if (s->row.kind == ROW_FENCED)
        fenced_row(w, &s->row);
}

// ---- ranks ----
void check_shard_done(struct rank *r, int64_t step)
{
    seen_ckpt(r->w, r->job, (int64_t)r->attempt, step)->shards |= 1u << r->rank;
    seen_job(r->w, r->job)->kind = r->kind;
}

void check_ordered(struct rank *r, const Weft__Rank__Commit *c)
{
    const struct seen_ckpt *k = seen_ckpt(r->w, r->job, (int64_t)r->attempt, c->step);
    if (k->shards != (1u << r->n) - 1 || (int)c->n_shards != r->n)
        sim_fail(&r->w->sim, "step %d of job %.8s is ordered before all its shards are in",
                 (int)c->step, r->job);
}

void check_heard(struct rank *r, int64_t step, bool committed)
{
    struct seen_ckpt *k = seen_ckpt(r->w, r->job, (int64_t)r->attempt, step);
    int says = committed ? 1 : 2;
    if (k->answer && k->answer != says && !r->w->db_harmed)
        sim_fail(&r->w->sim, "%s hears that step %d is %s, another rank heard the opposite",
                 r->proc.who, (int)step, committed ? "committed" : "aborted");
    k->answer = says;
    if (committed && !k->acknowledged)
        sim_fail(&r->w->sim, "%s hears that step %d is committed and that is not durable",
                 r->proc.who, (int)step);
}

void check_answered(struct rank *r, int64_t step, int code)
{
    struct seen_ckpt *k = seen_ckpt(r->w, r->job, (int64_t)r->attempt, step);
    int says = code ? 2 : 1;
    if (k->written && k->written != says)
        sim_fail(&r->w->sim, "%s answers the order to commit step %d otherwise than at first",
                 r->proc.who, (int)step);
    k->written = says;
}

void check_barrier(struct rank *r, bool passed)
{
    struct sim_attempt *c = r->shared;
    int verdict = passed ? 1 : 2;
    if (passed && c->entered != c->n)
        sim_fail(&r->w->sim, "%s passes a barrier that %d of %d ranks have reached", r->proc.who,
                 c->entered, c->n);
    if (c->verdict && c->verdict != verdict)
        sim_fail(&r->w->sim, "%s is answered otherwise than its fellows at the same barrier",
                 r->proc.who);
    c->verdict = verdict;
}

bool check_restored(struct rank *r)
{
    struct store_entry id = {0};
    bool good = store_entry_parse(r->restore, &id) && check_whole(r->store, r->job, id);
    if (good && id.step != r->restore_step)
        sim_fail(&r->w->sim, "%s is told that %s is of step %d", r->proc.who, r->restore,
                 (int)r->restore_step);
    bool stale =
        seen_job(r->w, r->job)->fenced > r->attempt; // woken late: retention went on without it
    if (!good && !stale)
        sim_fail(&r->w->sim, "%s restores %s, which is not whole", r->proc.who, r->restore);
    return good;
}

// ---- the end ----
void check_end(struct world *w)
{
    int jobs = 0, submits = 0;
    for (const struct seen_job *j = w->check->jobs; j; j = j->next)
        jobs += j->exists;
    for (const struct call *c = w->calls; c; c = c->next)
        submits += c->submit;
    if (jobs > submits && !w->db_harmed)
        sim_fail(&w->sim, "%d submits have made %d jobs", submits, jobs);
    for (int i = 0; i < w->nhosts; i++)
        if (w->hosts[i].living)
            sim_fail(&w->sim, "%s still lives when all jobs have ended",
                     w->hosts[i].living->proc.who);
    check_after_power_loss(w);
}
