// SPDX-License-Identifier: Apache-2.0
// Submit and the verbs; see acts.h. What a verb does in a state is a table: an entry is a move, a
// goal, a text that says it is so already, or a refusal.
#include "coordinator/acts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/attempt/life.h"
#include "common/base/buf.h"
#include "common/model/schema_list.h"
#include "coordinator/attempt.h"
#include "coordinator/host.h"
#include "coordinator/job_record.h"
#include "coordinator/recover.h"
#include "coordinator/requests.h"

enum { AUDIT_KEEP = 10000, AUDIT_TEXT = 200 };
enum { WAITING_MAX = 50000 }; // jobs in the queue

// ---- audit ----

static void audit(struct coord *c, const struct coord_event *ev, const char *verb,
                  const char *target, const char *result)
{
    char cut[AUDIT_TEXT];
    ROW_NEW(Audit, audit, row);
    snprintf(cut, sizeof cut, "%s", target); // refused ones are of any length
    text_plain(cut);
    row.seq = c->next_audit++;
    row.t_ms = c->wall_ms;
    row.who = frame_text(ev->who);
    row.role = frame_text(ev->role);
    row.verb = frame_text(verb);
    row.target = cut;
    row.result = frame_text(result);
    OUT_ROW(c, AUDIT, &row);
    c->meta_dirty = true;
    if (row.seq < AUDIT_KEEP)
        return;
    ROW_NEW(Audit, audit, old);
    old.seq = row.seq - AUDIT_KEEP;
    OUT_ERASE(c, AUDIT, &old);
}

// ---- submit ----

struct job_record *acts_make_job(struct coord *c, const struct job *spec, const char *known_id,
                                 const char *owner, const char *base_dir)
{
    struct buf resolved = {0};
    char id[ID_LEN], hash[65];
    ROW_NEW(Job, job, row);
    if (known_id)
        snprintf(id, sizeof id, "%s", known_id);
    else
        coord_new_id(c, id);
    job_print(spec, &resolved);
    job_hash(spec, hash);
    row.id = id;
    row.name = frame_text(spec->name);
    row.owner = frame_text(owner);
    row.seq = c->next_seq++;
    row.submitted_ms = row.queued_ms = row.spent_ms = c->wall_ms;
    row.priority = spec->resources.priority;
    row.resolved = frame_text(buf_str(&resolved));
    row.job_hash = hash;
    row.base_dir = frame_text(base_dir);
    row.ranks = (int)spec->resources.devices;
    row.kind = frame_text(job_device_kind(spec->resources.kind));
    row.max_hosts = (int)spec->resources.hosts;
    row.steps = spec->train.steps;
    row.committed_step = -1;
    row.last_step = -1;
    c->meta_dirty = true;
    struct job_record *j = job_add(c, msg_heap(&row.base));
    buf_clear(&resolved);
    coord_new_id(c, id);
    text_set(&j->row->run_id, id);
    job_take_spec(j, spec);
    return j;
}

void acts_audit(struct coord *c, const struct coord_event *ev)
{
    audit(c, ev, ev->verb, ev->target, ev->result);
}

// The job of the request; else what is wrong with it in `no`.
static void read_job(const Weft__V1__SubmitRequest *q, struct arena *a, struct job *spec,
                     struct buf *no)
{
    struct job_errors errs = {0};
    if (job_parse(a, &weft_schema, NULL, q->base_dir[0] ? q->base_dir : NULL, q->resolved,
                  strlen(q->resolved), NULL, 0, spec, &errs))
        job_errors_print(&errs, no);
    else if (spec->resources.devices > RANK_MAX) // a plan may be of any size, an attempt not
        buf_printf(no, "resources.devices: is %lld: a job runs on at most %d",
                   (long long)spec->resources.devices, RANK_MAX);
}

void acts_submit(struct coord *c, const struct coord_event *ev)
{
    const Weft__V1__SubmitRequest *q = ev->submit;
    struct arena a;
    struct job spec;
    struct buf no = {0};
    if (request_known(c, ev->call, q->request_id, &q->base, &weft__v1__submit_reply__descriptor))
        return;
    if (c->nqueued >= WAITING_MAX) {
        out_refuse(c, ev->call, CODE_EXHAUSTED, "50000 jobs wait already");
        audit(c, ev, "submit", "", "refused: too many jobs wait");
        return;
    }
    arena_init(&a);
    read_job(q, &a, &spec, &no);
    if (no.len) {
        out_refuse(c, ev->call, CODE_INVALID, buf_str(&no));
        audit(c, ev, "submit", "", "refused: the job file is wrong");
        buf_clear(&no);
        arena_clear(&a);
        return;
    }
    struct job_record *j = acts_make_job(c, &spec, NULL, ev->who, q->base_dir);
    struct job_note n = NOTE("submitted");
    job_move(j, JOB(QUEUED), JOB(JOB_NONE), &n, "by %s: %d %s device%s, %lld steps",
             ev->who && ev->who[0] ? ev->who : "somebody", j->row->ranks, j->row->kind,
             j->row->ranks == 1 ? "" : "s", (long long)j->row->steps);
    V1_NEW(SubmitReply, submit_reply, reply);
    reply.job = j->row->id;
    reply.name = j->row->name;
    audit(c, ev, "submit", j->row->id, "ok");
    request_answer(c, ev->call, q->request_id, &q->base, &reply.base);
    arena_clear(&a);
}

// ---- verbs about jobs ----

enum how { NO, MOVE, DRAIN, GOAL, ALREADY };
struct deed {
    enum how how;
    const char *text; // what happens now, is so already, or why not
};
#define JOB_VERBS (WEFT__V1__VERB__RESUME + 1)

static const struct verb {
    const char *name, *event;
    job_state to;
    struct deed in[JOB_STATES];
} verbs[JOB_VERBS] = {
    [WEFT__V1__VERB__CANCEL] =
        {"cancel",
         "cancelled",
         JOB(CANCELLED),
         {
             [JOB(QUEUED)] = {MOVE, "cancelled"},
             [JOB(STARTING)] = {DRAIN, "it stops, then it is cancelled"},
             [JOB(RUNNING)] = {DRAIN, "it stops after saving a checkpoint, then it is cancelled"},
             [JOB(DRAINING)] = {GOAL, "it stops, then it is cancelled"},
             [JOB(RECOVERING)] = {GOAL, "it stops, then it is cancelled"},
             [JOB(HELD)] = {MOVE, "cancelled"},
             [JOB(SUCCEEDED)] = {NO, "it has succeeded"},
             [JOB(FAILED)] = {NO, "it has failed already"},
             [JOB(CANCELLED)] = {ALREADY, "it is cancelled already"},
         }},
    [WEFT__V1__VERB__HOLD] =
        {"hold",
         "held",
         JOB(HELD),
         {
             [JOB(QUEUED)] = {MOVE, "held"},
             [JOB(STARTING)] = {DRAIN, "it stops, then it is held"},
             [JOB(RUNNING)] = {DRAIN, "it stops after saving a checkpoint, then it is held"},
             [JOB(DRAINING)] = {GOAL, "it stops, then it is held"},
             [JOB(RECOVERING)] = {GOAL, "it stops, then it is held"},
             [JOB(HELD)] = {ALREADY, "it is held already"},
             [JOB(SUCCEEDED)] = {NO, "it has succeeded"},
             [JOB(FAILED)] = {NO, "it has failed"},
             [JOB(CANCELLED)] = {NO, "it is cancelled"},
         }},
    [WEFT__V1__VERB__PREEMPT] =
        {"preempt",
         "preempted",
         JOB(QUEUED),
         {
             [JOB(QUEUED)] = {ALREADY, "it waits in the queue already"},
             [JOB(STARTING)] = {DRAIN, "it stops and goes back to the queue"},
             [JOB(RUNNING)] = {DRAIN,
                               "it stops after saving a checkpoint and goes back to the queue"},
             [JOB(DRAINING)] = {GOAL, "it stops and goes back to the queue"},
             [JOB(RECOVERING)] = {GOAL, "it stops and goes back to the queue"},
             [JOB(HELD)] = {NO, "it is held"},
             [JOB(SUCCEEDED)] = {NO, "it has succeeded"},
             [JOB(FAILED)] = {NO, "it has failed"},
             [JOB(CANCELLED)] = {NO, "it is cancelled"},
         }},
    [WEFT__V1__VERB__RESUME] =
        {"resume",
         "resumed",
         JOB(QUEUED),
         {
             [JOB(QUEUED)] = {ALREADY, "it waits in the queue already"},
             [JOB(STARTING)] = {ALREADY, "it starts already"},
             [JOB(RUNNING)] = {ALREADY, "it runs already"},
             [JOB(DRAINING)] = {NO, "it is still stopping: resume it when it has"},
             [JOB(RECOVERING)] = {NO, "it is recovering: it goes on by itself, or resume it then"},
             [JOB(HELD)] = {MOVE, "it goes on from its last checkpoint when its turn comes"},
             [JOB(SUCCEEDED)] = {NO, "it has succeeded"},
             [JOB(FAILED)] = {MOVE, "it goes on from its last checkpoint when its turn comes"},
             [JOB(CANCELLED)] = {MOVE, "it goes on from its last checkpoint when its turn comes"},
         }},
};

// Which goal beats which: success is a fact, then cancel, fail, hold, queue, start.
static int weight(job_state goal)
{
    static const int weights[JOB_STATES] = {[JOB(SUCCEEDED)] = 6, [JOB(CANCELLED)] = 5,
                                            [JOB(FAILED)] = 4,    [JOB(HELD)] = 3,
                                            [JOB(QUEUED)] = 2,    [JOB(STARTING)] = 1};
    return weights[goal];
}

static void words(const struct verb *v, const struct coord_event *ev, char out[300])
{
    const char *who = ev->who && ev->who[0] ? ev->who : "somebody", *why = ev->act->why;
    snprintf(out, 300, "%s by %.80s%s%.180s", v->event, who, why[0] ? ": " : "", why);
    text_plain(out);
}

// Null, or why not.
static const char *set_goal(struct job_record *j, const struct verb *v, const char *text)
{
    struct job_note n = NOTE(v->event);
    if (weight(j->row->goal) > weight(v->to))
        return j->row->goal == JOB(SUCCEEDED)   ? "it has done its last step and ends"
               : j->row->goal == JOB(CANCELLED) ? "it is being cancelled"
               : j->row->goal == JOB(FAILED)    ? "it is failing"
                                                : "it is being held";
    text_set(&j->row->goal_why, text);
    if (j->row->goal != v->to)
        job_goal(j, v->to, &n, "%s", text);
    return NULL;
}

static const char *carry_out(struct job_record *j, const struct verb *v, const struct deed *d,
                             const struct coord_event *ev)
{
    struct job_note n = NOTE(v->event);
    char text[300];
    words(v, ev, text);
    switch (d->how) {
    case NO:
        return d->text;
    case ALREADY:
        return NULL;
    case GOAL:
        return set_goal(j, v, text);
    case MOVE:
        if (v->to == JOB(QUEUED))
            recover_forgive(j);
        text_set(&j->row->goal_why, text);
        job_move(j, v->to, JOB(JOB_NONE), &n, "%s", text);
        return NULL;
    case DRAIN:
        text_set(&j->row->goal_why, text);
        attempt_drain(j->attempt, v->to, GRACE_MS, &n, text);
        return NULL;
    }
    return NULL;
}

static const char *act_on_job(struct coord *c, const struct coord_event *ev,
                              Weft__V1__ActReply *reply, struct err *e)
{
    const Weft__V1__ActRequest *q = ev->act;
    const struct verb *v = &verbs[q->verb];
    struct job_record *j = job_of(c, q->target, e);
    if (!j)
        return e->text;
    const struct deed *d = &v->in[j->row->state];
    reply->target = j->row->id;
    reply->text = frame_text(d->text);
    struct err unread = {0};
    bool again = q->verb == WEFT__V1__VERB__RESUME && job_spec(j, &unread);
    const char *no = again ? unread.text : carry_out(j, v, d, ev);
    if (!no)
        return NULL;
    err_set(e, ERR_REFUSED, "cannot %s %s: %s", v->name, j->row->name, no);
    return e->text;
}

// ---- verbs about hosts ----

static const char *act_on_host(struct coord *c, const struct coord_event *ev,
                               Weft__V1__ActReply *reply, struct err *e)
{
    struct host *host = host_of(c, ev->act->target, e);
    if (!host)
        return e->text;
    Weft__V1__Verb verb = ev->act->verb;
    bool drains = verb == WEFT__V1__VERB__DRAIN;
    host->row->cordoned = verb != WEFT__V1__VERB__UNCORDON;
    host->row->draining = drains || (host->row->draining && host->row->cordoned);
    host->dirty = c->hosts_dirty = true;
    c->place = true;
    reply->target = host->row->id;
    reply->text = frame_text(drains ? "its ranks stop and go elsewhere; it takes no more"
                             : host->row->cordoned ? "it takes no more ranks"
                                                   : "it takes ranks again");
    if (drains)
        attempts_drain_host(c, host, ev->act->why[0] ? ev->act->why : "asked for");
    return NULL;
}

static const char *act(struct coord *c, const struct coord_event *ev, Weft__V1__ActReply *reply,
                       struct err *e)
{
    const Weft__V1__ActRequest *q = ev->act;
    if (q->cluster[0] && strcmp(q->cluster, c->cluster))
        err_set(e, ERR_REFUSED, "this is another cluster: %s", c->cluster);
    else if (q->verb >= WEFT__V1__VERB__CANCEL && q->verb <= WEFT__V1__VERB__RESUME)
        return act_on_job(c, ev, reply, e);
    else if (q->verb >= WEFT__V1__VERB__CORDON && q->verb <= WEFT__V1__VERB__DRAIN)
        return act_on_host(c, ev, reply, e);
    else
        err_set(e, ERR_INVALID, "unknown verb %d", (int)q->verb);
    return e->text;
}

void acts_act(struct coord *c, const struct coord_event *ev)
{
    static const char *const host_verbs[] = {"cordon", "uncordon", "drain"};
    const Weft__V1__ActRequest *q = ev->act;
    V1_NEW(ActReply, act_reply, reply);
    struct err e = {0};
    if (request_known(c, ev->call, q->request_id, &q->base, &weft__v1__act_reply__descriptor))
        return;
    bool about_job = q->verb > 0 && q->verb <= WEFT__V1__VERB__RESUME;
    bool about_host = q->verb > WEFT__V1__VERB__RESUME && q->verb <= WEFT__V1__VERB__DRAIN;
    const char *name = about_job    ? verbs[q->verb].name
                       : about_host ? host_verbs[q->verb - WEFT__V1__VERB__CORDON]
                                    : "?";
    if (act(c, ev, &reply, &e)) {
        int code = e.code == ERR_NOTFOUND  ? CODE_NOT_FOUND
                   : e.code == ERR_INVALID ? CODE_INVALID
                                           : CODE_PRECONDITION;
        audit(c, ev, name, q->target, e.text);
        out_refuse(c, ev->call, code, e.text);
        return;
    }
    audit(c, ev, name, reply.target, "ok");
    request_answer(c, ev->call, q->request_id, &q->base, &reply.base);
}
