// SPDX-License-Identifier: Apache-2.0
// weft run: one job, here, with nothing else running. It starts a coordinator and a worker of its
// own (own_daemons.h), gives them the job once (run_record.h) and watches it to its end.
//
//   load → record → daemons → submit or resume → watch ──► ended: 0 or 1
//                                                  └─ Ctrl-C: drain, 130; again: kill, 130
//
// The first Ctrl-C drains the worker: the ranks save, and the job is queued again. Since nobody
// offers devices any more, it waits there until the same command runs again.
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/deadline.h"
#include "common/base/folder.h"
#include "common/base/plain.h"
#include "coordinator/cli/cli_link.h"
#include "coordinator/cli/cli_print.h"
#include "coordinator/cli/request.h"
#include "coordinator/cli/run_begin.h"
#include "coordinator/cli/run_left.h"

enum { STOP_GRACE_MS = 15000, POLL_MS = 100, ASK_S = 2, UPDATES_AT_ONCE = 64 };
// What the coordinator said before it knew the worker arrives for a while after the worker has
// attached: only what still stands then is told as the reason why the job waits. Of the time between two
// looks no more counts than LOOK_MOST_MS: who stood still for longer has what came meanwhile to read.
enum { SETTLE_MS = 2000, LOOK_MOST_MS = 2 * POLL_MS };

// ---- what people read ----

// Writes a word for a shell: in quotes where the shell would take it for more than a word.
static void put_word(struct buf *out, const char *word, bool quote)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "./_+-";
    if (!quote && word[strspn(word, plain)] == 0) {
        buf_puts(out, word);
        return;
    }
    buf_putc(out, '\'');
    for (; *word; word++)
        buf_puts(out, *word == '\'' ? "'\\''" : (char[]){*word, 0});
    buf_putc(out, '\'');
}

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
        put_word(&folder, r->record.dir, false);
        plain_printf(stdout, "story        weft why %s --coordinator %s\n", r->job.name,
                     buf_str(&folder));
        buf_clear(&folder);
    }
    fflush(stdout);
}

static int report_finished(const struct run *r)
{
    struct err e = {0};
    int64_t step;
    char todo[160] = "put it back, or start over with --new";
    if (left_check_result(&r->record, &r->job, &step, &e)) {
        if (step)
            snprintf(todo, sizeof todo,
                     "put it back, give more train.steps to go on from step %lld, which is left, "
                     "or start over with --new",
                     (long long)step);
        complain(r->verb, e.text, r->record.store, todo);
        return CLIENT_FAILED;
    }
    if (!r->args->json)
        plain_printf(
            stdout, "%s is finished; with more train.steps it goes on, with --new it starts over\n",
            r->job.name);
    print_places(r);
    return CLIENT_OK;
}

// Prints the command as it was given, since `weft` need not be in PATH.
static void print_command(struct run *r)
{
    struct buf line = {0};
    buf_puts(&line, "to go on: ");
    put_word(&line, program_invocation_name, false);
    buf_puts(&line, " run ");
    put_word(&line, r->args->pos[0], false);
    for (int i = 0; i < r->args->nset; i++) {
        buf_puts(&line, " -s ");
        put_word(&line, r->args->set[i], true);
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
    if (*r->progress.store)
        snprintf(r->record.store, sizeof r->record.store, "%s", r->progress.store);
    if (r->progress.step > 0)
        snprintf(r->record.step, sizeof r->record.step, "%lld", (long long)r->progress.step);
    if (record_write(&r->record, &e))
        complain(r->verb, e.text, r->record.dir,
                 "make room; the same command asks the state again");
}

// ---- signals and daemons ----

static void watch_signals(struct run *r)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    r->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void take_signals(struct run *r)
{
    struct signalfd_siginfo s;
    while (read(r->signals, &s, sizeof s) == (ssize_t)sizeof s)
        r->stops += s.ssi_signo != SIGCHLD;
}

// Waits for something to happen, at most `ms`; daemons that ended are started again.
static int wait_for_events(struct run *r, int ms)
{
    struct err e = {0};
    struct pollfd fds[] = {{.fd = r->signals, .events = POLLIN},
                           {.fd = rpc_fd(r->link.rpc), .events = POLLIN}};
    int left_ms = deadline_wait_ms(daemons_due(&r->daemons), clock_mono_ns());
    poll(fds, 2, left_ms >= 0 && left_ms < ms ? left_ms : ms);
    take_signals(r);
    if (!daemons_restart(&r->daemons, &e))
        return CLIENT_OK;
    return run_report_failure(r, &e, "see the log; then run the same command again", CLIENT_FAILED);
}

// ---- giving it the job ----

static bool is_away(int rc, enum rpc_code code)
{
    return rc == ERR_PEER || code == RPC_UNAVAILABLE || code == RPC_DEADLINE_EXCEEDED ||
           code == RPC_CANCELLED;
}

// Asks until there is an answer, since the coordinator may still be starting. A Ctrl-C gives 130;
// any signal ends a try, so that none waits for a plan.
static int ask_coordinator(struct run *r, enum cli_link_method m, const ProtobufCMessage *request,
                           ProtobufCMessage **reply, enum rpc_code *code, struct err *e)
{
    int seconds = m == LINK_SUBMIT ? LINK_SUBMIT_S : ASK_S;
    for (;;) {
        int rc = cli_link_try(&r->link, m, request, seconds * CLOCK_S, reply, code, e);
        if (!rc || !is_away(rc, *code))
            return rc ? CLIENT_REFUSED : CLIENT_OK;
        rc = wait_for_events(r, 20);
        if (rc || r->stops)
            return rc ? rc : CLIENT_INTERRUPTED;
    }
}

// The database is lost, and with it the id of the cluster that the checkpoints belong to.
static int refuse_unknown(const struct run *r)
{
    complain(r->verb, "what the coordinator knew of this job is lost", r->record.dir,
             "put its folder coordinator/ back, or start over with --new (the old state is kept "
             "aside)");
    return CLIENT_REFUSED;
}

// continues: the job that the record names goes on with this text.
static int submit_job(struct run *r, bool continues)
{
    Weft__V1__SubmitRequest req;
    ProtobufCMessage *m = NULL;
    enum rpc_code code;
    struct err e = {0};
    weft__v1__submit_request__init(&req);
    req.request_id = r->record.request;
    req.resolved = r->resolved.data;
    req.base_dir = r->base;
    req.threads_why = r->threads_why;
    if (continues)
        req.continues = r->record.job;
    int rc = ask_coordinator(r, LINK_SUBMIT, &req.base, &m, &code, &e);
    if (rc == CLIENT_REFUSED && code == RPC_NOT_FOUND)
        return refuse_unknown(r);
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
    Weft__V1__ActRequest req;
    char id[ID_LEN], why[] = "weft run was called again";
    ProtobufCMessage *m = NULL;
    weft__v1__act_request__init(&req);
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
    bool told = *s->text;
    plain_error("it was %s%s%s%s: queued again", word_state(s->state), told ? " (" : "", s->text,
                told ? ")" : "");
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
static void tell_changes(const struct run *r, int64_t from_step)
{
    if (from_step < 0)
        plain_error("it begins with a changed job: %s", r->changes);
    else
        plain_error("it goes on from step %lld with a changed job: %s", (long long)from_step,
                    r->changes);
}

static int refuse_lost(const struct run *r, int64_t known_step, const char *why)
{
    struct err e = {0};
    char from[40] = "";
    if (known_step >= 0)
        snprintf(from, sizeof from, " from step %lld", (long long)known_step);
    err_set(&e, ERR_NOTFOUND, "%s has changed and was to go on%s, and %s", r->job.name, from, why);
    complain(r->verb, e.text, r->record.store, "put the folder back, or start over with --new");
    return CLIENT_FAILED;
}

// Refuses where no checkpoint is left. *from_step is looked for before the job is queued: once it runs
// it makes others.
static int check_checkpoints(const struct run *r, int64_t known_step, int64_t *from_step)
{
    struct err e = {0};
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
    if (!rc && r->changed)
        tell_changes(r, from_step);
    r->changed = r->changed && rc != CLIENT_OK;
    return rc;
}

// Takes up a job that an earlier run has submitted: the coordinator may not know it (its database
// is gone), it may have ended, or it goes on.
static int take_up_job(struct run *r)
{
    Weft__V1__JobRequest req;
    ProtobufCMessage *m = NULL;
    enum rpc_code code;
    struct err e = {0};
    weft__v1__job_request__init(&req);
    req.job = r->record.job;
    int rc = ask_coordinator(r, LINK_STATUS, &req.base, &m, &code, &e);
    if (rc == CLIENT_REFUSED && code == RPC_NOT_FOUND)
        return change_job(r, -1); // it goes on from what lies in its checkpoint folder
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

// A request that was begun with another text is not repeated with this one.
static int begin_job(struct run *r)
{
    if (r->changed)
        request_random(r->record.request);
    r->changed = false;
    return submit_job(r, false);
}

// Waits until nothing of the job runs, since only then it can get another text.
static int take_up_until_settled(struct run *r)
{
    for (;;) {
        int rc = take_up_job(r);
        if (rc || !r->changed)
            return rc;
        rc = wait_for_events(r, POLL_MS);
        if (rc || r->stops)
            return rc ? rc : CLIENT_INTERRUPTED;
    }
}

// ---- watching ----

// Whether the reason why the job waits may be that our worker is not known yet, or not any more.
static bool is_bare(struct run *r)
{
    int64_t now = clock_mono_ns(), since = now - r->looked_ns, most = LOOK_MOST_MS * CLOCK_MS;
    if (r->ready)
        r->settled_ns += since < most ? since : most;
    r->ready = r->ready || daemons_ready(&r->daemons);
    r->looked_ns = now;
    return r->stops || r->settled_ns < SETTLE_MS * CLOCK_MS;
}

// Shows what the stream has, but not for ever: a job may report faster than a terminal can show, and
// Ctrl-C is heeded between two calls. Returns an exit code once the job has ended, else -1.
static int take_updates(struct run *r, Weft__V1__JobRequest *req)
{
    ProtobufCMessage *m;
    enum rpc_code code = RPC_OK;
    char text[RPC_TEXT_MAX] = "";
    progress_bare(&r->progress, is_bare(r));
    for (int i = 0; i < UPDATES_AT_ONCE; i++) {
        switch (cli_link_stream_next(&r->stream, &req->base, true, 0, &m, &code, text)) {
        case LINK_NOTHING:
            return -1;
        case LINK_MESSAGE:
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

static int handle_interrupts(struct run *r, int *heeded)
{
    if (r->stops >= 2 || (*heeded && daemons_drained(&r->daemons)))
        return CLIENT_INTERRUPTED;
    if (r->stops && !*heeded) {
        *heeded = 1;
        progress_say(&r->progress, "saving and stopping; once more Ctrl-C: at once");
        daemons_drain(&r->daemons);
    }
    return -1;
}

static int watch_job(struct run *r)
{
    Weft__V1__JobRequest req;
    int heeded = 0, rc = -1;
    weft__v1__job_request__init(&req);
    req.job = r->record.job;
    req.from_event = r->progress.event + 1;
    r->stream = (struct cli_link_stream){.link = &r->link, .method = LINK_WATCH};
    cli_link_stream_open(&r->stream, &req.base);
    while (rc < 0) {
        rc = take_updates(r, &req);
        if (rc < 0)
            rc = handle_interrupts(r, &heeded);
        if (rc < 0 && wait_for_events(r, POLL_MS))
            rc = CLIENT_FAILED;
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

// A job that has changed is held before its host attaches: with its old text it would begin in a folder
// that it was moved from, or that another run is in.
static int start_worker(struct run *r)
{
    struct err e = {0};
    int rc = r->changed && r->record.job[0] ? hold_job(r) : CLIENT_OK;
    if (!rc && daemons_start_worker(&r->daemons, &e))
        rc = run_report_failure(r, &e, "see `weft doctor`", CLIENT_FAILED);
    return rc;
}

static int run_job(struct run *r)
{
    struct err e = {0};
    watch_signals(r);
    if (!r->args->json)
        print_start(r);
    int rc = forget_state(r);
    if (rc)
        return rc;
    rc = daemons_start(&r->daemons, r->record.dir, job_device_kind(r->job.resources.kind),
                       (int)r->job.resources.devices, &e);
    if (rc)
        rc = run_report_failure(r, &e, "see `weft doctor`", CLIENT_FAILED);
    else if (cli_link_dial(&r->link, r->verb, r->daemons.address, "", &e))
        rc = run_report_failure(r, &e, "see `weft doctor`", CLIENT_FAILED);
    r->link.own = r->record.dir;
    if (!rc) {
        rpc_heed(r->link.rpc, r->signals);
        rc = start_worker(r);
    }
    if (!rc) {
        rc = r->record.job[0] ? take_up_until_settled(r) : begin_job(r);
    }
    if (!rc) {
        rc = watch_job(r);
        remember_state(r);
    }
    cli_link_close(&r->link);
    daemons_stop(&r->daemons, r->stops >= 2 ? 0 : STOP_GRACE_MS);
    return rc;
}

int verb_run(const struct verb *v, const struct args *a)
{
    struct run r = {.verb = v, .args = a, .record = {.lock = -1}, .signals = -1};
    progress_init(&r.progress, a->json);
    int rc = run_begin(&r);
    if (!rc && strcmp(r.record.state, "SUCCEEDED") == 0) {
        rc = report_finished(&r);
    } else if (!rc) {
        rc = run_job(&r);
        if (rc == CLIENT_OK || rc == CLIENT_FAILED)
            print_places(&r);
        else if (rc == CLIENT_INTERRUPTED)
            print_command(&r);
    }
    record_close(&r.record);
    buf_clear(&r.resolved);
    arena_clear(&r.arena);
    return rc;
}
