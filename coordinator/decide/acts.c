// SPDX-License-Identifier: Apache-2.0
// Submit and the verbs; see acts.h. A table says what a verb does in each state: it moves the job,
// makes it stop with a goal, changes the goal, has nothing to do, or is refused.
#include "coordinator/decide/acts.h"

#include <stdio.h>
#include <string.h>

#include "common/attempt/life.h"
#include "common/base/buf.h"
#include "common/base/hash.h"
#include "common/base/heap.h"
#include "common/base/plain.h"
#include "coordinator/decide/attempt_leader.h"
#include "coordinator/decide/host.h"
#include "coordinator/decide/job_paths.h"
#include "coordinator/decide/job_record.h"
#include "coordinator/decide/live_attempts.h"
#include "coordinator/decide/notices.h"
#include "coordinator/decide/outbox.h"
#include "coordinator/decide/recover.h"
#include "coordinator/decide/requests.h"
#include "coordinator/decide/tidy.h"

enum { AUDIT_KEEP = 10000, AUDIT_TEXT = 200 };
enum { WAITING_MAX = 50000 }; // jobs in the queue

// ---- audit ----

static void write_audit(struct coord *c, const struct coord_event *ev, enum audit_verb verb,
                        const char *target, const char *result)
{
    char cut[AUDIT_TEXT];
    snprintf(cut, sizeof cut, "%s", target); // refused ones are of any length
    plain_mask(cut);
    struct audit_record a = {c->next_audit++, c->wall_ms, ev->who, ev->role, verb, cut, result};
    out_row(c, ROW_AUDIT, &a);
    if (a.seq >= AUDIT_KEEP)
        out_erase(c, ROW_AUDIT, &(struct audit_record){.seq = a.seq - AUDIT_KEEP});
    c->meta_dirty = true;
}

// ---- submit ----

void acts_audit(struct coord *c, const struct coord_event *ev)
{
    write_audit(c, ev, ev->verb, ev->target, ev->result);
}

// Copies what a submit asks for, without the reason for its number of threads: a client that asks a
// second time may word the reason otherwise, and yet asks for the same.
static Weft__V1__SubmitRequest copy_question(const Weft__V1__SubmitRequest *q)
{
    Weft__V1__SubmitRequest asked = *q;
    asked.threads_why = frame_text("");
    return asked;
}

// Finds another job of the same name that has not ended.
static const struct job_record *find_namesake(const struct coord *c, const struct job_record *j)
{
    list_for_each (it, &c->jobs) {
        const struct job_record *other = list_entry(it, struct job_record, link);
        if (other != j && !job_state_ended(other->state) && !strcmp(other->name, j->name))
            return other;
    }
    return NULL;
}

static void answer_submit(struct coord *c, const struct coord_event *ev, const struct job_record *j)
{
    V1_NEW(SubmitReply, submit_reply, reply);
    Weft__V1__SubmitRequest asked = copy_question(ev->submit);
    PRE(j != NULL);
    int64_t step;
    reply.job = frame_text(j->id);
    reply.name = frame_text(j->name);
    const struct job_record *namesake = find_namesake(c, j);
    const char *notice = ev->notice ? ev->notice : "";
    if (namesake)
        notice = arena_printf(
            c->out->arena,
            "%s%sjob %.8s is called %s too and is %s: the name means the newest of "
            "them, give ids",
            notice, *notice ? "; " : "", namesake->id, j->name, job_state_word(namesake->state));
    const struct job_record *of = job_paths_source(c, j->source, c->out->arena, &step);
    if (of && step < 0 && of->state == JOB_RUNNING)
        notice =
            arena_printf(c->out->arena,
                         "%s%scheckpoint.from: job %.8s runs: %s begins with what is its newest "
                         "checkpoint then, name a step (@STEP) to choose",
                         notice, *notice ? "; " : "", of->id, j->name);
    reply.notice = frame_text(notice);
    write_audit(c, ev, AUDIT_SUBMIT, j->id, "ok");
    request_answer(c, ev->call, asked.request_id, &asked.base, &reply.base);
}

// What `weft run` says of the threads that it gave the job: nobody else knows. It may send its text
// again with those that the job has already.
static void note_threads(struct job_record *j, const Weft__V1__SubmitRequest *q, int before)
{
    char why[AUDIT_TEXT];
    bool gave = q->base_dir[0] && q->threads_why[0];
    if (j->threads == before && gave)
        return;
    snprintf(why, sizeof why, "%s", gave ? q->threads_why : "");
    plain_mask(why);
    heap_set(&j->threads_why, why);
}

// A request of before says no more than the step.
static bool asks_back(bool goes_back, int64_t from_step)
{
    return goes_back || from_step > 0;
}

static void set_begin(struct job_record *j, bool goes_back, int64_t from_step)
{
    j->goes_back = goes_back;
    j->from_step = goes_back ? from_step : 0;
}

// known_id: of a job that a lost database knew; null: a new one.
static void start_job(struct coord *c, const struct coord_event *ev, const char *known_id)
{
    struct arena *a = c->out->arena;
    int64_t step;
    // By its id from now on: a name may mean another job later, this one among them.
    const struct job_record *of = job_paths_source(c, ev->facts[0]->source, a, &step);
    struct job_record *j = job_create(c, ev->facts[0], known_id, ev->who, ev->submit->base_dir);
    j->trusts_folder = known_id != NULL;
    set_begin(j, known_id && asks_back(ev->submit->goes_back, ev->submit->from_step),
              ev->submit->from_step);
    if (of && *of->store)
        heap_set(&j->source,
                 step < 0 ? of->id : arena_printf(a, "%s@%lld", of->id, (long long)step));
    note_threads(j, ev->submit, 0);
    struct job_note n = NOTE(SUBMITTED);
    job_move(j, JOB_QUEUED, JOB_NONE, &n, "by %s: %d %s device%s, %lld steps",
             ev->who && ev->who[0] ? ev->who : "somebody", j->ranks, job_device_kind(j->kind),
             j->ranks == 1 ? "" : "s", (long long)j->steps);
    answer_submit(c, ev, j);
}

// ---- a job that continues from an older checkpoint ----

// Refuses a step that the job has no whole checkpoint of, as far as is known. Of a job whose folder is
// believed the fence finds that out.
static int check_step(const struct job_record *j, int64_t step, int64_t train_steps, struct err *e)
{
    struct buf steps = {0};
    bool there = j->trusts_folder;
    for (int i = 0; i < j->ncheckpoints; i++) {
        const struct checkpoint_record *k = &j->checkpoints[i];
        if (k->state != COMMIT_COMMITTED || k->bad)
            continue;
        there = there || k->id.step == step;
        buf_printf(&steps, "%s%lld", steps.len ? ", " : "", (long long)k->id.step);
    }
    if (!there)
        err_set(e, ERR_REFUSED, "there is no checkpoint of step %lld to continue from%s%.200s",
                (long long)step, steps.len ? ", only of steps: " : "", buf_str(&steps));
    buf_clear(&steps);
    if (there && step >= train_steps)
        return err_set(e, ERR_REFUSED, "train.steps is %lld: give more to continue from step %lld",
                       (long long)train_steps, (long long)step);
    return there ? 0 : ERR_REFUSED;
}

// ---- a job that continues with another text ----

// ERR_EXISTS: somebody was first, the job is not as the client saw it.
static int check_change(const struct job_record *j, const Weft__V1__SubmitRequest *q,
                        const Weft__Plan__JobFacts *facts, struct err *e)
{
    bool done = j->state == JOB_SUCCEEDED && facts->steps == j->committed_step;
    if (j->found[0])
        return err_set(e, ERR_REFUSED,
                       "it was found again and nobody has adopted it: `weft adopt` it first");
    if (j->state != JOB_HELD && !job_state_ended(j->state))
        return err_set(e, ERR_EXISTS, "it has not ended: `weft hold` it first");
    if (!j->base_dir[0] != !q->base_dir[0])
        return err_set(e, ERR_REFUSED, "`weft run` and `weft submit` continue their own jobs only");
    if (strcmp(facts->before_hash, j->job_hash) != 0)
        return err_set(e, ERR_EXISTS, "its text was changed meanwhile: submit this one again");
    if (facts->identity[0])
        return err_set(e, ERR_REFUSED,
                       "it would be another training, which differs in %s: undo that, or submit it "
                       "as a new job (`weft run`: --new)",
                       facts->identity);
    if (j->deleting)
        return err_set(e, ERR_REFUSED, "it is being deleted");
    if (asks_back(q->goes_back, q->from_step))
        return check_step(j, q->from_step, facts->steps, e);
    if (facts->steps >= j->committed_step && !done)
        return 0;
    return err_set(e, ERR_REFUSED,
                   "train.steps: is %lld, and it has come to step %lld already: give more",
                   (long long)facts->steps, (long long)j->committed_step);
}

static int change_job(struct job_record *j, const struct coord_event *ev, struct err *e)
{
    const Weft__Plan__JobFacts *facts = ev->facts[0];
    struct buf changes = {0};
    struct job_note n = NOTE(CHANGED);
    int before = j->threads;
    bool goes_back = asks_back(ev->submit->goes_back, ev->submit->from_step);
    n.step = goes_back ? ev->submit->from_step : j->committed_step;
    int rc = check_change(j, ev->submit, facts, e);
    buf_puts(&changes, facts->changes);
    if (!rc && strcmp(j->base_dir, ev->submit->base_dir) != 0)
        buf_printf(&changes, "%sits folder was %s", changes.len ? "; " : "", j->base_dir);
    if (!rc) {
        job_change(j, facts);
        j->must_resume = j->must_resume || j->committed_step >= 0;
        set_begin(j, goes_back, ev->submit->from_step);
        if (facts->threads)
            note_threads(j, ev->submit, before);
        heap_set(&j->base_dir, ev->submit->base_dir);
        recover_forgive(j);
        job_move(j, JOB_QUEUED, JOB_NONE, &n, "by %s, from step %lld: %s",
                 ev->who && ev->who[0] ? ev->who : "somebody", (long long)(n.step < 0 ? 0 : n.step),
                 changes.len ? buf_str(&changes) : "nothing differs");
    }
    buf_clear(&changes);
    return rc;
}

static void continue_job(struct coord *c, const struct coord_event *ev)
{
    struct err e = {0}, why = {0};
    struct job_record *j = job_of(c, ev->submit->continues, &e);
    // A job of `weft run` may be one that the lost database knew. It continues under its id from what
    // its checkpoint folder holds; no host of `weft run` is asked what lies there.
    if (e.code == ERR_NOTFOUND && c->lost_ms && ev->submit->base_dir[0] &&
        hex_is(ev->submit->continues, ID_LEN - 1)) {
        start_job(c, ev, ev->submit->continues);
        return;
    }
    if (j && change_job(j, ev, &why))
        err_set(&e, why.code, "cannot continue %s: %s", j->name, why.text);
    if (e.code) {
        write_audit(c, ev, AUDIT_SUBMIT, ev->submit->continues, e.text);
        out_refuse(c, ev->call,
                   e.code == ERR_NOTFOUND ? CODE_NOT_FOUND
                   : e.code == ERR_EXISTS ? CODE_ABORTED
                                          : CODE_PRECONDITION,
                   e.text);
        return;
    }
    answer_submit(c, ev, j);
}

void acts_submit(struct coord *c, const struct coord_event *ev)
{
    const Weft__V1__SubmitRequest *q = ev->submit, asked = copy_question(q);
    struct buf no = {0};
    if (request_known(c, ev->call, q->request_id, &asked.base, &weft__v1__submit_reply__descriptor))
        return;
    if (c->nqueued >= WAITING_MAX) {
        out_refuse(c, ev->call, CODE_EXHAUSTED, "50000 jobs wait already");
        write_audit(c, ev, AUDIT_SUBMIT, "", "refused: too many jobs wait");
        return;
    }
    if (!q->base_dir[0]) // a job of `weft run` starts at its own folder, without roots
        job_paths_check(c, ev->facts[0], &no);
    bool roots = no.len;
    notices_refuse(c, ev->facts[0]->notify, q->base_dir[0], &no);
    if (no.len) {
        out_refuse(c, ev->call, CODE_INVALID, buf_str(&no));
        write_audit(c, ev, AUDIT_SUBMIT, "",
                    roots ? "refused: a path leaves the workers' roots"
                          : "refused: it names a receiver of notices that is not here");
    } else if (q->continues[0]) {
        continue_job(c, ev);
    } else {
        start_job(c, ev, NULL);
    }
    buf_clear(&no);
}

// ---- verbs about jobs ----

enum effect_kind { NO, MOVE, DRAIN, GOAL, ALREADY, CLAIM, FORGET };
struct effect {
    enum effect_kind kind;
    const char *text; // what happens now, is so already, or why not
};

// Verbs about hosts have no row.
static const struct verb {
    enum event_kind event;
    enum job_state to;
    struct effect in[JOB_STATES];
} verbs[AUDIT_SUBMIT] = {
    [AUDIT_CANCEL] =
        {EVENT_CANCELLED,
         JOB_CANCELLED,
         {
             [JOB_QUEUED] = {MOVE, "cancelled"},
             [JOB_STARTING] = {DRAIN, "it stops, then it is cancelled"},
             [JOB_RUNNING] = {DRAIN, "it stops after saving a checkpoint, then it is cancelled"},
             [JOB_DRAINING] = {GOAL, "it stops, then it is cancelled"},
             [JOB_RECOVERING] = {GOAL, "it stops, then it is cancelled"},
             [JOB_HELD] = {MOVE, "cancelled"},
             [JOB_SUCCEEDED] = {NO, "it has succeeded"},
             [JOB_FAILED] = {NO, "it has failed already"},
             [JOB_CANCELLED] = {ALREADY, "it is cancelled already"},
         }},
    [AUDIT_HOLD] = {EVENT_HELD,
                    JOB_HELD,
                    {
                        [JOB_QUEUED] = {MOVE, "held"},
                        [JOB_STARTING] = {DRAIN, "it stops, then it is held"},
                        [JOB_RUNNING] = {DRAIN,
                                         "it stops after saving a checkpoint, then it is held"},
                        [JOB_DRAINING] = {GOAL, "it stops, then it is held"},
                        [JOB_RECOVERING] = {GOAL, "it stops, then it is held"},
                        [JOB_HELD] = {ALREADY, "it is held already"},
                        [JOB_SUCCEEDED] = {NO, "it has succeeded"},
                        [JOB_FAILED] = {NO, "it has failed"},
                        [JOB_CANCELLED] = {NO, "it is cancelled"},
                    }},
    [AUDIT_PREEMPT] =
        {EVENT_PREEMPTED,
         JOB_QUEUED,
         {
             [JOB_QUEUED] = {ALREADY, "it waits in the queue already"},
             [JOB_STARTING] = {DRAIN, "it stops and goes back to the queue"},
             [JOB_RUNNING] = {DRAIN,
                              "it stops after saving a checkpoint and goes back to the queue"},
             [JOB_DRAINING] = {GOAL, "it stops and goes back to the queue"},
             [JOB_RECOVERING] = {GOAL, "it stops and goes back to the queue"},
             [JOB_HELD] = {NO, "it is held"},
             [JOB_SUCCEEDED] = {NO, "it has succeeded"},
             [JOB_FAILED] = {NO, "it has failed"},
             [JOB_CANCELLED] = {NO, "it is cancelled"},
         }},
    [AUDIT_RESUME] =
        {EVENT_RESUMED,
         JOB_QUEUED,
         {
             [JOB_QUEUED] = {ALREADY, "it waits in the queue already"},
             [JOB_STARTING] = {ALREADY, "it starts already"},
             [JOB_RUNNING] = {ALREADY, "it runs already"},
             [JOB_DRAINING] = {NO, "it is still stopping: resume it when it has"},
             [JOB_RECOVERING] = {NO, "it is recovering: it continues by itself, or resume it then"},
             [JOB_HELD] = {MOVE, "it continues from its last checkpoint when its turn comes"},
             [JOB_SUCCEEDED] = {NO, "it has succeeded: `weft submit --continue` trains it longer"},
             [JOB_FAILED] = {MOVE, "it continues from its last checkpoint when its turn comes"},
             [JOB_CANCELLED] = {MOVE, "it continues from its last checkpoint when its turn comes"},
         }},
    [AUDIT_ADOPT] =
        {EVENT_ADOPTED,
         JOB_NONE,
         {
             [JOB_QUEUED] = {ALREADY, "somebody submitted it, it waits in the queue"},
             [JOB_STARTING] = {ALREADY, "somebody submitted it, it starts"},
             [JOB_RUNNING] = {ALREADY, "somebody submitted it, it runs"},
             [JOB_DRAINING] = {ALREADY, "somebody submitted it, it is stopping"},
             [JOB_RECOVERING] = {ALREADY, "somebody submitted it, it is recovering"},
             [JOB_HELD] = {CLAIM, "it is yours and held: `weft resume` continues it"},
             [JOB_SUCCEEDED] = {ALREADY, "somebody submitted it, it has succeeded"},
             [JOB_FAILED] = {ALREADY, "somebody submitted it, it has failed"},
             [JOB_CANCELLED] = {CLAIM, "it is yours and cancelled: `weft resume` continues it"},
         }},
#define UNENDED                                        \
    {                                                  \
        NO, "it has not ended: `weft cancel` it first" \
    }
#define GOES                                                             \
    {                                                                    \
        FORGET, "a worker removes its checkpoints, then it is forgotten" \
    }
    [AUDIT_DELETE] = {EVENT_DELETED,
                      JOB_NONE,
                      {
                          [JOB_QUEUED] = UNENDED,
                          [JOB_STARTING] = UNENDED,
                          [JOB_RUNNING] = UNENDED,
                          [JOB_DRAINING] = UNENDED,
                          [JOB_RECOVERING] = UNENDED,
                          [JOB_HELD] = UNENDED,
                          [JOB_SUCCEEDED] = GOES,
                          [JOB_FAILED] = GOES,
                          [JOB_CANCELLED] = GOES,
                      }},
};

// A goal may only be replaced by a weightier one. Success is a fact, so it weighs most.
static int rank_goal(enum job_state goal)
{
    static const int weights[JOB_STATES] = {
        [JOB_SUCCEEDED] = 6, [JOB_CANCELLED] = 5, [JOB_FAILED] = 4,
        [JOB_HELD] = 3,      [JOB_QUEUED] = 2,    [JOB_STARTING] = 1};
    return weights[goal];
}

static void make_event_text(const struct verb *v, const struct coord_event *ev, char out[300])
{
    const char *who = ev->who && ev->who[0] ? ev->who : "somebody", *why = ev->act->why;
    char from[40] = "";
    if (asks_back(ev->act->goes_back, ev->act->from_step))
        snprintf(from, sizeof from, " from step %lld", (long long)ev->act->from_step);
    snprintf(out, 300, "%s by %.80s%s%s%.140s", event_word(v->event), who, from, why[0] ? ": " : "",
             why);
    plain_mask(out);
}

// Returns null, or why the goal stays as it is.
static const char *change_goal(struct job_record *j, const struct verb *v, const char *text)
{
    struct job_note n = {v->event, -1, NULL, -1};
    if (rank_goal(j->goal) > rank_goal(v->to))
        return j->goal == JOB_SUCCEEDED   ? "it has done its last step and ends"
               : j->goal == JOB_CANCELLED ? "it is being cancelled"
               : j->goal == JOB_FAILED    ? "it is failing"
                                          : "it is being held";
    heap_set(&j->goal_why, text);
    if (j->goal != v->to)
        job_goal(j, v->to, &n, "%s", text);
    return NULL;
}

static const char *claim_job(struct job_record *j, const struct coord_event *ev, const char *text)
{
    struct job_note n = NOTE(ADOPTED);
    if (!j->found[0])
        return "somebody submitted it: only a job that was found again is adopted";
    if (j->unlike[0])
        return arena_printf(
            j->coord->out->arena,
            "OWNER in its folder %s is of another training than its newest checkpoint, "
            "which differs in %s: put OWNER right (MANIFEST.json there holds the text), "
            "and start the coordinator again",
            j->store, j->unlike);
    heap_set(&j->found, "");
    heap_set(&j->owner, ev->who && ev->who[0] ? ev->who : "somebody");
    heap_set(&j->goal_why, text);
    job_event(j, &n, "%s", text);
    job_touch(j);
    job_publish(j);
    return NULL;
}

// Finds a job that begins with a checkpoint of this one and has none of its own yet.
static const struct job_record *find_beginner(const struct job_record *of)
{
    list_for_each (it, &of->coord->jobs) {
        const struct job_record *j = list_entry(it, struct job_record, link);
        if (!job_state_ended(j->state) && j->committed_step < 0 &&
            !strncmp(j->source, of->id, strlen(of->id)))
            return j;
    }
    return NULL;
}

static const char *carry_out(struct job_record *j, const struct verb *v, const struct effect *d,
                             const struct coord_event *ev, struct err *e)
{
    struct job_note n = {v->event, -1, NULL, -1};
    const struct job_record *waits;
    bool goes_back = asks_back(ev->act->goes_back, ev->act->from_step);
    char text[300];
    make_event_text(v, ev, text);
    if (j->found[0] && v->to == JOB_QUEUED)
        return "it was found again after a lost database and nobody has adopted it: look at `weft "
               "why` and `weft checkpoints`, then `weft adopt` it";
    if (j->deleting && d->kind != FORGET)
        return "it is being deleted";
    switch (d->kind) {
    case NO:
        return d->text;
    case FORGET:
        if (j->live)
            return "its ranks have not ended yet: ask again";
        if (!j->deleting && (waits = find_beginner(j)))
            return arena_printf(j->coord->out->arena,
                                "job %.8s, called %s, is to begin with a checkpoint of it: `weft "
                                "cancel` that one first",
                                waits->id, waits->name);
        if (!j->deleting)
            job_event(j, &n, "%s", text);
        tidy_delete(j);
        return NULL;
    case ALREADY:
        return goes_back ? arena_printf(j->coord->out->arena, "%s: `weft hold` it first", d->text)
                         : NULL;
    case CLAIM:
        return claim_job(j, ev, text);
    case GOAL:
        return change_goal(j, v, text);
    case MOVE:
        if (goes_back && check_step(j, ev->act->from_step, j->steps, e))
            return e->text;
        if (v->to == JOB_QUEUED)
            recover_forgive(j);
        if (v->event == EVENT_RESUMED)
            set_begin(j, goes_back, ev->act->from_step);
        heap_set(&j->goal_why, text);
        job_move(j, v->to, JOB_NONE, &n, "%s", text);
        return NULL;
    case DRAIN:
        heap_set(&j->goal_why, text);
        attempt_drain(j->live, v->to, &n, text);
        return NULL;
    }
    return NULL;
}

static const char *act_on_job(struct coord *c, enum audit_verb verb, const struct coord_event *ev,
                              Weft__V1__ActReply *reply, struct err *e)
{
    const Weft__V1__ActRequest *q = ev->act;
    const struct verb *v = &verbs[verb];
    struct job_record *j = job_of(c, q->target, e);
    if (!j)
        return e->text;
    const struct effect *d = &v->in[j->state];
    reply->target = arena_strdup(c->out->arena, j->id); // a deletion may free j
    bool queues = verb == AUDIT_RESUME && d->kind == MOVE && j->base_dir[0];
    reply->text = frame_text(queues ? "it waits for `weft run` of its job file, which continues it"
                                    : d->text);
    const char *no = carry_out(j, v, d, ev, e);
    if (!no)
        return NULL;
    no = arena_strdup(c->out->arena, no);
    err_set(e, ERR_REFUSED, "cannot %s %s: %s", audit_word(verb), j->name, no);
    return e->text;
}

// ---- verbs about hosts ----

static const char *act_on_host(struct coord *c, enum audit_verb verb, const struct coord_event *ev,
                               Weft__V1__ActReply *reply, struct err *e)
{
    struct host *host = host_of(c, ev->act->target, e);
    if (!host)
        return e->text;
    bool drains = verb == AUDIT_DRAIN;
    host->cordoned = verb != AUDIT_UNCORDON;
    host->draining = drains || (host->draining && host->cordoned);
    host_touch(c, host);
    c->round_due = true;
    reply->target = frame_text(host->id);
    reply->text = frame_text(drains           ? "its ranks stop and go elsewhere; it takes no more"
                             : host->cordoned ? "it takes no more ranks"
                                              : "it takes ranks again");
    if (drains)
        attempts_drain_host(c, host, ev->act->why[0] ? ev->act->why : "asked for");
    return NULL;
}

static const char *act_on_target(struct coord *c, enum audit_verb verb,
                                 const struct coord_event *ev, Weft__V1__ActReply *reply,
                                 struct err *e)
{
    const Weft__V1__ActRequest *q = ev->act;
    if (q->cluster[0] && strcmp(q->cluster, c->cluster))
        err_set(e, ERR_REFUSED, "this is another cluster: %s", c->cluster);
    else if (verb == AUDIT_NONE)
        err_set(e, ERR_INVALID, "unknown verb %d", (int)q->verb);
    else if (audit_verb_is_of_hosts(verb))
        return act_on_host(c, verb, ev, reply, e);
    else
        return act_on_job(c, verb, ev, reply, e);
    return e->text;
}

void acts_act(struct coord *c, const struct coord_event *ev)
{
    const Weft__V1__ActRequest *q = ev->act;
    enum audit_verb verb = audit_verb_of(q->verb);
    V1_NEW(ActReply, act_reply, reply);
    struct err e = {0};
    if (request_known(c, ev->call, q->request_id, &q->base, &weft__v1__act_reply__descriptor))
        return;
    if (act_on_target(c, verb, ev, &reply, &e)) {
        int code = e.code == ERR_NOTFOUND  ? CODE_NOT_FOUND
                   : e.code == ERR_INVALID ? CODE_INVALID
                                           : CODE_PRECONDITION;
        write_audit(c, ev, verb, q->target, e.text);
        out_refuse(c, ev->call, code, e.text);
        return;
    }
    write_audit(c, ev, verb, reply.target, "ok");
    request_answer(c, ev->call, q->request_id, &q->base, &reply.base);
}

void acts_check(void)
{
    for (enum audit_verb v = AUDIT_NONE + 1; v < AUDIT_SUBMIT; v++)
        for (enum job_state s = JOB_QUEUED; s < JOB_STATES; s++)
            PRE(audit_verb_is_of_hosts(v) || verbs[v].in[s].text);
}
