// SPDX-License-Identifier: Apache-2.0
// Watchers and readers of logs; see streams.h.
#include "coordinator/streams.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/attempt/frame.h"
#include "coordinator/service.h"

enum { STREAMS_MAX = 2048, HOSTS_MAX = 4096 };

struct watcher {
    struct list link;
    uint64_t call;
    char job[33];
};
struct tail {
    struct list link;
    uint64_t call, ask;
    char job[33];
    int n; // hosts that have not ended yet
    uint64_t conns[];
};

void streams_init(struct streams *s, struct rpc *rpc, const struct coord *coord)
{
    *s = (struct streams){.rpc = rpc, .coord = coord};
    list_init(&s->watchers);
    list_init(&s->tails);
}

static void watcher_drop(struct streams *s, struct watcher *w)
{
    list_remove(&w->link);
    free(w);
    s->n--;
}

static void tail_drop(struct streams *s, struct tail *t)
{
    list_remove(&t->link);
    free(t);
    s->n--;
}

void streams_clear(struct streams *s)
{
    list_for_each (it, &s->watchers)
        watcher_drop(s, list_entry(it, struct watcher, link));
    list_for_each (it, &s->tails)
        tail_drop(s, list_entry(it, struct tail, link));
}

static bool full(struct streams *s, uint64_t call)
{
    if (s->n < STREAMS_MAX)
        return false;
    rpc_finish(s->rpc, call, RPC_RESOURCE_EXHAUSTED, "too many clients follow jobs and logs");
    return true;
}

// ---- watching ----

static bool at_rest(Weft__Rows__JobState state)
{
    return state == WEFT__ROWS__JOB_STATE__SUCCEEDED || state == WEFT__ROWS__JOB_STATE__FAILED ||
           state == WEFT__ROWS__JOB_STATE__CANCELLED || state == WEFT__ROWS__JOB_STATE__HELD;
}

// False: the stream has ended, by its own end or by a reader that is too slow.
static bool tell(struct streams *s, uint64_t call, const Weft__V1__WatchUpdate *u)
{
    if (rpc_send(s->rpc, call, &u->base, NULL)) {
        rpc_finish(s->rpc, call, RPC_RESOURCE_EXHAUSTED, "the client reads too slowly");
        return false;
    }
    if (!u->status || !at_rest(u->status->state))
        return true;
    rpc_finish(s->rpc, call, RPC_OK, "");
    return false;
}

void streams_watch(struct streams *s, uint64_t call, const Weft__V1__JobRequest *q)
{
    struct arena a;
    struct err e = {0};
    arena_init(&a);
    Weft__V1__WatchUpdate first;
    weft__v1__watch_update__init(&first);
    first.status = coord_status(s->coord, q->job, &a, &e);
    if (!first.status) {
        rpc_finish(s->rpc, call, service_code(&e), e.text);
    } else if (!full(s, call) && tell(s, call, &first)) {
        struct watcher *w = calloc(1, sizeof *w);
        PRE(w != NULL);
        w->call = call;
        snprintf(w->job, sizeof w->job, "%s", first.status->job);
        if (q->once) {
            rpc_finish(s->rpc, call, RPC_OK, "");
            free(w);
        } else {
            list_append(&s->watchers, &w->link);
            s->n++;
        }
    }
    arena_clear(&a);
}

void streams_publish(struct streams *s, const char *job, const Weft__V1__WatchUpdate *u)
{
    list_for_each (it, &s->watchers) {
        struct watcher *w = list_entry(it, struct watcher, link);
        if (strcmp(w->job, job) == 0 && !tell(s, w->call, u))
            watcher_drop(s, w);
    }
}

// ---- logs ----

static void ask_host(struct streams *s, const struct tail *t, uint64_t conn,
                     const Weft__V1__LogsRequest *q)
{
    char job[33];
    memcpy(job, t->job, sizeof job);
    Weft__V1__LogAsk ask;
    weft__v1__log_ask__init(&ask);
    ask.ask = t->ask;
    ask.job = job;
    ask.rank = q ? q->rank : -1;
    ask.lines = q ? q->lines : 0;
    ask.follow = q && q->follow;
    ask.stop = q == NULL;
    Weft__V1__Down down;
    weft__v1__down__init(&down);
    down.body_case = WEFT__V1__DOWN__BODY_LOG;
    down.log = &ask;
    (void)rpc_send(s->rpc, conn, &down.base, NULL); // a host that is gone ends by streams_host_gone
}

void streams_logs(struct streams *s, uint64_t call, const Weft__V1__LogsRequest *q)
{
    static uint64_t conns[HOSTS_MAX];
    struct err e = {0};
    char job[33] = "";
    int n = coord_log_hosts(s->coord, q->job, q->rank, conns, HOSTS_MAX, job, &e);
    if (n < 0) {
        rpc_finish(s->rpc, call, service_code(&e), e.text);
        return;
    }
    if (n == 0) {
        rpc_finish(s->rpc, call, RPC_UNAVAILABLE, "no host that has its logs is here");
        return;
    }
    if (full(s, call))
        return;
    struct tail *t = calloc(1, sizeof *t + sizeof *conns * (size_t)n);
    PRE(t != NULL);
    t->call = call;
    t->ask = ++s->asks;
    t->n = n;
    memcpy(t->conns, conns, sizeof *conns * (size_t)n);
    memcpy(t->job, job, sizeof t->job);
    list_append(&s->tails, &t->link);
    s->n++;
    for (int i = 0; i < n; i++)
        ask_host(s, t, conns[i], q);
}

static void tail_stop(struct streams *s, struct tail *t)
{
    for (int i = 0; i < t->n; i++)
        ask_host(s, t, t->conns[i], NULL);
    tail_drop(s, t);
}

// One host has told all; after the last the client is told the end.
static void host_done(struct streams *s, struct tail *t, uint64_t conn)
{
    for (int i = 0; i < t->n; i++)
        if (t->conns[i] == conn) {
            t->conns[i] = t->conns[--t->n];
            break;
        }
    if (t->n > 0)
        return;
    rpc_finish(s->rpc, t->call, RPC_OK, "");
    tail_drop(s, t);
}

void streams_chunk(struct streams *s, uint64_t conn, const char *host, const Weft__V1__LogChunk *c)
{
    list_for_each (it, &s->tails) {
        struct tail *t = list_entry(it, struct tail, link);
        if (t->ask != c->ask)
            continue;
        Weft__V1__LogLines lines;
        weft__v1__log_lines__init(&lines);
        lines.rank = c->rank;
        lines.host = frame_text(host);
        lines.text = c->text;
        if (c->text.len && rpc_send(s->rpc, t->call, &lines.base, NULL)) {
            rpc_finish(s->rpc, t->call, RPC_RESOURCE_EXHAUSTED, "the client reads too slowly");
            tail_stop(s, t);
        } else if (c->end) {
            host_done(s, t, conn);
        }
        return;
    }
}

void streams_host_gone(struct streams *s, uint64_t conn)
{
    list_for_each (it, &s->tails) {
        struct tail *t = list_entry(it, struct tail, link);
        for (int i = 0; i < t->n; i++)
            if (t->conns[i] == conn) {
                host_done(s, t, conn);
                break;
            }
    }
}

void streams_closed(struct streams *s, uint64_t call)
{
    list_for_each (it, &s->watchers) {
        struct watcher *w = list_entry(it, struct watcher, link);
        if (w->call == call)
            watcher_drop(s, w);
    }
    list_for_each (it, &s->tails) {
        struct tail *t = list_entry(it, struct tail, link);
        if (t->call == call)
            tail_stop(s, t);
    }
}
