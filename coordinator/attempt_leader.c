// SPDX-License-Identifier: Apache-2.0
// What a leader decides is carried out; see attempt_leader.h.
#include "coordinator/attempt_leader.h"

#include <stdio.h>
#include <string.h>

#include "coordinator/checkpoint.h"
#include "coordinator/host.h"
#include "coordinator/outbox.h"

enum {
    JOIN_S = 300, // until every rank has said where it is
    FLUSH_S = 10, // how often the step in the job's row is brought up to date
};

void attempt_name_places(struct attempt *at)
{
    for (int r = 0; r < at->nranks; r++) {
        const struct attempt_rank *k = &at->ranks[r];
        char place[400];
        snprintf(place, sizeof place, "host %s device %d", host_name(at->hosts[k->host].host),
                 k->device);
        leader_place(at->leader, r, place);
    }
}

void attempt_make_leader(struct attempt *at, enum leader_state state)
{
    struct job_record *j = at->job;
    struct leader_config c = {.ranks = at->nranks,
                              .steps = j->steps,
                              .hang_after_ns = j->spec.restart.hang_after,
                              .join_ns = JOIN_S * CLOCK_S,
                              .keep = (int)j->spec.checkpoint.keep,
                              .keep_every = j->spec.checkpoint.keep_every};
    struct leader_memory m = {.state = state};
    at->leader = leader_new(&c, j->coord->now_ns);
    checkpoint_remember(j, &m);
    leader_restore(at->leader, &m, j->coord->now_ns);
    attempt_name_places(at);
}

// ---- frames ----

static void send_to_host(struct attempt *at, const struct attempt_host *h, int rank,
                         const Weft__Rank__Frame *f)
{
    union {
        const Weft__Rank__Frame *from;
        Weft__Rank__Frame *to;
    } frame = {.from = f};
    V1_NEW(RankFrame, rank_frame, body);
    if (h->reaped || !host_is(h->host, h->incarnation))
        return;
    body.job = frame_text(at->job->id);
    body.epoch = at->job->epoch;
    body.rank = rank;
    body.frame = frame.to;
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
    j->report.known = true;
    j->report.loss = r->loss;
    j->report.tokens_per_s = r->tokens_per_s;
    j->report.samples_per_s = r->samples_per_s;
    if (!r->evaluated)
        return;
    j->report.evaluated = true;
    j->report.eval_loss = r->eval_loss;
    j->report.eval_accuracy = r->eval_accuracy;
}

static void take_report(struct job_record *j, const Weft__Rank__StepReport *r)
{
    struct coord *c = j->coord;
    if (r->step < 0 || r->step > j->steps)
        return;
    keep_report(j, r);
    c->steps += r->step > j->last_step ? r->step - j->last_step : 0;
    if (r->step > j->last_step)
        j->last_step = r->step;
    if (c->now_ns - j->flushed_ns >= FLUSH_S * CLOCK_S)
        job_touch(j);
    V1_NEW(WatchUpdate, watch_update, update);
    union {
        const Weft__Rank__StepReport *from;
        Weft__Rank__StepReport *to;
    } report = {.from = r};
    update.report = report.to;
    out_publish(c, j->id, &update);
}

// ---- the culprit ----

static enum fault_kind kind_of_exit(int code)
{
    if (code == RANK_EXIT_CONFIG)
        return FAULT_CONFIG;
    return code == RANK_EXIT_DATA ? FAULT_DATA : FAULT_RANK;
}

static void take_culprit(struct attempt *at, const struct culprit *x)
{
    static const struct {
        enum fault_kind kind;
        enum event_kind event;
        const char *sign;
    } faults[CULPRIT_KINDS] = {
        [CULPRIT_EXITED] = {FAULT_RANK, EVENT_FAILED, NULL},
        [CULPRIT_DIED] = {FAULT_RANK, EVENT_FAILED, NULL},
        [CULPRIT_HUNG] = {FAULT_RANK, EVENT_HANG, "hang"},
        [CULPRIT_GAVE_UP] = {FAULT_OUTSIDE, EVENT_LOST, NULL},
        [CULPRIT_ABSENT] = {FAULT_RANK, EVENT_FAILED, "start"},
        [CULPRIT_PLANS] = {FAULT_CONFIG, EVENT_FAILED, NULL},
        [CULPRIT_LEFT] = {FAULT_OUTSIDE, EVENT_LOST, NULL},
    };
    char sign[40];
    struct fault f = {.kind = faults[x->kind].kind,
                      .event = faults[x->kind].event,
                      .sign = faults[x->kind].sign,
                      .rank = x->rank,
                      .log = x->log};
    if (x->rank >= 0)
        f.host = host_name(at->hosts[at->ranks[x->rank].host].host);
    if (x->kind == CULPRIT_EXITED) {
        f.kind = kind_of_exit(x->code);
        snprintf(sign, sizeof sign, "exit %d", x->code);
        f.sign = sign;
    } else if (x->kind == CULPRIT_DIED) {
        snprintf(sign, sizeof sign, "signal %d", x->signal);
        f.sign = sign;
    }
    snprintf(f.text, sizeof f.text, "%s", x->text);
    attempt_fault(at, &f);
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
        take_report(at->job, a->report);
        return;
    case LEADER_ABORTED:
        checkpoint_aborted(at, a->id, a->text);
        return;
    case LEADER_COMMITTED:
        checkpoint_committed(at, a->id);
        return;
    case LEADER_READY:
        attempt_running(at);
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
