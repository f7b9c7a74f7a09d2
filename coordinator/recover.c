// SPDX-License-Identifier: Apache-2.0
// Goals, budget and waits after a failure; see recover.h.
#include "coordinator/recover.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/checkpoint.h"
#include "coordinator/queue.h"

enum { SAME_MAX = 3 };

// ---- budget ----

static void drop_old_failures(struct job_record *j)
{
    Weft__Rows__Job *row = j->row;
    size_t n = 0;
    for (size_t i = 0; i < row->n_failures_ms; i++)
        if (j->coord->wall_ms - row->failures_ms[i] < j->spec.restart.per / CLOCK_MS)
            row->failures_ms[n++] = row->failures_ms[i];
    row->n_failures_ms = n;
    row->budget_used = (int)n;
}

static void add_failure(struct job_record *j)
{
    Weft__Rows__Job *row = j->row;
    drop_old_failures(j);
    row->failures_ms =
        realloc(row->failures_ms, (row->n_failures_ms + 1) * sizeof *row->failures_ms);
    PRE(row->failures_ms != NULL);
    row->failures_ms[row->n_failures_ms++] = j->coord->wall_ms;
    row->budget_used = (int)row->n_failures_ms;
}

// A rank failure costs one unless a checkpoint was committed since the last. False: it is spent.
static bool pay(struct job_record *j)
{
    bool free_of_cost = j->row->committed_since;
    j->row->committed_since = false;
    if (!free_of_cost)
        add_failure(j);
    return j->row->budget_used <= j->spec.restart.budget;
}

// ---- the same again ----

static bool begins(const char *text, const char *head)
{
    return strncmp(text, head, strlen(head)) == 0;
}

// The diagnosis begins with what happened and at which step: that is what "the same" compares.
static bool same_again(struct attempt *at, const struct fault *f)
{
    Weft__Rows__Job *row = at->job->row;
    char head[100], text[1400];
    int64_t step = attempt_step(at);
    step = step < row->restore_step ? row->restore_step : step;
    snprintf(head, sizeof head, "%s at step %lld: ", f->sign, (long long)step);
    bool same =
        row->same_failures > 0 && row->same_failure_step == step && begins(row->diagnosis, head);
    row->same_failures = same ? row->same_failures + 1 : 1;
    row->same_failure_step = step;
    snprintf(text, sizeof text, "%s%s", head, f->text);
    text_set(&row->diagnosis, text);
    return row->same_failures >= SAME_MAX;
}

// ---- waits ----

static void set_wait(struct attempt *at)
{
    struct job_record *j = at->job;
    Weft__Rows__Job *row = j->row;
    bool stepped = attempt_step(at) > row->restore_step || row->last_step > row->restore_step;
    row->barren = stepped ? 0 : row->barren + 1;
    if (row->barren < 2)
        return;
    int64_t wait = j->spec.restart.backoff[0];
    for (int i = 2; i < row->barren && wait < j->spec.restart.backoff[1]; i++)
        wait *= 2;
    if (wait > j->spec.restart.backoff[1])
        wait = j->spec.restart.backoff[1];
    j->not_before_ns = j->coord->now_ns + wait;
    row->not_before_ms = j->coord->wall_ms + wait / CLOCK_MS;
}

// ---- goals ----

static job_state goal_of_data(struct attempt *at, const struct fault *f)
{
    struct job_record *j = at->job;
    struct store_entry id;
    bool restoring = f->rank >= 0 && at->ranks[f->rank].view.state < RANK_RUNNING;
    if (!restoring || !j->row->restore[0] || !store_entry_parse(j->row->restore, &id))
        return JOB(FAILED);
    checkpoint_bad(j, id);
    return checkpoint_choose(j) ? JOB(STARTING) : JOB(FAILED);
}

static job_state goal_of_rank(struct attempt *at, const struct fault *f)
{
    struct job_record *j = at->job;
    char text[1400];
    bool same = f->sign && same_again(at, f);
    bool paid = pay(j);
    if (at->final_aborted) {
        snprintf(text, sizeof text, "the checkpoint of the last step cannot be written: %s",
                 f->text);
        text_set(&j->row->diagnosis, text);
        return JOB(HELD);
    }
    if (same)
        return JOB(FAILED);
    if (!paid) {
        snprintf(text, sizeof text, "the restart budget of %lld is spent; last: %s",
                 (long long)j->spec.restart.budget, f->text);
        text_set(&j->row->diagnosis, text);
        return JOB(HELD);
    }
    set_wait(at);
    return JOB(STARTING);
}

static job_state goal_of(struct attempt *at, const struct fault *f)
{
    job_state goal;
    switch (f->kind) {
    case FAULT_RANK:
        return goal_of_rank(at, f);
    case FAULT_DATA:
        goal = goal_of_data(at, f);
        break;
    case FAULT_CONFIG:
        goal = JOB(FAILED);
        break;
    default: // it costs nothing, but attempts that lead nowhere do not follow each other at once
        set_wait(at);
        return JOB(STARTING);
    }
    if (goal == JOB(FAILED))
        text_set(&at->job->row->diagnosis, f->text);
    return goal;
}

void recover_fault(struct attempt *at, const struct fault *told)
{
    struct fault plain = *told;
    const struct fault *f = &plain;
    struct job_record *j = at->job;
    job_state state = j->row->state;
    bool stops = state == JOB(DRAINING) || state == JOB(RECOVERING);
    struct job_note n = {f->what, f->rank, f->host, attempt_step(at)};
    const char *log = f->log ? f->log : "";
    text_plain(plain.text);
    if (stops) {
        job_event(j, &n, "%s%s%s", f->text, log[0] ? "\n" : "", log);
        if (at->phase == PHASE_END || at->grace_ms) { // a crash while draining: no one waits for it
            at->grace_ms = 0;
            attempt_enter(at, PHASE_STOP);
        }
        attempt_settle(at);
        return;
    }
    j->coord->failures += f->kind != FAULT_OUTSIDE;
    job_state goal = goal_of(at, f);
    checkpoint_over(j);
    job_move(j, JOB(RECOVERING), goal, &n, "%s%s%s", f->text, log[0] ? "\n" : "", log);
    at->grace_ms = 0;
    snprintf(at->reason, sizeof at->reason, "%.190s", f->text);
    attempt_enter(at, PHASE_STOP);
    attempt_settle(at);
}

// ---- the goal ----

static void go(struct job_record *j, job_state to, const char *kind, const char *text)
{
    struct job_note n = NOTE(kind);
    n.step = j->row->last_step > 0 ? j->row->last_step : -1;
    char *copy = arena_strdup(j->coord->out->arena, text); // it may be the row's, which moves on
    job_move(j, to, JOB(JOB_NONE), &n, "%s", copy);
}

static void restart(struct job_record *j)
{
    j->row->restarts++;
    j->coord->restarts++;
    if (j->not_before_ns > j->coord->now_ns)
        go(j, JOB(QUEUED), "waits", "waits before the next attempt: the last ones made no step");
    else if (!queue_place_now(j))
        go(j, JOB(QUEUED), "queued", "waits for devices");
}

void recover_over(struct job_record *j)
{
    const Weft__Rows__Job *row = j->row;
    switch (row->goal) {
    case JOB(STARTING):
        restart(j);
        return;
    case JOB(QUEUED):
        go(j, JOB(QUEUED), "queued", row->goal_why[0] ? row->goal_why : "back in the queue");
        return;
    case JOB(HELD):
        go(j, JOB(HELD), "held",
           row->goal_why[0]    ? row->goal_why
           : row->diagnosis[0] ? row->diagnosis
                               : "held");
        return;
    case JOB(FAILED):
        go(j, JOB(FAILED), "failed", row->diagnosis[0] ? row->diagnosis : "it cannot run");
        return;
    case JOB(CANCELLED):
        go(j, JOB(CANCELLED), "cancelled", row->goal_why[0] ? row->goal_why : "cancelled");
        return;
    default:
        go(j, JOB(SUCCEEDED), "succeeded", "all steps are done, the last checkpoint is committed");
    }
}

void recover_forgive(struct job_record *j)
{
    Weft__Rows__Job *row = j->row;
    row->n_failures_ms = 0;
    row->budget_used = row->same_failures = row->barren = 0;
    row->committed_since = false;
    row->not_before_ms = 0;
    j->not_before_ns = 0;
    text_set(&row->diagnosis, "");
    text_set(&row->goal_why, "");
}
