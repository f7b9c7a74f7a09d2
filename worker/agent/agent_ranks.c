// SPDX-License-Identifier: Apache-2.0
// Attempts on this host: what begins, passes through and ends them.
//
// An attempt is born whole, by Start, and lives until Sync. Its ranks end one by one; when the last
// has ended the attempt is reaped, which is repeated until the coordinator has heard it. A (job,
// attempt) that was said to be reaped never lives again, however late its Start comes.
//
// Handlers write down what happened and mark the attempt dirty. agent_settle_attempts() draws the
// consequences: fellows learn of a lost rank, what is unsent goes up, what is over is freed.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/attempt/frame.h"
#include "common/attempt/life.h"
#include "common/base/clock.h"
#include "common/base/protocol_rule.h"
#include "worker/agent/agent_state.h"

#define BODY(name) WEFT__RANK__FRAME__BODY_##name

static void send_down(const struct attempt_rank *r, const Weft__Rank__Frame *f,
                      struct agent_out *out)
{
    if (r->slot < 0)
        return;
    struct agent_action *a = agent_act(out, AGENT_FRAME);
    a->slot = r->slot;
    a->frame = message_dup(out->arena, &f->base);
}

static void send_down_to(const struct local_attempt *at, int rank, const Weft__Rank__Frame *f,
                         struct agent_out *out) // −1: all
{
    for (int i = 0; i < at->nranks; i++)
        if (rank < 0 || at->ranks[i].rank == rank)
            send_down(&at->ranks[i], f, out);
}

static void kill_rank(struct attempt_rank *r, struct agent_out *out)
{
    if (r->slot < 0)
        return;
    r->killed = true;
    struct agent_action *a = agent_act(out, AGENT_KILL);
    a->slot = r->slot;
    a->signal = SIGKILL;
}

static void kill_attempt(struct local_attempt *at, struct agent_out *out)
{
    at->kill_ns = 0;
    for (int i = 0; i < at->nranks; i++)
        kill_rank(&at->ranks[i], out);
}

static void drop_report(struct attempt_rank *r)
{
    weft__rank__frame__free_unpacked(r->report, NULL);
    r->report = NULL;
}

// ---- processes ----

// `signal` 0: it exited. `log`: the last lines that it printed.
static void note_end(struct agent *g, struct local_attempt *at, struct attempt_rank *r, int code,
                     int signal, const char *why, const char *log)
{
    char where[300] = "";
    V1_NEW(RankEnd, rank_end, end);
    if (r->seen)
        page_view_text(&r->view, where, sizeof where);
    end.job = at->job;
    end.attempt = at->number;
    end.rank = r->rank;
    end.code = signal ? 128 + signal : code;
    end.signal = signal;
    end.unreached = r->exit ? r->exit->unreached : 0;
    end.step = r->seen ? r->view.step : -1;
    end.why = frame_text(why);
    end.log = frame_text(log);
    end.where = where;
    r->end = message_copy(&end.base);
    r->end_sent_ns = UNSENT;
    r->view_changed = false;
    r->pid = 0;
    drop_report(r);
    if (r->slot >= 0)
        slot_give_back(&g->attempts, r->slot);
    at->dirty = true;
}

void agent_ended(struct agent *g, const struct agent_event *ev, struct agent_out *out)
{
    struct process_slot s = slot_get(&g->attempts, ev->slot);
    (void)out;
    if (s.attempt)
        note_end(g, s.attempt, s.rank, ev->code, ev->signal, s.rank->exit ? s.rank->exit->why : "",
                 ev->log);
}

void agent_spawned(struct agent *g, const struct agent_event *ev, struct agent_out *out)
{
    struct process_slot s = slot_get(&g->attempts, ev->slot);
    if (!s.attempt)
        return;
    if (!ev->ok) {
        note_end(g, s.attempt, s.rank, RANK_EXIT_HOST, 0, ev->text, "");
        return;
    }
    s.rank->pid = ev->pid;
    g->heartbeat_now = true;
    if (s.rank->killed) // asked for before the process was there
        kill_rank(s.rank, out);
}

void agent_page(struct agent *g, const struct agent_event *ev, struct agent_out *out)
{
    struct process_slot s = slot_get(&g->attempts, ev->slot);
    (void)out;
    if (!s.attempt)
        return;
    s.rank->view = *ev->page;
    s.rank->seen = s.rank->view_changed = true;
}

// ---- Start ----

static const struct attempt_rank *rank_on_device(const struct agent *g, int device,
                                                 const char **job)
{
    for (int i = 0; i < g->attempts.nslots; i++) {
        struct process_slot s = g->attempts.slots[i];
        if (!s.attempt || s.rank->device != device)
            continue;
        *job = s.attempt->job;
        return s.rank;
    }
    return NULL;
}

// Puts why this host cannot take these ranks, or "" when it can.
static void explain_refusal(const struct agent *g, const Weft__V1__Start *s, char *out, size_t size)
{
    const struct attempt_rank *there;
    const char *job = "";
    *out = 0;
    if (g->terms)
        snprintf(out, size, "host %s is asked to stop and takes no rank", g->about->name);
    for (size_t i = 0; i < s->n_ranks && !*out; i++) {
        int device = s->ranks[i]->device;
        if (device < 0 || device >= (int)g->about->n_devices)
            snprintf(out, size, "host %s has no device %d", g->about->name, device);
        else if ((there = rank_on_device(g, device, &job)))
            snprintf(out, size, "device %d of host %s still has rank %d of job %s", device,
                     g->about->name, there->rank, job);
        for (size_t j = 0; j < i && !*out; j++)
            if (s->ranks[j]->device == device || s->ranks[j]->rank == s->ranks[i]->rank)
                snprintf(out, size, "device %d or rank %d was given twice", device,
                         s->ranks[i]->rank);
    }
}

static void spawn_rank(const struct agent *g, const Weft__V1__Start *s,
                       const Weft__Rank__Assign *common, const struct local_attempt *at,
                       const struct attempt_rank *r, struct agent_out *out)
{
    struct agent_spawn *sp = arena_new(out->arena, struct agent_spawn);
    Weft__Rank__Assign *assign = arena_dup(out->arena, common, sizeof *common);
    assign->rank = r->rank;
    Weft__V1__Device **devices = g->about->devices;
    assign->device = 0; // its number among the host's devices of its kind
    for (int i = 0; i < r->device; i++)
        assign->device += strcmp(devices[i]->kind, devices[r->device]->kind) == 0;
    assign->metrics = arena_strdup(out->arena, "");
    // Rank 0 alone writes metrics, beside the checkpoints, where the job's next host sees them.
    if (*assign->store && r->rank == 0)
        assign->metrics = arena_printf(out->arena, "%s/metrics.jsonl", assign->store);
    *sp = (struct agent_spawn){.job = arena_strdup(out->arena, at->job),
                               .attempt = at->number,
                               .rank = r->rank,
                               .device = r->device,
                               .kind = arena_strdup(out->arena, s->kind),
                               .assign = assign};
    struct agent_action *a = agent_act(out, AGENT_SPAWN);
    a->slot = r->slot;
    a->spawn = sp;
}

void agent_start(struct agent *g, const struct agent_event *ev, struct agent_out *out)
{
    const Weft__V1__Start *s = ev->down->start;
    struct attempts *t = &g->attempts;
    char why[300];
    if ((WEFT_RULE(incarnation) && strcmp(s->incarnation, g->incarnation)) || !s->assign ||
        !s->n_ranks)
        return; // meant for an earlier incarnation
    g->heartbeat_now = true;
    if (attempts_find(t, s->job, s->attempt))
        return; // this Start came before; the heartbeat says how the attempt is
    if (WEFT_RULE(refuse_reaped) && (s->attempt <= attempts_newest_reaped(t, s->job) ||
                                     s->attempt < attempts_newest(t, s->job))) {
        send_reaped(g, s->job, s->attempt, out);
        return;
    }
    explain_refusal(g, s, why, sizeof why);
    struct local_attempt *at = attempts_add(t, s->job, s->attempt, (int)s->n_ranks);
    for (size_t i = 0; i < s->n_ranks; i++) {
        at->ranks[i].rank = s->ranks[i]->rank;
        at->ranks[i].device = s->ranks[i]->device;
    }
    if (*why) { // these ranks are no cause of a failure, so they end with 69 and are placed again
        for (int i = 0; i < at->nranks; i++)
            note_end(g, at, &at->ranks[i], RANK_EXIT_LOST, 0, why, "");
        return;
    }
    // What is the same for every rank here. The roots are this worker's own, whatever was sent.
    Weft__Rank__Assign *common = message_dup(out->arena, &s->assign->base);
    common->data_root = arena_strdup(out->arena, g->about->data_root);
    common->checkpoint_root = arena_strdup(out->arena, g->about->checkpoint_root);
    for (int i = 0; i < at->nranks; i++) {
        slot_take(t, at, &at->ranks[i]);
        spawn_rank(g, s, common, at, &at->ranks[i], out);
    }
}

// ---- Stop, Sync ----

static void ask_to_stop(struct local_attempt *at, const char *reason, int64_t now, int64_t kill_ns,
                        struct agent_out *out)
{
    FRAME_BODY(stop, Stop, stop);
    stop.reason = frame_text(reason);
    stop.timeout_ns = kill_ns - now;
    FRAME(f, STOP, stop, &stop);
    if (!at->kill_ns || kill_ns < at->kill_ns)
        at->kill_ns = kill_ns;
    for (int i = 0; i < at->nranks; i++) {
        if (at->ranks[i].asked_to_stop)
            continue;
        at->ranks[i].asked_to_stop = true;
        send_down(&at->ranks[i], &f, out);
    }
}

void agent_stop(struct agent *g, const struct agent_event *ev, struct agent_out *out)
{
    const Weft__V1__Stop *s = ev->down->stop;
    struct local_attempt *at = attempts_find(&g->attempts, s->job, s->attempt);
    if (!at) { // never lived here, or was forgotten: from now on it never will
        attempts_set_reaped(&g->attempts, s->job, s->attempt);
        send_reaped(g, s->job, s->attempt, out);
    } else if (at->reaped) {
        at->reaped_sent_ns = UNSENT;
        at->dirty = true;
    } else if (s->grace_ms > 0) {
        ask_to_stop(at, s->reason, ev->now_ns, ev->now_ns + s->grace_ms * CLOCK_MS, out);
    } else {
        kill_attempt(at, out);
    }
}

void agent_sync(struct agent *g, const struct agent_event *ev, struct agent_out *out)
{
    const Weft__V1__Sync *s = ev->down->sync;
    (void)out;
    struct local_attempt *at = attempts_find(&g->attempts, s->job, s->attempt);
    if (at && at->reaped)
        at->forgotten = true;
}

void agent_drain(struct agent *g, const char *reason, int64_t now, int64_t kill_ns,
                 struct agent_out *out)
{
    list_for_each (it, &g->attempts.all) {
        struct local_attempt *at = list_entry(it, struct local_attempt, link);
        if (!at->reaped)
            ask_to_stop(at, reason, now, kill_ns, out);
    }
}

void agent_kill_all(struct agent *g, struct agent_out *out)
{
    list_for_each (it, &g->attempts.all)
        kill_attempt(list_entry(it, struct local_attempt, link), out);
}

void agent_forget_all(struct agent *g)
{
    list_for_each (it, &g->attempts.all)
        list_entry(it, struct local_attempt, link)->forgotten = true;
    attempts_forget_reaped(&g->attempts);
}

// ---- frames up ----

// The answer that is remembered for a question that is asked again, or null.
static const Weft__Rank__Frame *find_answer(const struct local_attempt *at, int rank, int question,
                                            const struct topic *topic)
{
    int kind = question == BODY(KV_GET)    ? BODY(KV_VALUE)
               : question == BODY(BARRIER) ? BODY(BARRIER_DONE)
               : question == BODY(READY)   ? BODY(READY_DONE)
                                           : 0;
    struct attempt_frame *f = kind ? attempt_frame_find(&at->answers, rank, kind, topic) : NULL;
    return f ? f->frame : NULL;
}

// A question is remembered until it is answered. The writer's first answer to an order is final.
static void take_question(struct local_attempt *at, struct attempt_rank *r,
                          const Weft__Rank__Frame *f, struct agent_out *out)
{
    struct list *l = f->body_case == BODY(KV_PUT) ? &at->puts : &at->questions;
    struct topic topic = topic_of_frame(f);
    const Weft__Rank__Frame *answer = find_answer(at, r->rank, (int)f->body_case, &topic);
    if (answer) {
        send_down(r, answer, out);
        return;
    }
    struct attempt_frame *first = attempt_frame_find(l, r->rank, (int)f->body_case, &topic);
    if (first && f->body_case == BODY(COMMIT_DONE) && WEFT_RULE(first_answer))
        first->sent_ns = UNSENT;
    else
        (void)attempt_frame_add(l, r->rank, f);
    at->dirty = true;
}

void agent_frame_up(struct agent *g, const struct agent_event *ev, struct agent_out *out)
{
    struct process_slot s = slot_get(&g->attempts, ev->slot);
    const Weft__Rank__Frame *f = ev->frame;
    if (!s.attempt)
        return;
    switch (f->body_case) {
    case BODY(READY):
    case BODY(KV_PUT):
    case BODY(KV_GET):
    case BODY(BARRIER):
    case BODY(SHARD_DONE):
    case BODY(COMMIT_DONE):
        take_question(s.attempt, s.rank, f, out);
        break;
    case BODY(STEP_REPORT): // of those that cannot go up the newest waits
        drop_report(s.rank);
        s.rank->report = message_copy(&f->base);
        s.attempt->dirty = true;
        break;
    case BODY(DELETED):
        send_frame(g, s.attempt, s.rank->rank, f, out);
        break;
    case BODY(EXIT):
        weft__rank__exit__free_unpacked(s.rank->exit, NULL);
        s.rank->exit = message_copy(&f->exit->base);
        break;
    default: // the daemon has handled Hello already
        break;
    }
}

// ---- frames down ----

// Marks the questions of `rank` (−1: of all) about a topic as answered; whoever asked gets
// `answer`, if that is not null.
static void answer_questions(struct local_attempt *at, struct list *l, int rank,
                             const struct topic *topic, const Weft__Rank__Frame *answer,
                             struct agent_out *out)
{
    list_for_each (it, l) {
        struct attempt_frame *f = list_entry(it, struct attempt_frame, link);
        struct topic its = topic_of_frame(f->frame);
        if ((rank >= 0 && f->rank != rank) || f->answered || !topic_same(&its, topic))
            continue;
        f->answered = true;
        const struct attempt_rank *r = attempts_find_rank(at, f->rank);
        if (r && answer)
            send_down(r, answer, out);
    }
    at->dirty = true;
}

// The writer answers an order once; asked again, its agent repeats that answer.
static void take_order(struct local_attempt *at, int rank, const Weft__Rank__Frame *f,
                       const struct topic *topic, struct agent_out *out)
{
    struct attempt_frame *done = attempt_frame_find(&at->questions, rank, BODY(COMMIT_DONE), topic);
    if (!done || !WEFT_RULE(first_answer)) {
        send_down_to(at, rank, f, out);
        return;
    }
    done->sent_ns = UNSENT;
    at->dirty = true;
}

void agent_frame_down(struct agent *g, const struct agent_event *ev, struct agent_out *out)
{
    const Weft__V1__RankFrame *m = ev->down->frame;
    struct local_attempt *at = attempts_find(&g->attempts, m->job, m->attempt);
    const Weft__Rank__Frame *f = m->frame;
    if (!at || !f)
        return;
    struct topic topic = topic_of_frame(f);
    switch (f->body_case) {
    case BODY(KV_VALUE):
    case BODY(BARRIER_DONE):
    case BODY(READY_DONE):
        if (topic.kind == TOPIC_PUT) {
            answer_questions(at, &at->puts, m->rank, &topic, f, out);
            break;
        }
        (void)attempt_frame_add(&at->answers, m->rank, f);
        answer_questions(at, &at->questions, m->rank, &topic, f, out);
        break;
    case BODY(COMMITTED):
    case BODY(ABORTED):
        answer_questions(at, &at->questions, m->rank, &topic, NULL, out);
        send_down_to(at, m->rank, f, out);
        break;
    case BODY(COMMIT):
        take_order(at, m->rank, f, &topic, out);
        break;
    case BODY(DELETE):
    case BODY(LOST):
    case BODY(STOP):
        send_down_to(at, m->rank, f, out);
        break;
    default: // nothing else is for a rank
        break;
    }
}

// ---- what goes up again ----

static void repeat_frames(struct list *l, int64_t before_ns)
{
    list_for_each (it, l) {
        struct attempt_frame *f = list_entry(it, struct attempt_frame, link);
        if (f->sent_ns <= before_ns && agent_repeats_frame(f->frame))
            f->sent_ns = UNSENT;
    }
}

void agent_repeat(struct agent *g, int64_t before_ns)
{
    list_for_each (it, &g->attempts.all) {
        struct local_attempt *at = list_entry(it, struct local_attempt, link);
        repeat_frames(&at->puts, before_ns);
        repeat_frames(&at->questions, before_ns);
        for (int i = 0; i < at->nranks; i++)
            if (at->ranks[i].end_sent_ns <= before_ns)
                at->ranks[i].end_sent_ns = UNSENT;
        if (at->reaped_sent_ns <= before_ns)
            at->reaped_sent_ns = UNSENT;
        at->dirty = true;
    }
}

void agent_resume(struct agent *g)
{
    list_for_each (it, &g->attempts.all)
        list_entry(it, struct local_attempt, link)->dirty = true;
}

// ---- settling ----

// A rank that waits for one that failed need not wait long: when it hears at once, it ends with 69.
static void report_lost_rank(const struct agent *g, const struct local_attempt *at,
                             const struct attempt_rank *gone, struct agent_out *out)
{
    const Weft__V1__RankEnd *end = gone->end;
    char why[700], how[64];
    if (end->code == RANK_EXIT_DONE || end->code == RANK_EXIT_DRAINED)
        return;
    snprintf(how, sizeof how, end->signal ? "was ended by signal %d" : "ended with exit code %d",
             end->signal ? end->signal : end->code);
    if (!rank_exit_is_cause(end->code) && *end->why) // its reason names the rank that was the cause
        snprintf(why, sizeof why, "%.600s", end->why);
    else
        snprintf(why, sizeof why, "rank %d on host %s %s%s%s%s%.300s", gone->rank, g->about->name,
                 how, *end->where ? "; it was last seen " : "", end->where, *end->why ? ": " : "",
                 end->why);
    FRAME_BODY(lost, Lost, lost);
    lost.rank = gone->rank;
    lost.why = why;
    FRAME(f, LOST, lost, &lost);
    for (int i = 0; i < at->nranks; i++)
        if (!at->ranks[i].killed)
            send_down(&at->ranks[i], &f, out);
}

static void settle_ends(struct agent *g, struct local_attempt *at, struct agent_out *out)
{
    bool all = true;
    for (int i = 0; i < at->nranks; i++) {
        struct attempt_rank *r = &at->ranks[i];
        all = all && r->end;
        if (!r->end || r->end_settled)
            continue;
        r->end_settled = true;
        g->heartbeat_now = true;
        report_lost_rank(g, at, r, out);
    }
    if (!all || at->reaped)
        return;
    at->reaped = true;
    at->kill_ns = 0;
    at->reaped_sent_ns = UNSENT;
    attempts_set_reaped(&g->attempts, at->job, at->number);
}

static void send_unsent_frames(struct agent *g, const struct local_attempt *at, struct list *l,
                               int64_t now, struct agent_out *out)
{
    list_for_each (it, l) {
        struct attempt_frame *f = list_entry(it, struct attempt_frame, link);
        if (f->answered || f->sent_ns != UNSENT)
            continue;
        send_frame(g, at, f->rank, f->frame, out);
        f->sent_ns = now;
    }
}

static void send_unsent(struct agent *g, struct local_attempt *at, int64_t now,
                        struct agent_out *out)
{
    send_unsent_frames(g, at, &at->puts, now, out);
    send_unsent_frames(g, at, &at->questions, now, out);
    for (int i = 0; i < at->nranks; i++) {
        struct attempt_rank *r = &at->ranks[i];
        if (r->report)
            send_frame(g, at, r->rank, r->report, out);
        drop_report(r);
        if (!r->end || r->end_sent_ns != UNSENT)
            continue;
        send_end(g, r, out);
        r->end_sent_ns = now;
    }
    if (at->reaped && at->reaped_sent_ns == UNSENT) {
        send_reaped(g, at->job, at->number, out);
        at->reaped_sent_ns = now;
    }
}

void agent_settle_attempts(struct agent *g, int64_t now, struct agent_out *out)
{
    list_for_each (it, &g->attempts.all) {
        struct local_attempt *at = list_entry(it, struct local_attempt, link);
        if (at->kill_ns && now >= at->kill_ns)
            kill_attempt(at, out);
        if (at->dirty) {
            settle_ends(g, at, out);
            list_for_each (q, &at->questions)
                if (list_entry(q, struct attempt_frame, link)->answered)
                    attempt_frame_free(list_entry(q, struct attempt_frame, link));
            if (g->state == AGENT_ATTACHED)
                send_unsent(g, at, now, out);
            at->dirty = false;
        }
        if (at->forgotten) {
            struct agent_action *a = agent_act(out, AGENT_FORGET);
            a->job = arena_strdup(out->arena, at->job);
            a->attempt = at->number;
            attempts_remove(at);
        }
    }
}
