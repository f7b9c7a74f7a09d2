// SPDX-License-Identifier: Apache-2.0
// The service; see service.h.
#include "coordinator/serve/service.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/deadline.h"
#include "common/base/hash.h"
#include "common/base/heap.h"
#include "common/base/log.h"
#include "common/rpc/tls_ca.h"
#include "coordinator/decide/ids.h"
#include "coordinator/serve/data_looks.h"
#include "coordinator/serve/questions.h"
#include "coordinator/serve/row_reads.h"
#include "coordinator/serve/streams.h"
#include "coordinator/store/binding.h"

// ---- which role may call which method: a role that is not named may not ----

enum { PEOPLE = RPC_CLIENT | RPC_ADMIN };
enum method {
    SUBMIT,
    ACT,
    JOBS,
    STATUS,
    WHY,
    WORKERS,
    CHECKPOINTS,
    WATCH,
    LOGS,
    ROWS,
    ATTACH,
    JOIN,
    METHODS
};

#define METHOD(service, name, how, who, req, rep, max) \
    METHOD_Q(service, name, how, who, req, rep, max, 0)
#define METHOD_Q(service, name, how, who, req, rep, max, queue)            \
    {                                                                      \
        "/weft.v1." service "/" name, how, &weft__v1__##req##__descriptor, \
            &weft__v1__##rep##__descriptor, who, max, queue                \
    }
const struct rpc_method service_methods[METHODS] = {
    [SUBMIT] = METHOD("Weft", "Submit", RPC_UNARY, PEOPLE, submit_request, submit_reply, 2 << 20),
    [ACT] = METHOD("Weft", "Act", RPC_UNARY, PEOPLE, act_request, act_reply, 64 << 10),
    [JOBS] = METHOD("Weft", "Jobs", RPC_UNARY, PEOPLE, jobs_request, jobs_reply, 64 << 10),
    [STATUS] = METHOD("Weft", "Status", RPC_UNARY, PEOPLE, job_request, job_status, 64 << 10),
    [WHY] = METHOD("Weft", "Why", RPC_UNARY, PEOPLE, job_request, why_reply, 64 << 10),
    [WORKERS] =
        METHOD("Weft", "Workers", RPC_UNARY, PEOPLE, workers_request, workers_reply, 64 << 10),
    [CHECKPOINTS] =
        METHOD("Weft", "Checkpoints", RPC_UNARY, PEOPLE, job_request, checkpoints_reply, 64 << 10),
    [WATCH] = METHOD_Q("Weft", "Watch", RPC_SERVER_STREAM, PEOPLE, job_request, watch_update,
                       64 << 10, 1 << 20),
    [LOGS] = METHOD_Q("Weft", "Logs", RPC_SERVER_STREAM, PEOPLE, logs_request, log_lines, 64 << 10,
                      32 << 20),
    [ROWS] = METHOD("Weft", "Rows", RPC_UNARY, PEOPLE, rows_request, rows_reply, 64 << 10),
    [ATTACH] = METHOD("Hosts", "Attach", RPC_BIDI, RPC_WORKER, up, down, 0),
    [JOIN] = METHOD("Hosts", "Join", RPC_UNARY, RPC_NONE | RPC_WORKER | PEOPLE, join_request,
                    join_reply, 64 << 10),
};
const int service_nmethods = METHODS;

struct host_conn { // a worker's stream; `user` of its call
    struct list link;
    uint64_t call;
    char cert[RPC_NAME_MAX]; // whose certificate; "": without TLS
    char print[65];          // of its key
    int hosts;               // for how many hosts it is
    char host[64];           // the id it speaks for; "": not said yet
    bool over;               // its stream was ended by us
    char name[RPC_NAME_MAX]; // as it registered
    bool finds;              // what it found is being read
};
struct question { // a reader's call, answered when the pass's rows are durable
    uint64_t call;
    int method;
    ProtobufCMessage *request;
};

struct found { // what a host found, read and not yet taken by the decider
    struct list link;
    struct planned job;
    int at;
};

struct service {
    struct service_options o;
    struct list found;
    struct streams streams;
    struct data_looks looks;
    struct row_reads reads;
    struct list conns;
    struct question *questions;
    int n, cap;
    bool host_came;      // in this pass of the loop
    char read_only[200]; // why nothing can be changed; "": it can
    int64_t join_ns;     // when the next Join is heard
};
enum { JOIN_EVERY_MS = 100, FOUND_ROWS = 2000 };

struct service *service_new(const struct service_options *o)
{
    struct service *s = heap_alloc(sizeof *s);
    s->o = *o;
    streams_init(&s->streams, o->rpc, o->coord, o->db);
    data_looks_init(&s->looks);
    row_reads_init(&s->reads);
    list_init(&s->conns);
    list_init(&s->found);
    return s;
}

static void free_found(struct found *f)
{
    list_remove(&f->link);
    planned_clear(&f->job);
    free(f);
}

void service_free(struct service *s)
{
    if (!s)
        return;
    streams_clear(&s->streams);
    data_looks_clear(&s->looks);
    row_reads_clear(&s->reads);
    list_for_each (it, &s->conns)
        free(list_entry(it, struct host_conn, link));
    list_for_each (it, &s->found)
        free_found(list_entry(it, struct found, link));
    for (int i = 0; i < s->n; i++)
        protobuf_c_message_free_unpacked(s->questions[i].request, NULL);
    free(s->questions);
    free(s);
}

static struct coord_event make_event(enum coord_event_kind kind)
{
    return (struct coord_event){
        .kind = kind, .now_ns = clock_mono_ns(), .wall_ms = clock_wall_ms()};
}

// ---- calls that change something ----

static const char *name_caller(const struct rpc_peer *p)
{
    return p->name[0] ? p->name : rpc_role_name(p->role);
}

struct verdict { // on a call that the decider does not decide about
    const char *who, *role;
    enum audit_verb verb;
    const char *target, *result;
};

static void write_audit(struct service *s, const struct verdict *v, struct coord_out *out)
{
    struct coord_event x = make_event(COORD_EV_AUDIT);
    x.who = v->who;
    x.role = v->role;
    x.verb = v->verb;
    x.target = v->target;
    x.result = v->result;
    coord_step(s->o.coord, &x, out);
}

// Leaves with the other actions of the pass, when the rows are durable.
static struct coord_action *add_action(struct coord_out *out, enum coord_action_kind kind,
                                       uint64_t call)
{
    out->actions = arena_grow(out->arena, out->actions, sizeof *out->actions, out->nactions,
                              &out->cap_actions);
    struct coord_action *x = &out->actions[out->nactions++];
    *x = (struct coord_action){.kind = kind, .call = call};
    return x;
}

static void deny_call(struct service *s, uint64_t call, enum rpc_code code, const struct verdict *v,
                      struct coord_out *out)
{
    struct coord_action *x = add_action(out, COORD_REFUSE, call);
    x->code = code;
    x->text = arena_strdup(out->arena, v->result);
    write_audit(s, v, out);
}

static void submit_job(struct service *s, uint64_t call, const struct checked_job *l,
                       struct coord_out *out)
{
    struct coord_event x = make_event(COORD_EV_SUBMIT);
    x.call = call;
    x.who = l->job.who;
    x.role = l->job.role;
    x.submit = l->job.submit;
    x.facts = l->job.facts;
    x.notice = l->notice;
    coord_step(s->o.coord, &x, out);
}

// What `weft plan` would refuse the service refuses too, so no client needs to be trusted. The
// planner's answer comes in a later pass of the loop; a request that was answered needs none.
static void on_submit(struct service *s, struct rpc_event *ev, struct coord_out *out)
{
    struct checked_job l = {.job = {.calls = {ev->call}, .ncalls = 1}};
    struct planned *p = &l.job;
    Weft__V1__SubmitRequest *q = (Weft__V1__SubmitRequest *)ev->message;
    struct err e = {0};
    snprintf(p->who, sizeof p->who, "%s", name_caller(ev->peer));
    snprintf(p->role, sizeof p->role, "%s", rpc_role_name(ev->peer->role));
    if (q->base_dir[0] && ev->peer->role != RPC_LOCAL) {
        const struct verdict v = {p->who, p->role, AUDIT_SUBMIT, "",
                                  "base_dir is for `weft run`, on this host only"};
        deny_call(s, ev->call, RPC_INVALID_ARGUMENT, &v, out);
        return;
    }
    if (coord_has_answered(s->o.coord, q->request_id)) {
        p->submit = q;
        submit_job(s, ev->call, &l, out);
        return;
    }
    p->submit = (Weft__V1__SubmitRequest *)rpc_event_take(ev);
    p->before = coord_copy_text(s->o.coord, q->continues, &p->threads_before);
    if (planner_put(s->o.planner, p, &e))
        rpc_finish(s->o.rpc, ev->call, RPC_RESOURCE_EXHAUSTED, e.text);
}

static void answer_submit(struct service *s, struct checked_job *l, struct coord_out *out)
{
    struct planned *p = &l->job;
    for (int i = 0; s->read_only[0] && i < p->ncalls; i++)
        rpc_finish(s->o.rpc, p->calls[i], RPC_RESOURCE_EXHAUSTED, s->read_only);
    if (s->read_only[0])
        p->ncalls = 0;
    const struct verdict v = {p->who, p->role, AUDIT_SUBMIT, "", p->refused.text};
    for (int i = 0; i < p->ncalls; i++)
        if (p->refused.code)
            deny_call(s, p->calls[i], RPC_INVALID_ARGUMENT, &v, out);
        else
            submit_job(s, p->calls[i], l, out);
    planned_clear(p);
}

// A job of `weft run` starts at its own folder, where the ranks' own words are shown at once.
static bool look_for_data(struct service *s, struct checked_job *l)
{
    const struct planned *p = &l->job;
    return !p->refused.code && !p->submit->base_dir[0] && !s->read_only[0] &&
           data_looks_begin(&s->looks, s->o.rpc, s->o.coord, l, clock_mono_ns());
}

static struct host_conn *find_conn(struct service *s, uint64_t call)
{
    list_for_each (it, &s->conns) {
        struct host_conn *c = list_entry(it, struct host_conn, link);
        if (c->call == call && !c->over)
            return c;
    }
    return NULL;
}

// What one host found may be thousands of jobs with thousands of checkpoints each, a row for each: they
// are taken in pieces, a piece a pass of the loop.
static void take_found(struct service *s, struct coord_out *out)
{
    if (list_empty(&s->found))
        return;
    struct found *f = list_entry(s->found.next, struct found, link);
    struct host_conn *c = find_conn(s, f->job.conn);
    const Weft__V1__StorageDone *d = f->job.found->storage;
    struct coord_event x = make_event(COORD_EV_FOUND);
    x.conn = f->job.conn;
    x.up = f->job.found;
    x.facts = f->job.facts;
    x.from = x.to = f->at;
    for (size_t rows = 0; c && x.to < (int)d->n_found && rows < FOUND_ROWS; x.to++)
        rows += 2 + d->found[x.to]->n_committed;
    f->at = x.to;
    if (c)
        coord_step(s->o.coord, &x, out);
    if (c && f->at < (int)d->n_found)
        return;
    if (c)
        c->finds = false;
    free_found(f);
}

static void keep_found(struct service *s, const struct planned *p)
{
    struct found *f = heap_alloc(sizeof *f);
    f->job = *p;
    list_append(&s->found, &f->link);
}

void service_planned(struct service *s, struct coord_out *out)
{
    struct checked_job l = {0};
    for (; planner_next(s->o.planner, &l.job); l.notice[0] = 0)
        if (l.job.found)
            keep_found(s, &l.job);
        else if (!look_for_data(s, &l))
            answer_submit(s, &l, out);
    while (data_looks_next(&s->looks, clock_mono_ns(), &l))
        answer_submit(s, &l, out);
    row_reads_tick(&s->reads, s->o.rpc, clock_mono_ns());
    take_found(s, out);
}

int64_t service_due(const struct service *s)
{
    int64_t due = list_empty(&s->found) ? data_looks_due(&s->looks) : 1; // at once
    return deadline_earlier(due, row_reads_due(&s->reads));
}

static void on_act(struct service *s, struct rpc_event *ev, struct coord_out *out)
{
    struct coord_event x = make_event(COORD_EV_ACT);
    x.call = ev->call;
    x.who = name_caller(ev->peer);
    x.role = rpc_role_name(ev->peer->role);
    x.act = (const Weft__V1__ActRequest *)ev->message;
    if (audit_verb_is_of_hosts(audit_verb_of(x.act->verb)) && ev->peer->role == RPC_CLIENT) {
        const struct verdict v = {x.who, x.role, AUDIT_ACT_ON_HOST, x.act->target,
                                  "hosts are the admin's business"};
        deny_call(s, ev->call, RPC_PERMISSION_DENIED, &v, out);
        return;
    }
    coord_step(s->o.coord, &x, out);
}

static int join_cluster(struct service *s, const Weft__V1__JoinRequest *q,
                        Weft__V1__JoinReply *reply, struct arena *a, struct err *e)
{
    const char *cert = NULL, *ca = NULL;
    if (!s->o.tls_dir)
        return err_set(e, ERR_UNSUPPORTED, "this cluster has no TLS: nothing to join");
    const struct tls_request ask = {q->secret, q->csr_pem, q->role};
    int rc = tls_token_sign(s->o.tls_dir, &ask, clock_wall_ms() / 1000, a, &cert, &ca, e);
    if (rc)
        return rc;
    reply->cert_pem = arena_strdup(a, cert);
    reply->ca_pem = arena_strdup(a, ca);
    reply->cluster = arena_strdup(a, coord_cluster(s->o.coord));
    return 0;
}

static void on_join(struct service *s, struct rpc_event *ev, struct coord_out *out)
{
    struct err e = {0};
    int64_t now = clock_mono_ns();
    if (now < s->join_ns) { // limits guesses of tokens; a refusal is not worth an audit row
        rpc_finish(s->o.rpc, ev->call, RPC_RESOURCE_EXHAUSTED, "too many join at once: try again");
        return;
    }
    s->join_ns = now + JOIN_EVERY_MS * CLOCK_MS;
    Weft__V1__JoinReply *reply = arena_new(out->arena, Weft__V1__JoinReply);
    weft__v1__join_reply__init(reply);
    int rc = join_cluster(s, (const Weft__V1__JoinRequest *)ev->message, reply, out->arena, &e);
    const struct verdict v = {ev->peer->address, rpc_role_name(ev->peer->role), AUDIT_JOIN, "",
                              rc ? e.text : "ok"};
    log_info("join", "%s: %s", ev->peer->address, v.result);
    if (rc) { // in the log only: strangers write no rows
        rpc_finish(s->o.rpc, ev->call, streams_error_code(&e), e.text);
        return;
    }
    add_action(out, COORD_REPLY, ev->call)->reply = &reply->base;
    write_audit(s, &v, out);
}

// ---- workers ----

static void on_attach(struct service *s, struct rpc_event *ev)
{
    struct host_conn *c = heap_alloc(sizeof *c);
    c->call = ev->call;
    snprintf(c->cert, sizeof c->cert, "%s", ev->peer->name);
    snprintf(c->print, sizeof c->print, "%s", ev->peer->print);
    c->hosts = ev->peer->hosts;
    list_append(&s->conns, &c->link);
    rpc_set_user(s->o.rpc, ev->call, c);
}

struct newcomer { // a stream that greets, maybe for a host id that its certificate has not used
    struct service *s;
    struct coord_out *out;
};

static bool gives_way(void *ctx, const char *host)
{
    const struct newcomer *n = ctx;
    list_for_each (it, &n->s->conns)
        if (!strcmp(list_entry(it, struct host_conn, link)->host, host))
            return false;
    return coord_host_gives_way(n->s->o.coord, host);
}

static void take_place(void *ctx, const char *host)
{
    struct newcomer *n = ctx;
    struct coord_event x = make_event(COORD_EV_REPLACED);
    x.target = host;
    coord_step(n->s->o.coord, &x, n->out);
}

// A stream speaks for one host, a host id belongs to the certificate that used it first, and a
// certificate has a number of hosts at a time.
static int register_host(struct newcomer *n, struct host_conn *c, const char *host, struct err *e)
{
    const struct binding b = {.host = host,
                              .name = c->cert,
                              .print = c->print,
                              .most = c->hosts,
                              .gives_way = gives_way,
                              .gone = take_place,
                              .ctx = n};
    if (!hex_is(host, ID_LEN - 1))
        return err_set(e, ERR_FENCED, "that is no greeting of a worker");
    if (*c->host)
        return strcmp(c->host, host) ? err_set(e, ERR_FENCED, "a stream speaks for one host") : 0;
    int rc = *c->cert ? binding_make(n->s->o.db, &b, e) : 0;
    if (!rc)
        snprintf(c->host, sizeof c->host, "%s", host);
    return rc;
}

static int look_at_up(struct newcomer *n, struct host_conn *c, const Weft__V1__Up *up,
                      struct err *e)
{
    if (up->body_case == WEFT__V1__UP__BODY_HELLO)
        return register_host(n, c, up->hello->host, e);
    if (up->body_case != WEFT__V1__UP__BODY_REGISTER)
        return 0;
    snprintf(c->name, sizeof c->name, "%s", up->register_->name);
    return register_host(n, c, up->register_->host, e);
}

// Whether it is what a host found that was asked for it: the decider gets it when its texts are read.
static bool takes_found(struct service *s, struct host_conn *c, struct rpc_event *ev)
{
    const Weft__V1__Up *up = (const Weft__V1__Up *)ev->message;
    if (up->body_case != WEFT__V1__UP__BODY_STORAGE ||
        up->storage->op != WEFT__V1__STORAGE_OP__STORAGE_FIND)
        return false;
    if (c->finds || !coord_awaits_found(s->o.coord, c->call))
        return true; // nobody asked
    struct planned p = {.conn = c->call, .found = (Weft__V1__Up *)rpc_event_take(ev)};
    snprintf(p.who, sizeof p.who, "%s", c->host);
    c->finds = true;
    (void)planner_put(s->o.planner, &p, NULL); // which always finds room
    return true;
}

// Whether it answers what was asked for a client: about a job that is being submitted, or its metrics.
static bool answers_look(struct service *s, uint64_t conn, const Weft__V1__Up *up)
{
    if (up->body_case != WEFT__V1__UP__BODY_STORAGE)
        return false;
    if (up->storage->op == WEFT__V1__STORAGE_OP__STORAGE_ROWS) {
        (void)row_reads_hear(&s->reads, s->o.rpc, conn, up->storage);
        return true;
    }
    return up->storage->op == WEFT__V1__STORAGE_OP__STORAGE_LOOK &&
           data_looks_hear(&s->looks, conn, up->storage);
}

static void on_up(struct service *s, struct host_conn *c, struct rpc_event *ev,
                  struct coord_out *out)
{
    struct coord_event x = make_event(COORD_EV_UP);
    struct err e = {0};
    x.conn = ev->call;
    x.up = (const Weft__V1__Up *)ev->message;
    x.who = c->cert;
    struct newcomer n = {s, out};
    bool registers = x.up->body_case == WEFT__V1__UP__BODY_REGISTER;
    if (look_at_up(&n, c, x.up, &e)) {
        log_warn("service", "a worker with the certificate '%s': %s", c->cert, e.text);
        rpc_finish(s->o.rpc, ev->call, streams_error_code(&e), e.text);
        return;
    }
    if (x.up->body_case == WEFT__V1__UP__BODY_LOG)
        streams_chunk(&s->streams, ev->call, c->name, x.up->log);
    else if (!answers_look(s, ev->call, x.up) && !takes_found(s, c, ev))
        coord_step(s->o.coord, &x, out);
    s->host_came = s->host_came || registers;
    rpc_more(s->o.rpc, ev->call);
}

static void on_worker_gone(struct service *s, struct host_conn *c, struct coord_out *out)
{
    struct coord_event x = make_event(COORD_EV_GONE);
    x.conn = c->call;
    if (!c->over) // else this decider has never heard of it
        coord_step(s->o.coord, &x, out);
    streams_host_gone(&s->streams, c->call);
    data_looks_host_gone(&s->looks, c->call);
    row_reads_host_gone(&s->reads, s->o.rpc, c->call);
    list_remove(&c->link);
    free(c);
}

// ---- taking ----

static void keep_question(struct service *s, struct rpc_event *ev, int method)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 16;
        s->questions = realloc(s->questions, sizeof *s->questions * (size_t)s->cap);
        PRE(s->questions != NULL);
    }
    s->questions[s->n++] = (struct question){ev->call, method, rpc_event_take(ev)};
}

// Forgets what the call asked in this very pass, since its end is reported only once.
static void on_client_gone(struct service *s, uint64_t call)
{
    for (int i = 0; i < s->n; i++) {
        if (s->questions[i].call != call)
            continue;
        protobuf_c_message_free_unpacked(s->questions[i].request, NULL);
        memmove(&s->questions[i], &s->questions[i + 1],
                sizeof *s->questions * (size_t)(--s->n - i));
        break;
    }
    planner_cancel(s->o.planner, call);
    data_looks_cancel(&s->looks, call);
    row_reads_cancel(&s->reads, call);
    streams_closed(&s->streams, call);
}

static bool changes_something(int method)
{
    return method == SUBMIT || method == ACT || method == ATTACH || method == JOIN;
}

static void on_call(struct service *s, struct rpc_event *ev, struct coord_out *out)
{
    int method = (int)(ev->method - service_methods);
    if (s->read_only[0] && changes_something(method)) { // a worker tries again by itself
        rpc_finish(s->o.rpc, ev->call, method == ATTACH ? RPC_UNAVAILABLE : RPC_RESOURCE_EXHAUSTED,
                   s->read_only);
        return;
    }
    switch (method) {
    case SUBMIT:
        on_submit(s, ev, out);
        return;
    case ACT:
        on_act(s, ev, out);
        return;
    case ATTACH:
        on_attach(s, ev);
        return;
    case JOIN:
        on_join(s, ev, out);
        return;
    default:
        keep_question(s, ev, method);
    }
}

void service_take(struct service *s, struct rpc_event *ev, struct coord_out *out)
{
    struct host_conn *c = ev->user;
    switch (ev->kind) {
    case RPC_CALL:
        on_call(s, ev, out);
        return;
    case RPC_MESSAGE:
        if (c && !c->over)
            on_up(s, c, ev, out);
        return;
    case RPC_END: // a worker that has said its last: its stream is done
        if (c)
            rpc_finish(s->o.rpc, ev->call, RPC_OK, "");
        return;
    case RPC_ROOM:
        return;
    case RPC_CLOSED:
        if (c)
            on_worker_gone(s, c, out);
        else
            on_client_gone(s, ev->call);
        return;
    }
}

void service_tick(struct service *s, struct coord_out *out)
{
    struct coord_event x = make_event(COORD_EV_TICK);
    coord_step(s->o.coord, &x, out);
}

// ---- answering ----

static void answer_one(struct service *s, const struct question *q)
{
    struct arena a = {0};
    struct err e = {0};
    if (q->method == WATCH) {
        streams_watch(&s->streams, q->call, (const Weft__V1__JobRequest *)q->request);
        return;
    }
    if (q->method == LOGS) {
        streams_logs(&s->streams, q->call, (const Weft__V1__LogsRequest *)q->request);
        return;
    }
    if (q->method == ROWS) {
        row_reads_begin(&s->reads, s->o.rpc, s->o.coord, q->call,
                        (const Weft__V1__RowsRequest *)q->request);
        return;
    }
    const ProtobufCMessage *reply =
        answer_question(s->o.coord, s->o.db, &service_methods[q->method], q->request, &a, &e);
    if (reply)
        rpc_reply(s->o.rpc, q->call, reply);
    else
        rpc_finish(s->o.rpc, q->call, streams_error_code(&e), e.text);
    arena_clear(&a);
}

static void carry_out(struct service *s, const struct coord_action *x)
{
    switch (x->kind) {
    case COORD_SEND:
        streams_send_down(s->o.rpc, x->conn, x->down);
        return;
    case COORD_DROP:
        rpc_finish(s->o.rpc, x->conn, (enum rpc_code)x->code, x->text);
        return;
    case COORD_REPLY:
        rpc_reply(s->o.rpc, x->call, x->reply);
        return;
    case COORD_REFUSE:
        rpc_finish(s->o.rpc, x->call, (enum rpc_code)x->code, x->text);
        return;
    case COORD_POST: // its owner's
        return;
    case COORD_PUBLISH:
        streams_publish(&s->streams, x->job, x->update);
        return;
    }
}

void service_act(struct service *s, const struct coord_out *out)
{
    for (int i = 0; i < out->nactions; i++)
        carry_out(s, &out->actions[i]);
    if (s->host_came) // it is registered by now: questions about logs may go to it
        streams_host_here(&s->streams);
    s->host_came = false;
    for (int i = 0; i < s->n; i++) {
        answer_one(s, &s->questions[i]);
        protobuf_c_message_free_unpacked(s->questions[i].request, NULL);
    }
    s->n = 0;
}

// ---- another decider ----

void service_use_db(struct service *s, struct db *db)
{
    s->o.db = s->streams.db = db;
}

void service_restart(struct service *s, struct coord *coord, const char *why,
                     const struct coord_out *lost)
{
    s->o.coord = coord;
    snprintf(s->read_only, sizeof s->read_only, "%s", why ? why : "");
    for (int i = 0; lost && i < lost->nactions; i++) {
        const struct coord_action *x = &lost->actions[i];
        if (x->kind == COORD_REPLY || x->kind == COORD_REFUSE)
            rpc_finish(s->o.rpc, x->call, RPC_RESOURCE_EXHAUSTED, s->read_only);
    }
    list_for_each (it, &s->conns) {
        struct host_conn *c = list_entry(it, struct host_conn, link);
        if (!c->over)
            rpc_finish(s->o.rpc, c->call, RPC_UNAVAILABLE, why ? why : "attach again");
        c->over = true;
    }
    streams_end(&s->streams, coord, why ? why : "ask again");
    s->host_came = false;
}
