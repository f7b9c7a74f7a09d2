// SPDX-License-Identifier: Apache-2.0
// The owner's side and what both threads share. See inside.h for the picture, rpc.h for the rules.
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <grpc/grpc.h>
#include <grpc/support/log.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/rpc/call.h"

#define NO_SLOT UINT32_MAX
enum { INDEX_BITS = 24 };
static const int64_t grace_ns = CLOCK_S;

struct command {
    int (*fn)(struct rpc *r, void *arg);
    void *arg;
    int rc;
    bool done;
};

struct event {
    struct list link; // in r->events
    enum rpc_event_kind kind;
    uint64_t call;
    const struct rpc_method *method;
    ProtobufCMessage *message;
    struct rpc_peer *peer;
    enum rpc_code code;
    char text[]; // RPC_CLOSED
};

const char *rpc_role_name(enum rpc_role r)
{
    static const struct {
        enum rpc_role role;
        const char *name;
    } names[] = {{RPC_NONE, "none"},
                 {RPC_CLIENT, "client"},
                 {RPC_WORKER, "worker"},
                 {RPC_ADMIN, "admin"},
                 {RPC_LOCAL, "local"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].role == r)
            return names[i].name;
    return "none";
}

// ---- names of calls ----

static struct slot *slot_find(struct rpc *r, uint64_t id)
{
    uint64_t index = id & (((uint64_t)1 << INDEX_BITS) - 1);
    return index < r->nslots && r->slots[index].id == id ? &r->slots[index] : NULL;
}

static struct call *call_find(struct rpc *r, uint64_t id)
{
    struct slot *s = slot_find(r, id);
    return s ? s->call : NULL;
}

static void slots_grow(struct rpc *r)
{
    PRE(r->cap_slots < (uint32_t)1 << INDEX_BITS);
    r->cap_slots = r->cap_slots ? 2 * r->cap_slots : 64;
    r->slots = realloc(r->slots, r->cap_slots * sizeof *r->slots);
    PRE(r->slots != NULL);
}

void rpc_name(struct rpc *r, struct call *c, void *user)
{
    uint32_t index = r->free_slot;
    if (index != NO_SLOT) {
        r->free_slot = r->slots[index].next;
    } else {
        if (r->nslots == r->cap_slots)
            slots_grow(r);
        index = r->nslots++;
        r->slots[index].id = (uint64_t)1 << INDEX_BITS | index;
    }
    r->slots[index].call = c;
    r->slots[index].user = user;
    c->id = r->slots[index].id;
}

static void slot_free(struct rpc *r, struct slot *s)
{
    s->id += (uint64_t)1 << INDEX_BITS; // the old name is never used again
    s->call = NULL;
    s->user = NULL;
    s->next = r->free_slot;
    r->free_slot = (uint32_t)(s - r->slots);
}

// ---- events: rpc thread → owner ----

void rpc_tell(struct call *c, enum rpc_event_kind kind, ProtobufCMessage *m)
{
    struct rpc *r = c->r;
    if (kind != RPC_CALL && !c->id)
        return; // the owner never heard of it
    const char *text = kind == RPC_CLOSED ? c->text : "";
    struct event *ev = calloc(1, sizeof *ev + strlen(text) + 1);
    PRE(ev != NULL);
    ev->kind = kind;
    ev->method = c->method;
    ev->message = m;
    ev->code = kind == RPC_CLOSED ? c->code : RPC_OK;
    strcpy(ev->text, text);
    if (kind == RPC_CALL) {
        ev->peer = malloc(sizeof *ev->peer);
        PRE(ev->peer != NULL);
        *ev->peer = c->peer;
    }
    pthread_mutex_lock(&r->lock);
    if (kind == RPC_CALL)
        rpc_name(r, c, NULL);
    ev->call = c->id;
    if (kind == RPC_CLOSED) {
        slot_find(r, c->id)->call = NULL;
        list_remove(&c->kick);
    }
    if (list_empty(&r->events))
        eventfd_write(r->fd, 1);
    list_append(&r->events, &ev->link);
    pthread_mutex_unlock(&r->lock);
}

bool rpc_next(struct rpc *r, struct rpc_event *out)
{
    *out = (struct rpc_event){0};
    pthread_mutex_lock(&r->lock);
    if (list_empty(&r->events)) {
        pthread_mutex_unlock(&r->lock);
        return false;
    }
    struct event *ev = list_entry(r->events.next, struct event, link);
    struct slot *s = slot_find(r, ev->call);
    eventfd_t was;
    list_remove(&ev->link);
    if (list_empty(&r->events))
        eventfd_read(r->fd, &was);
    out->user = s->user;
    if (ev->kind == RPC_CLOSED)
        slot_free(r, s);
    pthread_mutex_unlock(&r->lock);
    out->kind = ev->kind;
    out->call = ev->call;
    out->method = ev->method;
    out->peer = out->held = ev->peer;
    out->message = ev->message;
    out->code = ev->code;
    snprintf(out->text, sizeof out->text, "%s", ev->text);
    free(ev);
    return true;
}

void rpc_event_clear(struct rpc_event *ev)
{
    if (ev->message)
        protobuf_c_message_free_unpacked(ev->message, NULL);
    free(ev->held);
    *ev = (struct rpc_event){0};
}

ProtobufCMessage *rpc_event_take(struct rpc_event *ev)
{
    ProtobufCMessage *m = ev->message;
    ev->message = NULL;
    return m;
}

int rpc_fd(const struct rpc *r)
{
    return r->fd;
}

bool rpc_wait(struct rpc *r, int64_t timeout_ns)
{
    struct pollfd p = {.fd = r->fd, .events = POLLIN};
    struct timespec t = {timeout_ns / CLOCK_S, timeout_ns % CLOCK_S};
    return ppoll(&p, 1, timeout_ns < 0 ? NULL : &t, NULL) == 1;
}

// ---- wishes and commands: owner → rpc thread ----

// Holding the lock; true: loop_wake() after letting go of it.
static bool must_ring(struct rpc *r)
{
    bool ring = !r->ringing;
    r->ringing = true;
    return ring;
}

bool rpc_kick(struct call *c)
{
    if (list_empty(&c->kick))
        list_append(&c->r->kicked, &c->kick);
    return must_ring(c->r);
}

static void unlock_and_ring(struct rpc *r, bool ring)
{
    pthread_mutex_unlock(&r->lock);
    if (ring)
        loop_wake(&r->loop, &r->rung);
}

static struct call *next_kicked(struct rpc *r)
{
    struct call *c = NULL;
    pthread_mutex_lock(&r->lock);
    if (!list_empty(&r->kicked)) {
        c = list_entry(r->kicked.next, struct call, kick);
        list_remove(&c->kick);
    }
    pthread_mutex_unlock(&r->lock);
    return c;
}

static void on_rung(struct loop_tag *t, bool ok)
{
    struct rpc *r = list_entry(t, struct rpc, rung);
    (void)ok;
    pthread_mutex_lock(&r->lock);
    r->ringing = false;
    struct command *command = r->command; // before the wishes: those before it are then served
    r->command = NULL;
    pthread_mutex_unlock(&r->lock);
    for (struct call *c; (c = next_kicked(r));) {
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

int rpc_do(struct rpc *r, int (*fn)(struct rpc *r, void *arg), void *arg)
{
    struct command command = {.fn = fn, .arg = arg};
    pthread_mutex_lock(&r->lock);
    r->command = &command;
    unlock_and_ring(r, must_ring(r));
    pthread_mutex_lock(&r->lock);
    while (!command.done)
        pthread_cond_wait(&r->answered, &r->lock);
    pthread_mutex_unlock(&r->lock);
    return command.rc;
}

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
    unlock_and_ring(r, rpc_kick(c));
    return id;
}

int rpc_send(struct rpc *r, uint64_t call, const ProtobufCMessage *m, struct err *e)
{
    struct packet *p = packet_new(m);
    bool ring = false;
    int rc = 0;
    pthread_mutex_lock(&r->lock);
    struct call *c = call_find(r, call);
    if (c) {
        rc = call_put(c, p, e);
        ring = !rc && rpc_kick(c);
    } else {
        packet_free(p);
    }
    unlock_and_ring(r, ring);
    return rc;
}

bool rpc_lags(struct rpc *r, uint64_t call)
{
    pthread_mutex_lock(&r->lock);
    const struct call *c = call_find(r, call);
    bool lags = c && (c->waiting > RPC_QUEUE_MESSAGES / 16 || c->bytes > RPC_QUEUE_MAX / 16);
    pthread_mutex_unlock(&r->lock);
    return lags;
}

void rpc_more(struct rpc *r, uint64_t call)
{
    bool ring = false;
    pthread_mutex_lock(&r->lock);
    struct call *c = call_find(r, call);
    if (c) {
        c->more = true;
        ring = rpc_kick(c);
    }
    unlock_and_ring(r, ring);
}

void rpc_finish(struct rpc *r, uint64_t call, enum rpc_code code, const char *text)
{
    bool ring = false;
    pthread_mutex_lock(&r->lock);
    struct call *c = call_find(r, call);
    if (c) {
        call_end(c, code, text);
        ring = rpc_kick(c);
    }
    unlock_and_ring(r, ring);
}

void rpc_reply(struct rpc *r, uint64_t call, const ProtobufCMessage *m)
{
    struct packet *p = packet_new(m);
    struct err e = {0};
    bool ring = false;
    pthread_mutex_lock(&r->lock);
    struct call *c = call_find(r, call);
    if (c) { // both before one tick: headers, message and status leave in one batch
        int rc = call_put(c, p, &e);
        call_end(c, rc ? RPC_RESOURCE_EXHAUSTED : RPC_OK, e.text);
        ring = rpc_kick(c);
    } else {
        packet_free(p);
    }
    unlock_and_ring(r, ring);
}

void rpc_cancel(struct rpc *r, uint64_t call)
{
    bool ring = false;
    pthread_mutex_lock(&r->lock);
    struct call *c = call_find(r, call);
    if (c) {
        c->cancel = true;
        ring = rpc_kick(c);
    }
    unlock_and_ring(r, ring);
}

void rpc_set_user(struct rpc *r, uint64_t call, void *user)
{
    pthread_mutex_lock(&r->lock);
    struct slot *s = slot_find(r, call);
    if (s)
        s->user = user;
    pthread_mutex_unlock(&r->lock);
}

// ---- one question ----

static int ask_result(const struct rpc_event *ev, bool replied, struct err *e)
{
    if (ev->code == RPC_OK && replied)
        return 0;
    if (ev->code == RPC_UNAVAILABLE || ev->code == RPC_DEADLINE_EXCEEDED)
        return err_set(e, ERR_PEER, "%s", ev->text);
    return err_set(e, ERR_REFUSED, "%s (code %d)", ev->text, (int)ev->code);
}

int rpc_ask(struct rpc *r, struct rpc_channel *c, const struct rpc_method *m,
            const ProtobufCMessage *request, int64_t timeout_ns, ProtobufCMessage **reply,
            enum rpc_code *code, struct err *e)
{
    uint64_t call = rpc_call(c, m, request, timeout_ns, false, NULL);
    *reply = NULL;
    for (struct rpc_event ev;;) {
        if (!rpc_next(r, &ev)) {
            rpc_wait(r, -1); // the call's deadline ends this
            continue;
        }
        if (ev.call == call && ev.kind == RPC_MESSAGE)
            *reply = rpc_event_take(&ev);
        if (ev.call == call && ev.kind == RPC_CLOSED) {
            int rc = ask_result(&ev, *reply != NULL, e);
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

static void core_log(gpr_log_func_args *args)
{
    const char *file = strrchr(args->file, '/');
    log_debug("grpc", "%s:%d: %s", file ? file + 1 : args->file, args->line, args->message);
}

static void on_grace_over(struct loop *l)
{
    struct rpc *r = list_entry(l, struct rpc, loop);
    list_for_each (it, &r->servers)
        server_cancel(server_of(it));
}

static void *rpc_main(void *arg)
{
    struct rpc *r = arg;
    gpr_set_log_function(core_log);
    grpc_init();
    loop_init(&r->loop);
    r->loop.on_alarm = on_grace_over;
    pthread_mutex_lock(&r->lock);
    r->ready = true;
    pthread_cond_signal(&r->answered);
    pthread_mutex_unlock(&r->lock);
    loop_run(&r->loop);
    loop_clear(&r->loop);
    grpc_shutdown_blocking(); // the plain one may clean up on a thread that outlives main
    return NULL;
}

// The core's threads are started by the rpc thread and inherit its mask.
static int start_thread(struct rpc *r, struct err *e)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    errno = pthread_create(&r->thread, NULL, rpc_main, r);
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

static void rpc_free(struct rpc *r)
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
    struct rpc *r = calloc(1, sizeof *r);
    PRE(r != NULL);
    r->fd = fd;
    r->free_slot = NO_SLOT;
    r->rung.landed = on_rung;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->answered, NULL);
    list_init(&r->kicked);
    list_init(&r->events);
    list_init(&r->servers);
    list_init(&r->channels);
    int rc = start_thread(r, e);
    if (rc)
        rpc_free(r);
    else
        *out = r;
    return rc;
}

void rpc_maybe_stop(struct rpc *r)
{
    if (r->closing && list_empty(&r->servers) && list_empty(&r->channels))
        r->loop.stop = true;
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
    rpc_free(r);
}
