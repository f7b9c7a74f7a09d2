// SPDX-License-Identifier: Apache-2.0
// The decider's door: rows in, events in, rows and actions out; see coord.h.
//
// A step is: what the event says (the table at the end), then what follows from it (settle.h), then
// the rows of what was touched. Rows of one step are one transaction with its actions, so their
// order among each other does not matter.
#include "coordinator/decide/coord.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/deadline.h"
#include "common/base/heap.h"
#include "common/base/protocol_rule.h"
#include "coordinator/decide/acts.h"
#include "coordinator/decide/attach.h"
#include "coordinator/decide/attempt_leader.h"
#include "coordinator/decide/checkpoint.h"
#include "coordinator/decide/host.h"
#include "coordinator/decide/job_record.h"
#include "coordinator/decide/job_status.h"
#include "coordinator/decide/live_attempts.h"
#include "coordinator/decide/notices.h"
#include "coordinator/decide/outbox.h"
#include "coordinator/decide/requests.h"
#include "coordinator/decide/settle.h"
#include "coordinator/decide/tidy.h"

enum { SWEEP_S = 60, TICK_MS = 100 };
enum {
    HEARTBEAT_S = 2,
    EVENTS_KEPT = 2000,
    REQUESTS_KEPT = 200000,
    NOTICES_KEPT = 1000
}; // unless the configuration says
enum { ENDED_KEPT = 20000, ENDED_KEPT_DAYS = 30, DAY_MS = 24 * 3600 * 1000 };

// ---- life ----

struct coord *coord_new(const struct coord_config *config)
{
    struct coord *c = heap_alloc(sizeof *c);
    c->config = *config;
    if (!c->config.lease_ns)
        c->config.lease_ns = COORD_LEASE_S * CLOCK_S;
    if (!c->config.heartbeat_ns)
        c->config.heartbeat_ns = HEARTBEAT_S * CLOCK_S;
    if (!c->config.keep_ended_ms)
        c->config.keep_ended_ms = (int64_t)ENDED_KEPT_DAYS * DAY_MS;
    if (!c->config.keep_ended)
        c->config.keep_ended = ENDED_KEPT;
    if (!c->config.keep_events)
        c->config.keep_events = EVENTS_KEPT;
    if (!c->config.keep_requests)
        c->config.keep_requests = REQUESTS_KEPT;
    if (!c->config.keep_notices)
        c->config.keep_notices = NOTICES_KEPT;
    snprintf(c->cluster, sizeof c->cluster, "%s", config->cluster ? config->cluster : "");
    snprintf(c->boot, sizeof c->boot, "%s", config->boot ? config->boot : "");
    c->config.cluster = c->config.boot = NULL; // borrowed for this call only
    list_init(&c->jobs);
    list_init(&c->queue);
    list_init(&c->dirty);
    list_init(&c->live);
    list_init(&c->unsettled);
    list_init(&c->hosts);
    list_init(&c->fences);
    list_init(&c->answered);
    notices_init(c, config->receivers, config->nreceivers);
    c->config.receivers = NULL;
    c->next_seq = c->next_audit = 1;
    acts_check();
    return c;
}

void coord_free(struct coord *c)
{
    if (!c)
        return;
    attempts_free(c);
    list_for_each (it, &c->jobs)
        job_forget(list_entry(it, struct job_record, link));
    map_clear(&c->by_id);
    attach_free(c);
    hosts_free(c);
    requests_free(c);
    notices_free(c);
    free(c);
}

// ---- loading ----

static int load_job(struct coord *c, const struct row *row, struct err *e)
{
    struct job_record *j = job_new(c);
    int rc = row_read(row, j, e);
    if (!rc && (strlen(j->id) != ID_LEN - 1 || j->state == JOB_NONE || j->ranks < 1))
        rc = err_set(e, ERR_DATA, "the row of job '%s' is damaged", j->id);
    if (rc) {
        job_forget(j);
        return rc;
    }
    j->stored = j->state;
    job_add(j);
    if (j->seq >= c->next_seq)
        c->next_seq = j->seq + 1;
    return 0;
}

static int load_checkpoint(struct coord *c, const struct row *row, struct err *e)
{
    struct checkpoint_record k = {0};
    int rc = row_read(row, &k, e);
    struct job_record *j = job_find(c, k.job);
    // The folder says at the next fence what it holds in place of one that cannot be.
    if (!rc && j && store_entry_ok((uint64_t)k.id.attempt, k.id.step))
        checkpoint_load(j, &k);
    return rc;
}

int coord_load(struct coord *c, const struct row *row, struct err *e)
{
    struct fenced f = {0};
    int rc;
    PRE(!c->started);
    switch (row->kind) {
    case ROW_META:
        c->had_meta = true;
        return row_read(row, c, e);
    case ROW_JOB:
        return load_job(c, row, e);
    case ROW_HOST:
        return row_read(row, host_add(c, row->values[0].data, ""), e); // its id comes first
    case ROW_FENCED:
        rc = row_read(row, &f, e);
        if (!rc)
            fence_add(c, &f);
        return rc;
    case ROW_CHECKPOINT:
        return load_checkpoint(c, row, e);
    case ROW_REQUEST:
        return request_load(c, row, e);
    case ROW_NOTICE:
        return notice_load(c, row, e);
    default:
        return 0; // events and audit rows are the database's
    }
}

static void revive_job(struct job_record *j)
{
    struct coord *c = j->coord;
    job_count_on(j);
    int64_t wait_ms = j->not_before_ms - c->wall_ms;
    if (wait_ms > 0) {
        int64_t most_ms = j->backoff_most_ns / CLOCK_MS;
        j->not_before_ns = c->now_ns + ms_ns(wait_ms < most_ms ? wait_ms : most_ms);
    }
    if (!j->nplaced)
        return;
    attempt_restore(j);
    attempt_resume(j->live);
}

static void count_mark(struct coord *c)
{
    c->marks++;
    c->meta_dirty = true;
    c->unmarked = c->unmarked_saves = false;
}

static void flush_rows(struct coord *c)
{
    list_for_each (it, &c->dirty) {
        struct job_record *j = list_entry(it, struct job_record, touched);
        job_flush(j);
        if (!j->has_news)
            continue;
        V1_NEW(WatchUpdate, watch_update, update);
        update.status = job_status(j, c->out->arena);
        out_publish(c, j->id, &update);
        j->has_news = false;
    }
    hosts_flush(c);
    if (c->unmarked_saves)
        count_mark(c);
    if (c->meta_dirty)
        out_row(c, ROW_META, c);
    c->meta_dirty = false;
}

// The rows are of an earlier time: what was decided since lies in the jobs' folders, which are believed
// once, and jobs that are not known here are asked for.
static void take_old_copy(struct coord *c)
{
    c->lost_ms = c->wall_ms;
    list_for_each (it, &c->jobs) {
        struct job_record *j = list_entry(it, struct job_record, link);
        j->trusts_folder = true;
        job_touch(j);
    }
}

void coord_started(struct coord *c, int64_t now_ns, int64_t wall_ms, struct coord_out *out)
{
    PRE(!c->started);
    c->out = out;
    c->now_ns = c->stepped_ns = c->swept_ns = now_ns;
    c->wall_ms = wall_ms;
    c->grace_ns = now_ns + c->config.lease_ns;
    c->started = c->round_due = true;
    if (c->cluster[0] && !c->had_meta) // the id outlived its database
        c->lost_ms = wall_ms;
    if (!c->cluster[0])
        coord_new_id(c, c->cluster);
    if (c->had_meta && (c->config.restored || c->config.marks > c->marks))
        take_old_copy(c);
    c->marks = 1 + (c->config.marks > c->marks ? c->config.marks : c->marks);
    c->meta_dirty = true;
    hosts_started(c);
    jobs_enter_queue(c);
    list_for_each (it, &c->jobs)
        revive_job(list_entry(it, struct job_record, link));
    flush_rows(c);
    c->out = NULL;
}

void coord_read_only(struct coord *c, int64_t now_ns, int64_t wall_ms, const char *why)
{
    PRE(!c->started && why[0]);
    c->now_ns = c->stepped_ns = now_ns;
    c->wall_ms = wall_ms;
    snprintf(c->read_only, sizeof c->read_only, "%s", why);
    hosts_started(c);
    list_for_each (it, &c->jobs)
        job_count_on(list_entry(it, struct job_record, link));
}

// ---- history ----

// How many ended jobs each user has, by name; each one counted changes what map_get says.
static int64_t add_ended(struct map *by_owner, const struct job_record *j, int64_t change)
{
    int64_t n = (int64_t)(intptr_t)map_get(by_owner, j->owner) + change;
    if (n)
        map_put(by_owner, j->owner, (void *)(intptr_t)n);
    else
        map_remove(by_owner, j->owner);
    return n;
}

// One whose files are still to be removed is not over: nobody else knows that they are to go.
static bool is_over(const struct job_record *j)
{
    return job_state_ended(j->state) && !j->deleting;
}

// Ended jobs go when they are old, and the oldest of a user who has too many.
static void sweep_jobs(struct coord *c)
{
    struct map ended = {0};
    list_for_each (it, &c->jobs)
        if (is_over(list_entry(it, struct job_record, link)))
            add_ended(&ended, list_entry(it, struct job_record, link), 1);
    list_for_each (it, &c->jobs) {
        struct job_record *j = list_entry(it, struct job_record, link);
        if (is_over(j) && (c->wall_ms - j->ended_ms >= c->config.keep_ended_ms ||
                           add_ended(&ended, j, 0) > c->config.keep_ended)) {
            add_ended(&ended, j, -1);
            out_erase(c, ROW_JOB, j); // with its checkpoints and events
            job_forget(j);
        } else {
            tidy_again(j);
        }
    }
    map_clear(&ended);
}

// ---- a step ----

static void on_replaced(struct coord *c, const struct coord_event *ev)
{
    host_forget(c, ev->target);
}

static void on_gone(struct coord *c, const struct coord_event *ev)
{
    attach_gone(c, ev->conn);
}

static void on_tick(struct coord *c, const struct coord_event *ev)
{
    (void)ev;
    attach_tick(c);
    attempts_tick(c);
    c->round_due = c->round_due || (c->wake_ns && c->now_ns >= c->wake_ns);
    if (c->now_ns - c->swept_ns < SWEEP_S * CLOCK_S)
        return;
    c->swept_ns = c->now_ns;
    requests_trim(c);
    sweep_jobs(c);
    hosts_sweep(c);
    notices_sweep(c);
    if (c->unmarked)
        count_mark(c);
}

void coord_step(struct coord *c, const struct coord_event *ev, struct coord_out *out)
{
    static void (*const on[COORD_EVENTS])(struct coord *, const struct coord_event *) = {
        [COORD_EV_UP] = attach_up,          [COORD_EV_FOUND] = attach_found,
        [COORD_EV_GONE] = on_gone,          [COORD_EV_SUBMIT] = acts_submit,
        [COORD_EV_ACT] = acts_act,          [COORD_EV_TICK] = on_tick,
        [COORD_EV_AUDIT] = acts_audit,      [COORD_EV_REPLACED] = on_replaced,
        [COORD_EV_POSTED] = notices_answer,
    };
    PRE(c->started && ev->kind < COORD_EVENTS);
    int64_t gap_ns = ev->now_ns - c->stepped_ns;
    bool graced = c->grace_ns > c->now_ns;
    c->out = out;
    c->now_ns = c->stepped_ns = ev->now_ns;
    c->wall_ms = ev->wall_ms;
    if (WEFT_RULE(grace) && gap_ns > c->config.lease_ns / 4) {
        // This process or its machine was stopped for a while: what others said meanwhile has not
        // been read yet, so everybody gets a new lease.
        c->grace_ns = c->now_ns + c->config.lease_ns;
        hosts_renew_leases(c);
        attempts_renew_leases(c, gap_ns);
    } else if (graced && c->now_ns >= c->grace_ns) {
        c->round_due = true; // what waited for hosts to come back
    }
    on[ev->kind](c, ev);
    settle(c);
    notices_settle(c);
    flush_rows(c);
    c->out = NULL;
}

// Ticks come often enough that a stop of this process differs from a lack of events.
int64_t coord_due(const struct coord *c)
{
    int64_t notice = notices_due(c), due = 0;
    bool open = !list_empty(&c->hosts) || !list_empty(&c->queue);
    bool soon = !list_empty(&c->live) || c->wake_ns || (c->round_due && !list_empty(&c->queue));
    bool kept = !list_empty(&c->jobs) || !list_empty(&c->answered);
    if (soon)
        due = c->stepped_ns + TICK_MS * CLOCK_MS;
    else if (open)
        due = c->stepped_ns + c->config.lease_ns / 8;
    else if (kept)
        due = c->swept_ns + SWEEP_S * CLOCK_S;
    return deadline_earlier(due, notice);
}
