// SPDX-License-Identifier: Apache-2.0
// States, moves, events and time of a job; see job_record.h.
#include "coordinator/job_record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/schema_list.h"
#include "coordinator/attempt.h"
#include "coordinator/checkpoint.h"
#include "coordinator/queue.h"
#include "coordinator/story.h"

enum { EVENT_TEXT = 64 << 10 }; // agents send a quarter of it

static const struct {
    const char *name;
    const char *spent; // where time in this state goes; null: it has ended
    bool to[JOB_STATES];
} states[JOB_STATES] = {
    [JOB(JOB_NONE)] = {"NONE", NULL, {[JOB(QUEUED)] = true}},
    [JOB(QUEUED)] = {"QUEUED",
                     "queued",
                     {[JOB(STARTING)] = true, [JOB(HELD)] = true, [JOB(CANCELLED)] = true}},
    [JOB(STARTING)] = {"STARTING",
                       "starting",
                       {[JOB(RUNNING)] = true, [JOB(DRAINING)] = true, [JOB(RECOVERING)] = true}},
    [JOB(RUNNING)] = {"RUNNING", "running", {[JOB(DRAINING)] = true, [JOB(RECOVERING)] = true}},
    [JOB(DRAINING)] = {"DRAINING",
                       "draining",
                       {[JOB(SUCCEEDED)] = true,
                        [JOB(QUEUED)] = true,
                        [JOB(HELD)] = true,
                        [JOB(CANCELLED)] = true}},
    [JOB(RECOVERING)] = {"RECOVERING",
                         "recovering",
                         {[JOB(STARTING)] = true,
                          [JOB(QUEUED)] = true,
                          [JOB(HELD)] = true,
                          [JOB(FAILED)] = true,
                          [JOB(CANCELLED)] = true}},
    [JOB(HELD)] = {"HELD", "held", {[JOB(QUEUED)] = true, [JOB(CANCELLED)] = true}},
    [JOB(SUCCEEDED)] = {"SUCCEEDED", NULL, {0}},
    [JOB(FAILED)] = {"FAILED", NULL, {[JOB(QUEUED)] = true}},
    [JOB(CANCELLED)] = {"CANCELLED", NULL, {[JOB(QUEUED)] = true}},
};

const char *job_state_name(job_state s)
{
    return (int)s >= 0 && (int)s < JOB_STATES ? states[s].name : "?";
}

bool job_state_ended(job_state s)
{
    return states[s].spent == NULL;
}

bool job_can_move(job_state from, job_state to)
{
    return states[from].to[to];
}

// ---- tables ----

static void insert_by_seq(struct coord *c, struct job_record *j)
{
    struct list *at = c->jobs.prev;
    while (at != &c->jobs && list_entry(at, struct job_record, link)->row->seq > j->row->seq)
        at = at->prev;
    list_append(at->next, &j->link); // before the one behind it
}

bool job_goes_before(const struct job_record *a, const struct job_record *b)
{
    if (a->row->priority != b->row->priority)
        return a->row->priority > b->row->priority;
    return a->row->seq < b->row->seq;
}

// Whom it goes before. Looked for from both ends: a new job belongs near the last, one that was
// preempted near the first.
static struct list *spot_of(struct coord *c, const struct job_record *j)
{
    struct list *front = c->queue.next, *back = c->queue.prev;
    while (back != &c->queue && job_goes_before(j, list_entry(back, struct job_record, queued))) {
        if (job_goes_before(j, list_entry(front, struct job_record, queued)))
            return front;
        front = front->next;
        back = back->prev;
    }
    return back->next;
}

static void enqueue(struct job_record *j)
{
    struct coord *c = j->coord;
    list_append(spot_of(c, j), &j->queued);
    j->in_queue = true;
    j->wait = WAIT_NEW;
    c->nqueued++;
}

static void dequeue(struct job_record *j)
{
    if (!j->in_queue)
        return;
    list_remove(&j->queued);
    j->in_queue = false;
    j->coord->nqueued--;
}

struct job_record *job_add(struct coord *c, Weft__Rows__Job *row)
{
    struct job_record *j = calloc(1, sizeof *j);
    PRE(j != NULL);
    j->coord = c;
    j->row = row;
    j->stored = row->state;
    list_init(&j->queued);
    list_init(&j->touched);
    insert_by_seq(c, j);
    map_put(&c->by_id, row->id, j);
    if (row->state == JOB(QUEUED))
        enqueue(j);
    return j;
}

static void clear_spec(const struct job_record *j)
{
    const struct job *spec = &j->spec;
    if (!j->parsed)
        return;
    free(frame_text(spec->checkpoint.dir));
    for (int i = 0; i < spec->mesh.n; i++)
        free(frame_text(spec->mesh.axis[i].name));
}

void job_forget(struct job_record *j)
{
    dequeue(j);
    list_remove(&j->touched);
    list_remove(&j->link);
    map_remove(&j->coord->by_id, j->row->id);
    attempt_free(j->attempt);
    if (j->deciding)
        commit_clear(&j->commit);
    free(j->ckpts);
    free(j->log_hosts);
    if (j->report)
        weft__rank__step_report__free_unpacked(j->report, NULL);
    weft__rows__job__free_unpacked(j->row, NULL);
    clear_spec(j);
    free(j);
}

struct job_record *job_find(const struct coord *c, const char *id)
{
    return map_get(&c->by_id, id);
}

struct job_record *job_of(const struct coord *c, const char *target, struct err *e)
{
    struct job_record *exact = target[0] ? job_find(c, target) : NULL;
    struct job_record *named = NULL, *begun = NULL;
    int n = 0;
    if (exact)
        return exact;
    list_for_each (it, &c->jobs) { // by seq: the last of a name is the newest
        struct job_record *j = list_entry(it, struct job_record, link);
        if (!strcmp(j->row->name, target))
            named = j;
        if (target[0] && !strncmp(j->row->id, target, strlen(target))) {
            begun = j;
            n++;
        }
    }
    if (named)
        return named;
    if (n == 1)
        return begun;
    if (n > 1)
        err_set(e, ERR_INVALID, "'%s' begins the ids of %d jobs: give more of it", target, n);
    else
        err_set(e, ERR_NOTFOUND, "there is no job '%s'", target);
    return NULL;
}

static const char *text_dup(const char *s)
{
    char *copy = strdup(s);
    PRE(copy != NULL);
    return copy;
}

// A parsed job is large: what it takes to decide is small.
void job_take_spec(struct job_record *j, const struct job *spec)
{
    j->spec = (struct job){.mesh = spec->mesh,
                           .train = spec->train,
                           .checkpoint = spec->checkpoint,
                           .resources = spec->resources,
                           .restart = spec->restart};
    j->spec.checkpoint.dir = text_dup(spec->checkpoint.dir);
    for (int i = 0; i < spec->mesh.n; i++)
        j->spec.mesh.axis[i].name = text_dup(spec->mesh.axis[i].name);
    j->parsed = true;
}

int job_spec(struct job_record *j, struct err *e)
{
    struct job_errors errs = {0};
    struct arena a;
    struct job spec;
    if (j->parsed)
        return 0;
    arena_init(&a);
    int rc = job_parse(&a, &weft_schema, NULL, NULL, j->row->resolved, strlen(j->row->resolved),
                       NULL, 0, &spec, &errs);
    if (rc)
        rc = job_errors_err(&errs, e);
    else
        job_take_spec(j, &spec);
    arena_clear(&a);
    return rc;
}

// ---- time ----

static Weft__Rows__Spent *spent_of(Weft__Rows__Job *row, const char *what)
{
    for (size_t i = 0; i < row->n_spent; i++)
        if (!strcmp(row->spent[i]->what, what))
            return row->spent[i];
    row->spent = realloc(row->spent, (row->n_spent + 1) * sizeof *row->spent);
    PRE(row->spent != NULL);
    Weft__Rows__Spent *s = malloc(sizeof *s);
    PRE(s != NULL);
    weft__rows__spent__init(s);
    text_set(&s->what, what);
    row->spent[row->n_spent++] = s;
    return s;
}

const char *job_spends(const struct job_record *j)
{
    bool saves = j->row->state == JOB(RUNNING) && j->saving;
    return saves ? "checkpoint" : states[j->row->state].spent;
}

void job_account(struct job_record *j)
{
    Weft__Rows__Job *row = j->row;
    int64_t ms = j->coord->wall_ms - row->spent_ms;
    const char *what = job_spends(j);
    if (row->spent_ms && ms > 0 && what) {
        spent_of(row, what)->ms += ms;
        j->since_ckpt_ms += row->state == JOB(RUNNING) && !j->saving ? ms : 0;
    }
    row->spent_ms = j->coord->wall_ms;
}

void job_lost(struct job_record *j)
{
    job_account(j);
    Weft__Rows__Spent *ran = spent_of(j->row, "running");
    int64_t ms = j->since_ckpt_ms < ran->ms ? j->since_ckpt_ms : ran->ms;
    ran->ms -= ms;
    spent_of(j->row, "lost")->ms += ms;
    j->since_ckpt_ms = 0;
}

void job_save_state(struct job_record *j, bool saving)
{
    if (j->saving == saving)
        return;
    job_account(j);
    j->saving = saving;
}

int64_t job_lost_ms(const struct job_record *j)
{
    bool runs = j->row->state == JOB(RUNNING) && !j->saving;
    return j->since_ckpt_ms + (runs ? j->coord->wall_ms - j->row->spent_ms : 0);
}

// ---- events and moves ----

static void trim_events(struct job_record *j)
{
    uint64_t keep = (uint64_t)j->coord->config.keep_events;
    if (j->row->events <= keep)
        return;
    ROW_NEW(Event, event, old);
    old.job = j->row->id;
    old.seq = j->row->events - keep;
    OUT_ERASE(j->coord, EVENT, &old);
}

static void add_event(struct job_record *j, const struct job_note *n, const char *fmt, va_list ap)
{
    struct coord *c = j->coord;
    struct buf text = {0};
    buf_vprintf(&text, fmt, ap);
    if (text.len > EVENT_TEXT)
        text.data[text.len = EVENT_TEXT] = 0;
    if (text.len)
        text_plain(text.data);
    ROW_NEW(Event, event, ev);
    ev.job = j->row->id;
    ev.seq = ++j->row->events;
    ev.t_ms = c->wall_ms;
    ev.state = j->row->state;
    ev.kind = frame_text(n->kind);
    ev.rank = n->rank;
    ev.host = frame_text(n->host);
    ev.step = n->step;
    ev.text = frame_text(buf_str(&text));
    OUT_ROW(c, EVENT, &ev);
    trim_events(j);
    job_touch(j);
    V1_NEW(WatchUpdate, watch_update, update);
    update.event = &ev;
    out_publish(c, j->row->id, &update);
    buf_clear(&text);
}

void job_event(struct job_record *j, const struct job_note *n, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    add_event(j, n, fmt, ap);
    va_end(ap);
}

static void set_state(struct job_record *j, job_state to, job_state goal)
{
    struct coord *c = j->coord;
    Weft__Rows__Job *row = j->row;
    bool is_new = row->state == JOB(JOB_NONE);
    PRE(job_can_move(row->state, to));
    PRE((goal != JOB(JOB_NONE)) == (to == JOB(DRAINING) || to == JOB(RECOVERING)));
    job_account(j);
    row->state = to;
    row->goal = goal;
    j->saving = false;
    dequeue(j);
    if (to == JOB(QUEUED)) {
        row->queued_ms = c->wall_ms;
        enqueue(j);
    }
    row->ended_ms = job_state_ended(to) ? c->wall_ms : 0;
    row->exit_code = to == JOB(FAILED) || to == JOB(CANCELLED) || to == JOB(HELD);
    if (job_state_ended(to) || to == JOB(QUEUED) || to == JOB(STARTING))
        text_set(&row->goal_why, "");
    c->place = c->place || !is_new || !queue_knows(j);
}

void job_move(struct job_record *j, job_state to, job_state goal, const struct job_note *n,
              const char *fmt, ...)
{
    va_list ap;
    set_state(j, to, goal);
    va_start(ap, fmt);
    add_event(j, n, fmt, ap);
    va_end(ap);
    job_publish(j);
}

void job_goal(struct job_record *j, job_state goal, const struct job_note *n, const char *fmt, ...)
{
    va_list ap;
    j->row->goal = goal;
    va_start(ap, fmt);
    add_event(j, n, fmt, ap);
    va_end(ap);
    job_publish(j);
}

// ---- the row ----

void job_touch(struct job_record *j)
{
    if (list_empty(&j->touched))
        list_append(&j->coord->dirty, &j->touched);
}

void job_flush(struct job_record *j)
{
    job_account(j);
    list_remove(&j->touched);
    j->flushed_ns = j->coord->now_ns;
    j->row->old_state = j->stored;
    OUT_ROW(j->coord, JOB, j->row);
    j->stored = j->row->state;
}

void job_publish(struct job_record *j)
{
    struct coord *c = j->coord;
    V1_NEW(WatchUpdate, watch_update, update);
    update.status = story_status(j, c->out->arena);
    out_publish(c, j->row->id, &update);
}
