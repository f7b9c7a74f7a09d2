// SPDX-License-Identifier: Apache-2.0
// Goals, budget and waits after a failure; see recover.h.
#include "coordinator/decide/recover.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/attempt/life.h"
#include "common/base/heap.h"
#include "coordinator/decide/attempt_leader.h"
#include "coordinator/decide/checkpoint.h"

enum { SAME_MAX = 3 };

// ---- budget ----

// Charges a failure to the budget, unless a checkpoint was committed since the last one. Returns
// false if the budget is spent.
static bool spend_budget(struct job_record *j)
{
    bool free_of_cost = j->committed_since;
    int n = 0;
    j->committed_since = false;
    if (free_of_cost)
        return j->nfailures <= j->budget;
    for (int i = 0; i < j->nfailures; i++) // those of before its window no longer count
        if (j->coord->wall_ms - j->failures_ms[i] < j->budget_ns / CLOCK_MS)
            j->failures_ms[n++] = j->failures_ms[i];
    j->failures_ms = realloc(j->failures_ms, (size_t)(n + 1) * sizeof *j->failures_ms);
    PRE(j->failures_ms != NULL);
    j->failures_ms[n] = j->coord->wall_ms;
    j->nfailures = n + 1;
    return j->nfailures <= j->budget;
}

// ---- the same again ----

// The diagnosis begins with what happened and at which step: that is what "the same" compares.
static bool count_same_failures(struct attempt *at, const struct fault *f)
{
    struct job_record *j = at->job;
    char head[100], text[1400];
    int64_t step = leader_shown_step(at->leader);
    step = step < j->restore_step ? j->restore_step : step;
    char number[20] = "";
    if (f->sign == SIGN_EXIT || f->sign == SIGN_SIGNAL)
        snprintf(number, sizeof number, " %d", f->code);
    snprintf(head, sizeof head, "%s%s at step %lld: ", sign_word(f->sign), number, (long long)step);
    bool same = j->same_failures > 0 && j->same_failure_step == step &&
                strncmp(j->diagnosis, head, strlen(head)) == 0;
    j->same_failures = same ? j->same_failures + 1 : 1;
    j->same_failure_step = step;
    snprintf(text, sizeof text, "%s%s", head, f->text);
    heap_set(&j->diagnosis, text);
    return j->same_failures >= SAME_MAX;
}

// ---- waits ----

static bool has_stepped(const struct attempt *at)
{
    const struct job_record *j = at->job;
    return leader_shown_step(at->leader) > j->restore_step || j->last_step > j->restore_step;
}

// Sets how long the job waits before its next attempt. Failures that cost no budget may come again
// and again, so only work that was saved counts as progress after one.
static void set_wait(struct attempt *at, bool progress)
{
    struct job_record *j = at->job;
    j->no_progress = progress ? 0 : j->no_progress + 1;
    if (j->no_progress < 2)
        return;
    int64_t wait = j->backoff_ns;
    for (int i = 2; i < j->no_progress && wait < j->backoff_most_ns; i++)
        wait *= 2;
    if (wait > j->backoff_most_ns)
        wait = j->backoff_most_ns;
    j->not_before_ns = j->coord->now_ns + wait;
    j->not_before_ms = j->coord->wall_ms + wait / CLOCK_MS;
}

// ---- goals ----

static enum job_state choose_goal_of_data(struct attempt *at, const struct fault *f)
{
    struct job_record *j = at->job;
    struct store_entry id;
    bool restoring = f->rank >= 0 && leader_rank(at->leader, f->rank)->view.state < RANK_RUNNING;
    bool damaged = f->sign == SIGN_EXIT && f->code == RANK_EXIT_DAMAGED;
    if (!restoring || !damaged || !j->restore[0] || !store_entry_parse(j->restore, &id))
        return JOB_FAILED;
    attempt_lead(at, (struct leader_event){.kind = LEADER_EV_BAD, .id = id});
    return commit_newest(leader_commit(at->leader)) ? JOB_STARTING : JOB_FAILED;
}

static enum job_state choose_goal_of_rank(struct attempt *at, const struct fault *f)
{
    struct job_record *j = at->job;
    char text[1400];
    bool same = f->sign && count_same_failures(at, f);
    bool paid = spend_budget(j);
    if (same)
        return JOB_FAILED;
    if (!paid) {
        snprintf(text, sizeof text, "the restart budget of %lld is spent; last: %s",
                 (long long)j->budget, f->text);
        heap_set(&j->diagnosis, text);
        return JOB_HELD;
    }
    set_wait(at, has_stepped(at));
    return JOB_STARTING;
}

enum job_state recover_goal(struct attempt *at, const struct fault *f)
{
    enum job_state goal;
    char text[1500];
    heap_set(&at->job->last_fault, f->text);
    at->job->last_sign = f->kind == FAULT_HOST ? FAULT_SIGNS : (int)f->sign;
    if (at->final_aborted && (f->kind == FAULT_RANK || f->kind == FAULT_HOST)) {
        snprintf(text, sizeof text, "the checkpoint of the last step cannot be written: %s",
                 f->text);
        heap_set(&at->job->diagnosis, text);
        return JOB_HELD;
    }
    switch (f->kind) {
    case FAULT_RANK:
        return choose_goal_of_rank(at, f);
    case FAULT_DATA:
        goal = choose_goal_of_data(at, f);
        break;
    case FAULT_CONFIG:
        goal = JOB_FAILED;
        break;
    case FAULT_HOST:
        set_wait(at, at->job->committed_step > at->job->restore_step);
        return JOB_STARTING;
    default: // it costs nothing, but attempts that lead nowhere do not follow each other at once
        set_wait(at, has_stepped(at));
        return JOB_STARTING;
    }
    if (goal == JOB_FAILED) {
        heap_set(&at->job->diagnosis, f->text);
        at->job->failure = f->sign != SIGN_EXIT           ? RANK_EXIT_CONFIG
                           : f->code == RANK_EXIT_DAMAGED ? RANK_EXIT_DATA
                                                          : f->code;
    }
    return goal;
}

void recover_forgive(struct job_record *j)
{
    j->nfailures = 0;
    j->same_failures = j->no_progress = 0;
    j->failure = 0;
    j->start_noticed = false;
    j->stalled_at = 0;
    j->committed_since = false;
    j->not_before_ms = 0;
    j->not_before_ns = 0;
    heap_set(&j->diagnosis, "");
    heap_set(&j->last_fault, "");
    heap_set(&j->goal_why, "");
    job_stop_avoiding(j, NULL);
    checkpoint_forgive(j);
}
