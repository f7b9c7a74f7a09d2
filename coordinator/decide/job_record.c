// SPDX-License-Identifier: Apache-2.0
// States, moves, events and time of a job; see job_record.h.
#include "coordinator/decide/job_record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/heap.h"
#include "common/base/plain.h"
#include "coordinator/decide/outbox.h"

enum { EVENT_TEXT = 64 << 10 }; // agents send a quarter of it
enum { AVOIDED_TEXT = 600 };

static const struct {
    enum time_kind spent; // where time in this state goes; TIME_KINDS: nowhere
    bool to[JOB_STATES];  // the moves that are allowed
    bool ended;
} states[JOB_STATES] = {
    [JOB_NONE] = {TIME_KINDS, {[JOB_QUEUED] = true}},
    [JOB_QUEUED] = {TIME_QUEUED,
                    {[JOB_STARTING] = true, [JOB_HELD] = true, [JOB_CANCELLED] = true}},
    [JOB_STARTING] = {TIME_STARTING,
                      {[JOB_RUNNING] = true, [JOB_DRAINING] = true, [JOB_RECOVERING] = true}},
    [JOB_RUNNING] = {TIME_RUNNING, {[JOB_DRAINING] = true, [JOB_RECOVERING] = true}},
    [JOB_DRAINING] =
        {TIME_DRAINING,
         {[JOB_SUCCEEDED] = true, [JOB_QUEUED] = true, [JOB_HELD] = true, [JOB_CANCELLED] = true}},
    [JOB_RECOVERING] = {TIME_RECOVERING,
                        {[JOB_STARTING] = true,
                         [JOB_QUEUED] = true,
                         [JOB_HELD] = true,
                         [JOB_FAILED] = true,
                         [JOB_CANCELLED] = true}},
    [JOB_HELD] = {TIME_HELD, {[JOB_QUEUED] = true, [JOB_CANCELLED] = true}},
    [JOB_SUCCEEDED] = {TIME_KINDS, {[JOB_QUEUED] = true}, .ended = true},
    [JOB_FAILED] = {TIME_FAILED, {[JOB_QUEUED] = true}, .ended = true},
    [JOB_CANCELLED] = {TIME_CANCELLED, {[JOB_QUEUED] = true}, .ended = true},
};

bool job_state_ended(enum job_state s)
{
    return states[s].ended;
}

// ---- tables ----

bool job_goes_before(const struct job_record *a, const struct job_record *b)
{
    if (a->priority != b->priority)
        return a->priority > b->priority;
    return a->seq < b->seq;
}

// Finds the link before which it belongs. The search goes from both ends, because a new job belongs
// near the end of the queue and one that was preempted near its head.
static struct list *find_spot(struct coord *c, const struct job_record *j)
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

static void enter_queue(struct job_record *j)
{
    struct coord *c = j->coord;
    list_append(find_spot(c, j), &j->queued);
    j->in_queue = true;
    j->wait = WAIT_NEW;
    c->nqueued++;
}

static void leave_queue(struct job_record *j)
{
    if (!j->in_queue)
        return;
    list_remove(&j->queued);
    j->in_queue = false;
    j->coord->nqueued--;
}

struct job_record *job_new(struct coord *c)
{
    struct job_record *j = heap_alloc(sizeof *j);
    j->coord = c;
    list_init(&j->link);
    list_init(&j->queued);
    list_init(&j->touched);
    record_init(ROW_JOB, j);
    heap_set(&j->last_fault, "");
    heap_set(&j->avoided_why, "");
    j->committed_step = j->last_step = -1;
    return j;
}

void job_add(struct job_record *j)
{
    struct list *at = j->coord->jobs.prev;
    while (at != &j->coord->jobs && list_entry(at, struct job_record, link)->seq > j->seq)
        at = at->prev;
    list_append(at->next, &j->link); // before the one behind it
    map_put(&j->coord->by_id, j->id, j);
}

static int compare_places_in_line(const void *a, const void *b)
{
    return job_goes_before(*(struct job_record *const *)a, *(struct job_record *const *)b) ? -1 : 1;
}

// Sorted first, each of them finds its spot at the end.
void jobs_enter_queue(struct coord *c)
{
    int n = 0;
    struct job_record **waiting =
        arena_array(c->out->arena, struct job_record *, list_length(&c->jobs) + 1);
    list_for_each (it, &c->jobs) {
        struct job_record *j = list_entry(it, struct job_record, link);
        if (j->state == JOB_QUEUED)
            waiting[n++] = j;
    }
    qsort(waiting, (size_t)n, sizeof(void *), compare_places_in_line);
    for (int i = 0; i < n; i++)
        enter_queue(waiting[i]);
}

void job_forget(struct job_record *j)
{
    PRE(!j->live);
    leave_queue(j);
    list_remove(&j->touched);
    list_remove(&j->link);
    map_remove(&j->coord->by_id, j->id);
    record_clear(ROW_JOB, j);
    free(j->last_fault);
    free(j->avoided_why);
    free(j->avoided);
    free(j->checkpoints);
    free(j->log_hosts);
    free(j);
}

struct job_record *job_find(const struct coord *c, const char *id)
{
    return map_get(&c->by_id, id);
}

struct matches { // of what a person typed
    struct job_record *made, *found, *begun;
    int nfound, nbegun;
};

static struct matches match_jobs(const struct coord *c, const char *target)
{
    struct matches m = {0};
    list_for_each (it, &c->jobs) { // by seq: the last of a name is the newest
        struct job_record *j = list_entry(it, struct job_record, link);
        bool named = !strcmp(j->name, target);
        if (named && !j->found[0])
            m.made = j;
        if (named && j->found[0]) {
            m.found = j;
            m.nfound++;
        }
        if (target[0] && !strncmp(j->id, target, strlen(target))) {
            m.begun = j;
            m.nbegun++;
        }
    }
    return m;
}

struct job_record *job_of(const struct coord *c, const char *target, struct err *e)
{
    struct job_record *exact = target[0] ? job_find(c, target) : NULL;
    if (exact)
        return exact;
    struct matches m = match_jobs(c, target);
    if (m.made)
        return m.made;
    if (m.nfound == 1)
        return m.found;
    if (!m.nfound && m.nbegun == 1)
        return m.begun;
    if (m.nfound)
        err_set(e, ERR_INVALID, "'%s' names %d jobs that were found again: give an id", target,
                m.nfound);
    else if (m.nbegun)
        err_set(e, ERR_INVALID, "'%s' begins the ids of %d jobs: give more of it", target,
                m.nbegun);
    else
        err_set(e, ERR_NOTFOUND, "there is no job '%s'", target);
    return NULL;
}

// The job's text and what the columns have of it. A text that names no threads leaves them as they
// were decided.
static void set_facts(struct job_record *j, const Weft__Plan__JobFacts *f)
{
    heap_set(&j->resolved, f->text);
    snprintf(j->job_hash, sizeof j->job_hash, "%s", f->hash);
    j->kind = f->kind;
    j->ranks = f->ranks;
    j->max_hosts = f->max_hosts;
    j->threads = f->threads ? f->threads : j->threads;
    j->steps = f->steps;
    j->priority = f->priority;
    heap_set(&j->mesh, f->mesh);
    heap_set(&j->tags, f->tags);
    heap_set(&j->notify, f->notify);
    heap_set(&j->checkpoint_dir, f->checkpoint_dir);
    j->keep = f->keep;
    j->keep_every = f->keep_every;
    j->keep_best = f->keep_best;
    j->source_steps = f->source_steps;
    j->patience_ns = f->patience_ns;
    j->budget = f->budget;
    j->budget_ns = f->budget_ns;
    j->backoff_ns = f->backoff_ns;
    j->backoff_most_ns = f->backoff_most_ns;
    j->hang_after_ns = f->hang_after_ns;
}

struct job_record *job_create(struct coord *c, const Weft__Plan__JobFacts *facts,
                              const char *known_id, const char *owner, const char *base_dir)
{
    struct job_record *j = job_new(c);
    if (known_id)
        snprintf(j->id, sizeof j->id, "%s", known_id);
    else
        coord_new_id(c, j->id);
    heap_set(&j->name, facts->name);
    heap_set(&j->owner, owner);
    heap_set(&j->base_dir, base_dir);
    j->seq = c->next_seq++;
    j->submitted_ms = j->queued_ms = j->counted_ms = c->wall_ms;
    j->counted_ns = c->now_ns;
    memcpy(j->counted_boot, c->boot, sizeof j->counted_boot);
    set_facts(j, facts);
    heap_set(&j->source, facts->source);
    c->meta_dirty = true;
    job_add(j);
    coord_new_id(c, j->run_id);
    return j;
}

void job_change(struct job_record *j, const Weft__Plan__JobFacts *facts)
{
    PRE(!j->live && !j->in_queue);
    j->want = (struct place_want){0};
    free(j->log_hosts); // as many as it had ranks
    j->log_hosts = NULL;
    set_facts(j, facts);
}

// ---- time ----

enum time_kind job_spends(const struct job_record *j)
{
    bool saves = j->state == JOB_RUNNING && j->saving;
    return saves ? TIME_CHECKPOINT : states[j->state].spent;
}

int64_t job_uncounted_ms(const struct job_record *j, int64_t now_ns)
{
    bool counts = j->counted_ns && now_ns > j->counted_ns;
    return counts ? (now_ns - j->counted_ns) / CLOCK_MS : 0;
}

// Adds the time since the last call to what the job spent it on. What is left below a millisecond
// is counted the next time.
void job_account(struct job_record *j)
{
    int64_t ms = job_uncounted_ms(j, j->coord->now_ns);
    enum time_kind kind = job_spends(j);
    if (kind < TIME_KINDS) {
        j->spent_ms[kind] += ms;
        j->since_ckpt_ms += kind == TIME_RUNNING ? ms : 0;
    }
    j->counted_ns = j->counted_ns ? j->counted_ns + ms_ns(ms) : j->coord->now_ns;
    j->counted_ms = j->coord->wall_ms;
}

void job_count_on(struct job_record *j)
{
    int64_t ms = j->coord->wall_ms - j->counted_ms;
    if (strcmp(j->counted_boot, j->coord->boot) == 0)
        return;
    memcpy(j->counted_boot, j->coord->boot, sizeof j->counted_boot);
    if (ms > 0 && job_spends(j) < TIME_KINDS)
        j->spent_ms[TIME_UNKNOWN] += ms;
    j->counted_ns = j->unsaved_ns = j->coord->now_ns;
    j->counted_ms = j->coord->wall_ms;
}

void job_lost(struct job_record *j)
{
    job_account(j);
    int64_t ran = j->spent_ms[TIME_RUNNING];
    int64_t ms = j->since_ckpt_ms < ran ? j->since_ckpt_ms : ran;
    j->spent_ms[TIME_RUNNING] -= ms;
    j->spent_ms[TIME_LOST] += ms;
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
    bool runs = j->state == JOB_RUNNING && !j->saving;
    return j->since_ckpt_ms + (runs ? job_uncounted_ms(j, j->coord->now_ns) : 0);
}

// ---- saves ----

void job_saved(struct job_record *j)
{
    j->unsaved = 0;
    j->unsaved_ms = j->unsaved_ns = 0;
    heap_set(&j->unsaved_why, "");
}

void job_unsaved(struct job_record *j, const char *why)
{
    if (!j->unsaved++) {
        j->unsaved_ms = j->coord->wall_ms;
        j->unsaved_ns = j->coord->now_ns;
    }
    heap_set(&j->unsaved_why, why);
    plain_mask(j->unsaved_why);
    job_publish(j);
}

void job_removed(struct job_record *j, const char *what)
{
    heap_set(&j->removed, what);
    plain_mask(j->removed);
    job_publish(j);
}

// ---- where its data is not ----

const struct avoided *job_find_avoided(const struct job_record *j, const char *incarnation)
{
    for (int i = 0; i < j->navoided; i++)
        if (!strcmp(j->avoided[i].incarnation, incarnation))
            return &j->avoided[i];
    return NULL;
}

int64_t job_avoid(struct job_record *j, const char *incarnation, const char *why)
{
    const struct avoided *known = job_find_avoided(j, incarnation);
    int at = known ? (int)(known - j->avoided) : j->navoided++;
    char text[AVOIDED_TEXT];
    int64_t s = known ? known->wait_ns / CLOCK_S * 2 : AVOID_LEAST_S;
    snprintf(text, sizeof text, "%s", why);
    plain_mask(text); // it may be cut inside a character
    heap_set(&j->avoided_why, text);
    s = s < AVOID_MOST_S ? s : AVOID_MOST_S;
    j->avoided = realloc(j->avoided, sizeof *j->avoided * (size_t)j->navoided);
    PRE(j->avoided != NULL);
    j->avoided[at] =
        (struct avoided){.wait_ns = s * CLOCK_S, .until_ns = j->coord->now_ns + s * CLOCK_S};
    snprintf(j->avoided[at].incarnation, ID_LEN, "%s", incarnation);
    return s;
}

void job_stop_avoiding(struct job_record *j, const char *incarnation)
{
    int left = 0;
    for (int i = 0; i < j->navoided; i++)
        if (incarnation && strcmp(j->avoided[i].incarnation, incarnation) != 0)
            j->avoided[left++] = j->avoided[i];
    j->navoided = left;
}

// ---- events and moves ----

static void add_event(struct job_record *j, const struct job_note *n, const char *fmt, va_list ap)
{
    struct buf text = {0};
    buf_vprintf(&text, fmt, ap);
    if (text.len > EVENT_TEXT)
        text.data[text.len = EVENT_TEXT] = 0;
    if (text.len)
        plain_mask(text.data);
    struct event_record ev = {.job = j->id,
                              .seq = ++j->events,
                              .t_ms = j->coord->wall_ms,
                              .state = j->state,
                              .kind = n->kind,
                              .rank = n->rank,
                              .host = n->host,
                              .step = n->step,
                              .text = buf_str(&text)};
    out_row(j->coord, ROW_EVENT, &ev);
    uint64_t keep = (uint64_t)j->coord->config.keep_events;
    if (j->events > keep)
        out_erase(j->coord, ROW_EVENT,
                  &(struct event_record){.job = j->id, .seq = j->events - keep});
    job_touch(j);
    Weft__V1__Event message;
    V1_NEW(WatchUpdate, watch_update, update);
    event_message(&ev, &message);
    update.event = &message;
    out_publish(j->coord, j->id, &update);
    buf_clear(&text);
}

void job_event(struct job_record *j, const struct job_note *n, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    add_event(j, n, fmt, ap);
    va_end(ap);
}

// Whether the job waits and does not matter to the others in the queue: the last round would have
// ended for all of them as it did if the job had not been there.
static bool queue_ignores(const struct job_record *j)
{
    const struct job_record *at = j->coord->tails[j->kind].at;
    bool unseen = at && job_goes_before(at, j);
    return j->in_queue && (j->wait == WAIT_NEVER || j->wait == WAIT_BACKOFF || unseen);
}

static void set_state(struct job_record *j, enum job_state to, enum job_state goal)
{
    struct coord *c = j->coord;
    bool alone = j->state == JOB_NONE || (to != JOB_STARTING && queue_ignores(j));
    PRE(states[j->state].to[to]);
    PRE((goal != JOB_NONE) == (to == JOB_DRAINING || to == JOB_RECOVERING));
    job_account(j);
    j->state = to;
    j->goal = goal;
    j->saving = false;
    leave_queue(j);
    if (to == JOB_QUEUED) {
        j->queued_ms = c->wall_ms;
        enter_queue(j);
    }
    j->ended_ms = job_state_ended(to) ? c->wall_ms : 0;
    if (job_state_ended(to) || to == JOB_QUEUED || to == JOB_STARTING)
        heap_set(&j->goal_why, "");
    c->round_due = c->round_due || !alone; // settling looks at those that are new
}

void job_move(struct job_record *j, enum job_state to, enum job_state goal,
              const struct job_note *n, const char *fmt, ...)
{
    va_list ap;
    set_state(j, to, goal);
    va_start(ap, fmt);
    add_event(j, n, fmt, ap);
    va_end(ap);
    job_publish(j);
}

void job_goal(struct job_record *j, enum job_state goal, const struct job_note *n, const char *fmt,
              ...)
{
    va_list ap;
    j->goal = goal;
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
    out_row(j->coord, ROW_JOB, j)->replaces = j->stored;
    j->stored = j->state;
}

void job_fill_storage(const struct job_record *j, Weft__V1__StorageOp op, Weft__V1__Storage *to)
{
    to->op = op;
    to->job = frame_text(j->id);
    to->attempt = j->attempt;
    to->attempt_id = frame_text(j->attempt_id);
    to->name = j->name;
    to->resolved = j->resolved;
    to->threads = j->threads;
    to->dir = j->checkpoint_dir;
    to->base_dir = j->base_dir;
}

void job_publish(struct job_record *j)
{
    j->has_news = true;
    job_touch(j);
}
