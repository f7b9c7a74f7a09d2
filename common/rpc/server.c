// SPDX-License-Identifier: Apache-2.0
// Servers. Methods are not registered with the core, so that decide_call() decides about every call
// and a call of an unknown method gets an answer too.
//
//   a call arrives ─┬─► no such method, wrong role, too many ────────► a status; nothing is read
//                   ├─► unary, server stream: its message is read ───► RPC_CALL
//                   └─► bidi ────────────────────────────────────────► RPC_CALL
//
// The core of this version cannot limit connections. What is limited instead: calls, peers with
// open calls, how often a caller calls, streams of one connection, the memory of all that is on its
// way in or out, and how long a request may keep others waiting for its end. A connection without a
// call is closed after IDLE_MS; one that has not shaken hands after HANDSHAKE_MS; with TLS guard.h
// bounds how many of both there are.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/heap.h"
#include "common/rpc/address.h"
#include "common/rpc/args.h"
#include "common/rpc/guard.h"
#include "common/rpc/server.h"
#include "common/rpc/tls.h"

enum { IDLE_MS = 60000, STREAMS = 1024, LEAST_PING_MS = KEEPALIVE_LEAST_MS / 2 };
// What a server has when its options say 0. QUOTA: bytes that the core may hold for its peers.
enum { CALLS_PER_S = 1000, MAX_CALLS = 16384, MAX_PEERS = 4096, QUOTA = 256 << 20 };
#define REQUEST_NS (10 * CLOCK_S)

struct arrival {
    struct loop_tag tag;
    struct rpc_server *server;
    grpc_call *core;
    grpc_call_details details;
    grpc_metadata_array metadata;
};

struct peer_calls {
    int n;
};

struct rpc_server *server_of(struct list *link)
{
    return list_entry(link, struct rpc_server, link);
}

static void free_if_done(struct rpc_server *s)
{
    struct rpc *r = s->r;
    if (!(r->closing || s->failed) || !s->down || s->ncalls)
        return;
    list_remove(&s->link);
    guard_free(s->guard);
    grpc_server_destroy(s->core);
    map_clear(&s->peers);
    rate_clear(&s->rate);
    free(s);
    rpc_maybe_stop(r);
}

// ---- who calls ----

static void count_peer(struct rpc_server *s, const char *address)
{
    struct peer_calls *p = map_get(&s->peers, address);
    if (!p) {
        p = heap_alloc(sizeof *p);
        map_put(&s->peers, address, p);
        s->npeers++;
        guard_calls(s->guard, address, true);
    }
    p->n++;
}

static void uncount_peer(struct rpc_server *s, const char *address)
{
    struct peer_calls *p = map_get(&s->peers, address);
    if (--p->n)
        return;
    map_remove(&s->peers, address);
    guard_calls(s->guard, address, false);
    free(p);
    s->npeers--;
}

static void on_gone(struct call *c)
{
    struct rpc_server *s = c->home;
    uncount_peer(s, c->peer.address);
    s->ncalls--;
    free_if_done(s);
}

// A certificate's name; without one the host, whatever its port.
static bool calls_too_often(struct rpc_server *s, const struct rpc_peer *p, int64_t now_ns)
{
    char who[2 * RPC_NAME_MAX];
    size_t host = strlen(p->address);
    if (strncmp(p->address, "unix:", 5) != 0)
        host = (size_t)(strrchr(p->address, ':') ? strrchr(p->address, ':') - p->address : 0);
    if (p->role & (RPC_NONE | RPC_LOCAL))
        snprintf(who, sizeof who, "%.*s", (int)host, p->address);
    else
        snprintf(who, sizeof who, "%s %s", rpc_role_name(p->role), p->name);
    return !rate_take(&s->rate, who, now_ns);
}

// ---- arrivals ----

static const struct rpc_method *find_method(const struct rpc_server *s, grpc_slice path)
{
    for (int i = 0; i < s->nmethods; i++)
        if (!grpc_slice_str_cmp(path, s->methods[i].path))
            return &s->methods[i];
    return health_method(path);
}

// Whether a call may begin. The first row that holds is the answer.
static enum rpc_code decide_call(struct rpc_server *s, const struct call *c, const char **why)
{
    bool may = c->peer.role == RPC_LOCAL || (c->method->roles & (unsigned)c->peer.role);
    const struct peer_calls *p = map_get(&s->peers, c->peer.address);
    const struct {
        bool holds;
        enum rpc_code code;
        const char *why;
    } rows[] = {
        {!c->method->request, RPC_UNIMPLEMENTED, "no such method"},
        {s->closing && !health_is(c->method), RPC_UNAVAILABLE, "the server is closing"},
        {!may, RPC_PERMISSION_DENIED, "this role may not call this method"},
        {calls_too_often(s, &c->peer, c->since_ns), RPC_RESOURCE_EXHAUSTED,
         "too many calls a second"},
        {s->ncalls > s->max_calls, RPC_RESOURCE_EXHAUSTED, "too many calls"},
        // One that has other calls may begin more even while others are turned away.
        {s->npeers > s->max_peers && p && p->n == 1, RPC_RESOURCE_EXHAUSTED, "too many peers"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        *why = rows[i].why;
        if (rows[i].holds)
            return rows[i].code;
    }
    return RPC_OK;
}

// A request that was begun and not ended in time is dropped when another call arrives.
static void drop_late(struct rpc_server *s, int64_t now_ns)
{
    while (!list_empty(&s->asking)) {
        struct call *c = list_entry(s->asking.next, struct call, asking);
        if (now_ns - c->since_ns < s->request_ns)
            return;
        list_remove(&c->asking);
        call_fail(c, RPC_DEADLINE_EXCEEDED, "the request did not come to its end");
        call_tick(c);
    }
}

static void accept_call(struct rpc_server *s, struct arrival *a)
{
    static const struct rpc_method unknown = {.path = "?"};
    const struct rpc_method *m = find_method(s, a->details.method);
    struct call *c = call_new(s->r, m ? m : &unknown);
    const char *why;
    c->server = true;
    c->home = s;
    c->gone = on_gone;
    c->since_ns = clock_mono_ns();
    drop_late(s, c->since_ns);
    if (health_is(c->method))
        c->emit = health_emit;
    tls_peer(a->core, s->tls, &c->peer);
    list_append(&s->calls, &c->link);
    s->ncalls++;
    count_peer(s, c->peer.address);
    call_begin(c, a->core);
    enum rpc_code code = decide_call(s, c, &why);
    if (code)
        call_fail(c, code, why);
    else if (c->method->shape == RPC_BIDI)
        c->emit(c, RPC_CALL, NULL);
    else
        list_append(&s->asking, &c->asking);
    call_tick(c);
}

static void request_next_call(struct rpc_server *s);

static void on_arrival(struct loop_tag *t, bool ok)
{
    struct arrival *a = list_entry(t, struct arrival, tag);
    if (ok) {
        request_next_call(a->server);
        accept_call(a->server, a);
    } // else the server shuts down: no call came with this
    grpc_call_details_destroy(&a->details);
    grpc_metadata_array_destroy(&a->metadata);
    free(a);
}

static void request_next_call(struct rpc_server *s)
{
    struct arrival *a = heap_alloc(sizeof *a);
    a->tag.landed = on_arrival;
    a->server = s;
    grpc_call_details_init(&a->details);
    grpc_metadata_array_init(&a->metadata);
    grpc_call_error rc = grpc_server_request_call(s->core, &a->core, &a->details, &a->metadata,
                                                  s->r->loop.queue, s->r->loop.queue, &a->tag);
    PRE(rc == GRPC_CALL_OK);
}

// ---- life ----

static void on_down(struct loop_tag *t, bool ok)
{
    struct rpc_server *s = list_entry(t, struct rpc_server, down_tag);
    (void)ok;
    s->down = true;
    free_if_done(s);
}

static void shut_down_server(struct rpc_server *s)
{
    s->closing = true;
    s->serving = false;
    health_changed(s);
    grpc_server_shutdown_and_notify(s->core, s->r->loop.queue, &s->down_tag);
}

// Calls that the owner has not answered get a status; answers that wait may still leave.
void server_close(struct rpc_server *s)
{
    if (s->failed)
        return; // it is being closed already
    shut_down_server(s);
    s->ncalls++; // so that the last call to end does not free s under us
    list_for_each (it, &s->calls) {
        struct call *c = list_entry(it, struct call, link);
        call_finish(c, RPC_UNAVAILABLE, "the server is closing");
        call_tick(c);
    }
    s->ncalls--;
    free_if_done(s);
}

void server_cancel(struct rpc_server *s)
{
    grpc_server_cancel_all_calls(s->core);
}

struct serving {
    struct rpc_server *server;
    bool yes;
};

static int set_serving_command(struct rpc *r, void *arg)
{
    const struct serving *w = arg;
    (void)r;
    if (w->server->serving == w->yes || w->server->closing)
        return 0;
    w->server->serving = w->yes;
    health_changed(w->server);
    return 0;
}

void rpc_serving(struct rpc_server *s, bool yes)
{
    struct serving w = {s, yes};
    rpc_do(s->r, set_serving_command, &w);
}

// ---- serving ----

struct offer {
    const struct rpc_server_options *options;
    struct rpc_server *server;
    char *bound;
    size_t size;
    struct err *e;
};

static grpc_server *make_core_server(const struct rpc_server_options *o)
{
    grpc_arg args[CHANNEL_ARGS_MAX];
    grpc_channel_args all = {0, args};
    args_common(&all, args_keepalive_ms(o->keepalive_ns));
    args_int(&all, GRPC_ARG_ALLOW_REUSEPORT, 0); // else two servers share a port unnoticed
    args_int(&all, GRPC_ARG_MAX_CONCURRENT_STREAMS, STREAMS);
    args_int(&all, GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, HANDSHAKE_MS);
    args_int(&all, GRPC_ARG_MAX_CONNECTION_IDLE_MS, IDLE_MS);
    // Below every client's keepalive, else its pings are called too many.
    args_int(&all, GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, LEAST_PING_MS);
    // A bound on the memory that the core holds for its peers; it refuses or slows what does not fit.
    grpc_resource_quota *quota = grpc_resource_quota_create("server");
    grpc_resource_quota_resize(quota, QUOTA);
    args_pointer(&all, GRPC_ARG_RESOURCE_QUOTA, quota, grpc_resource_quota_arg_vtable());
    grpc_server *made = grpc_server_create(&all, NULL);
    grpc_resource_quota_unref(quota);
    return made;
}

// gRPC does not say why a path cannot be made a socket: most often its folder is missing.
static int explain_socket(const char *text, struct err *e)
{
    char folder[256];
    snprintf(folder, sizeof folder, "%s", text + strlen("unix:"));
    char *slash = strrchr(folder, '/');
    if (slash > folder)
        *slash = 0;
    if (slash && access(folder, W_OK | X_OK))
        return err_errno(e, ERR_IO, "cannot listen on '%s': its folder %s", text, folder);
    return err_set(e, ERR_IO, "cannot listen on '%s': the path cannot be made a socket", text);
}

// A socket must be born with mode 0600; a chmod later would be too late, so the umask does it.
static int bind_port(struct rpc_server *s, const struct address *a, const char *text,
                     grpc_server_credentials *credentials, int *port, struct err *e)
{
    mode_t was = a->unix_socket ? umask(0177) : 0;
    *port = grpc_server_add_http2_port(s->core, a->serve, credentials);
    if (a->unix_socket)
        umask(was);
    if (*port > 0)
        return 0;
    return a->unix_socket ? explain_socket(text, e)
                          : err_set(e, ERR_IO,
                                    "cannot listen on '%s': the port is taken or the host is not "
                                    "here",
                                    text);
}

static struct rpc_server *new_server(struct rpc *r, const struct rpc_server_options *o)
{
    struct rpc_server *s = heap_alloc(sizeof *s);
    s->r = r;
    s->methods = o->methods;
    s->nmethods = o->nmethods;
    s->tls = tls_wanted(&o->tls);
    s->max_calls = o->max_calls ? o->max_calls : MAX_CALLS;
    s->max_peers = o->max_connections ? o->max_connections : MAX_PEERS;
    s->request_ns = o->request_ns ? o->request_ns : REQUEST_NS;
    rate_init(&s->rate, o->calls_per_s ? o->calls_per_s : CALLS_PER_S);
    s->down_tag.landed = on_down;
    list_init(&s->calls);
    list_init(&s->asking);
    s->core = make_core_server(o);
    grpc_server_register_completion_queue(s->core, r->loop.queue, NULL);
    return s;
}

static int serve_command(struct rpc *r, void *arg)
{
    struct offer *f = arg;
    const struct rpc_server_options *o = f->options;
    grpc_server_credentials *credentials = NULL;
    struct address a;
    int port = 0;
    int rc = address_parse(&a, o->address, tls_wanted(&o->tls), f->e);
    if (!rc)
        rc = tls_server_credentials(&o->tls, &credentials, f->e);
    if (rc)
        return rc;
    struct rpc_server *s = new_server(r, o);
    rc = bind_port(s, &a, o->address, credentials, &port, f->e);
    grpc_server_credentials_release(credentials);
    grpc_server_start(s->core); // a failed one too, since only a started one can be shut down
    list_append(&r->servers, &s->link);
    if (rc) {
        s->failed = true;
        shut_down_server(s);
        return rc;
    }
    if (s->tls)
        s->guard = guard_new(port);
    request_next_call(s);
    if (f->bound && a.unix_socket)
        snprintf(f->bound, f->size, "unix:%s", a.host);
    else if (f->bound)
        snprintf(f->bound, f->size, strchr(a.host, ':') ? "[%s]:%d" : "%s:%d", a.host, port);
    f->server = s;
    return 0;
}

int rpc_serve(struct rpc *r, const struct rpc_server_options *o, struct rpc_server **out,
              char *bound, size_t size, struct err *e)
{
    struct offer f = {.options = o, .bound = bound, .size = size, .e = e};
    int rc = rpc_do(r, serve_command, &f);
    *out = f.server;
    return rc;
}
