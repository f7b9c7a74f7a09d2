// SPDX-License-Identifier: Apache-2.0
// What follows from the facts of a step; see settle.h.
#include "coordinator/decide/settle.h"

#include <math.h>
#include <stdio.h>

#include "common/base/heap.h"
#include "coordinator/decide/attempt_leader.h"
#include "coordinator/decide/queue.h"
#include "coordinator/decide/recover.h"
#include "coordinator/decide/tidy.h"

enum { SETTLE_ROUNDS = 64 };

// ---- the goal ----

static void move_on(struct job_record *j, enum job_state to, enum event_kind kind, const char *text)
{
    struct job_note n = {kind, -1, NULL, j->last_step > 0 ? j->last_step : -1};
    char *copy = arena_strdup(j->coord->out->arena, text); // it may be the row's, which moves on
    job_move(j, to, JOB_NONE, &n, "%s", copy);
}

static void start_again(struct job_record *j)
{
    j->restarts++;
    j->coord->restarts[j->last_sign]++;
    j->last_sign = SIGN_NONE;
    if (j->not_before_ns > j->coord->now_ns)
        move_on(j, JOB_QUEUED, EVENT_WAITS,
                "waits before the next attempt: the last ones led nowhere");
    else if (!queue_place_now(j))
        move_on(j, JOB_QUEUED, EVENT_QUEUED, "waits for devices");
}

static void go_to_goal(struct job_record *j)
{
    switch (j->goal) {
    case JOB_STARTING:
        start_again(j);
        return;
    case JOB_QUEUED:
        move_on(j, JOB_QUEUED, EVENT_QUEUED, j->goal_why[0] ? j->goal_why : "back in the queue");
        return;
    case JOB_HELD:
        move_on(j, JOB_HELD, EVENT_HELD,
                j->goal_why[0]    ? j->goal_why
                : j->diagnosis[0] ? j->diagnosis
                                  : "held");
        return;
    case JOB_FAILED:
        move_on(j, JOB_FAILED, EVENT_FAILED, j->diagnosis[0] ? j->diagnosis : "it cannot run");
        return;
    case JOB_CANCELLED:
        move_on(j, JOB_CANCELLED, EVENT_CANCELLED, j->goal_why[0] ? j->goal_why : "cancelled");
        return;
    default:
        move_on(j, JOB_SUCCEEDED, EVENT_SUCCEEDED,
                j->steps ? "all steps are done, the last checkpoint is committed"
                         : "its evaluation is done; it saves nothing");
    }
}

// ---- facts of an attempt ----

// Stops the ranks at once: nobody waits any more for what they would save.
static void stop_now(struct attempt *at)
{
    at->grace_ms = 0;
    attempt_leave(at, PHASE_STOP);
}

static void take_finish(struct attempt *at)
{
    struct job_record *j = at->job;
    const struct job_report *r = &j->report;
    char text[160] = "the last step is done and saved", accuracy[40] = "";
    struct job_note n = NOTE(FINISHED);
    n.step = j->committed_step;
    if (!isnan(r->eval_accuracy))
        snprintf(accuracy, sizeof accuracy, ", accuracy %.2f %%", 100 * r->eval_accuracy);
    if (!j->steps)
        snprintf(text, sizeof text, "evaluated: loss %.6g, perplexity %.6g%s", r->eval_loss,
                 exp(r->eval_loss), accuracy);
    at->finished = false;
    if (j->state == JOB_RUNNING) {
        job_move(j, JOB_DRAINING, JOB_SUCCEEDED, &n, "%s", text);
        attempt_leave(at, PHASE_END);
    } else if (j->state == JOB_DRAINING && j->goal != JOB_SUCCEEDED) {
        job_goal(j, JOB_SUCCEEDED, &n, "%s", text);
    }
}

static void take_fault(struct attempt *at, const struct fault *f)
{
    struct job_record *j = at->job;
    bool stops = j->state == JOB_DRAINING || j->state == JOB_RECOVERING;
    struct job_note n = {f->event, f->rank, f->host, leader_shown_step(at->leader)};
    const char *gap = f->log[0] ? "\n" : "";
    if (stops) { // the history only gets the event
        job_event(j, &n, "%s%s%s", f->text, gap, f->log);
        if (at->phase == PHASE_END || at->grace_ms)
            stop_now(at);
        return;
    }
    j->coord->failures += f->kind != FAULT_OUTSIDE;
    enum job_state goal = recover_goal(at, f);
    if (goal == JOB_STARTING && (f->sign == SIGN_HANG || j->no_progress >= 2))
        j->stalls = j->attempt;
    job_move(j, JOB_RECOVERING, goal, &n, "%s%s%s", f->text, gap, f->log);
    snprintf(at->reason, sizeof at->reason, "%.190s", f->text);
    stop_now(at);
}

// The ranks are asked to stop and try to save once more, as when somebody holds the job.
static void take_impatience(struct attempt *at)
{
    struct job_record *j = at->job;
    struct job_note n = NOTE(HELD);
    char text[400];
    at->out_of_patience = false;
    if (j->state != JOB_RUNNING)
        return;
    snprintf(text, sizeof text,
             "%d saves in a row failed and its patience is over; resume it when there is room: %s",
             j->unsaved, j->unsaved_why);
    heap_set(&j->diagnosis, text); // nobody holds it
    attempt_drain(at, JOB_HELD, &n, text);
}

// Returns false if the attempt has ended: it is freed then.
static bool settle_attempt(struct attempt *at)
{
    struct job_record *j = at->job;
    const struct fault *f = at->fault;
    if (at->finished)
        take_finish(at);
    if (f)
        take_fault(at, f);
    at->fault = NULL;
    if (at->out_of_patience)
        take_impatience(at);
    if (at->phase == PHASE_END && leader_alive(at->leader) == 0 && !attempt_is_over(at)) {
        snprintf(at->reason, sizeof at->reason, "done");
        stop_now(at);
    }
    PRE(!at->finished && !at->fault); // what was decided here is no new fact
    if (!attempt_is_over(at))
        return true;
    attempt_end(at);
    go_to_goal(j);
    return false;
}

static void settle_attempts(struct coord *c)
{
    int left = list_length(&c->unsettled);
    while (!list_empty(&c->unsettled)) {
        struct attempt *at = list_entry(c->unsettled.next, struct attempt, unsettled);
        PRE(left-- > 0); // settling one makes no other unsettled
        if (settle_attempt(at))
            list_remove(&at->unsettled);
    }
}

// ---- the step ----

// A newly queued job needs a round, unless the last round's answer holds for it as well.
static void settle_jobs(struct coord *c)
{
    list_for_each (it, &c->dirty) {
        struct job_record *j = list_entry(it, struct job_record, touched);
        tidy_ask(j);
        if (j->in_queue && j->wait == WAIT_NEW && !c->round_due)
            c->round_due = !queue_knows(j);
    }
}

void settle(struct coord *c)
{
    settle_attempts(c);
    settle_jobs(c);
    for (int round = 0; c->round_due && round < SETTLE_ROUNDS; round++) {
        queue_round(c);
        settle_attempts(c);
    }
}
