// SPDX-License-Identifier: Apache-2.0
// What passes between the owner and the rpc thread: names of calls, events, requests, commands. See
// inside.h for the picture. It lies below calls, servers and channels; rpc.c lies above them.
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "common/base/clock.h"
#include "common/base/heap.h"
#include "common/rpc/call.h"

enum { INDEX_BITS = 24 };

struct queued_event {
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

static struct call_slot *find_slot(struct rpc *r, uint64_t id)
{
    uint64_t index = id & (((uint64_t)1 << INDEX_BITS) - 1);
    return index < r->nslots && r->slots[index].id == id ? &r->slots[index] : NULL;
}

struct call *rpc_find_call(struct rpc *r, uint64_t id)
{
    struct call_slot *s = find_slot(r, id);
    return s ? s->call : NULL;
}

void rpc_name(struct rpc *r, struct call *c, void *user)
{
    uint32_t index = r->free_slot;
    if (index != NO_SLOT) {
        r->free_slot = r->slots[index].next;
    } else {
        if (r->nslots == r->cap_slots) {
            PRE(r->cap_slots < (uint32_t)1 << INDEX_BITS);
            r->cap_slots = r->cap_slots ? 2 * r->cap_slots : 64;
            r->slots = realloc(r->slots, r->cap_slots * sizeof *r->slots);
            PRE(r->slots != NULL);
        }
        index = r->nslots++;
        r->slots[index].id = (uint64_t)1 << INDEX_BITS | index;
    }
    r->slots[index].call = c;
    r->slots[index].user = user;
    c->id = r->slots[index].id;
}

// ---- events: rpc thread → owner ----

void rpc_emit(struct call *c, enum rpc_event_kind kind, ProtobufCMessage *m)
{
    struct rpc *r = c->r;
    if (kind != RPC_CALL && !c->id)
        return; // the owner never heard of it
    const char *text = kind == RPC_CLOSED ? c->text : "";
    struct queued_event *ev = heap_alloc(sizeof *ev + strlen(text) + 1);
    ev->kind = kind;
    ev->method = c->method;
    ev->message = m;
    ev->code = kind == RPC_CLOSED ? c->code : RPC_OK;
    strcpy(ev->text, text);
    if (kind == RPC_CALL) {
        ev->peer = heap_alloc(sizeof *ev->peer);
        *ev->peer = c->peer;
    }
    pthread_mutex_lock(&r->lock);
    if (kind == RPC_CALL)
        rpc_name(r, c, NULL);
    ev->call = c->id;
    if (kind == RPC_CLOSED) {
        find_slot(r, c->id)->call = NULL;
        list_remove(&c->asked_link);
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
    struct queued_event *ev = list_entry(r->events.next, struct queued_event, link);
    struct call_slot *s = find_slot(r, ev->call);
    eventfd_t was;
    list_remove(&ev->link);
    if (list_empty(&r->events))
        eventfd_read(r->fd, &was);
    out->user = s->user;
    if (ev->kind == RPC_CLOSED) {
        *s = (struct call_slot){.id = s->id + ((uint64_t)1 << INDEX_BITS), // the old name is over
                                .next = r->free_slot};
        r->free_slot = (uint32_t)(s - r->slots);
    }
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

void rpc_set_user(struct rpc *r, uint64_t call, void *user)
{
    pthread_mutex_lock(&r->lock);
    struct call_slot *s = find_slot(r, call);
    if (s)
        s->user = user;
    pthread_mutex_unlock(&r->lock);
}

// ---- requests and commands: owner → rpc thread ----

// Call it with the lock held. If it returns true, call loop_wake() after releasing the lock.
static bool mark_waking(struct rpc *r)
{
    bool wake = !r->waking;
    r->waking = true;
    return wake;
}

bool rpc_mark_asked(struct call *c)
{
    if (list_empty(&c->asked_link))
        list_append(&c->r->asked, &c->asked_link);
    return mark_waking(c->r);
}

void rpc_unlock_and_wake(struct rpc *r, bool wake)
{
    pthread_mutex_unlock(&r->lock);
    if (wake)
        loop_wake(&r->loop, &r->wake_tag);
}

struct call *rpc_next_asked(struct rpc *r)
{
    struct call *c = NULL;
    pthread_mutex_lock(&r->lock);
    if (!list_empty(&r->asked)) {
        c = list_entry(r->asked.next, struct call, asked_link);
        list_remove(&c->asked_link);
    }
    pthread_mutex_unlock(&r->lock);
    return c;
}

int rpc_do(struct rpc *r, int (*fn)(struct rpc *r, void *arg), void *arg)
{
    struct command command = {.fn = fn, .arg = arg};
    pthread_mutex_lock(&r->lock);
    r->command = &command;
    rpc_unlock_and_wake(r, mark_waking(r));
    pthread_mutex_lock(&r->lock);
    while (!command.done)
        pthread_cond_wait(&r->answered, &r->lock);
    pthread_mutex_unlock(&r->lock);
    return command.rc;
}

void rpc_maybe_stop(struct rpc *r)
{
    if (r->closing && list_empty(&r->servers) && list_empty(&r->channels))
        r->loop.stop = true;
}
