// SPDX-License-Identifier: Apache-2.0
// What the files of common/rpc share: struct rpc, its two threads, and what passes between them.
// Inside common/rpc/ only.
//
//   owner  ── requests on calls, one command ──►  lock  ──►  rpc thread (every call into the core)
//   owner  ◄── events, eventfd ─────────────────  lock  ◄──  rpc thread
//
// Nothing else is shared. The owner wakes it once for any number of requests; the rpc thread then ticks
// each call in `asked`. Commands (serve, dial, hang up, close) are few and are waited for.
//
// Calls go down this list:
//
//   rpc.c                           life, the thread, the owner's calls
//   server.c (health.c), channel.c  the two ends
//   call.c                          one RPC
//   exchange.c                      names of calls, events, requests, commands
//   rpc_loop.c                      the completion queue
#pragma once
#include <pthread.h>

#include "common/base/list.h"
#include "common/rpc/rpc.h"
#include "common/rpc/rpc_loop.h"

struct call;

// The owner's name for a call: id is the index with a generation above it. It outlives the call
// until the owner has taken RPC_CLOSED, so that every event finds its user.
struct call_slot {
    uint64_t id;
    void *user;
    struct call *call; // null: it has ended
    uint32_t next;     // while free: the next free one
};

#define NO_SLOT UINT32_MAX

// Something that the rpc thread runs for the owner, who waits for it.
struct command {
    int (*fn)(struct rpc *r, void *arg);
    void *arg;
    int rc;
    bool done;
};

struct rpc {
    struct loop loop;
    struct loop_tag wake_tag; // lands when the owner has woken the thread
    pthread_t thread;
    int fd;        // an eventfd, readable if and only if there are events
    int cancel_on; // the owner's: of rpc_cancel_on

    pthread_mutex_t lock;
    pthread_cond_t answered; // ready, or a command is done
    bool ready, waking;
    struct command *command;
    struct list asked; // calls with requests
    struct list events;
    struct call_slot *slots;
    uint32_t nslots, cap_slots, free_slot; // NO_SLOT: none is free

    // the rpc thread's
    struct list servers, channels;
    bool closing;
};

// Runs fn on the rpc thread, after all requests so far, and waits for what it returns.
int rpc_do(struct rpc *r, int (*fn)(struct rpc *r, void *arg), void *arg);

// Holding the lock: gives a call its name; finds it by that, null when it has ended; marks it as
// having requests, true when the owner must wake it.
void rpc_name(struct rpc *r, struct call *c, void *user);
struct call *rpc_find_call(struct rpc *r, uint64_t id);
bool rpc_mark_asked(struct call *c);
void rpc_unlock_and_wake(struct rpc *r, bool wake);
struct call *rpc_next_asked(struct rpc *r); // the rpc thread, without the lock; null: no more
// An event for the owner; takes the message. RPC_CLOSED takes the call's name away.
void rpc_emit(struct call *c, enum rpc_event_kind kind, ProtobufCMessage *m);

// When closing: the loop ends once the last server and channel are gone.
void rpc_maybe_stop(struct rpc *r);

// server.c, on the rpc thread
void server_close(struct rpc_server *s);  // open calls hear of it and have the grace to end
void server_cancel(struct rpc_server *s); // the grace is over
struct rpc_server *server_of(struct list *link);
// channel.c
void channel_close(struct rpc_channel *c); // cancels its calls; gone after the last
struct rpc_channel *channel_of(struct list *link);
struct call *channel_call(struct rpc_channel *c, const struct rpc_method *m); // any thread
void channel_open(struct call *c); // the call's first tick follows
