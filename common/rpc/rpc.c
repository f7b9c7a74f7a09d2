// SPDX-License-Identifier: Apache-2.0
// A struct rpc: its life, its thread, and the owner's calls. See rpc.h for the rules. What passes
// between the two threads is exchange.c.
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <grpc/grpc.h>
#include <grpc/support/log.h>

#include "common/base/clock.h"
#include "common/base/heap.h"
#include "common/rpc/call.h"

static const int64_t grace_ns = CLOCK_S;

// ---- the owner's calls ----

uint64_t rpc_call(struct rpc_channel *channel, const struct rpc_method *m,
                  const ProtobufCMessage *request, int64_t deadline_ns, bool wait_ready, void *user)
{
    struct call *c = channel_call(channel, m);
    struct rpc *r = c->r;
    struct err e = {0};
    c->deadline_ns = deadline_ns ? clock_mono_ns() + deadline_ns : 0;
    c->wait_ready = wait_ready;
    struct packet *p = request ? packet_new(request) : NULL;
    pthread_mutex_lock(&r->lock);
    rpc_name(r, c, user);
    uint64_t id = c->id;
    c->oversize = p && call_put(c, p, &e);
    if (m->shape != RPC_BIDI)
        call_end(c, RPC_OK, NULL);
    rpc_unlock_and_wake(r, rpc_mark_asked(c));
    return id;
}

// Takes the lock. Null: the call has ended.
static struct call *begin_request(struct rpc *r, uint64_t call)
{
    pthread_mutex_lock(&r->lock);
    return rpc_find_call(r, call);
}

static void end_request(struct rpc *r, struct call *c)
{
    rpc_unlock_and_wake(r, c && rpc_mark_asked(c));
}

int rpc_send(struct rpc *r, uint64_t call, const ProtobufCMessage *m, struct err *e)
{
    struct packet *p = packet_new(m);
    struct call *c = begin_request(r, call);
    int rc = c ? call_put(c, p, e) : 0;
    if (!c)
        packet_free(p);
    end_request(r, rc ? NULL : c);
    return rc;
}

bool rpc_lags(struct rpc *r, uint64_t call)
{
    const struct call *c = begin_request(r, call);
    bool lags = c && (c->waiting > RPC_QUEUE_MESSAGES / 16 || c->bytes > RPC_QUEUE_MAX / 16);
    pthread_mutex_unlock(&r->lock);
    return lags;
}

void rpc_more(struct rpc *r, uint64_t call)
{
    struct call *c = begin_request(r, call);
    if (c)
        c->more = true;
    end_request(r, c);
}

void rpc_finish(struct rpc *r, uint64_t call, enum rpc_code code, const char *text)
{
    struct call *c = begin_request(r, call);
    if (c)
        call_end(c, code, text);
    end_request(r, c);
}

void rpc_reply(struct rpc *r, uint64_t call, const ProtobufCMessage *m)
{
    struct packet *p = packet_new(m);
    struct err e = {0};
    struct call *c = begin_request(r, call);
    if (c) { // both before one tick: headers, message and status leave in one batch
        int rc = call_put(c, p, &e);
        call_end(c, rc ? RPC_RESOURCE_EXHAUSTED : RPC_OK, e.text);
    } else {
        packet_free(p);
    }
    end_request(r, c);
}

void rpc_cancel(struct rpc *r, uint64_t call)
{
    struct call *c = begin_request(r, call);
    if (c)
        c->cancel = true;
    end_request(r, c);
}

// ---- one question ----

static int check_result(const struct rpc_event *ev, bool replied, struct err *e)
{
    if (ev->code == RPC_OK && replied)
        return 0;
    if (ev->code == RPC_UNAVAILABLE || ev->code == RPC_DEADLINE_EXCEEDED)
        return err_set(e, ERR_PEER, "%s", ev->text);
    return err_set(e, ERR_REFUSED, "%s", ev->text);
}

// Waits for an event, or for `cancel_on` to become readable: true.
static bool is_cancelled(const struct rpc *r, int cancel_on)
{
    struct pollfd p[] = {{.fd = r->fd, .events = POLLIN}, {.fd = cancel_on, .events = POLLIN}};
    return poll(p, 2, -1) > 0 && p[1].revents & POLLIN;
}

void rpc_cancel_on(struct rpc *r, int fd)
{
    r->cancel_on = fd;
}

int rpc_ask(struct rpc *r, struct rpc_channel *c, const struct rpc_method *m,
            const ProtobufCMessage *request, int64_t timeout_ns, ProtobufCMessage **reply,
            enum rpc_code *code, struct err *e)
{
    uint64_t call = rpc_call(c, m, request, timeout_ns, false, NULL);
    int cancel_on = r->cancel_on;
    *reply = NULL;
    for (struct rpc_event ev;;) {
        if (!rpc_next(r, &ev)) {
            if (is_cancelled(r, cancel_on)) { // the call's deadline ends this too
                rpc_cancel(r, call);
                cancel_on = -1;
            }
            continue;
        }
        if (ev.call == call && ev.kind == RPC_MESSAGE)
            *reply = rpc_event_take(&ev);
        if (ev.call == call && ev.kind == RPC_CLOSED) {
            int rc = check_result(&ev, *reply != NULL, e);
            if (code)
                *code = ev.code;
            if (rc && *reply) {
                protobuf_c_message_free_unpacked(*reply, NULL);
                *reply = NULL;
            }
            return rc;
        }
        rpc_event_clear(&ev);
    }
}

// ---- life ----

static void on_wake(struct loop_tag *t, bool ok)
{
    struct rpc *r = list_entry(t, struct rpc, wake_tag);
    (void)ok;
    pthread_mutex_lock(&r->lock);
    r->waking = false;
    struct command *command =
        r->command; // taken first, so that the requests made before it are served before it
    r->command = NULL;
    pthread_mutex_unlock(&r->lock);
    for (struct call *c; (c = rpc_next_asked(r));) {
        if (!c->core)
            channel_open(c);
        call_tick(c);
    }
    if (!command)
        return;
    int rc = command->fn(r, command->arg);
    pthread_mutex_lock(&r->lock);
    command->rc = rc;
    command->done = true;
    pthread_cond_signal(&r->answered);
    pthread_mutex_unlock(&r->lock);
}

// The core logs by itself what it also returns to its caller.
static void drop_core_message(gpr_log_func_args *args)
{
    (void)args;
}

static void on_grace_over(struct loop *l)
{
    struct rpc *r = list_entry(l, struct rpc, loop);
    list_for_each (it, &r->servers)
        server_cancel(server_of(it));
}

static void *run_rpc_thread(void *arg)
{
    struct rpc *r = arg;
    gpr_set_log_function(drop_core_message);
    grpc_init();
    loop_init(&r->loop);
    r->loop.on_alarm = on_grace_over;
    pthread_mutex_lock(&r->lock);
    r->ready = true;
    pthread_cond_signal(&r->answered);
    pthread_mutex_unlock(&r->lock);
    loop_run(&r->loop);
    loop_clear(&r->loop);
    grpc_shutdown_blocking(); // grpc_shutdown() may clean up on a thread that outlives main
    return NULL;
}

// The core's threads are started by the rpc thread and inherit its mask.
static int start_thread(struct rpc *r, struct err *e)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    errno = pthread_create(&r->thread, NULL, run_rpc_thread, r);
    int rc = errno ? err_errno(e, ERR_IO, "cannot start the rpc thread") : 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc)
        return rc;
    pthread_mutex_lock(&r->lock);
    while (!r->ready)
        pthread_cond_wait(&r->answered, &r->lock);
    pthread_mutex_unlock(&r->lock);
    return 0;
}

static void free_rpc(struct rpc *r)
{
    struct rpc_event ev;
    while (rpc_next(r, &ev))
        rpc_event_clear(&ev);
    close(r->fd);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->answered);
    free(r->slots);
    free(r);
}

int rpc_open(struct rpc **out, struct err *e)
{
    *out = NULL;
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0)
        return err_errno(e, ERR_IO, "eventfd");
    struct rpc *r = heap_alloc(sizeof *r);
    r->fd = fd;
    r->cancel_on = -1;
    r->free_slot = NO_SLOT;
    r->wake_tag.landed = on_wake;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->answered, NULL);
    list_init(&r->asked);
    list_init(&r->events);
    list_init(&r->servers);
    list_init(&r->channels);
    int rc = start_thread(r, e);
    if (rc)
        free_rpc(r);
    else
        *out = r;
    return rc;
}

static int close_all(struct rpc *r, void *arg)
{
    (void)arg;
    r->closing = true;
    r->loop.alarm_ns = clock_mono_ns() + grace_ns;
    list_for_each (s, &r->servers)
        server_close(server_of(s));
    list_for_each (c, &r->channels)
        channel_close(channel_of(c));
    rpc_maybe_stop(r);
    return 0;
}

void rpc_close(struct rpc *r)
{
    if (!r)
        return;
    rpc_do(r, close_all, NULL);
    pthread_join(r->thread, NULL);
    free_rpc(r);
}
