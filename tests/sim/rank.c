// SPDX-License-Identifier: Apache-2.0
// A simulated rank: joins, agrees, steps with the others, saves, stops, ends.
//
//   spawn ─► look for a greater attempt, restore ─► put, get, barrier ─► Ready ─► steps ─► last save
// The rules of training (what is saved when, who stops when) are those of worker/rank/train/train.c.
#include "tests/sim/rank.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/attempt/frame.h"
#include "common/attempt/life.h"
#include "tests/sim/mutate.h"
#include "tests/sim/sim_check.h"

static void step_next(struct rank *r);

void rank_says(struct rank *r, const Weft__Rank__Frame *f)
{
    if (!r->proc.dead)
        host_rank_says(r, f);
}

// ---- the end ----
static void unlink_living(struct rank *r)
{
    for (struct rank **at = &r->host->living; *at; at = &(*at)->next)
        if (*at == r) {
            *at = r->next;
            return;
        }
}

// It has ended because of itself, or was told so.
static void note_failed(struct rank *r)
{
    if (!r->failed_ns)
        r->failed_ns = r->w->sim.now;
}

static void end(struct rank *r, int code, int signal)
{
    if (r->proc.dead)
        return;
    TRACE(&r->w->sim, r->proc.who, "ended, %s %d", signal ? "signal" : "code",
          signal ? signal : code);
    proc_die(&r->proc);
    check_rank_ended(r);
    unlink_living(r);
    sim_attempt_gone(r, !signal && (code == RANK_EXIT_DONE || code == RANK_EXIT_DRAINED));
    if (signal)
        note_failed(r);
    host_rank_ended(r, code, signal);
}

static void exit_now(void *arg, uint64_t code)
{
    end(arg, (int)code, 0);
}

void rank_exits(struct rank *r, int code, const char *why)
{
    if (r->exiting)
        return;
    r->exiting = true;
    r->ended_ns = r->w->sim.now;
    if (rank_exit_is_cause(code))
        note_failed(r);
    FRAME_BODY(b, Exit, exit);
    b.code = code;
    b.why = frame_text(why);
    FRAME(f, EXIT, exit, &b);
    rank_says(r, &f);
    proc_after(&r->proc, sim_between(&r->w->sim, MS, 20 * MS), exit_now, r, (uint64_t)code);
}

static void dies(void *arg, uint64_t signal)
{
    end(arg, 0, (int)signal);
}

void rank_kill(struct rank *r, int64_t after_ns)
{
    if (r->dying || r->proc.dead)
        return;
    r->dying = true;
    sim_after(&r->w->sim, after_ns, dies, r, 9); // a stopped process dies too
}

void rank_fails(struct rank *r, int code)
{
    if (r->proc.dead || (code >= 0 && r->proc.stopped)) // a stopped one runs into no error
        return;
    if (code < 0)
        end(r, 0, -code);
    else
        rank_exits(r, code, "a fault was injected");
}

static void wakes(void *arg, uint64_t tag)
{
    struct rank *r = arg;
    (void)tag;
    if (r->proc.dead)
        return;
    proc_wake(&r->proc);
}

void rank_hangs(struct rank *r, int64_t ns)
{
    if (r->proc.dead || r->proc.stopped)
        return;
    TRACE(&r->w->sim, r->proc.who, "stops");
    r->struck = true;
    proc_stop(&r->proc);
    if (ns)
        sim_after(&r->w->sim, ns, wakes, r, 0);
}

void rank_lost_peer(struct rank *r)
{
    rank_exits(r, RANK_EXIT_LOST, "lost a peer");
}

// ---- joining ----
static void put_address(struct rank *r)
{
    char key[40], value[80];
    snprintf(key, sizeof key, "addr/%d", r->rank);
    snprintf(value, sizeof value, "%.8s.%" PRIu64 ".%d.%08x", r->job, r->attempt, r->rank,
             sim_word(&r->w->sim));
    r->shared->value[r->rank] = arena_strdup(&r->w->sim.arena, value);
    FRAME_BODY(b, KvPut, kv_put);
    b.key = key;
    b.value = value;
    FRAME(f, KV_PUT, kv_put, &b);
    rank_says(r, &f);
}

static void get_address(struct rank *r, int of)
{
    char key[40];
    snprintf(key, sizeof key, "addr/%d", of);
    FRAME_BODY(b, KvGet, kv_get);
    b.key = key;
    FRAME(f, KV_GET, kv_get, &b);
    rank_says(r, &f);
}

static void enter_barrier(struct rank *r, const char *name, int64_t seq, int64_t timeout)
{
    FRAME_BODY(b, Barrier, barrier);
    b.name = frame_text(name);
    b.seq = seq;
    b.timeout_ns = timeout;
    FRAME(f, BARRIER, barrier, &b);
    rank_says(r, &f);
}

static void on_value(struct rank *r, const Weft__Rank__KvValue *v)
{
    int of = -1;
    if (r->state != RANK_STARTING || sscanf(v->key, "addr/%d", &of) != 1 || of >= r->n)
        return;
    if (*v->failed) {
        rank_exits(r, RANK_EXIT_INTERNAL, v->failed);
        return;
    }
    if (!v->put && (!r->shared->value[of] || strcmp(v->value, r->shared->value[of]) != 0))
        sim_fail(&r->w->sim, "%s is answered '%s' for %s, which nobody put", r->proc.who, v->value,
                 v->key);
    if (++r->answers == 3) {
        r->shared->entered++;
        // Where blame is checked the coordinator may pause for longer than ranks wait.
        enter_barrier(r, "world", 1, (r->w->mix->blames ? 10 : 60) * S);
    }
}

static void on_barrier(struct rank *r, const Weft__Rank__BarrierDone *d)
{
    if (!strcmp(d->name, "the last save was aborted")) {
        if (r->wait == WAIT_COMPANY)
            rank_exits(r, RANK_EXIT_INTERNAL, "the last save was aborted");
        return;
    }
    check_barrier(r, *d->failed == 0);
    if (*d->failed) {
        rank_exits(r, RANK_EXIT_LOST, d->failed);
        return;
    }
    if (r->state != RANK_STARTING)
        return;
    r->state = RANK_READY;
    FRAME_BODY(b, Ready, ready);
    b.plan_hash = frame_text("hash");
    FRAME(f, READY, ready, &b);
    rank_says(r, &f);
}

static void on_ready(struct rank *r, const Weft__Rank__ReadyDone *d)
{
    if (r->state != RANK_READY)
        return;
    if (*d->failed || d->called_off) {
        rank_exits(r, d->called_off ? RANK_EXIT_DRAINED : RANK_EXIT_INTERNAL, d->failed);
        return;
    }
    r->state = RANK_RUNNING;
    step_next(r);
}

struct start {
    struct rank *rank;
    int code;
    char why[200];
};

static void look(void *arg)
{
    struct start *b = arg;
    struct rank *r = b->rank;
    struct store s = {.fd = -1};
    struct err e = {0};
    int rc = store_open(&s, NULL, r->store, &e);
    rc = rc ? rc : store_check_attempt(&s, (int64_t)r->attempt, NULL, &e);
    store_close(&s);
    fiber_pause(sim_between(&r->w->sim, MS, 300 * MS)); // compiles, reads the checkpoint
    b->code = rank_exit_code(rc);
    snprintf(b->why, sizeof b->why, "%.190s", e.text);
}

static void looked(void *arg)
{
    struct start *b = arg;
    struct rank *r = b->rank;
    if (b->code) {
        rank_exits(r, b->code, b->why);
        return;
    }
    if (*r->restore && !check_restored(r)) {
        rank_exits(r, RANK_EXIT_DAMAGED, "the checkpoint is damaged");
        return;
    }
    put_address(r);
    get_address(r, 0);
    if ((r->rank + 1) % r->n != 0)
        get_address(r, r->rank + 1);
    else
        r->answers++;
}

static void begin(void *arg, uint64_t tag)
{
    struct rank *r = arg;
    struct start *b = arena_new(&r->w->sim.arena, struct start);
    (void)tag;
    b->rank = r;
    fiber_start(&r->proc, ACT_NONE, look, looked, b);
}

struct rank *rank_spawn(struct host *h, int slot, const struct agent_spawn *sp)
{
    struct world *w = h->w;
    const Weft__Rank__Assign *a = sp->assign;
    struct rank *r = arena_new(&w->sim.arena, struct rank);
    proc_init(&r->proc, &w->sim, "%s/%.4s.a%d.r%d", h->name, sp->job, (int)sp->attempt, sp->rank);
    r->w = w;
    r->host = h;
    r->agent = h->proc;
    r->slot = slot;
    r->device = sp->device;
    r->rank = sp->rank;
    r->n = a->ranks;
    r->attempt = sp->attempt;
    snprintf(r->job, sizeof r->job, "%s", sp->job);
    r->kind = variant_of(a->job_text);
    r->store = arena_strdup(&w->sim.arena, a->store);
    r->restore = arena_strdup(&w->sim.arena, a->restore);
    r->restore_step = r->step = a->restore_step;
    r->open_step = r->opened_at = r->answered_step = -1;
    r->shared = sim_attempt_join(r);
    r->next = h->living;
    h->living = r;
    check_spawned(r);
    TRACE(&w->sim, r->proc.who, "spawned on device %d, restores %s", r->device,
          *r->restore ? r->restore : "nothing");
    proc_after(&r->proc, sim_between(&w->sim, MS, 100 * MS), begin, r, 0);
    return r;
}

// ---- steps ----
static void step_next(struct rank *r)
{
    if (r->exiting)
        return;
    if (r->step >= r->kind->steps) {
        rank_exits(r, RANK_EXIT_DONE, "");
        return;
    }
    unsigned bits = (r->stop ? BIT_STOP : 0) | (save_busy(r) ? BIT_NO_SAVE : 0);
    sim_attempt_arrives(r, r->step + 1, bits);
}

static void report(struct rank *r)
{
    FRAME_BODY(b, StepReport, step_report);
    b.step = r->step;
    b.steps = r->kind->steps;
    b.loss = 1.0 / (double)(r->step + 1);
    FRAME(f, STEP_REPORT, step_report, &b);
    rank_says(r, &f);
}

static void begin_last(struct rank *r)
{
    r->wait = WAIT_LAST;
    save_begin(r, r->step);
}

static void finish(struct rank *r)
{
    r->state = RANK_SAVING;
    r->wait = WAIT_OPEN;
    if (MUTATED(last_save_waits))
        begin_last(r);
    else
        rank_waited(r);
}

static bool save_is_due(const struct rank *r, unsigned before)
{
    if (r->kind->every <= 0 || r->step % r->kind->every != 0)
        return false;
    if (MUTATED(no_save))
        return true;
    bool too_soon = r->kind->async && r->opened_at == r->step - 1;
    return !(before & BIT_NO_SAVE) && !too_soon;
}

void rank_stepped(struct rank *r, int64_t step)
{
    if (r->exiting)
        return;
    unsigned before = step - 1 > r->restore_step ? r->shared->bits[step - 1] : 0;
    r->step = step;
    if (r->rank == 0)
        report(r);
    if (before & BIT_STOP)
        r->must_drain = true;
    if (step == r->kind->steps || r->must_drain) {
        finish(r);
        return;
    }
    if (save_is_due(r, before)) {
        save_begin(r, step);
        if (!r->kind->async) {
            r->state = RANK_SAVING;
            r->wait = WAIT_SAVE;
            return;
        }
    }
    step_next(r);
}

static void last_is_over(struct rank *r)
{
    r->wait = WAIT_NOTHING;
    if (r->last_ok) {
        rank_exits(r, r->step >= r->kind->steps ? RANK_EXIT_DONE : RANK_EXIT_DRAINED, "");
        return;
    }
    r->wait = WAIT_COMPANY;
    enter_barrier(r, "the last save was aborted", r->step, 30 * S);
}

void rank_waited(struct rank *r)
{
    if (r->exiting)
        return;
    if (r->wait == WAIT_SAVE && !save_busy(r)) {
        r->wait = WAIT_NOTHING;
        r->state = RANK_RUNNING;
        step_next(r);
    } else if (r->wait == WAIT_OPEN && !save_busy(r)) {
        begin_last(r);
    } else if (r->wait == WAIT_LAST && save_idle(r)) {
        last_is_over(r);
    }
}

// ---- frames down ----
static void give_up_ready(void *arg, uint64_t tag)
{
    struct rank *r = arg;
    (void)tag;
    if (r->state == RANK_READY)
        rank_exits(r, RANK_EXIT_DRAINED, "asked to stop, and nobody says whether all begin");
}

static void on_stop(struct rank *r)
{
    bool first = !r->stop;
    r->stop = true;
    if (r->state < RANK_READY)
        rank_exits(r, RANK_EXIT_DRAINED, "asked to stop before the first step");
    else if (r->state == RANK_READY && first)
        proc_after(&r->proc, 10 * S, give_up_ready, r, 0);
}

void rank_hear(struct rank *r, const Weft__Rank__Frame *f)
{
    if (r->exiting)
        return;
    switch (f->body_case) {
    case WEFT__RANK__FRAME__BODY_KV_VALUE:
        on_value(r, f->kv_value);
        break;
    case WEFT__RANK__FRAME__BODY_BARRIER_DONE:
        on_barrier(r, f->barrier_done);
        break;
    case WEFT__RANK__FRAME__BODY_READY_DONE:
        on_ready(r, f->ready_done);
        break;
    case WEFT__RANK__FRAME__BODY_STOP:
        on_stop(r);
        break;
    case WEFT__RANK__FRAME__BODY_LOST:
        rank_exits(r, RANK_EXIT_LOST, f->lost->why);
        break;
    default:
        save_hears(r, f);
        break;
    }
}
