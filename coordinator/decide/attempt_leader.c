// SPDX-License-Identifier: Apache-2.0
// Carries out what the leader of an attempt decides; see attempt_leader.h.
#include "coordinator/decide/attempt_leader.h"

#include <stdio.h>
#include <string.h>

#include "common/attempt/frame.h"
#include "common/base/plain.h"
#include "coordinator/decide/checkpoint.h"
#include "coordinator/decide/host.h"
#include "coordinator/decide/outbox.h"

enum {
    FLUSH_S = 10,     // how often the step in the job's row is brought up to date
    GRACE_MS = 60000, // of a stop that somebody asked for
};

// ---- frames ----

static void send_to_host(struct attempt *at, const struct attempt_host *h, int rank,
                         const Weft__Rank__Frame *f)
{
    V1_NEW(RankFrame, rank_frame, body);
    if (h->reaped || !host_is(h->host, h->incarnation))
        return;
    body.job = frame_text(at->job->id);
    body.attempt = at->job->attempt;
    body.rank = rank;
    body.frame = frame_borrow(f);
    DOWN(d, FRAME, frame, &body);
    out_down(at->job->coord, h->host->conn, &d);
}

static void send_frame(struct attempt *at, int rank, const Weft__Rank__Frame *f)
{
    if (rank >= 0) {
        send_to_host(at, &at->hosts[at->ranks[rank].host], rank, f);
        return;
    }
    for (int i = 0; i < at->nhosts; i++)
        send_to_host(at, &at->hosts[i], -1, f);
}

// ---- steps ----

static void keep_report(struct job_record *j, const Weft__Rank__StepReport *r)
{
    if (j->steps) {
        j->report.known = true;
        j->report.loss = r->loss;
        j->report.tokens_per_s = frame_mean_speed(r, r->tokens_per_s);
        j->report.samples_per_s = frame_mean_speed(r, r->samples_per_s);
    }
    j->rates = (struct job_rates){true,          r->grad_norm,        r->input_ms,
                                  r->compute_ms, r->communication_ms, r->checkpoint_ms};
    if (!r->evaluated)
        return;
    j->report.evaluated = true;
    j->report.eval_loss = r->eval_loss;
    j->report.eval_accuracy = r->eval_accuracy;
}

// The history has the first update that was dropped, the second, the fourth, …: there may be many.
static void note_dropped(struct attempt *at, const Weft__Rank__StepReport *r)
{
    struct job_note n = NOTE(DROPPED);
    n.step = r->step;
    if (r->dropped < 2 * at->dropped || r->dropped <= 0)
        return;
    at->dropped = r->dropped;
    job_event(at->job, &n,
              "the loss or gradient of a step is not finite: its update is dropped (%lld so far)",
              (long long)r->dropped);
}

static void take_report(struct attempt *at, const Weft__Rank__StepReport *r)
{
    struct job_record *j = at->job;
    struct coord *c = j->coord;
    if (r->step < 0 || r->step > j->steps)
        return;
    keep_report(j, r);
    note_dropped(at, r);
    c->steps += r->step > j->last_step ? r->step - j->last_step : 0;
    if (r->step > j->last_step)
        j->last_step = r->step;
    if (c->now_ns - j->flushed_ns >= FLUSH_S * CLOCK_S)
        job_touch(j);
    V1_NEW(WatchUpdate, watch_update, update);
    update.report = frame_borrow(r);
    out_publish(c, j->id, &update);
    if (j->steps || !r->evaluated)
        return;
    at->finished = true; // a job that only evaluates has its result
    attempt_settle(at);
}

// ---- the culprit ----

static enum fault_kind classify_exit(int code)
{
    if (rank_exit_is_of_host(code))
        return FAULT_HOST;
    if (!rank_exit_is_lasting(code))
        return FAULT_RANK;
    return code == RANK_EXIT_DATA || code == RANK_EXIT_DAMAGED ? FAULT_DATA : FAULT_CONFIG;
}

// The rank whose host is to blame where a host is: the culprit itself, or the one of another host that
// it did not find at its address.
static int find_rank_to_blame(const struct attempt *at, const struct culprit *x)
{
    bool across = x->unreached >= 0 && at->ranks[x->unreached].host != at->ranks[x->rank].host;
    return across ? x->unreached : x->rank;
}

// Whether hosts where the job has not failed for its data, but for one (null: for none), have devices
// for all of it.
static bool may_run_elsewhere(const struct job_record *j, const struct host *but)
{
    int n = 0;
    list_for_each (it, &j->coord->hosts) {
        const struct host *h = list_entry(it, struct host, link);
        if (h != but && !h->fenced && !job_find_avoided(j, h->incarnation))
            n += host_count_devices(h, j->kind);
    }
    return n >= j->ranks;
}

// Counts the failure against the host instead of the job, and says so in its text.
// Where no other host can take the job it is not avoided.
static void blame_host(struct attempt *at, struct host *host, const struct culprit *x,
                       struct fault *f)
{
    long long s = host_trouble(at->job->coord, host) / CLOCK_S;
    size_t n = strlen(f->text);
    const char *what = x->kind == CULPRIT_DIED      ? "a signal from outside of the job"
                       : x->kind == CULPRIT_GAVE_UP ? "a host's address that does not lead to it"
                                                    : "the host's own trouble";
    if (may_run_elsewhere(at->job, host))
        snprintf(
            f->text + n, sizeof f->text - n,
            ". This is %s: it counts against host %s, which is avoided for %lld s, not against "
            "the job",
            what, host_name(host), s);
    else
        snprintf(f->text + n, sizeof f->text - n,
                 ". This is %s: it counts against host %s, not against the job, which stays there: "
                 "no other host can take it",
                 what, host_name(host));
}

// Data that this host lacks another one may have: the failure counts against the host, for this job
// alone. Where no other could take the job it is the job's.
static void blame_host_for_data(struct attempt *at, const struct attempt_host *h, struct fault *f)
{
    struct job_record *j = at->job;
    size_t n = strlen(f->text);
    long long s = job_avoid(j, h->incarnation, f->text);
    if (!may_run_elsewhere(j, NULL))
        return;
    f->kind = FAULT_HOST;
    snprintf(f->text + n, sizeof f->text - n,
             ". It counts against host %s, which this job avoids for %lld s, not against the job",
             host_name(h->host), s);
}

static void take_culprit(struct attempt *at, const struct culprit *x)
{
    static const struct {
        enum fault_kind kind;
        enum event_kind event;
        enum fault_sign sign;
    } faults[CULPRIT_KINDS] = {
        [CULPRIT_EXITED] = {FAULT_RANK, EVENT_FAILED, SIGN_EXIT},
        [CULPRIT_DIED] = {FAULT_RANK, EVENT_FAILED, SIGN_SIGNAL},
        [CULPRIT_HUNG] = {FAULT_RANK, EVENT_HANG, SIGN_HANG},
        [CULPRIT_GAVE_UP] = {FAULT_OUTSIDE, EVENT_LOST, SIGN_NONE},
        [CULPRIT_ABSENT] = {FAULT_RANK, EVENT_FAILED, SIGN_START},
        [CULPRIT_PLANS] = {FAULT_CONFIG, EVENT_FAILED, SIGN_NONE},
        [CULPRIT_LEFT] = {FAULT_OUTSIDE, EVENT_LOST, SIGN_NONE},
        [CULPRIT_FENCED] = {FAULT_OUTSIDE, EVENT_LOST, SIGN_NONE},
    };
    struct fault f = {.kind = faults[x->kind].kind,
                      .event = faults[x->kind].event,
                      .sign = faults[x->kind].sign,
                      .code = x->kind == CULPRIT_DIED ? x->signal : x->code,
                      .rank = x->rank,
                      .log = x->log};
    if (x->rank >= 0)
        f.host = host_name(at->hosts[at->ranks[x->rank].host].host);
    if (x->kind == CULPRIT_EXITED)
        f.kind = classify_exit(x->code);
    if (x->kind == CULPRIT_DIED && rank_signal_is_of_host(x->signal))
        f.kind = FAULT_HOST;
    int blamed = find_rank_to_blame(at, x);
    if (x->kind == CULPRIT_GAVE_UP && blamed != x->rank)
        f.kind = FAULT_HOST;
    snprintf(f.text, sizeof f.text, "%s", x->text);
    if (f.kind == FAULT_HOST && blamed >= 0 && !at->fault && !at->final_aborted)
        blame_host(at, at->hosts[at->ranks[blamed].host].host, x, &f);
    if (x->kind == CULPRIT_EXITED && x->code == RANK_EXIT_ABSENT && !at->fault)
        blame_host_for_data(at, &at->hosts[at->ranks[x->rank].host], &f);
    attempt_fault(at, &f);
}

// ---- what a commit means to the job ----

static void take_commit(struct attempt *at, struct store_entry id)
{
    struct job_note n = NOTE(COMMITTED);
    struct job_record *j = at->job;
    n.step = id.step;
    job_account(j);
    j->since_ckpt_ms = 0;
    j->committed_step = id.step;
    j->committed_attempt = (uint64_t)id.attempt;
    j->committed_since = true;
    if (id.step > j->last_step)
        j->last_step = id.step;
    j->coord->committed++;
    job_saved(j);
    job_event(j, &n, "checkpoint of step %lld", (long long)id.step);
    job_publish(j);
    if (id.step < j->steps)
        return;
    at->finished = true;
    attempt_settle(at);
}

// The rows know since when saves fail, over restarts of this process.
static void take_abort(struct attempt *at, const struct leader_action *a)
{
    struct job_note n = NOTE(ABORTED);
    struct job_record *j = at->job;
    n.step = a->id.step;
    job_event(j, &n, "checkpoint of step %lld: %s", (long long)a->id.step, a->text);
    if (a->failed)
        job_unsaved(j, a->text);
    if (j->state != JOB_RUNNING || a->again)
        return;
    if (a->id.step >= j->steps)
        at->final_aborted = true;
    else if (a->failed && j->coord->now_ns - j->unsaved_ns >= j->patience_ns)
        at->out_of_patience = true;
    if (at->out_of_patience)
        attempt_settle(at);
}

// Somebody removed the folder: until the save that found out is committed nothing is saved.
static void take_loss(struct attempt *at, const struct leader_action *a)
{
    struct job_note n = NOTE(REMOVED);
    struct job_record *j = at->job;
    n.step = a->id.step;
    job_account(j);
    j->since_ckpt_ms = j->spent_ms[TIME_RUNNING];
    j->committed_since = false;
    j->committed_step = -1;
    j->committed_attempt = 0;
    job_removed(j, arena_printf(j->coord->out->arena,
                                "somebody removed %s with %s, before the save of step %lld",
                                *j->store ? j->store : "the checkpoint folder", a->text,
                                (long long)a->id.step));
    job_event(j, &n, "%s: it is made again, and training continues", j->removed);
}

static void note_of_rank(struct attempt *at, const char *text)
{
    struct job_note n = NOTE(BEGUN);
    char line[600];
    n.rank = 0;
    snprintf(line, sizeof line, "%s", text);
    plain_mask(line);
    job_event(at->job, &n, "%s", line);
}

static void run_attempt(struct attempt *at)
{
    struct job_note n = NOTE(STARTED);
    if (at->phase != PHASE_START || at->fault)
        return;
    n.step = at->job->restore_step;
    for (int i = 0; i < at->nhosts; i++)
        job_stop_avoiding(at->job, at->hosts[i].incarnation);
    job_move(at->job, JOB_RUNNING, JOB_NONE, &n, "every rank is ready (%d), their plans agree",
             at->nranks);
    attempt_enter(at, PHASE_RUN);
}

// ---- actions ----

static void carry_out(struct attempt *at, const struct leader_action *a)
{
    switch (a->kind) {
    case LEADER_SEND:
        send_frame(at, a->rank, a->frame);
        return;
    case LEADER_RECORDS:
        checkpoint_write(at->job, leader_commit(at->leader));
        return;
    case LEADER_REPORT:
        take_report(at, a->report);
        return;
    case LEADER_ABORTED:
        take_abort(at, a);
        return;
    case LEADER_LOST:
        take_loss(at, a);
        return;
    case LEADER_COMMITTED:
        take_commit(at, a->id);
        return;
    case LEADER_NOTE:
        note_of_rank(at, a->text);
        return;
    case LEADER_READY:
        run_attempt(at);
        return;
    case LEADER_CULPRIT:
        take_culprit(at, a->culprit);
        return;
    }
}

void attempt_lead(struct attempt *at, struct leader_event ev)
{
    struct coord *c = at->job->coord;
    struct leader_out out = {.arena = c->out->arena};
    ev.now_ns = c->now_ns;
    leader_step(at->leader, &ev, &out);
    for (int i = 0; i < out.n; i++)
        carry_out(at, &out.v[i]);
}

// ---- the end ----

void attempt_leave(struct attempt *at, enum attempt_phase phase)
{
    bool by_themselves = phase == PHASE_END || at->grace_ms;
    attempt_lead(
        at, (struct leader_event){.kind = by_themselves ? LEADER_EV_STOPPING : LEADER_EV_OVER});
    attempt_enter(at, phase);
    attempt_settle(at);
}

void attempt_drain(struct attempt *at, enum job_state goal, const struct job_note *n,
                   const char *why)
{
    bool begun = at->phase > PHASE_FENCE;
    job_move(at->job, JOB_DRAINING, goal, n, "%s", why);
    at->grace_ms = begun ? GRACE_MS : 0;
    snprintf(at->reason, sizeof at->reason, "%.190s", why);
    attempt_leave(at, PHASE_STOP);
}

void attempt_host_gone(struct attempt *at, struct attempt_host *h)
{
    int index = (int)(h - at->hosts);
    if (h->reaped)
        return;
    for (int r = 0; r < at->nranks; r++)
        if (at->ranks[r].host == index)
            attempt_lead(at, (struct leader_event){.kind = LEADER_EV_GONE, .rank = r});
    attempt_reaped(at, h);
}

// ---- after a restart ----

static enum attempt_phase find_phase(const struct job_record *j)
{
    if (j->state == JOB_RUNNING)
        return PHASE_RUN;
    if (j->state == JOB_STARTING)
        return j->fenced ? PHASE_START : PHASE_WRITE;
    return j->goal == JOB_SUCCEEDED ? PHASE_END : PHASE_STOP;
}

void attempt_resume(struct attempt *at)
{
    enum attempt_phase phase = find_phase(at->job);
    if (phase >= PHASE_END)
        attempt_leave(at, phase);
    else
        attempt_enter(at, phase);
}
