// SPDX-License-Identifier: Apache-2.0
// Channels and the calls opened on them. A channel connects with its first call, and again, with
// jittered backoff, whenever a call needs it.
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/heap.h"
#include "common/rpc/address.h"
#include "common/rpc/args.h"
#include "common/rpc/call.h"
#include "common/rpc/tls.h"

struct rpc_channel {
    struct rpc *r;
    struct list link;  // in r->channels
    struct list calls; // opened ones
    grpc_channel *core;
    bool closing;
};

struct rpc_channel *channel_of(struct list *link)
{
    return list_entry(link, struct rpc_channel, link);
}

static void free_if_done(struct rpc_channel *c)
{
    struct rpc *r = c->r;
    if (!c->closing || !list_empty(&c->calls))
        return;
    list_remove(&c->link);
    grpc_channel_destroy(c->core);
    free(c);
    rpc_maybe_stop(r);
}

static void on_gone(struct call *c)
{
    free_if_done(c->home);
}

struct call *channel_call(struct rpc_channel *channel, const struct rpc_method *m)
{
    struct call *c = call_new(channel->r, m);
    c->home = channel;
    c->gone = on_gone;
    return c;
}

void channel_open(struct call *c)
{
    struct rpc_channel *channel = c->home;
    gpr_timespec deadline = gpr_inf_future(GPR_CLOCK_MONOTONIC);
    if (c->deadline_ns)
        deadline =
            gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                         gpr_time_from_nanos(c->deadline_ns - clock_mono_ns(), GPR_TIMESPAN));
    list_append(&channel->calls, &c->link);
    call_begin(c, grpc_channel_create_call(
                      channel->core, NULL, GRPC_PROPAGATE_DEFAULTS, c->r->loop.queue,
                      grpc_slice_from_static_string(c->method->path), NULL, deadline, NULL));
    if (c->oversize)
        call_fail(c, RPC_RESOURCE_EXHAUSTED, "the message is too large");
}

void channel_close(struct rpc_channel *channel)
{
    channel->closing = true;
    list_for_each (it, &channel->calls) {
        struct call *c = list_entry(it, struct call, link);
        grpc_call_cancel_with_status(c->core, GRPC_STATUS_CANCELLED, "hung up", NULL);
    }
    free_if_done(channel);
}

static int hang_up_command(struct rpc *r, void *arg)
{
    (void)r;
    channel_close(arg);
    return 0;
}

void rpc_hang_up(struct rpc_channel *c)
{
    if (c)
        rpc_do(c->r, hang_up_command, c);
}

// ---- dialling ----

struct dialling {
    const struct rpc_channel_options *options;
    struct rpc_channel *channel;
    struct err *e;
};

static grpc_channel *make_core_channel(const struct rpc_channel_options *o,
                                       const struct address *to,
                                       grpc_channel_credentials *credentials)
{
    enum { BACKOFF_FIRST_MS = 100, BACKOFF_USUAL_MS = 2000, ONE_TRY_MS = 1000 };
    int keepalive_ms = args_keepalive_ms(o->keepalive_ns);
    int backoff_ms = o->max_backoff_ns ? (int)(o->max_backoff_ns / CLOCK_MS) : BACKOFF_USUAL_MS;
    bool tls = tls_wanted(&o->tls);
    grpc_arg args[CHANNEL_ARGS_MAX];
    grpc_channel_args all = {0, args};
    args_common(&all, keepalive_ms);
    args_int(&all, GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS,
             backoff_ms < BACKOFF_FIRST_MS ? backoff_ms : BACKOFF_FIRST_MS);
    args_int(&all, GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, backoff_ms);
    // This is also how long one attempt may take: a lost SYN must not cost 20 seconds.
    args_int(&all, GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
             backoff_ms < ONE_TRY_MS ? ONE_TRY_MS : backoff_ms);
    args_int(&all, GRPC_ARG_ENABLE_RETRIES, 0);    // they cost a fifth of the calls a second
    args_int(&all, GRPC_ARG_ENABLE_HTTP_PROXY, 0); // else http_proxy diverts even localhost
    args_int(&all, GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
    args_int(&all, GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1); // a connection of its own
    if (tls && (o->server_name || to->unix_socket))
        args_text(&all, GRPC_SSL_TARGET_NAME_OVERRIDE_ARG,
                  o->server_name ? o->server_name : "localhost");
    return grpc_channel_create(to->dial, credentials, &all);
}

static int dial_command(struct rpc *r, void *arg)
{
    struct dialling *d = arg;
    const struct rpc_channel_options *o = d->options;
    struct address to;
    grpc_channel_credentials *credentials = NULL;
    int rc = address_parse(&to, o->address, tls_wanted(&o->tls), d->e);
    if (!rc && !to.unix_socket && !to.port)
        rc = err_set(d->e, ERR_INVALID, "address '%s': port 0 cannot be dialled", o->address);
    if (!rc)
        rc = tls_channel_credentials(&o->tls, &credentials, d->e);
    if (rc)
        return rc;
    struct rpc_channel *c = d->channel = heap_alloc(sizeof *c);
    c->r = r;
    list_init(&c->calls);
    c->core = make_core_channel(o, &to, credentials);
    grpc_channel_credentials_release(credentials);
    list_append(&r->channels, &c->link);
    return 0;
}

int rpc_dial(struct rpc *r, const struct rpc_channel_options *o, struct rpc_channel **out,
             struct err *e)
{
    struct dialling d = {.options = o, .e = e};
    int rc = rpc_do(r, dial_command, &d);
    *out = d.channel;
    return rc;
}
