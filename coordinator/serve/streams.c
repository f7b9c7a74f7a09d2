// SPDX-License-Identifier: Apache-2.0
// Watchers and readers of logs; see streams.h.
#include "coordinator/serve/streams.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/attempt/frame.h"
#include "common/base/heap.h"
#include "common/base/log.h"
#include "coordinator/decide/words.h"

enum { STREAMS_MAX = 2048, TAILS_MAX = 64, HOSTS_MAX = 4096 };

struct watcher {
    struct list link;
    uint64_t call;
    char job[ID_LEN];
    bool states; // gets these alone
};
struct tail {
    struct list link;
    uint64_t call, ask;
    char job[ID_LEN];
    int rank;
    bool follow;      // ends with its job, and asks hosts that come to have its logs
    int lines;        // of the end, as it was asked
    uint64_t attempt; // 0: all
    int n, cap;       // hosts asked that have not ended
    uint64_t *conns;
};

void streams_send_down(struct rpc *r, uint64_t conn, const Weft__V1__Down *down)
{
    struct err e = {0};
    if (!rpc_send(r, conn, &down->base, &e))
        return;
    log_warn("service", "a worker reads too slowly: %s", e.text);
    rpc_cancel(r, conn);
}

enum rpc_code streams_error_code(const struct err *e)
{
    static const enum rpc_code codes[ERR_COUNT] = {
        [ERR_INVALID] = RPC_INVALID_ARGUMENT,        [ERR_NOTFOUND] = RPC_NOT_FOUND,
        [ERR_REFUSED] = RPC_UNAUTHENTICATED,         [ERR_EXISTS] = RPC_FAILED_PRECONDITION,
        [ERR_LIMIT] = RPC_RESOURCE_EXHAUSTED,        [ERR_FENCED] = RPC_PERMISSION_DENIED,
        [ERR_UNSUPPORTED] = RPC_FAILED_PRECONDITION,
    };
    PRE(e->code > 0 && e->code < ERR_COUNT);
    return codes[e->code] ? codes[e->code] : RPC_INTERNAL;
}

void streams_init(struct streams *s, struct rpc *rpc, const struct coord *coord, struct db *db)
{
    *s = (struct streams){.rpc = rpc, .coord = coord, .db = db};
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
    free(t->conns);
    free(t);
    s->n--;
    s->ntails--;
}

void streams_clear(struct streams *s)
{
    list_for_each (it, &s->watchers)
        watcher_drop(s, list_entry(it, struct watcher, link));
    list_for_each (it, &s->tails)
        tail_drop(s, list_entry(it, struct tail, link));
}

void streams_end(struct streams *s, const struct coord *coord, const char *why)
{
    list_for_each (it, &s->watchers)
        rpc_finish(s->rpc, list_entry(it, struct watcher, link)->call, RPC_UNAVAILABLE, why);
    list_for_each (it, &s->tails)
        rpc_finish(s->rpc, list_entry(it, struct tail, link)->call, RPC_UNAVAILABLE, why);
    streams_clear(s);
    s->coord = coord;
}

static bool refuse_when_full(struct streams *s, uint64_t call)
{
    if (s->n < STREAMS_MAX)
        return false;
    rpc_finish(s->rpc, call, RPC_RESOURCE_EXHAUSTED, "too many clients follow jobs and logs");
    return true;
}

// ---- watching ----

static bool is_at_rest(enum job_state state)
{
    return state == JOB_SUCCEEDED || state == JOB_FAILED || state == JOB_CANCELLED ||
           state == JOB_HELD;
}

// False: the stream is finished, because the job rests or because the client reads too slowly.
static bool send_update(struct streams *s, uint64_t call, const Weft__V1__WatchUpdate *u)
{
    if (rpc_send(s->rpc, call, &u->base, NULL)) {
        rpc_finish(s->rpc, call, RPC_RESOURCE_EXHAUSTED, "the client reads too slowly");
        return false;
    }
    if (!u->status || !is_at_rest((enum job_state)u->status->state))
        return true;
    rpc_finish(s->rpc, call, RPC_OK, "");
    return false;
}

// The events that were written before this call. Those that are written from now on are published.
static bool send_events(struct streams *s, uint64_t call, const char *job, uint64_t from,
                        struct arena *a)
{
    struct err e = {0};
    Weft__V1__Event **events;
    size_t n = 0;
    bool sent = true;
    if (!from || !s->db)
        return true;
    if (db_events(s->db, job, from, a, &events, &n, &e)) {
        rpc_finish(s->rpc, call, streams_error_code(&e), e.text);
        return false;
    }
    for (size_t i = 0; i < n && sent; i++) {
        V1_NEW(WatchUpdate, watch_update, update);
        update.event = events[i];
        sent = send_update(s, call, &update);
    }
    return sent;
}

void streams_watch(struct streams *s, uint64_t call, const Weft__V1__JobRequest *q)
{
    struct arena a = {0};
    struct err e = {0};
    V1_NEW(WatchUpdate, watch_update, first);
    first.status = coord_status(s->coord, q->job, &a, &e);
    if (!first.status) {
        rpc_finish(s->rpc, call, streams_error_code(&e), e.text);
    } else if (!refuse_when_full(s, call) &&
               send_events(s, call, first.status->job, q->from_event, &a) &&
               send_update(s, call, &first)) {
        struct watcher *w = heap_alloc(sizeof *w);
        w->call = call;
        w->states = q->states;
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

// ---- logs ----

static void ask_host(struct streams *s, struct tail *t, uint64_t conn, int lines, bool stop)
{
    V1_NEW(LogAsk, log_ask, ask);
    ask.ask = t->ask;
    ask.job = t->job;
    ask.rank = t->rank;
    ask.lines = lines;
    ask.follow = t->follow;
    ask.attempt = t->attempt;
    ask.stop = stop;
    V1_NEW(Down, down, down);
    down.body_case = WEFT__V1__DOWN__BODY_LOG;
    down.log = &ask;
    streams_send_down(s->rpc, conn, &down); // a host that is gone ends by streams_host_gone
}

static bool was_asked(const struct tail *t, uint64_t conn)
{
    for (int i = 0; i < t->n; i++)
        if (t->conns[i] == conn)
            return true;
    return false;
}

// Asks every host that has logs of the job and was not asked yet. Returns how many hosts have logs,
// or −1 with `e`. Who follows the job may name an attempt that is yet to come.
static int ask_hosts(struct streams *s, struct tail *t, const char *target, int lines,
                     struct err *e)
{
    static uint64_t conns[HOSTS_MAX];
    uint64_t known = t->follow ? 0 : t->attempt;
    int n = coord_log_hosts(s->coord, target, t->rank, known, conns, HOSTS_MAX, t->job, e);
    for (int i = 0; i < n; i++) {
        if (was_asked(t, conns[i]))
            continue;
        if (t->n == t->cap) {
            t->cap = t->cap ? 2 * t->cap : 4;
            t->conns = realloc(t->conns, sizeof *t->conns * (size_t)t->cap);
            PRE(t->conns != NULL);
        }
        t->conns[t->n++] = conns[i];
        ask_host(s, t, conns[i], lines, false);
    }
    return n;
}

static bool job_at_rest(const struct streams *s, const char *target)
{
    struct arena a = {0};
    const Weft__V1__JobStatus *status = coord_status(s->coord, target, &a, NULL);
    bool rests = status && is_at_rest((enum job_state)status->state);
    arena_clear(&a);
    return rests;
}

void streams_logs(struct streams *s, uint64_t call, const Weft__V1__LogsRequest *q)
{
    struct err e = {0};
    if (refuse_when_full(s, call))
        return;
    if (s->ntails == TAILS_MAX) { // each may have much waiting
        rpc_finish(s->rpc, call, RPC_RESOURCE_EXHAUSTED, "too many clients read logs");
        return;
    }
    struct tail *t = heap_alloc(sizeof *t);
    t->call = call;
    t->ask = ++s->asks;
    t->rank = q->rank;
    t->lines = q->lines;
    t->attempt = q->attempt;
    t->follow = q->follow && !job_at_rest(s, q->job);
    list_append(&s->tails, &t->link);
    s->n++;
    s->ntails++;
    int n = ask_hosts(s, t, q->job, q->lines, &e);
    if (n < 0)
        rpc_finish(s->rpc, call, streams_error_code(&e), e.text);
    else if (n == 0 && !t->follow)
        rpc_finish(s->rpc, call, RPC_FAILED_PRECONDITION, "no host that has its logs is here");
    else
        return;
    tail_drop(s, t);
}

static void tail_stop(struct streams *s, struct tail *t)
{
    for (int i = 0; i < t->n; i++)
        ask_host(s, t, t->conns[i], 0, true);
    tail_drop(s, t);
}

// Notes that one host has sent all it has. After the last host the stream to the client is
// finished.
static void end_host(struct streams *s, struct tail *t, uint64_t conn)
{
    for (int i = 0; i < t->n; i++)
        if (t->conns[i] == conn) {
            t->conns[i] = t->conns[--t->n];
            break;
        }
    if (t->n > 0 || t->follow)
        return;
    rpc_finish(s->rpc, t->call, RPC_OK, "");
    tail_drop(s, t);
}

// The state of a job that is followed has changed. When the job was placed on other hosts these are
// asked too; when it rests the stream ends, for the ranks' last lines came before this state.
static void follow_tails(struct streams *s, const char *job, enum job_state state)
{
    list_for_each (it, &s->tails) {
        struct tail *t = list_entry(it, struct tail, link);
        if (!t->follow || strcmp(t->job, job) != 0)
            continue;
        if (is_at_rest(state)) {
            rpc_finish(s->rpc, t->call, RPC_OK, "");
            tail_stop(s, t);
        } else {
            (void)ask_hosts(s, t, job, 0, NULL);
        }
    }
}

void streams_chunk(struct streams *s, uint64_t conn, const char *host, const Weft__V1__LogChunk *c)
{
    list_for_each (it, &s->tails) {
        struct tail *t = list_entry(it, struct tail, link);
        if (t->ask != c->ask || !was_asked(t, conn))
            continue; // who was not asked has nothing to say
        V1_NEW(LogLines, log_lines, lines);
        lines.rank = c->rank;
        lines.host = frame_text(host);
        lines.text = c->text;
        lines.attempt = c->attempt;
        lines.ends_at = c->ends_at;
        if (c->text.len && rpc_send(s->rpc, t->call, &lines.base, NULL)) {
            log_info("streams", "job=%s a reader of its logs is too slow and is cut off", t->job);
            rpc_finish(s->rpc, t->call, RPC_RESOURCE_EXHAUSTED, "the client reads too slowly");
            tail_stop(s, t);
        } else if (c->end) {
            end_host(s, t, conn);
        }
        return;
    }
}

// Ends the streams that a lost host was asked for. One whose client follows is finished at once:
// the client asks again, and knows which lines it has.
void streams_host_gone(struct streams *s, uint64_t conn)
{
    list_for_each (it, &s->tails) {
        struct tail *t = list_entry(it, struct tail, link);
        if (!was_asked(t, conn))
            continue;
        if (t->follow) {
            rpc_finish(s->rpc, t->call, RPC_OK, "");
            tail_stop(s, t);
        } else {
            end_host(s, t, conn);
        }
    }
}

void streams_host_here(struct streams *s)
{
    list_for_each (it, &s->tails) {
        struct tail *t = list_entry(it, struct tail, link);
        if (t->follow)
            (void)ask_hosts(s, t, t->job, t->lines, NULL);
    }
}

void streams_publish(struct streams *s, const char *job, const Weft__V1__WatchUpdate *u)
{
    list_for_each (it, &s->watchers) {
        struct watcher *w = list_entry(it, struct watcher, link);
        bool wanted = strcmp(w->job, job) == 0 && (u->status || !w->states);
        if (wanted && !send_update(s, w->call, u))
            watcher_drop(s, w);
    }
    if (u->status)
        follow_tails(s, job, (enum job_state)u->status->state);
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
