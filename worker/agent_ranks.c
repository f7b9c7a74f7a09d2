// SPDX-License-Identifier: Apache-2.0
// Attempts on this host: what begins, passes through and ends them.
//
// An attempt here is born by Start, whole, and lives until Sync. Its ranks end one by one; when the
// last has, the attempt is reaped, which is said until the coordinator has heard it. A (job, epoch)
// that was said to be reaped never lives again, however late its Start comes.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/attempt/frame.h"
#include "common/attempt/life.h"
#include "common/base/protocol_rule.h"
#include "worker/agent_in.h"

#define BODY(name) WEFT__RANK__FRAME__BODY_##name

static void send_down(struct agent_out *out, const struct kept_rank *r, const Weft__Rank__Frame *f)
{
    if (r->slot < 0)
        return;
    struct agent_action *a = agent_act(out, AGENT_FRAME);
    a->slot = r->slot;
    a->frame = frame_dup(out->arena, f);
}

static void kill_rank(struct kept_rank *r, struct agent_out *out)
{
    if (r->slot < 0)
        return;
    r->killed = true;
    struct agent_action *a = agent_act(out, AGENT_KILL);
    a->slot = r->slot;
    a->signal = SIGKILL;
}

static void kill_attempt(struct kept *k, struct agent_out *out)
{
    k->kill_ns = 0;
    for (int i = 0; i < k->n; i++)
        kill_rank(&k->ranks[i], out);
}

// ---- the end of a rank ----

struct ending {
    int code, signal;
    const char *why, *log;
};

static void note_end(struct kept *k, struct kept_rank *r, const struct ending *end)
{
    char where[300] = "";
    Weft__V1__RankEnd m;
    weft__v1__rank_end__init(&m);
    if (r->seen)
        page_view_text(&r->view, where, sizeof where);
    m.job = k->job;
    m.epoch = k->epoch;
    m.rank = r->rank;
    m.code = end->signal ? 128 + end->signal : end->code;
    m.signal = end->signal;
    m.why = frame_text(end->why);
    m.log = frame_text(end->log);
    m.step = r->seen ? r->view.step : -1;
    m.where = where;
    r->end = (Weft__V1__RankEnd *)(void *)message_copy(&m.base);
    r->said_ns = INT64_MIN;
    r->changed = false;
    if (r->report)
        weft__rank__frame__free_unpacked(r->report, NULL);
    r->report = NULL;
}

// Who waits for a rank that failed must not wait long: told at once, it ends with 69.
static void tell_fellows(struct agent *g, struct kept *k, const struct kept_rank *gone,
                         struct agent_out *out)
{
    const Weft__V1__RankEnd *end = gone->end;
    char why[700], how[64];
    if (end->code == RANK_EXIT_DONE || end->code == RANK_EXIT_DRAINED)
        return;
    snprintf(how, sizeof how, end->signal ? "was ended by signal %d" : "ended with exit code %d",
             end->signal ? end->signal : end->code);
    if (end->code == RANK_EXIT_LOST && *end->why) // not the cause: it names who was
        snprintf(why, sizeof why, "%.600s", end->why);
    else
        snprintf(why, sizeof why, "rank %d on host %s %s%s%s%s%.300s", gone->rank, g->c.name, how,
                 *end->where ? "; it was last seen " : "", end->where, *end->why ? ": " : "",
                 end->why);
    FRAME_BODY(lost, Lost, lost);
    lost.rank = gone->rank;
    lost.why = why;
    FRAME(f, LOST, lost, &lost);
    for (int i = 0; i < k->n; i++)
        if (!k->ranks[i].killed)
            send_down(out, &k->ranks[i], &f);
}

static void end_rank(struct agent *g, struct kept *k, struct kept_rank *r, const struct ending *end,
                     int64_t now, struct agent_out *out)
{
    note_end(k, r, end);
    if (r->slot >= 0)
        slot_free(&g->t, r->slot);
    r->pid = 0;
    say_end(g, r, now, out);
    tell_fellows(g, k, r, out);
    g->beat_now = true;
    for (int i = 0; i < k->n; i++)
        if (!k->ranks[i].end)
            return;
    k->reaped = true;
    k->kill_ns = 0;
    k->said_ns = now;
    attempts_set_reaped(&g->t, k->job, k->epoch);
    say_reaped(g, k->job, k->epoch, out);
}

void agent_ended(struct agent *g, const struct agent_event *ev, struct agent_out *out)
{
    struct place at = slot_place(&g->t, ev->slot);
    if (!at.k)
        return;
    struct ending end = {ev->code, ev->signal, at.r->why, ev->log};
    end_rank(g, at.k, at.r, &end, ev->now_ns, out);
}

void agent_spawned(struct agent *g, const struct agent_event *ev, struct agent_out *out)
{
    struct place at = slot_place(&g->t, ev->slot);
    if (!at.k)
        return;
    if (!ev->ok) {
        struct ending end = {.code = RANK_EXIT_INTERNAL, .why = ev->text};
        end_rank(g, at.k, at.r, &end, ev->now_ns, out);
        return;
    }
    at.r->pid = ev->pid;
    g->beat_now = true;
    if (at.r->killed) // before it was there
        kill_rank(at.r, out);
}

// ---- Start ----

static const struct kept_rank *on_device(const struct agent *g, int device, const char **job)
{
    for (int s = 0; s < g->t.nslots; s++) {
        if (!g->t.slots[s].k || g->t.slots[s].r->device != device)
            continue;
        *job = g->t.slots[s].k->job;
        return g->t.slots[s].r;
    }
    return NULL;
}

// Why these ranks cannot live here, or "".
static void refusal(const struct agent *g, const Weft__V1__Start *s, char *out, size_t size)
{
    const struct kept_rank *there;
    const char *job = "";
    *out = 0;
    if (g->terms)
        snprintf(out, size, "host %s is asked to stop and takes no rank", g->c.name);
    for (size_t i = 0; i < s->n_ranks && !*out; i++) {
        int device = s->ranks[i]->device;
        if (device < 0 || device >= g->c.ndevices)
            snprintf(out, size, "host %s has no device %d", g->c.name, device);
        else if ((there = on_device(g, device, &job)))
            snprintf(out, size, "device %d of host %s still has rank %d of job %s", device,
                     g->c.name, there->rank, job);
        for (size_t j = 0; j < i && !*out; j++)
            if (s->ranks[j]->device == device || s->ranks[j]->rank == s->ranks[i]->rank)
                snprintf(out, size, "device %d or rank %d was given twice", device,
                         s->ranks[i]->rank);
    }
}

static void spawn(const struct agent *g, const Weft__V1__Start *s, const Weft__Rank__Assign *whole,
                  const struct kept *k, const struct kept_rank *r, struct agent_out *out)
{
    struct agent_spawn *sp = arena_new(out->arena, struct agent_spawn);
    Weft__Rank__Assign *assign = arena_dup(out->arena, whole, sizeof *whole);
    assign->rank = r->rank;
    assign->device = g->c.devices[r->device].ordinal;
    assign->metrics = arena_strdup(out->arena, "");
    if (*assign->store && r->rank == 0) // one writer; beside the checkpoints: its next host sees it
        assign->metrics = arena_printf(out->arena, "%s/metrics.jsonl", assign->store);
    *sp = (struct agent_spawn){.job = arena_strdup(out->arena, k->job),
                               .name = arena_strdup(out->arena, s->name),
                               .epoch = k->epoch,
                               .rank = r->rank,
                               .device = r->device,
                               .threads = s->threads,
                               .kind = arena_strdup(out->arena, s->kind),
                               .assign = assign};
    struct agent_action *a = agent_act(out, AGENT_SPAWN);
    a->slot = r->slot;
    a->spawn = sp;
}

// What every rank here is assigned. The roots are this worker's own, whatever was sent.
static Weft__Rank__Assign *assignment(const struct agent *g, const Weft__V1__Start *s,
                                      struct agent_out *out)
{
    Weft__Rank__Assign *a = (Weft__Rank__Assign *)(void *)message_dup(out->arena, &s->assign->base);
    a->data_root = arena_strdup(out->arena, g->c.data_root ? g->c.data_root : "");
    a->checkpoint_root = arena_strdup(out->arena, g->c.checkpoint_root ? g->c.checkpoint_root : "");
    return a;
}

static struct kept *add(struct agent *g, const Weft__V1__Start *s)
{
    struct kept *k = attempts_add(&g->t, s->job, s->epoch, (int)s->n_ranks);
    for (size_t i = 0; i < s->n_ranks; i++) {
        k->ranks[i].rank = s->ranks[i]->rank;
        k->ranks[i].device = s->ranks[i]->device;
    }
    return k;
}

void agent_start(struct agent *g, const Weft__V1__Start *s, int64_t now, struct agent_out *out)
{
    char why[300];
    if ((WEFT_RULE(incarnation) && strcmp(s->incarnation, g->incarnation)) || !s->assign ||
        !s->n_ranks)
        return; // meant for who was here before
    g->beat_now = true;
    if (attempts_find(&g->t, s->job, s->epoch))
        return; // heard before: the heartbeat and what is repeated tell how it is
    if (WEFT_RULE(refuse_reaped) &&
        (s->epoch <= attempts_reaped(&g->t, s->job) || s->epoch < attempts_newest(&g->t, s->job))) {
        say_reaped(g, s->job, s->epoch, out);
        return;
    }
    refusal(g, s, why, sizeof why);
    struct kept *k = add(g, s);
    if (*why) { // not the cause of anything, so 69: the coordinator places it again
        struct ending end = {.code = RANK_EXIT_LOST, .why = why};
        for (int i = 0; i < k->n; i++)
            end_rank(g, k, &k->ranks[i], &end, now, out);
        return;
    }
    const Weft__Rank__Assign *whole = assignment(g, s, out);
    for (int i = 0; i < k->n; i++) {
        (void)slot_take(&g->t, k, &k->ranks[i]);
        spawn(g, s, whole, k, &k->ranks[i], out);
    }
}

// ---- Stop, Sync ----

static void ask_to_stop(struct kept *k, const char *reason, int64_t now, int64_t kill_ns,
                        struct agent_out *out)
{
    FRAME_BODY(stop, Stop, stop);
    stop.reason = frame_text(reason);
    stop.timeout_ns = kill_ns - now;
    FRAME(f, STOP, stop, &stop);
    if (!k->kill_ns || kill_ns < k->kill_ns)
        k->kill_ns = kill_ns;
    for (int i = 0; i < k->n; i++) {
        if (k->ranks[i].asked_to_stop)
            continue;
        k->ranks[i].asked_to_stop = true;
        send_down(out, &k->ranks[i], &f);
    }
}

void agent_stop(struct agent *g, const Weft__V1__Stop *s, int64_t now, struct agent_out *out)
{
    struct kept *k = attempts_find(&g->t, s->job, s->epoch);
    if (!k) { // never lived here, or was forgotten: from now on it never will
        attempts_set_reaped(&g->t, s->job, s->epoch);
        say_reaped(g, s->job, s->epoch, out);
    } else if (k->reaped) {
        k->said_ns = now;
        say_reaped(g, s->job, s->epoch, out);
    } else if (s->grace_ms > 0) {
        ask_to_stop(k, s->reason, now, now + s->grace_ms * 1000000, out);
    } else {
        kill_attempt(k, out);
    }
}

void agent_sync(struct agent *g, const Weft__V1__Sync *s, struct agent_out *out)
{
    struct kept *k = attempts_find(&g->t, s->job, s->epoch);
    if (!k || !k->reaped)
        return;
    struct agent_action *a = agent_act(out, AGENT_FORGET);
    a->job = arena_strdup(out->arena, k->job);
    a->epoch = k->epoch;
    attempts_drop(&g->t, k);
}

void agent_drain(struct agent *g, const char *reason, int64_t now, int64_t kill_ns,
                 struct agent_out *out)
{
    list_for_each (it, &g->t.all) {
        struct kept *k = list_entry(it, struct kept, link);
        if (!k->reaped)
            ask_to_stop(k, reason, now, kill_ns, out);
    }
}

void agent_kill_all(struct agent *g, struct agent_out *out)
{
    list_for_each (it, &g->t.all)
        kill_attempt(list_entry(it, struct kept, link), out);
}

void agent_kill_due(struct agent *g, int64_t now, struct agent_out *out)
{
    list_for_each (it, &g->t.all) {
        struct kept *k = list_entry(it, struct kept, link);
        if (k->kill_ns && now >= k->kill_ns)
            kill_attempt(k, out);
    }
}

void agent_forget_all(struct agent *g, struct agent_out *out)
{
    list_for_each (it, &g->t.all) {
        struct kept *k = list_entry(it, struct kept, link);
        struct agent_action *a = agent_act(out, AGENT_FORGET);
        a->job = arena_strdup(out->arena, k->job);
        a->epoch = k->epoch;
    }
    attempts_clear(&g->t);
}

// ---- frames up ----

// The answer that is kept for a question that is asked again, or null.
static const Weft__Rank__Frame *answer_to(const struct kept *k, int rank, int kind,
                                          const char *topic)
{
    static const int answers[][2] = {
        {BODY(KV_GET), BODY(KV_VALUE)},
        {BODY(BARRIER), BODY(BARRIER_DONE)},
        {BODY(READY), BODY(READY_DONE)},
    };
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        struct kept_frame *f =
            answers[i][0] == kind ? keep_find(&k->answered, rank, answers[i][1], topic) : NULL;
        if (f)
            return f->frame;
    }
    return NULL;
}

// A question is kept until it is answered. The first answer of the writer is final.
static void question(struct agent *g, struct kept *k, struct kept_rank *r,
                     const Weft__Rank__Frame *f, int64_t now, struct agent_out *out)
{
    char topic[TOPIC_MAX];
    if (!frame_topic(f, topic))
        return;
    const Weft__Rank__Frame *answer = answer_to(k, r->rank, (int)f->body_case, topic);
    if (answer) {
        send_down(out, r, answer);
        return;
    }
    struct list *l = f->body_case == BODY(KV_PUT) ? &k->puts : &k->asked;
    struct kept_frame *kept = keep_find(l, r->rank, (int)f->body_case, topic);
    if (!kept || f->body_case != BODY(COMMIT_DONE) || !WEFT_RULE(first_answer))
        kept = keep_add(l, r->rank, topic, f);
    kept->said_ns = now;
    say_frame(g, k, r->rank, kept->frame, out);
}

static void news(struct agent *g, struct kept *k, struct kept_rank *r, const Weft__Rank__Frame *f,
                 struct agent_out *out)
{
    if (f->body_case == BODY(STEP_REPORT) && g->state != AGENT_ATTACHED) {
        if (r->report)
            weft__rank__frame__free_unpacked(r->report, NULL);
        r->report = frame_copy(f); // the newest goes up when there is somebody to hear it
        return;
    }
    say_frame(g, k, r->rank, f, out);
}

void agent_frame_up(struct agent *g, const struct agent_event *ev, struct agent_out *out)
{
    struct place at = slot_place(&g->t, ev->slot);
    const Weft__Rank__Frame *f = ev->frame;
    if (!at.k)
        return;
    switch (f->body_case) {
    case BODY(READY):
    case BODY(KV_PUT):
    case BODY(KV_GET):
    case BODY(BARRIER):
    case BODY(SHARD_DONE):
    case BODY(COMMIT_DONE):
        question(g, at.k, at.r, f, ev->now_ns, out);
        break;
    case BODY(STEP_REPORT):
    case BODY(DELETED):
    case BODY(LOG):
        news(g, at.k, at.r, f, out);
        break;
    case BODY(EXIT):
        free(at.r->why);
        at.r->why = strdup(f->exit->why);
        break;
    default: // Hello is main's; Progress says less than the page
        break;
    }
}

void agent_page(struct agent *g, const struct agent_event *ev)
{
    struct place at = slot_place(&g->t, ev->slot);
    if (!at.k)
        return;
    at.r->view = *ev->page;
    at.r->seen = at.r->changed = true;
}

// ---- frames down ----

// Takes the questions of `rank` (−1: of all) about a topic off the list; to whom they belong is
// told `with` it, if that is not null.
static void answer(struct kept *k, struct list *l, int rank, const char *topic,
                   const Weft__Rank__Frame *with, struct agent_out *out)
{
    list_for_each (it, l) {
        struct kept_frame *f = list_entry(it, struct kept_frame, link);
        struct kept_rank *r = kept_find(k, f->rank);
        if ((rank >= 0 && f->rank != rank) || strcmp(f->topic, topic) || f->answered)
            continue;
        if (r && with)
            send_down(out, r, with);
        if (l == &k->puts)
            f->answered = true; // the key itself is brought for as long as the epoch lives
        else
            keep_remove(f);
    }
}

static void pass_down(struct kept *k, int rank, const Weft__Rank__Frame *f, struct agent_out *out)
{
    for (int i = 0; i < k->n; i++)
        if (rank < 0 || k->ranks[i].rank == rank)
            send_down(out, &k->ranks[i], f);
}

// The writer answers an order once; asked again, its agent repeats it.
static void order(struct agent *g, struct kept *k, int rank, const Weft__Rank__Frame *f,
                  const char *topic, struct agent_out *out)
{
    struct kept_frame *done = keep_find(&k->asked, rank, BODY(COMMIT_DONE), topic);
    if (done && WEFT_RULE(first_answer))
        say_frame(g, k, rank, done->frame, out);
    else
        pass_down(k, rank, f, out);
}

void agent_frame_down(struct agent *g, const Weft__V1__RankFrame *m, struct agent_out *out)
{
    struct kept *k = attempts_find(&g->t, m->job, m->epoch);
    const Weft__Rank__Frame *f = m->frame;
    char topic[TOPIC_MAX] = "";
    if (!k || !f)
        return;
    (void)frame_topic(f, topic);
    switch (f->body_case) {
    case BODY(KV_VALUE):
    case BODY(BARRIER_DONE):
    case BODY(READY_DONE):
        if (f->body_case == BODY(KV_VALUE) && f->kv_value->put) {
            answer(k, &k->puts, m->rank, topic, f, out);
            break;
        }
        (void)keep_add(&k->answered, m->rank, topic, f);
        answer(k, &k->asked, m->rank, topic, f, out);
        break;
    case BODY(COMMITTED):
    case BODY(ABORTED):
        answer(k, &k->asked, m->rank, topic, NULL, out);
        pass_down(k, m->rank, f, out);
        break;
    case BODY(COMMIT):
        order(g, k, m->rank, f, topic, out);
        break;
    case BODY(DELETE):
    case BODY(LOST):
    case BODY(STOP):
        pass_down(k, m->rank, f, out);
        break;
    default: // nothing else is for a rank
        break;
    }
}
