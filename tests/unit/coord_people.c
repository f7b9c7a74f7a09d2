// SPDX-License-Identifier: Apache-2.0
// What a case does in the world and sees there: time, clients' calls, ranks' deeds, the rows.
#include "tests/unit/coord_world.h"

#include <stdio.h>
#include <string.h>

#include "common/attempt/frame.h"
#include "common/attempt/life.h"

// ---- a case ----

int world_setup(void **state)
{
    static struct world w;
    world_init(&w);
    *state = &w;
    return 0;
}

int world_teardown(void **state)
{
    world_clear(*state);
    return 0;
}

// ---- time ----

static void heartbeat(struct world *w, int host)
{
    struct world_host *h = &w->hosts[host];
    Weft__V1__RankHere here[DEVICES], *list[DEVICES];
    NEW(Heartbeat, heartbeat, beat);
    beat.ranks = list;
    for (int i = 0; i < 8; i++)
        for (int r = 0; r < RANKS && h->attempts[i].used; r++) {
            if (!h->attempts[i].ranks[r].alive)
                continue;
            Weft__V1__RankHere *k = &here[beat.n_ranks];
            weft__v1__rank_here__init(k);
            k->rank = r;
            k->device = h->attempts[i].ranks[r].device;
            list[beat.n_ranks++] = k;
        }
    UP(up, HEARTBEAT, heartbeat, &beat);
    world_up(w, host, &up);
}

void world_pass(struct world *w, int64_t ms)
{
    for (int64_t t = 0; t < ms; t += 100) {
        struct coord_event ev = {.kind = COORD_EV_TICK};
        w->now += 100 * CLOCK_MS;
        w->wall += 100;
        world_event(w, &ev);
        world_pump(w);
        for (int h = 0; h < HOSTS && w->wall % 2000 < 100; h++)
            if (w->hosts[h].conn)
                heartbeat(w, h);
    }
}

void world_take_post(struct world *w, const struct coord_action *a)
{
    w->posts++;
    snprintf(w->post_receiver, sizeof w->post_receiver, "%s", a->receiver);
    snprintf(w->post, sizeof w->post, "%s", a->text);
    for (int i = 0; i < w->nreceivers; i++)
        if (strcmp(w->receivers[i], a->receiver) == 0)
            snprintf(w->post_ids[i], sizeof w->post_ids[i], "%s", a->job);
}

// An answer to the newest that the receiver was posted.
void world_posted(struct world *w, const char *receiver, enum post_result result, const char *why)
{
    struct coord_event ev = {
        .kind = COORD_EV_POSTED, .target = receiver, .posted = result, .result = why};
    for (int i = 0; i < w->nreceivers; i++)
        if (strcmp(w->receivers[i], receiver) == 0)
            ev.id = w->post_ids[i];
    world_event(w, &ev);
}

// ---- clients ----

static const char *world_user(const struct world *w)
{
    return w->user ? w->user : "ann";
}

const char *world_submit_as(struct world *w, const char *request, const char *name, int ranks,
                            const char *more)
{
    char text[2000];
    struct coord_event ev = {.kind = COORD_EV_SUBMIT, .call = ++w->calls, .who = world_user(w)};
    NEW(SubmitRequest, submit_request, q);
    snprintf(text, sizeof text,
             "name: %s\nmodel: {program: mlp, inputs: 4, hidden: [8], classes: 3}\nmesh: {dp: %d}\n"
             "data: {train: {images: x, labels: l}, batch: %d}\ntrain: {steps: 10}\n%s",
             name, ranks, 12 * ranks, more);
    q.request_id = frame_text(request);
    q.resolved = text;
    q.threads_why = frame_text(w->threads_why ? w->threads_why : "");
    ev.submit = &q;
    w->reply_job[0] = w->refused[0] = 0;
    world_event(w, &ev);
    world_pump(w);
    return w->reply_job;
}

const char *world_submit(struct world *w, const char *name, int ranks, const char *more)
{
    static char ids[16][33];
    static int next;
    char request[40];
    snprintf(request, sizeof request, "submit-%llu", (unsigned long long)++w->calls);
    char *id = ids[next++ % 16];
    snprintf(id, 33, "%s", world_submit_as(w, request, name, ranks, more));
    return id;
}

const char *world_job_alone(struct world *w, int ranks, const char *more)
{
    world_host(w, 0, ranks);
    return world_submit(w, "tiny", ranks, more);
}

bool world_act(struct world *w, Weft__V1__Verb verb, const char *target)
{
    char request[40];
    int before = w->answers;
    struct coord_event ev = {.kind = COORD_EV_ACT, .call = ++w->calls, .who = world_user(w)};
    NEW(ActRequest, act_request, q);
    snprintf(request, sizeof request, "act-%llu", (unsigned long long)w->calls);
    q.request_id = request;
    q.verb = verb;
    q.target = frame_text(target);
    ev.act = &q;
    w->refused[0] = 0;
    world_event(w, &ev);
    bool ok = w->answers > before;
    world_pump(w);
    return ok;
}

// ---- what is there ----

const struct job_record *world_job(struct world *w, const char *id)
{
    char key[200];
    snprintf(key, sizeof key, "job %s", id);
    int at = world_row(w, key);
    assert_true(at >= 0);
    return w->rows[at]->job;
}

enum job_state world_state(struct world *w, const char *id)
{
    return world_job(w, id)->state;
}

static const struct event_record *newest_event(struct world *w, const char *job, const char *kind,
                                               int *n)
{
    const struct event_record *found = NULL;
    *n = 0;
    for (int i = 0; i < w->nrows; i++) {
        const struct stored_row *s = w->rows[i];
        if (s->row.kind != ROW_EVENT || strcmp(s->event->job, job) ||
            strcmp(event_word((int)s->event->kind), kind))
            continue;
        ++*n;
        if (!found || s->event->seq > found->seq)
            found = s->event;
    }
    return found;
}

int world_events(struct world *w, const char *job, const char *kind)
{
    int n;
    (void)newest_event(w, job, kind, &n);
    return n;
}

const char *world_event_text(struct world *w, const char *job, const char *kind)
{
    int n;
    const struct event_record *ev = newest_event(w, job, kind, &n);
    return ev ? ev->text : "";
}

struct world_attempt *world_at(struct world *w, int host, const char *job)
{
    for (int i = 0; i < 8; i++) {
        struct world_attempt *at = &w->hosts[host].attempts[i];
        for (int r = 0; r < RANKS && at->used && !strcmp(at->job, job); r++)
            if (at->ranks[r].alive)
                return at;
    }
    return NULL;
}

const char *world_next(struct world *w, const char *job)
{
    static struct arena a;
    struct err e = {0};
    static char text[400];
    arena_init(&a);
    Weft__V1__WhyReply *why = coord_why(w->c, job, w->now, &a, &e);
    assert_non_null(why);
    snprintf(text, sizeof text, "%s", why->next);
    arena_clear(&a);
    return text;
}

int world_living(struct world *w, const char *job)
{
    int n = 0;
    for (int h = 0; h < HOSTS; h++)
        for (int i = 0; i < 8; i++)
            for (int r = 0; r < RANKS; r++)
                n += w->hosts[h].attempts[i].used && !strcmp(w->hosts[h].attempts[i].job, job) &&
                     w->hosts[h].attempts[i].ranks[r].alive;
    return n;
}

int world_host_of(struct world *w, const char *job, int rank)
{
    for (int h = 0; h < HOSTS; h++) {
        const struct world_attempt *at = world_at(w, h, job);
        if (at && at->ranks[rank].alive)
            return h;
    }
    fail_msg("rank %d does not live", rank);
    return -1;
}

// ---- what ranks do ----

void world_frame(struct world *w, const char *job, int rank, Weft__Rank__Frame *f)
{
    int h = world_host_of(w, job, rank);
    world_rank_frame(w, h, world_at(w, h, job), rank, f);
}

void world_page(struct world *w, const char *job, int rank, int64_t step, int state,
                uint64_t collective)
{
    int h = world_host_of(w, job, rank);
    struct world_attempt *at = world_at(w, h, job);
    at->ranks[rank].step = step;
    world_show(w, h, at, rank, state, collective);
}

void world_step(struct world *w, const char *job, int64_t step)
{
    int n = world_job(w, job)->ranks;
    for (int r = 0; r < n; r++)
        world_page(w, job, r, step, RANK_RUNNING, (uint64_t)step);
    FRAME_BODY(report, StepReport, step_report);
    report.step = step;
    report.steps = 10;
    FRAME(f, STEP_REPORT, step_report, &report);
    world_frame(w, job, 0, &f);
}

static void send_shard(struct world *w, const char *job, int rank, int64_t step, int code,
                       bool removed)
{
    uint8_t digest[16] = {0};
    FRAME_BODY(shard, ShardDone, shard_done);
    shard.head_digest.data = digest;
    shard.head_digest.len = sizeof digest;
    shard.rank = rank;
    shard.step = step;
    shard.code = code;
    shard.text = frame_text(code ? "no space left" : "");
    shard.removed = removed;
    FRAME(f, SHARD_DONE, shard_done, &shard);
    world_frame(w, job, rank, &f);
}

void world_shard(struct world *w, const char *job, int rank, int64_t step, int code)
{
    send_shard(w, job, rank, step, code, false);
}

void world_shard_anew(struct world *w, const char *job, int rank, int64_t step)
{
    send_shard(w, job, rank, step, 0, true);
}

void world_save(struct world *w, const char *job, int64_t step)
{
    int n = world_job(w, job)->ranks;
    for (int r = 0; r < n; r++)
        world_shard(w, job, r, step, 0);
}

void world_die_saying(struct world *w, const char *job, int rank, int code, const char *why)
{
    int h = world_host_of(w, job, rank);
    world_end(w, h, world_at(w, h, job), rank, code, 0, why);
}

void world_die(struct world *w, const char *job, int rank, int code, int signal)
{
    int h = world_host_of(w, job, rank);
    world_end(w, h, world_at(w, h, job), rank, code, signal, "");
}

void world_finish(struct world *w, const char *job)
{
    world_step(w, job, 10);
    world_save(w, job, 10);
}
