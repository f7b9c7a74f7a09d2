// SPDX-License-Identifier: Apache-2.0
// weft run: one job, here, in one process. On the main thread are the worker, which starts the ranks,
// and all signals (own_worker.h); on another the coordinator (own_coordinator.h); on a third this
// client, which gives the coordinator the job once (run_record.h), watches it to its end, and prints. It
// alone waits where a terminal or a pager stands still.
//
//   load → record → coordinator → worker ┬──────────────────────────────────────► worker ends
//                                        └─ submit or resume → watch ──► ended: 0 or 1
//                                                               └─ Ctrl-C: drain, 130; again: kill, 130
//
// The first Ctrl-C drains the worker: the ranks save, and the job is queued again. Since nobody
// offers devices any more, it waits there until the same command runs again.
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/attempt/frame.h"
#include "common/base/clock.h"
#include "common/base/duration.h"
#include "common/base/folder.h"
#include "common/base/plain.h"
#include "coordinator/cli/cli_link.h"
#include "coordinator/cli/cli_print.h"
#include "coordinator/cli/request.h"
#include "coordinator/cli/run_agent.h"
#include "coordinator/cli/run_begin.h"
#include "coordinator/cli/run_left.h"
#include "coordinator/cli/verb_run.h"

enum { POLL_MS = 100, UPDATES_AT_ONCE = 64 };
enum { QUIET_MS = 500 };       // so long notices may hold up the end before that is said
enum { LAST_WORDS_MS = 1000 }; // that a terminal gets to take after an interruption

// ---- what people read ----

static void print_places(const struct run *r)
{
    char real[PATH_MAX]; // without the job file's ../..
    const char *store = realpath(r->record.store, real) ? real : r->record.store;
    if (r->args->json || !*r->record.job)
        return;
    if (*store)
        plain_printf(stdout, "checkpoints  %s\n", store);
    if (*store && r->job.metrics.jsonl)
        plain_printf(stdout, "metrics      %s/metrics.jsonl\n", store);
    plain_printf(stdout, "logs         %s/worker/jobs\n", r->record.dir);
    if (strcmp(r->record.state, "SUCCEEDED") != 0) {
        struct buf folder = {0};
        print_word(&folder, r->record.dir, false);
        plain_printf(stdout, "history      weft why %s --coordinator %s\n", r->job.name,
                     buf_str(&folder));
        buf_clear(&folder);
    }
    fflush(stdout);
}

// What the job came to, as its database has it.
static void show_result(struct run *r)
{
    V1_NEW(JobRequest, job_request, req);
    V1_NEW(WatchUpdate, watch_update, update);
    ProtobufCMessage *m = NULL;
    enum rpc_code code;
    struct err e = {0};
    req.job = r->record.job;
    if (!cli_link_dial(&r->link, r->verb, r->record.dir, "", &e) &&
        !cli_link_try(&r->link, LINK_STATUS, &req.base, LINK_TIMEOUT_S * CLOCK_S, &m, &code, &e)) {
        update.status = (Weft__V1__JobStatus *)(void *)m;
        progress_update(&r->progress, &update);
        progress_end(&r->progress);
        cli_link_free(m);
    }
    cli_link_close(&r->link);
}

static int report_finished(struct run *r)
{
    struct err e = {0};
    int64_t step;
    char from[80] = "";
    if (left_check_result(&r->record, &r->job, &step, &e)) {
        if (step)
            snprintf(from, sizeof from,
                     " give more train.steps to continue from step %lld, which is left,",
                     (long long)step);
        complain(r->verb, e.text, r->record.store,
                 arena_printf(&r->arena, "put it back,%s or %s", from, r->start_over));
        return CLIENT_FAILED;
    }
    show_result(r);
    if (!r->args->json)
        plain_printf(stdout, "%s is finished; with more train.steps it continues; or %s\n",
                     r->job.name, r->start_over);
    print_places(r);
    return CLIENT_OK;
}

// Prints the command as it was given, since `weft` need not be in PATH.
static void print_command(struct run *r)
{
    struct buf line = {0};
    if (r->lead.s.a.kind == ALLOCATION_UP)
        return; // nobody started this one by hand
    buf_puts(&line, "to continue: ");
    print_word(&line, program_invocation_name, false);
    buf_puts(&line, " run ");
    print_word(&line, r->args->pos[0], false);
    for (int i = 0; i < r->args->nset; i++) {
        buf_puts(&line, " -s ");
        print_word(&line, r->args->set[i], true);
    }
    for (int i = 0; i < r->args->sinks.n; i++) {
        buf_puts(&line, " --sink ");
        print_word(&line, r->args->sinks.v[i], true);
    }
    for (int i = 0; i < r->args->notify.n; i++) { // a URL is a secret, the name of its file is not
        const char *pair = r->args->notify.v[i], *value = strchr(pair, '=');
        buf_puts(&line, " --notify ");
        print_word(&line,
                   value && value[1] != '@'
                       ? arena_printf(&r->arena, "%.*s=URL", (int)(value - pair), pair)
                       : pair,
                   true);
    }
    if (r->args->grace_ns) {
        buf_puts(&line, " --grace ");
        duration_print(r->args->grace_ns, &line);
    }
    progress_say(&r->progress, buf_str(&line));
    buf_clear(&line);
}

// Until the checkpoint folder is known a state says that the last run was not killed.
static int forget_state(struct run *r)
{
    struct err e = {0};
    if (*r->record.store || !*r->record.state)
        return CLIENT_OK;
    r->record.state[0] = 0;
    return record_write(&r->record, &e) ? run_report_failure(r, &e, "make room", CLIENT_FAILED)
                                        : CLIENT_OK;
}

static void remember_state(struct run *r)
{
    struct err e = {0};
    if (r->progress.state) // else the coordinator has not said it
        snprintf(r->record.state, sizeof r->record.state, "%s", word_state(r->progress.state));
    record_take_store(&r->record, r->progress.store);
    if (r->progress.step > 0)
        snprintf(r->record.step, sizeof r->record.step, "%lld", (long long)r->progress.step);
    if (record_write(&r->record, &e))
        complain(r->verb, e.text, r->record.dir,
                 "make room; the same command asks the state again");
}

// ---- between the threads ----

static void raise_flag(int fd)
{
    (void)eventfd_write(fd, 1);
}

static bool is_raised(int fd)
{
    return poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 0) == 1;
}

static void on_stopped(void *ctx)
{
    struct run *r = ctx;
    r->stops++;
    lead_stops(&r->lead);
    raise_flag(r->halted);
}

static void on_attached(void *ctx)
{
    raise_flag(((struct run *)ctx)->attached);
}

static int explain_halt(const struct run *r) // a failure of the worker is printed at the end
{
    return r->stops ? CLIENT_INTERRUPTED : CLIENT_FAILED;
}

// Waits until the coordinator says something, or the worker is halted or over; at most POLL_MS.
static void wait_for_events(struct run *r)
{
    struct pollfd fds[] = {
        {.fd = rpc_fd(r->link.rpc), .events = POLLIN},
        {.fd = is_raised(r->halted) ? r->worker_over : r->halted, .events = POLLIN}};
    poll(fds, 2, POLL_MS);
}

// ---- giving it the job ----

// An exit code; CLIENT_REFUSED with `code` and `e`. A halt ends a try, so that none waits for a plan.
static int ask_coordinator(struct run *r, enum cli_link_method m, const ProtobufCMessage *request,
                           ProtobufCMessage **reply, enum rpc_code *code, struct err *e)
{
    int seconds = m == LINK_SUBMIT ? LINK_SUBMIT_S : LINK_TIMEOUT_S;
    if (!cli_link_try(&r->link, m, request, seconds * CLOCK_S, reply, code, e))
        return CLIENT_OK;
    return is_raised(r->halted) ? explain_halt(r) : CLIENT_REFUSED;
}

// The database is lost, and with it the id of the cluster that the checkpoints belong to.
static int refuse_unknown(struct run *r)
{
    complain(r->verb, "what the coordinator knew of this job is lost", r->record.dir,
             arena_printf(&r->arena, "put its weft.db back, or %s", r->start_over));
    return CLIENT_REFUSED;
}

// continues: the job that the record names continues with this text; −1: it cannot yet, since somebody
// has resumed or changed it meanwhile.
static int submit_job(struct run *r, bool continues)
{
    V1_NEW(SubmitRequest, submit_request, req);
    ProtobufCMessage *m = NULL;
    enum rpc_code code;
    struct err e = {0};
    req.request_id = r->record.request;
    req.resolved = r->resolved.data;
    req.base_dir = r->base;
    req.threads_why = r->threads_why;
    if (continues) {
        req.continues = r->record.job;
        req.from_step = r->args->from_step;
        req.goes_back = req.from_step >= 0;
    }
    int rc = ask_coordinator(r, LINK_SUBMIT, &req.base, &m, &code, &e);
    if (rc == CLIENT_REFUSED && code == RPC_NOT_FOUND)
        return refuse_unknown(r);
    if (rc == CLIENT_REFUSED && code == RPC_ABORTED)
        return -1;
    if (rc == CLIENT_REFUSED)
        return cli_link_explain(&r->link, code, e.text);
    if (rc)
        return rc;
    snprintf(r->record.job, sizeof r->record.job, "%s",
             ((const Weft__V1__SubmitReply *)(const void *)m)->job);
    cli_link_free(m);
    snprintf(r->record.base, sizeof r->record.base, "%s", r->base);
    job_hash(&r->job, r->record.hash);
    if (folder_write(r->record.dir, "resolved", buf_str(&r->resolved), FOLDER_DURABLE, &e) ||
        record_write(&r->record, &e))
        return run_report_failure(r, &e, "make room", CLIENT_FAILED);
    return CLIENT_OK;
}

static int act_on_job(struct run *r, Weft__V1__Verb verb, enum rpc_code *code, struct err *e)
{
    V1_NEW(ActRequest, act_request, req);
    char id[ID_LEN], why[] = "weft run was called again";
    ProtobufCMessage *m = NULL;
    request_random(id);
    req.request_id = id;
    req.verb = verb;
    req.target = r->record.job;
    req.why = why;
    int rc = ask_coordinator(r, LINK_ACT, &req.base, &m, code, e);
    if (!rc)
        cli_link_free(m);
    return rc;
}

static int resume_job(struct run *r, const Weft__V1__JobStatus *s)
{
    enum rpc_code code;
    struct err e = {0};
    plain_error("it was %s%s%s%s: queued again", word_state(s->state), *s->text ? " (" : "",
                s->text, *s->text ? ")" : "");
    int rc = act_on_job(r, WEFT__V1__VERB__RESUME, &code, &e);
    return rc == CLIENT_REFUSED ? cli_link_explain(&r->link, code, e.text) : rc;
}

// A refusal is no failure here: the job may have ended meanwhile, and its state is asked again.
static int hold_job(struct run *r)
{
    enum rpc_code code;
    struct err e = {0};
    int rc = act_on_job(r, WEFT__V1__VERB__HOLD, &code, &e);
    return rc == CLIENT_REFUSED ? CLIENT_OK : rc;
}

// A setting that the command no longer gives falls back to the file's, and nobody would notice.
static void print_changes(const struct run *r, int64_t from_step)
{
    if (from_step < 0)
        plain_error("it starts with a changed job: %s", r->changes);
    else if (!r->changes)
        plain_error("it continues from step %lld", (long long)from_step);
    else
        plain_error("it continues from step %lld with a changed job: %s", (long long)from_step,
                    r->changes);
}

static int refuse_lost(struct run *r, int64_t known_step, const char *why)
{
    struct err e = {0};
    char from[40] = "";
    if (known_step >= 0)
        snprintf(from, sizeof from, " from step %lld", (long long)known_step);
    err_set(&e, ERR_NOTFOUND, "%s has changed and was to continue%s, and %s", r->job.name, from,
            why);
    complain(r->verb, e.text, r->record.store,
             arena_printf(&r->arena, "put the folder back, or %s", r->start_over));
    return CLIENT_FAILED;
}

// Refuses where no checkpoint is left. *from_step is looked for before the job is queued: once it runs
// it makes others.
static int check_checkpoints(struct run *r, int64_t known_step, int64_t *from_step)
{
    struct err e = {0};
    if (r->args->from_step >= 0) { // which is there (run_begin.c)
        *from_step = r->args->from_step;
        return CLIENT_OK;
    }
    if (left_step(&r->record, known_step, from_step, &e)) {
        err_wrap(&e, "none of its checkpoints can be used");
        return refuse_lost(r, known_step, e.text);
    }
    if (*from_step < 0 && known_step >= 0)
        return refuse_lost(r, known_step, "its checkpoints are gone");
    return CLIENT_OK;
}

static int change_job(struct run *r, int64_t known_step)
{
    int64_t from_step = -1;
    int rc = r->changed ? check_checkpoints(r, known_step, &from_step) : CLIENT_OK;
    if (rc)
        return rc;
    request_random(r->record.request);
    rc = submit_job(r, true);
    if (rc < 0) // it is held again, and then changed
        return CLIENT_OK;
    if (!rc && r->changed)
        print_changes(r, from_step);
    r->changed = r->changed && rc != CLIENT_OK;
    return rc;
}

// Takes up a job that an earlier run has submitted: the coordinator may not know it (its database
// is gone), it may have ended, or it continues.
static int take_up_job(struct run *r)
{
    V1_NEW(JobRequest, job_request, req);
    ProtobufCMessage *m = NULL;
    enum rpc_code code;
    struct err e = {0};
    req.job = r->record.job;
    int rc = ask_coordinator(r, LINK_STATUS, &req.base, &m, &code, &e);
    if (rc == CLIENT_REFUSED && code == RPC_NOT_FOUND)
        return change_job(r, -1); // it continues from what lies in its checkpoint folder
    if (rc)
        return rc == CLIENT_REFUSED ? cli_link_explain(&r->link, code, e.text) : rc;
    const Weft__V1__JobStatus *s = (const Weft__V1__JobStatus *)(const void *)m;
    bool failed = job_ended(s->state) == CLIENT_FAILED;
    r->progress.event = s->newest_event; // what follows is shown, however soon it happens
    if (r->changed)
        rc = job_ended(s->state) >= 0 ? change_job(r, s->checkpoint_step) : hold_job(r);
    else if (failed)
        rc = resume_job(r, s);
    cli_link_free(m);
    return rc;
}

// A request that was made with another text is not repeated with this one.
static int begin_job(struct run *r)
{
    if (r->changed)
        request_random(r->record.request);
    r->changed = false;
    return submit_job(r, false);
}

// A run that was killed when the coordinator had the job, but before it knew its id, left it there. With
// another folder or text that request cannot be repeated, and the job is changed.
static int find_job(struct run *r)
{
    V1_NEW(JobsRequest, jobs_request, req);
    ProtobufCMessage *m = NULL;
    enum rpc_code code;
    struct err e = {0};
    req.all = true;
    int rc = ask_coordinator(r, LINK_JOBS, &req.base, &m, &code, &e);
    if (rc)
        return rc == CLIENT_REFUSED ? cli_link_explain(&r->link, code, e.text) : rc;
    const Weft__V1__JobsReply *all = (const Weft__V1__JobsReply *)(const void *)m;
    if (all->n_jobs)
        snprintf(r->record.job, sizeof r->record.job, "%s", all->jobs[0]->job);
    cli_link_free(m);
    return CLIENT_OK;
}

// Waits until nothing of the job runs, since only then it can get another text.
static int take_up_until_settled(struct run *r)
{
    for (;;) {
        int rc = take_up_job(r);
        if (rc || !r->changed)
            return rc;
        wait_for_events(r);
        if (is_raised(r->halted))
            return explain_halt(r);
    }
}

// ---- watching ----

// Why a job waits that was interrupted is that its only host is going.
static void hide_wait(const struct run *r, Weft__V1__JobStatus *s)
{
    if (r->stops && s && s->state == WEFT__V1__JOB_STATE__QUEUED && *s->text)
        *s->text = 0;
}

// Shows what the stream has, but not for ever: a job may report faster than a terminal can show, and
// a halt is seen between two calls. Returns an exit code once the job has ended, else -1.
static int take_updates(struct run *r, Weft__V1__JobRequest *req)
{
    ProtobufCMessage *m;
    enum rpc_code code = RPC_OK;
    char text[RPC_TEXT_MAX] = "";
    for (int i = 0; i < UPDATES_AT_ONCE; i++) {
        switch (cli_link_stream_next(&r->stream, &req->base, true, 0, &m, &code, text)) {
        case LINK_NOTHING:
            progress_turn(&r->progress);
            return -1;
        case LINK_MESSAGE:
            hide_wait(r, ((Weft__V1__WatchUpdate *)(void *)m)->status);
            progress_update(&r->progress, (const Weft__V1__WatchUpdate *)(const void *)m);
            req->from_event = r->progress.event + 1;
            cli_link_free(m);
            if (job_ended(r->progress.state) >= 0)
                return progress_end(&r->progress);
            break;
        case LINK_AWAY:
        case LINK_END:
            break;
        case LINK_FAILED:
            return cli_link_explain(&r->link, code, text);
        }
    }
    return -1;
}

static int watch_job(struct run *r)
{
    struct pollfd host[] = {{.fd = r->attached, .events = POLLIN},
                            {.fd = r->halted, .events = POLLIN}};
    V1_NEW(JobRequest, job_request, req);
    bool announced = false;
    int rc = -1;
    // Before that the coordinator would say that the job waits for hosts.
    poll(host, 2, -1);
    req.job = r->record.job;
    req.from_event = r->progress.event + 1;
    r->stream = (struct cli_link_stream){.link = &r->link, .method = LINK_WATCH};
    cli_link_stream_open(&r->stream, &req.base);
    while (rc < 0) {
        bool over = is_raised(r->worker_over);
        rc = take_updates(r, &req);
        if (rc < 0 && over) {
            progress_leave(&r->progress);
            return explain_halt(r);
        }
        if (rc < 0 && r->stops && !announced)
            progress_say(&r->progress, r->late ? "saving and stopping; Ctrl-C twice: at once"
                                               : "saving and stopping; once more Ctrl-C: at once");
        announced = r->stops;
        const struct progress *p = &r->progress;
        // Who looks for its checkpoints meanwhile finds them, and after a kill.
        if (!*r->record.store && record_take_store(&r->record, p->store))
            (void)record_write(&r->record, NULL);
        if (rc < 0 && !r->stops &&
            time_limit_due(&r->limit, p->store, p->checkpoint_attempt, p->checkpoint, p->step_ms)) {
            r->late = true;
            r->worker.stops_itself = true;
            on_stopped(r);
            raise_flag(r->worker.stop);
        }
        if (rc < 0)
            wait_for_events(r);
    }
    return rc;
}

static void print_start(const struct run *r)
{
    const struct job_resources *s = &r->job.resources;
    plain_error("%lld %s device%s, %lld thread%s each (%s); state in %s; Ctrl-C saves and stops",
                (long long)s->devices, job_device_kind(s->kind), s->devices == 1 ? "" : "s",
                (long long)s->threads, s->threads == 1 ? "" : "s",
                *r->threads_why ? r->threads_why : "resources.threads", r->record.dir);
}

static void *run_client(void *arg)
{
    struct run *r = arg;
    if (!r->args->json)
        print_start(r);
    r->rc = r->record.job[0] ? take_up_until_settled(r) : begin_job(r);
    if (!r->rc) {
        r->rc = watch_job(r);
        lead_stops(&r->lead);
        remember_state(r);
    }
    if (r->rc == CLIENT_OK || r->rc == CLIENT_FAILED)
        print_places(r);
    else if (r->rc == CLIENT_INTERRUPTED)
        print_command(r);
    raise_flag(r->client_over);
    raise_flag(r->worker.stop);
    return NULL;
}

// ---- the process ----

static int open_run(struct run *r, struct err *e)
{
    int *const flags[] = {&r->attached, &r->halted, &r->worker_over, &r->client_over,
                          &r->worker.stop};
    for (int i = 0; i < 5; i++)
        if ((*flags[i] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
            return err_errno(e, ERR_IO, "cannot make an eventfd");
    r->worker.attached = on_attached;
    r->worker.stopped = on_stopped;
    r->worker.ctx = r;
    r->coordinator.notify = r->args->notify.v;
    r->coordinator.nnotify = r->args->notify.n;
    int rc = r->worker.signals > 0 ? 0 : own_worker_read_signals(&r->worker, e);
    rc = rc ? rc : lead_open(&r->lead, r->record.dir, &r->coordinator, e);
    rc = rc ? rc : own_coordinator_open(&r->coordinator, r->record.dir, r->worker.stop, e);
    rc = rc ? rc : lead_begin(&r->lead, &r->coordinator, r->worker.stop, e);
    rc = rc ? rc : cli_link_dial(&r->link, r->verb, r->coordinator.address, "", e);
    if (rc && r->lead.s.a.port && strstr(e->text, r->lead.listen))
        err_wrap(e, "MASTER_PORT (or PET_MASTER_PORT)");
    r->link.own = r->record.dir;
    r->link.start_over = r->start_over;
    return rc;
}

// It waits for its last notices: until a signal comes, and not at all after a second one. `says`: false
// where the terminal may stand still.
static void stop_coordinator(struct run *r, bool says)
{
    struct pollfd fds[] = {{.fd = r->coordinator.over, .events = POLLIN},
                           {.fd = r->worker.signals, .events = POLLIN}};
    struct buf unsent = {0};
    bool silent = !says;
    int stops = r->stops;
    own_coordinator_stop(&r->coordinator);
    while (r->coordinator.runs && !is_raised(r->coordinator.over) && stops < 2 &&
           r->stops == stops) {
        if (!poll(fds, 2, silent ? -1 : QUIET_MS)) {
            plain_error("sending the last notices; Ctrl-C: do not wait");
            silent = true;
        }
        own_worker_take_signals(&r->worker);
    }
    own_coordinator_stop(&r->coordinator);
    own_coordinator_unsent(&r->coordinator, &unsent);
    if (unsent.len && says)
        plain_error("notices that were not sent: %s", buf_str(&unsent));
    buf_clear(&unsent);
    own_coordinator_close(&r->coordinator);
}

// Waits until the client has said its last. After an interruption it is not waited for: it may be held
// by a terminal that stands still, and people want to leave.
static void join_client(struct run *r, pthread_t client)
{
    struct pollfd fds[] = {{.fd = r->client_over, .events = POLLIN},
                           {.fd = r->worker.signals, .events = POLLIN}};
    while (!is_raised(r->client_over)) {
        if (!poll(fds, 2, r->stops ? LAST_WORDS_MS : -1)) {
            int rc =
                lead_end(&r->lead, r->late ? SEVERAL_AGAIN : CLIENT_INTERRUPTED, r->worker.signal);
            stop_coordinator(r, false);
            _exit(rc);
        }
        own_worker_take_signals(&r->worker);
    }
    pthread_join(client, NULL);
}

// A job that has changed is held before its host attaches: with its old text it would begin in a folder
// that it was moved from, or that another run is in.
static int run_threads(struct run *r, struct err *e)
{
    pthread_t client;
    const struct job_resources *s = &r->job.resources;
    if (r->changed) {
        rpc_cancel_on(r->link.rpc, r->worker.signals);
        int rc = r->record.job[0] ? CLIENT_OK : find_job(r);
        if (!rc && r->record.job[0])
            rc = hold_job(r);
        if (rc)
            return rc;
    }
    rpc_cancel_on(r->link.rpc, r->halted);
    if ((errno = pthread_create(&client, NULL, run_client, r))) {
        err_errno(e, ERR_IO, "cannot start a thread");
        return CLIENT_FAILED;
    }
    r->worker.folder = r->record.dir;
    r->worker.coordinator = r->coordinator.address;
    r->worker.cpu = s->kind == JOB_CPU;
    r->worker.devices = r->lead.s.devices ? r->lead.s.devices : (int)s->devices;
    r->worker.args = r->args;
    int rc = own_worker_run(&r->worker, e);
    raise_flag(r->worker_over);
    raise_flag(r->halted);
    join_client(r, client);
    if (!rc)
        *e = (struct err){0};
    return rc && !r->rc ? CLIENT_FAILED : r->rc;
}

static int run_job(struct run *r)
{
    struct err e = {0};
    int rc = forget_state(r);
    if (rc)
        return rc;
    time_limit_find(&r->limit, &r->job, &r->lead.s.a, own_worker_grace(r->args));
    rc = open_run(r, &e) ? CLIENT_FAILED : run_threads(r, &e);
    if (rc == CLIENT_INTERRUPTED && r->late)
        rc = SEVERAL_AGAIN;
    rc = rc == CLIENT_FAILED && r->progress.failure ? r->progress.failure : rc;
    if (rc == CLIENT_FAILED && (r->progress.state == WEFT__V1__JOB_STATE__HELD ||
                                r->progress.state == WEFT__V1__JOB_STATE__CANCELLED))
        rc = SEVERAL_PERSON; // whoever starts it again by itself would resume it
    rc = lead_end(&r->lead, rc, r->worker.signal);
    cli_link_close(&r->link);
    stop_coordinator(r, true);
    if (r->coordinator.why.code)
        e = r->coordinator.why;
    return e.code ? run_report_failure(r, &e, "see `weft doctor` and the log there", rc) : rc;
}

int run_of_several(const struct verb *v, const struct args *a, const struct several *s)
{
    struct run r = {.verb = v,
                    .args = a,
                    .lead = {.verb = v, .worker = &r.worker, .s = *s},
                    .record = {.lock = -1}};
    const struct allocation *where = &r.lead.s.a;
    if (where->kind != ALLOCATION_NONE && (a->fresh || a->from_step >= 0))
        return several_exit(usage(v, "in an allocation, whose every start repeats the command, "
                                     "there is no --new and no --from-step: move the job's folder "
                                     "away, or run it once with this alone elsewhere"),
                            0);
    if (where->kind != ALLOCATION_NONE && where->index)
        return run_agent(v, a, s);
    if (where->kind != ALLOCATION_NONE)
        (void)own_worker_read_signals(&r.worker, NULL); // a failure is seen in open_run
    progress_init(&r.progress, a->json);
    r.progress.link = &r.link;
    int rc = run_begin(&r);
    if (!rc)
        rc = strcmp(r.record.state, "SUCCEEDED") == 0 ? report_finished(&r) : run_job(&r);
    rc = lead_end(&r.lead, rc, r.worker.signal);
    progress_clear(&r.progress);
    record_close(&r.record);
    buf_clear(&r.resolved);
    arena_clear(&r.arena);
    return rc;
}

int verb_run(const struct verb *v, const struct args *a)
{
    struct several s = {0};
    struct err e = {0};
    if (allocation_find(&s.a, &e)) {
        complain(v, e.text, "the environment", "mend it; `weft doctor` says what is found");
        return SEVERAL_PERSON;
    }
    if (*s.a.doubt)
        plain_error("%s", s.a.doubt);
    return run_of_several(v, a, &s);
}
