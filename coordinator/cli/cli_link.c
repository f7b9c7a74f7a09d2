// SPDX-License-Identifier: Apache-2.0
// Calls to the coordinator; see cli_link.h.
#include "coordinator/cli/cli_link.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/folder.h"
#include "common/base/heap.h"
#include "common/base/plain.h"
#include "common/rpc/coordinator_address.h"
#include "coordinator/cli/own_coordinator.h"
#include "coordinator/cli/run_record.h"
#include "coordinator/cli/stored.h"

#define UNARY(Name, request_type, reply_type)               \
    {                                                       \
        .path = "/weft.v1.Weft/" #Name, .shape = RPC_UNARY, \
        .request = &weft__v1__##request_type##__descriptor, \
        .reply = &weft__v1__##reply_type##__descriptor      \
    }
#define STREAM(Name, request_type, reply_type)                      \
    {                                                               \
        .path = "/weft.v1.Weft/" #Name, .shape = RPC_SERVER_STREAM, \
        .request = &weft__v1__##request_type##__descriptor,         \
        .reply = &weft__v1__##reply_type##__descriptor              \
    }
static const struct rpc_method methods[LINK_METHODS] = {
    [LINK_SUBMIT] = UNARY(Submit, submit_request, submit_reply),
    [LINK_ACT] = UNARY(Act, act_request, act_reply),
    [LINK_JOBS] = UNARY(Jobs, jobs_request, jobs_reply),
    [LINK_STATUS] = UNARY(Status, job_request, job_status),
    [LINK_WHY] = UNARY(Why, job_request, why_reply),
    [LINK_WORKERS] = UNARY(Workers, workers_request, workers_reply),
    [LINK_CHECKPOINTS] = UNARY(Checkpoints, job_request, checkpoints_reply),
    [LINK_WATCH] = STREAM(Watch, job_request, watch_update),
    [LINK_LOGS] = STREAM(Logs, logs_request, log_lines),
    [LINK_ROWS] = UNARY(Rows, rows_request, rows_reply),
};

// What the code of a failed call means to a person. A code without a row is a refusal.
static const struct meaning {
    enum rpc_code code;
    int exit;
    const char *todo;
} meanings[] = {
    {RPC_UNAVAILABLE, CLIENT_AWAY,
     "start it with weft-coordinator, name another with --coordinator, or see `weft doctor`"},
    {RPC_DEADLINE_EXCEEDED, CLIENT_AWAY, "it is stopped or overloaded: look at its host and log"},
    {RPC_CANCELLED, CLIENT_AWAY, "it was stopped meanwhile: try again"},
    {RPC_NOT_FOUND, CLIENT_REFUSED, "`weft jobs --all` and `weft workers` list what is known"},
    {RPC_INVALID_ARGUMENT, CLIENT_USAGE, "change the request as it says"},
    {RPC_FAILED_PRECONDITION, CLIENT_REFUSED, "`weft status` and `weft why` say what it does now"},
    {RPC_ABORTED, CLIENT_REFUSED, "`weft status` and `weft why` say what it does now"},
    {RPC_PERMISSION_DENIED, CLIENT_REFUSED,
     "use a certificate of another role: weft-coordinator issue makes one"},
    {RPC_UNAUTHENTICATED, CLIENT_REFUSED, "name the folder of your certificate with --tls"},
    {RPC_RESOURCE_EXHAUSTED, CLIENT_REFUSED, "try again later"},
    {RPC_UNIMPLEMENTED, CLIENT_REFUSED, "use a client of the coordinator's version"},
};

static const struct meaning *find_meaning(enum rpc_code code)
{
    static const struct meaning other = {RPC_OK, CLIENT_REFUSED, "see the coordinator's log"};
    for (size_t i = 0; i < sizeof meanings / sizeof *meanings; i++)
        if (meanings[i].code == code)
            return &meanings[i];
    return &other;
}

// Advises after a refusal: often its own text names the command that helps.
static const char *advise_refused(const struct cli_link *l, const struct meaning *m,
                                  const char *text)
{
    if (m->code != RPC_FAILED_PRECONDITION && m->code != RPC_ABORTED)
        return m->todo;
    if (l->folder && strstr(text, "`weft submit --continue`"))
        return "`weft run` with more train.steps, or with --from-step, does";
    if (strstr(text, "`weft "))
        return "do as it says, then give the same command again";
    return strcmp(l->verb->name, "submit") == 0
               ? "change the job as it says, or submit it as a new one, without --continue"
               : m->todo;
}

static bool is_about_job(const struct verb *v)
{
    return strcmp(v->args, "JOB") == 0 || strcmp(v->args, "JOB…") == 0;
}

// Where there is no coordinator a name was perhaps to be that of a `weft run` of this folder.
static const char *advise_runs(const struct cli_link *l, const char *todo, struct buf *out)
{
    struct buf names = {0};
    if (!l->folder && is_about_job(l->verb))
        record_list(".", &names);
    if (names.len)
        buf_printf(out, "name a `weft run` of this folder (%s), or a coordinator: %s",
                   buf_str(&names), todo);
    buf_clear(&names);
    return out->len ? buf_str(out) : todo;
}

int cli_link_explain(const struct cli_link *l, enum rpc_code code, const char *text)
{
    const struct meaning *m = find_meaning(code);
    char what[RPC_TEXT_MAX + 40], where[PATH_MAX + 80];
    if (m->exit == CLIENT_AWAY)
        snprintf(what, sizeof what, "the coordinator is not reached: %s", text);
    else
        snprintf(what, sizeof what, "%s", text);
    if (l->own) {
        bool changed = m->exit == CLIENT_USAGE || m->code == RPC_FAILED_PRECONDITION;
        struct buf todo = {0};
        buf_printf(&todo, "change the job as it says, or %s", l->start_over);
        complain(l->verb, what, l->own,
                 changed ? buf_str(&todo) : "put that right, then run the same command again");
        buf_clear(&todo);
        return m->exit;
    }
    snprintf(where, sizeof where, "the coordinator %s %s (from %s)", l->folder ? "of" : "at",
             l->folder ? l->folder : l->address, l->origin);
    // A port that speaks TLS hangs up on a client that does not, and gRPC says no more than
    // that.
    bool bare = m->exit == CLIENT_AWAY && !l->secure && strncmp(l->address, "unix:", 5) != 0;
    const char *todo =
        bare ? "if it wants certificates name their folder with --tls or WEFT_TLS; else start "
               "it, or see `weft doctor`"
             : advise_refused(l, m, text);
    struct buf runs = {0};
    complain(l->verb, what, where, m->code == RPC_UNAVAILABLE ? advise_runs(l, todo, &runs) : todo);
    buf_clear(&runs);
    return m->exit;
}

// ---- opening ----

static const char *find_origin(const char *flag)
{
    if (flag)
        return "--coordinator";
    const char *e = getenv("WEFT_COORDINATOR");
    if (e && *e)
        return "WEFT_COORDINATOR";
    e = getenv("MASTER_ADDR");
    return e && *e ? "MASTER_ADDR" : "the default";
}

int cli_link_tls(const char *dir, struct arena *a, struct rpc_tls *out, struct err *e)
{
    static const char *const names[] = {"client", "admin"};
    *out = (struct rpc_tls){0};
    if (!dir || !*dir)
        return 0;
    out->ca = arena_printf(a, "%s/ca.pem", dir);
    if (access(out->ca, R_OK))
        return err_errno(e, ERR_INVALID, "%s", out->ca);
    for (int i = 0; i < 2; i++) {
        out->cert = arena_printf(a, "%s/%s.pem", dir, names[i]);
        out->key = arena_printf(a, "%s/%s.key", dir, names[i]);
        if (access(out->cert, R_OK) == 0)
            return access(out->key, R_OK) ? err_errno(e, ERR_INVALID, "%s", out->key) : 0;
    }
    return err_set(e, ERR_INVALID, "%s holds neither client.pem nor admin.pem", dir);
}

// ---- a folder of `weft run` ----

enum {
    CHANGE_S = 10, // for a run that begins or ends
    RETRY_MS = 20,
};

static bool is_folder(const char *address)
{
    struct stat st;
    if (strncmp(address, "unix:", strlen("unix:")) == 0 || strstr(address, "://"))
        return false;
    return strchr(address, '/') || (stat(address, &st) == 0 && S_ISDIR(st.st_mode));
}

static bool find_run(struct cli_link *l, const char *root)
{
    bool found = own_coordinator_find(root, &l->folder_fd, l->address);
    if (!found)
        l->folder_fd = l->address[0] = 0;
    return found;
}

// Takes the folder's lock and has its coordinator here, or finds the run that holds the lock.
static int host_coordinator(struct cli_link *l, const char *root, struct err *e)
{
    int64_t until = clock_mono_ns() + CHANGE_S * CLOCK_S;
    int rc;
    while ((rc = folder_lock(root, &l->lock, e)) == ERR_EXISTS) {
        if (find_run(l, root))
            return 0;
        if (clock_mono_ns() >= until)
            return err_wrap(e, "its coordinator does not listen");
        *e = (struct err){0};
        clock_sleep_ms(RETRY_MS);
    }
    if (rc)
        return rc;
    l->host = heap_alloc(sizeof *l->host);
    rc = own_coordinator_open(l->host, root, -1, e);
    snprintf(l->address, sizeof l->address, "%s", l->host->address);
    return rc;
}

static int open_folder(struct cli_link *l, struct err *e)
{
    char *root = realpath(l->folder, NULL);
    if (!root)
        return err_errno(e, ERR_INVALID, "%s", l->folder);
    l->folder = arena_strdup(&l->arena, root);
    free(root);
    const char *database = arena_printf(&l->arena, "%s/weft.db", l->folder);
    if (access(arena_printf(&l->arena, "%s/job", l->folder), F_OK))
        return err_set(e, ERR_INVALID,
                       "%s is no folder of `weft run`: name .weft/NAME beside its job file",
                       l->folder);
    if (strcmp(l->verb->name, "submit") == 0)
        return err_set(e, ERR_INVALID,
                       "a folder of `weft run` has that run's job alone; jobs are given to a "
                       "coordinator of its own");
    if (find_run(l, l->folder))
        return 0;
    if (access(database, F_OK))
        return err_errno(e, ERR_NOTFOUND, "what is known of that run is not there: %s", database);
    return l->verb->act ? host_coordinator(l, l->folder, e) : stored_open(&l->stored, l->folder, e);
}

static int find_coordinator(struct cli_link *l, const char *flag, struct err *e)
{
    char given[PATH_MAX];
    int rc = coordinator_address(flag, given, sizeof given, e);
    if (rc)
        return rc;
    if (!is_folder(given))
        return coordinator_address(flag, l->address, sizeof l->address, e);
    l->folder = arena_strdup(&l->arena, given);
    return open_folder(l, e);
}

int cli_link_dial(struct cli_link *l, const struct verb *v, const char *address, const char *tls,
                  struct err *e)
{
    struct rpc_channel_options o = {.address = l->address};
    *l = (struct cli_link){.verb = v, .origin = find_origin(address), .tls = tls};
    if (!tls) {
        tls = getenv("WEFT_TLS");
        tls = tls && *tls ? tls : NULL;
    }
    int rc = find_coordinator(l, address, e);
    if (rc || l->stored)
        return rc;
    l->secure = tls != NULL;
    if ((rc = cli_link_tls(tls, &l->arena, &o.tls, e)))
        return rc;
    if ((rc = rpc_open(&l->rpc, e)))
        return rc;
    return rpc_dial(l->rpc, &o, &l->channel, e);
}

static void exit_interrupted(int sig)
{
    (void)sig;
    plain_end_line();
    _exit(CLIENT_INTERRUPTED);
}

// Finds the folder of the `weft run` that was started in this folder under the name that a verb about a
// job is given. It goes before the coordinators that nobody named here. Null: there is none.
static const char *find_run_here(const struct verb *v, const struct args *a, char out[PATH_MAX])
{
    const char *named = getenv("WEFT_COORDINATOR");
    if (a->coordinator || (named && *named) || !is_about_job(v) || a->npos != 1 ||
        !folder_name_ok(a->pos[0]) || !record_is_there(".", a->pos[0]))
        return NULL;
    snprintf(out, PATH_MAX, ".weft/%s", a->pos[0]);
    if (v->act)
        plain_error("weft %s: of the `weft run` in this folder (another: --coordinator)", v->name);
    return out;
}

int cli_link_open(struct cli_link *l, const struct verb *v, const struct args *a)
{
    struct err e = {0};
    char here[PATH_MAX];
    const char *run = find_run_here(v, a, here);
    struct sigaction act = {.sa_handler = exit_interrupted};
    char advice[80];
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    signal(SIGPIPE, SIG_IGN); // a reader that has gone shows as a failed write
    if (!cli_link_dial(l, v, run ? run : a->coordinator, a->tls, &e))
        return CLIENT_OK;
    snprintf(advice, sizeof advice, "see `weft help %s` on --coordinator and --tls", v->name);
    complain(v, e.text, l->folder ? l->folder : l->address[0] ? l->address : NULL, advice);
    cli_link_close(l);
    return CLIENT_USAGE;
}

void cli_link_close(struct cli_link *l)
{
    if (l->channel)
        rpc_hang_up(l->channel);
    rpc_close(l->rpc);
    stored_close(l->stored);
    if (l->host)
        own_coordinator_close(l->host);
    free(l->host);
    if (l->lock > 0)
        close(l->lock);
    if (l->folder_fd > 0)
        close(l->folder_fd);
    arena_clear(&l->arena);
    *l = (struct cli_link){0};
}

// ---- one call ----

int cli_link_try(struct cli_link *l, enum cli_link_method m, const ProtobufCMessage *request,
                 int64_t timeout_ns, ProtobufCMessage **reply, enum rpc_code *code, struct err *e)
{
    *code = RPC_OK;
    *reply = NULL;
    if (l->stored)
        return stored_ask(l->stored, &methods[m], request, reply, code, e);
    return rpc_ask(l->rpc, l->channel, &methods[m], request, timeout_ns, reply, code, e);
}

int cli_link_ask(struct cli_link *l, enum cli_link_method m, const ProtobufCMessage *request,
                 ProtobufCMessage **reply)
{
    struct err e = {0};
    enum rpc_code code;
    int seconds = m == LINK_SUBMIT ? LINK_SUBMIT_S : LINK_TIMEOUT_S; // a submit is planned first
    int rc = cli_link_try(l, m, request, seconds * CLOCK_S, reply, &code, &e);
    if (!rc)
        return CLIENT_OK;
    return cli_link_explain(l, rc == ERR_PEER && code == RPC_OK ? RPC_UNAVAILABLE : code, e.text);
}

void cli_link_free(void *message)
{
    protobuf_c_message_free_unpacked(message, NULL);
}

// ---- streams ----

enum { FIRST_PAUSE_MS = 100, LONGEST_PAUSE_MS = 2000 };

void cli_link_stream_open(struct cli_link_stream *s, const ProtobufCMessage *request)
{
    if (s->call)
        rpc_cancel(s->link->rpc, s->call);
    s->heard = false;
    s->call = rpc_call(s->link->channel, &methods[s->method], request, 0, false, NULL);
}

static bool is_temporary(enum rpc_code code)
{
    return code == RPC_UNAVAILABLE || code == RPC_CANCELLED || code == RPC_DEADLINE_EXCEEDED ||
           code == RPC_RESOURCE_EXHAUSTED || code == RPC_ABORTED;
}

// Decides what the end of a call means: an end in order, a failure, or a pause before the next
// call.
static enum cli_link_said judge_close(struct cli_link_stream *s, bool patient, enum rpc_code code)
{
    int64_t now = clock_mono_ns(), pause = FIRST_PAUSE_MS;
    s->call = 0;
    if (code == RPC_OK)
        return LINK_END;
    if (!is_temporary(code) || (!patient && !s->heard && !s->away_ns))
        return LINK_FAILED;
    s->tries = s->heard ? 0 : s->tries + 1;
    for (int i = 0; i < s->tries && pause < LONGEST_PAUSE_MS; i++)
        pause *= 2;
    s->again_ns = now + pause * CLOCK_MS;
    if (s->away_ns && !s->heard)
        return LINK_NOTHING;
    s->away_ns = now;
    return LINK_AWAY;
}

static enum cli_link_said take_event(struct cli_link_stream *s, bool patient, struct rpc_event *ev,
                                     ProtobufCMessage **m, enum rpc_code *code,
                                     char text[RPC_TEXT_MAX])
{
    enum cli_link_said said = LINK_NOTHING;
    if (ev->call == s->call && ev->kind == RPC_MESSAGE) {
        *m = rpc_event_take(ev);
        s->heard = true;
        s->away_ns = 0;
        rpc_more(s->link->rpc, s->call);
        said = LINK_MESSAGE;
    } else if (ev->call == s->call && ev->kind == RPC_CLOSED) {
        *code = ev->code;
        snprintf(text, RPC_TEXT_MAX, "%s", ev->text);
        said = judge_close(s, patient, ev->code);
    }
    rpc_event_clear(ev);
    return said;
}

enum cli_link_said cli_link_stream_next(struct cli_link_stream *s, const ProtobufCMessage *request,
                                        bool patient, int64_t timeout_ns, ProtobufCMessage **m,
                                        enum rpc_code *code, char text[RPC_TEXT_MAX])
{
    struct rpc_event ev;
    int64_t now = clock_mono_ns();
    if (!s->call) {
        if (now >= s->again_ns)
            cli_link_stream_open(s, request);
        else if (s->again_ns - now < timeout_ns)
            timeout_ns = s->again_ns - now;
    }
    if (!rpc_next(s->link->rpc, &ev)) {
        rpc_wait(s->link->rpc, timeout_ns);
        if (!rpc_next(s->link->rpc, &ev))
            return LINK_NOTHING;
    }
    return take_event(s, patient, &ev, m, code, text);
}
