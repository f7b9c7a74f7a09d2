// SPDX-License-Identifier: Apache-2.0
// Sentences about a job; see job_status.h.
#include "coordinator/decide/job_status.h"

#include <string.h>

#include "common/base/plain.h"
#include "common/job/threads.h"
#include "coordinator/decide/attempt_leader.h"
#include "coordinator/decide/host.h"
#include "coordinator/decide/shortage.h"

static void fill_hosts(const struct job_record *j, struct arena *a, Weft__V1__JobStatus *s)
{
    const struct attempt *at = j->live;
    if (!at)
        return;
    s->hosts = arena_array(a, char *, at->nhosts);
    for (int i = 0; i < at->nhosts; i++)
        s->hosts[s->n_hosts++] = arena_strdup(a, host_name(at->hosts[i].host));
}

static void fill_report(const struct job_record *j, Weft__V1__JobStatus *s)
{
    const struct job_report *r = &j->report;
    s->reported = r->known;
    s->loss = r->loss;
    s->tokens_per_s = r->tokens_per_s;
    s->samples_per_s = r->samples_per_s;
    s->evaluated = r->evaluated;
    s->eval_loss = r->eval_loss;
    s->eval_accuracy = r->eval_accuracy;
}

// Only CPU devices have threads.
static void fill_threads(const struct job_record *j, struct arena *a, Weft__V1__JobStatus *s)
{
    if (j->kind != JOB_CPU)
        return;
    s->threads = j->threads;
    s->threads_why = arena_strdup(a, j->threads || j->attempt ? j->threads_why : THREADS_LATER);
}

static const char *print_age(int64_t ns, struct arena *a)
{
    int64_t s = ns / CLOCK_S;
    return s < 120    ? arena_printf(a, "%lld s", (long long)s)
           : s < 7200 ? arena_printf(a, "%lld min", (long long)s / 60)
                      : arena_printf(a, "%lld h", (long long)s / 3600);
}

static char *explain_unsaved(const struct job_record *j, struct arena *a)
{
    if (!j->unsaved)
        return arena_strdup(a, "");
    return arena_printf(a, "not saved for %s, %d save%s failed: %s",
                        print_age(j->coord->now_ns - j->unsaved_ns, a), j->unsaved,
                        j->unsaved == 1 ? "" : "s", j->unsaved_why);
}

static char *explain_no_progress(const struct job_record *j, struct arena *a)
{
    char *text = arena_printf(a, "the last %d attempts led nowhere%s%.400s%s%s", j->no_progress,
                              j->last_fault[0] ? "; the newest: " : "", j->last_fault,
                              j->unsaved ? "; " : "", explain_unsaved(j, a));
    plain_mask(text); // the fault may be cut inside a character
    return text;
}

static char *explain_wait(const struct job_record *j, struct arena *a)
{
    const struct coord *c = j->coord;
    const char *kind = job_device_kind(j->kind);
    const struct job_record *other = job_find(c, j->behind);
    switch (j->wait) {
    case WAIT_NEW:
        return arena_strdup(a, "waits for its turn");
    case WAIT_BACKOFF:
        return arena_printf(a, "waits %.1f s: %s", (double)(j->not_before_ns - c->now_ns) / 1e9,
                            explain_no_progress(j, a));
    case WAIT_NEVER:
        return shortage_explain(j, a);
    case WAIT_DEVICES:
        return arena_printf(a, "first in line: waits for %d %s device%s that others hold", j->ranks,
                            kind, j->ranks == 1 ? "" : "s");
    case WAIT_COMING:
        return arena_strdup(a, "first in line: waits for jobs that are stopping");
    case WAIT_BEHIND:
        return arena_printf(a, "waits behind %s (%.8s, priority %lld), which is first in line",
                            other ? other->name : "another job", j->behind,
                            (long long)(other ? other->priority : 0));
    }
    return arena_strdup(a, "");
}

// Whether its attempts have led nowhere more than once, and none runs now.
static bool makes_no_progress(const struct job_record *j)
{
    return j->no_progress >= 2 && (j->state == JOB_QUEUED || j->state == JOB_STARTING ||
                                   (j->state == JOB_RECOVERING && j->goal == JOB_STARTING));
}

// Why it waits or how it ended, in a sentence; "" when there is nothing to say.
static char *explain_state(const struct job_record *j, struct arena *a)
{
    if (j->coord->read_only[0] && !job_state_ended(j->state) && j->state != JOB_HELD)
        return arena_strdup(a, j->coord->read_only);
    switch (j->state) {
    case JOB_QUEUED:
        if (makes_no_progress(j) && j->wait != WAIT_BACKOFF)
            return arena_printf(a, "%s; %s", explain_wait(j, a), explain_no_progress(j, a));
        return explain_wait(j, a);
    case JOB_HELD:
        return arena_printf(a, "%s%s%s", j->goal_why[0] ? j->goal_why : j->diagnosis,
                            j->unsaved ? "; " : "", explain_unsaved(j, a));
    case JOB_FAILED:
        return arena_strdup(a, j->diagnosis);
    case JOB_STARTING:
        if (makes_no_progress(j))
            return explain_no_progress(j, a);
        break;
    case JOB_DRAINING:
    case JOB_RECOVERING:
        if (makes_no_progress(j))
            return explain_no_progress(j, a);
        return arena_printf(a, "on its way to %s%s%s", job_state_word(j->goal),
                            j->goal_why[0] ? ": " : "", j->goal_why);
    default:
        break;
    }
    return j->unsaved ? explain_unsaved(j, a) : arena_strdup(a, j->removed);
}

// Whether it needs a person, as far as can be known: explain_state says what for.
static bool is_in_trouble(const struct job_record *j)
{
    if (job_state_ended(j->state))
        return false;
    if (j->state == JOB_HELD)
        return !j->goal_why[0] || j->found[0] || j->unsaved; // not only because a person held it
    return j->coord->read_only[0] || j->unsaved || makes_no_progress(j) ||
           (j->state == JOB_QUEUED && j->wait == WAIT_NEVER);
}

static void fill_tags(const struct job_record *j, struct arena *a, Weft__V1__JobStatus *s)
{
    char *rest = arena_strdup(a, j->tags), *tag;
    s->tags = arena_array(a, char *, JOB_MAX_TAGS);
    while ((tag = strsep(&rest, " ")) && *tag && s->n_tags < JOB_MAX_TAGS)
        s->tags[s->n_tags++] = tag;
}

Weft__V1__JobStatus *job_status(const struct job_record *j, struct arena *a)
{
    Weft__V1__JobStatus *s = arena_new(a, Weft__V1__JobStatus);
    weft__v1__job_status__init(s);
    s->job = arena_strdup(a, j->id);
    s->name = arena_strdup(a, j->name);
    s->state = (Weft__V1__JobState)j->state;
    s->goal = (Weft__V1__JobState)j->goal;
    s->attempt = j->attempt;
    s->step = j->last_step > 0 || j->report.known || j->committed_step >= 0 ? j->last_step : -1;
    s->steps = j->steps;
    fill_report(j, s);
    s->mesh = arena_strdup(a, j->mesh);
    fill_tags(j, a, s);
    fill_hosts(j, a, s);
    s->restarts = j->restarts;
    s->checkpoint_step = j->committed_step;
    s->newest_event = j->events;
    s->checkpoint_attempt = j->committed_attempt;
    s->exit = job_state_ended(j->state) || j->state == JOB_HELD ? job_exit_code(j) : -1;
    s->failure = j->state == JOB_FAILED ? j->failure : 0;
    s->priority = j->priority;
    s->ranks = j->ranks;
    s->owner = arena_strdup(a, j->owner);
    s->found = arena_strdup(a, j->found);
    s->submitted_ms = j->submitted_ms;
    s->text = explain_state(j, a);
    s->store = arena_strdup(a, j->store);
    plain_mask(s->store); // as a host reported it
    s->unsaved = j->unsaved;
    s->unsaved_since_ms = j->unsaved_ms;
    s->unsaved_for_ms = j->unsaved ? (j->coord->now_ns - j->unsaved_ns) / CLOCK_MS : 0;
    s->unsaved_why = arena_strdup(a, j->unsaved_why);
    fill_threads(j, a, s);
    s->in_trouble = is_in_trouble(j);
    return s;
}

static char *print_unreaped(const struct attempt *at, struct arena *a)
{
    char *text = arena_strdup(a, "");
    for (int i = 0; i < at->nhosts; i++)
        if (!at->hosts[i].reaped)
            text =
                arena_printf(a, "%s%s%s", text, text[0] ? ", " : "", host_name(at->hosts[i].host));
    return text;
}

static char *explain_phase(const struct attempt *at, struct arena *a)
{
    int silent = at->nranks - leader_joined(at->leader);
    switch (at->phase) {
    case PHASE_WRITE:
    case PHASE_RENAME:
    case PHASE_READ:
        return arena_strdup(a, "waits for its hosts to prove that they share the storage");
    case PHASE_FENCE:
        return arena_strdup(a, "waits for the fence of its checkpoint folder");
    case PHASE_START:
        return silent ? arena_printf(a, "waits for %d of %d ranks to come up", silent, at->nranks)
                      : arena_printf(a, "%d of %d ranks are ready", leader_ready(at->leader),
                                     at->nranks);
    case PHASE_RUN:
        if (!at->job->steps)
            return arena_strdup(a, "evaluates");
        return arena_printf(a, "runs; step %lld of %lld is next", (long long)at->job->last_step + 1,
                            (long long)at->job->steps);
    case PHASE_END:
        return arena_printf(a, "waits for its %d ranks to leave", leader_alive(at->leader));
    case PHASE_STOP:
        return arena_printf(a, "waits until no process of it lives on %s", print_unreaped(at, a));
    }
    return arena_strdup(a, "");
}

char *job_next(const struct job_record *j, struct arena *a)
{
    if (j->coord->read_only[0] && !job_state_ended(j->state) && j->state != JOB_HELD)
        return arena_strdup(a, j->coord->read_only);
    if (j->live)
        return explain_phase(j->live, a);
    switch (j->state) {
    case JOB_QUEUED:
        return explain_wait(j, a);
    case JOB_HELD:
        if (j->found[0])
            return arena_printf(a, "nothing: `weft adopt %.8s` takes it, `weft cancel %.8s` not",
                                j->id, j->id);
        return arena_printf(a, "nothing: `weft resume %.8s` puts it back in the queue", j->id);
    case JOB_FAILED:
    case JOB_CANCELLED:
        return arena_printf(a, "nothing: it has ended; `weft resume %.8s` tries again", j->id);
    default:
        return arena_strdup(a, "nothing: it has ended");
    }
}
