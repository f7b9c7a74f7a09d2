// SPDX-License-Identifier: Apache-2.0
// The agent's events: the stream to the coordinator, time, and the end. agent.h has the picture,
// agent_ranks.c what passes through the stream.
//
//   state        leaves by                                      when asked to stop (TERM)
//   AWAY         OPEN; CLOSED backs off and asks again          ranks drain, then exit
//   GREETING     Challenge; too long: CLOSING                   the same
//   REGISTERING  Registered; a newer Challenge; too long        the same
//   ATTACHED     CLOSED; silence of a lease: CLOSING            Leaving is sent; exit after Sync
//   CLOSING      CLOSED                                         the same as AWAY
//   FENCED       nothing lives, CLEARED and CLOSED; twin: exit  exit when nothing lives
//   DONE         never
//
// A handler writes down what its event means and answers what can be answered at once. What follows
// from it is drawn by settle_agent() after every event, and attempts are freed only there.
#include "worker/agent/agent.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/deadline.h"
#include "common/base/heap.h"
#include "common/base/rand.h"
#include "worker/agent/agent_state.h"

#define LEASE_NS     (10 * CLOCK_S) // until Registered says otherwise
#define HEARTBEAT_NS (2 * CLOCK_S)
#define PROGRESS_NS  (250 * CLOCK_MS)
#define BACKOFF_NS   (50 * CLOCK_MS) // doubles with every failure, up to a quarter of the lease
#define LAST_REAP_NS (2 * CLOCK_S)   // what SIGKILL may take at the end of the grace

static const unsigned char moves[AGENT_STATES] = {
#define TO(s) (1u << AGENT_##s)
    [AGENT_AWAY] = TO(AWAY) | TO(GREETING) | TO(DONE),
    [AGENT_GREETING] = TO(REGISTERING) | TO(CLOSING) | TO(AWAY) | TO(FENCED) | TO(DONE),
    [AGENT_REGISTERING] =
        TO(REGISTERING) | TO(ATTACHED) | TO(CLOSING) | TO(AWAY) | TO(FENCED) | TO(DONE),
    [AGENT_ATTACHED] = TO(CLOSING) | TO(AWAY) | TO(FENCED) | TO(DONE),
    [AGENT_CLOSING] = TO(AWAY) | TO(DONE),
    [AGENT_FENCED] = TO(AWAY) | TO(DONE),
#undef TO
};

static void move_to(struct agent *g, enum agent_state to, int64_t now)
{
    PRE(moves[g->state] & 1u << to);
    g->state = to;
    g->state_ns = now;
}

// ---- life ----

struct agent *agent_new(const struct agent_config *c)
{
    struct agent *g = heap_alloc(sizeof *g);
    memcpy(g->seed, c->seed, sizeof g->seed);
    g->about = message_copy(&c->about->base);
    g->grace_ns = c->grace_ns;
    g->cluster = c->cluster && *c->cluster ? heap_strdup(c->cluster) : NULL;
    g->incarnation = heap_strdup(c->incarnation);
    g->lease_ns = LEASE_NS;
    g->heartbeat_ns = HEARTBEAT_NS;
    attempts_init(&g->attempts);
    list_init(&g->storing);
    return g;
}

static void storage_queue_free(struct storage_queue *q)
{
    list_remove(&q->link);
    weft__v1__storage__free_unpacked(q->now, NULL);
    weft__v1__storage__free_unpacked(q->next, NULL);
    free(q);
}

void agent_free(struct agent *g)
{
    if (!g)
        return;
    attempts_clear(&g->attempts);
    list_for_each (it, &g->storing)
        storage_queue_free(list_entry(it, struct storage_queue, link));
    weft__v1__register__free_unpacked(g->about, NULL);
    free(g->cluster);
    free(g->incarnation);
    free(g);
}

// ---- the stream ----

static void connect_after(struct agent *g, int64_t wait_ns, int64_t now, struct agent_out *out)
{
    move_to(g, AGENT_AWAY, now);
    g->stream = true;
    agent_act(out, AGENT_CONNECT)->wait_ns = wait_ns;
}

// Somewhere in the upper half of the span, so that many workers do not come at once.
static int64_t draw_backoff(struct agent *g)
{
    int64_t span = BACKOFF_NS << (g->failures < 16 ? g->failures : 16), most = g->lease_ns / 4;
    struct rand_site site = {.stream = 1};
    memcpy(&site.seed, g->seed, sizeof site.seed);
    g->failures++;
    int64_t half = (span < most ? span : most) / 2;
    return half + (int64_t)((double)half * (double)rand_uniform(&site, g->draws++));
}

static void hang_up(struct agent *g, const char *why, int64_t now, struct agent_out *out)
{
    if (g->state != AGENT_FENCED)
        move_to(g, AGENT_CLOSING, now);
    agent_act(out, AGENT_DISCONNECT)->text = arena_strdup(out->arena, why);
}

static void on_open(struct agent *g, const struct agent_event *ev, struct agent_out *out)
{
    if (g->state != AGENT_AWAY)
        return;
    move_to(g, AGENT_GREETING, ev->now_ns);
    send_hello(g, out);
}

static void on_closed(struct agent *g, const struct agent_event *ev, struct agent_out *out)
{
    g->stream = false;
    if (g->state != AGENT_FENCED)
        connect_after(g, draw_backoff(g), ev->now_ns, out);
}

// ---- what the coordinator says ----

static void on_challenge(struct agent *g, const struct agent_event *ev, struct agent_out *out)
{
    const Weft__V1__Challenge *c = ev->down->challenge;
    char why[200];
    if (g->cluster && strcmp(g->cluster, c->cluster)) {
        snprintf(why, sizeof why, "the coordinator is of cluster %.64s, this worker of %.64s",
                 c->cluster, g->cluster);
        hang_up(g, why, ev->now_ns, out);
        return;
    }
    move_to(g, AGENT_REGISTERING, ev->now_ns);
    send_register(g, c, ev->now_ns, out);
}

static void on_registered(struct agent *g, const struct agent_event *ev, struct agent_out *out)
{
    const Weft__V1__Registered *r = ev->down->registered;
    move_to(g, AGENT_ATTACHED, ev->now_ns);
    g->failures = 0;
    g->lease_ns = r->lease_ms > 0 ? r->lease_ms * CLOCK_MS : LEASE_NS;
    g->heartbeat_ns = r->heartbeat_ms > 0 ? r->heartbeat_ms * CLOCK_MS : HEARTBEAT_NS;
    if (!g->cluster && *r->cluster) {
        g->cluster = heap_strdup(r->cluster);
        agent_act(out, AGENT_REMEMBER)->cluster = arena_strdup(out->arena, r->cluster);
    }
    if (g->terms)
        send_leaving(g, ev->now_ns, out);
    send_heartbeat(g, ev->now_ns, out);
    agent_resume(g);
}

static void on_fenced(struct agent *g, const struct agent_event *ev, struct agent_out *out)
{
    g->twin = ev->down->fenced->twin;
    move_to(g, AGENT_FENCED, ev->now_ns);
    hang_up(g, ev->down->fenced->why, ev->now_ns, out);
    agent_kill_all(g, out);
}

static void on_ack(struct agent *g, const struct agent_event *ev, struct agent_out *out)
{
    (void)g; // on_down() notes for every message that something was heard
    (void)ev;
    (void)out;
}

static void on_log_ask(struct agent *g, const struct agent_event *ev, struct agent_out *out)
{
    (void)g;
    agent_act(out, AGENT_LOGS)->log = message_dup(out->arena, &ev->down->log->base);
}

// ---- durable acts ----

static struct storage_queue *find_storage_queue(struct agent *g, const char *job)
{
    list_for_each (it, &g->storing) {
        struct storage_queue *q = list_entry(it, struct storage_queue, link);
        if (!strcmp(q->now->job, job))
            return q;
    }
    return NULL;
}

static void on_storage_ask(struct agent *g, const struct agent_event *ev, struct agent_out *out)
{
    const Weft__V1__Storage *ask = ev->down->storage;
    struct storage_queue *q = find_storage_queue(g, ask->job);
    (void)out;
    if (q && q->now->op == ask->op && q->now->attempt == ask->attempt &&
        !strcmp(q->now->attempt_id, ask->attempt_id))
        return; // it is being done
    if (!q) {
        q = heap_alloc(sizeof *q);
        list_append(&g->storing, &q->link);
    }
    weft__v1__storage__free_unpacked(q->next, NULL);
    q->next = message_copy(&ask->base);
}

static void on_stored(struct agent *g, const struct agent_event *ev, struct agent_out *out)
{
    struct storage_queue *q = find_storage_queue(g, ev->storage->job);
    send_storage(g, ev->storage, out);
    if (!q)
        return;
    weft__v1__storage__free_unpacked(q->now, NULL);
    q->now = NULL;
}

static void settle_storage(struct agent *g, struct agent_out *out)
{
    list_for_each (it, &g->storing) {
        struct storage_queue *q = list_entry(it, struct storage_queue, link);
        if (q->now)
            continue;
        if (!q->next) {
            storage_queue_free(q);
            continue;
        }
        q->now = q->next;
        q->next = NULL;
        agent_act(out, AGENT_STORAGE)->storage = message_dup(out->arena, &q->now->base);
    }
}

// ---- down, by kind and state ----

static void on_down(struct agent *g, const struct agent_event *ev, struct agent_out *out)
{
#define IN(s) (1u << AGENT_##s)
    static const struct {
        void (*fn)(struct agent *, const struct agent_event *, struct agent_out *);
        unsigned states; // in which it is heard
    } rows[] = {
        [WEFT__V1__DOWN__BODY_CHALLENGE] = {on_challenge, IN(GREETING) | IN(REGISTERING)},
        [WEFT__V1__DOWN__BODY_REGISTERED] = {on_registered, IN(REGISTERING)},
        [WEFT__V1__DOWN__BODY_FENCED] = {on_fenced, IN(GREETING) | IN(REGISTERING) | IN(ATTACHED)},
        [WEFT__V1__DOWN__BODY_ACK] = {on_ack, IN(ATTACHED)},
        [WEFT__V1__DOWN__BODY_STORAGE] = {on_storage_ask, IN(ATTACHED)},
        [WEFT__V1__DOWN__BODY_START] = {agent_start, IN(ATTACHED)},
        [WEFT__V1__DOWN__BODY_FRAME] = {agent_frame_down, IN(ATTACHED)},
        [WEFT__V1__DOWN__BODY_STOP] = {agent_stop, IN(ATTACHED)},
        [WEFT__V1__DOWN__BODY_LOG] = {on_log_ask, IN(ATTACHED)},
        [WEFT__V1__DOWN__BODY_SYNC] = {agent_sync, IN(ATTACHED)},
    };
#undef IN
    size_t kind = (size_t)ev->down->body_case;
    if (kind >= sizeof rows / sizeof *rows || !rows[kind].fn)
        return; // of a newer coordinator
    g->heard_ns = ev->now_ns;
    if (rows[kind].states & 1u << g->state)
        rows[kind].fn(g, ev, out);
}

// ---- this host ----

static void on_log(struct agent *g, const struct agent_event *ev, struct agent_out *out)
{
    send_log(g, ev->chunk, out);
}

static void exit_agent(struct agent *g, int code, const char *why, int64_t now,
                       struct agent_out *out)
{
    move_to(g, AGENT_DONE, now);
    struct agent_action *a = agent_act(out, AGENT_EXIT);
    a->code = code;
    a->text = arena_strdup(out->arena, why);
}

static void on_cleared(struct agent *g, const struct agent_event *ev, struct agent_out *out)
{
    if (g->state != AGENT_FENCED || !g->clearing)
        return;
    if (!ev->ok) {
        exit_agent(g, WORKER_EXIT_INTERNAL, ev->text ? ev->text : "ranks.lock is held", ev->now_ns,
                   out);
        return;
    }
    g->clearing = false;
    agent_forget_all(g);
    free(g->incarnation);
    g->incarnation = heap_strdup(ev->incarnation);
    g->failures = 0;
    if (g->stream)
        move_to(g, AGENT_AWAY, ev->now_ns); // CLOSED is still to come, and connects
    else
        connect_after(g, 0, ev->now_ns, out);
}

static void on_term(struct agent *g, const struct agent_event *ev, struct agent_out *out)
{
    char why[300];
    if (g->terms++) {
        g->term_ns = ev->now_ns;
        agent_kill_all(g, out);
        return;
    }
    g->term_ns = ev->now_ns + g->grace_ns;
    send_leaving(g, ev->now_ns, out);
    snprintf(why, sizeof why, "host %s is asked to stop", g->about->name);
    agent_drain(g, why, ev->now_ns, g->term_ns, out);
}

// ---- time ----

// Since when an answer of the coordinator has been due; 0: none is.
static int64_t find_silence_start(const struct agent *g)
{
    if (g->state == AGENT_ATTACHED)
        return g->heard_ns;
    if (g->state == AGENT_GREETING || g->state == AGENT_REGISTERING)
        return g->heard_ns > g->state_ns ? g->heard_ns : g->state_ns;
    return 0;
}

static void on_tick(struct agent *g, const struct agent_event *ev, struct agent_out *out)
{
    int64_t now = ev->now_ns;
    if (g->state == AGENT_AWAY && !g->stream)
        connect_after(g, 0, now, out);
    if (g->next_ns && now - g->next_ns > g->lease_ns / 4)
        g->heard_ns = now; // so late a tick means that this process itself stood still
    g->looked_ns = now;
    if (find_silence_start(g) && now - find_silence_start(g) >= g->lease_ns)
        hang_up(g, "the coordinator has said nothing for a lease", now, out);
    if (g->state != AGENT_ATTACHED)
        return;
    if (g->heartbeat_now || now - g->heartbeat_at_ns >= g->heartbeat_ns) {
        send_heartbeat(g, now, out);
        agent_repeat(g, now - g->heartbeat_ns);
    }
    if (now - g->progress_at_ns >= PROGRESS_NS && agent_has_progress(g))
        send_progress(g, now, out);
}

int64_t agent_due(const struct agent *g)
{
    int64_t due = 0;
    if (g->state == AGENT_DONE)
        return 0;
    if (find_silence_start(g))
        due = deadline_earlier(due, find_silence_start(g) + g->lease_ns);
    if (g->state == AGENT_ATTACHED) {
        due = deadline_earlier(due, g->heartbeat_now ? g->heartbeat_at_ns
                                                     : g->heartbeat_at_ns + g->heartbeat_ns);
        if (agent_has_progress(g))
            due = deadline_earlier(due, g->progress_at_ns + PROGRESS_NS);
    }
    for (struct list *it = g->attempts.all.next; it != &g->attempts.all; it = it->next)
        if (list_entry(it, struct local_attempt, link)->kill_ns)
            due = deadline_earlier(due, list_entry(it, struct local_attempt, link)->kill_ns);
    if (g->terms && !g->attempts.living && g->state != AGENT_ATTACHED)
        due = deadline_earlier(due, g->heard_ns + g->lease_ns);
    if (g->terms)
        due = deadline_earlier(due,
                               g->looked_ns < g->term_ns ? g->term_ns : g->term_ns + LAST_REAP_NS);
    return due;
}

// Whether the agent itself is over, or its fence is complete.
static void settle_end(struct agent *g, int64_t now, struct agent_out *out)
{
    bool dead = g->attempts.living == 0, synced = list_empty(&g->attempts.all);
    bool nobody = g->state == AGENT_FENCED || now >= g->term_ns ||
                  (g->state != AGENT_ATTACHED && now - g->heard_ns >= g->lease_ns);
    if (g->state == AGENT_FENCED && g->twin && dead) {
        exit_agent(g, WORKER_EXIT_FENCED, "another worker of this host registered", now, out);
    } else if (g->terms && now >= g->term_ns + LAST_REAP_NS) {
        exit_agent(g, WORKER_EXIT_ASKED, "asked to stop; some ranks may be left to die with it",
                   now, out);
    } else if (g->terms && dead &&
               (synced || nobody)) { // nobody: no coordinator that could hear it
        exit_agent(g, WORKER_EXIT_ASKED, "asked to stop", now, out);
    } else if (g->state == AGENT_FENCED && dead && !g->clearing && !g->twin) {
        g->clearing = true;
        agent_act(out, AGENT_CLEAR);
    }
}

static void on_room(struct agent *g, const struct agent_event *ev, struct agent_out *out)
{
    (void)out; // the next heartbeat has it
    g->room = ev->room;
}

static void settle_agent(struct agent *g, int64_t now, struct agent_out *out)
{
    agent_settle_attempts(g, now, out);
    settle_storage(g, out);
    settle_end(g, now, out);
}

void agent_step(struct agent *g, const struct agent_event *ev, struct agent_out *out)
{
    static void (*const handlers[AGENT_EVENTS])(struct agent *, const struct agent_event *,
                                                struct agent_out *) = {
        [AGENT_EV_OPEN] = on_open,         [AGENT_EV_CLOSED] = on_closed,
        [AGENT_EV_DOWN] = on_down,         [AGENT_EV_SPAWNED] = agent_spawned,
        [AGENT_EV_FRAME] = agent_frame_up, [AGENT_EV_ENDED] = agent_ended,
        [AGENT_EV_PAGE] = agent_page,      [AGENT_EV_STORAGE] = on_stored,
        [AGENT_EV_CLEARED] = on_cleared,   [AGENT_EV_LOG] = on_log,
        [AGENT_EV_TERM] = on_term,         [AGENT_EV_TICK] = on_tick,
        [AGENT_EV_ROOM] = on_room,
    };
    PRE(ev->kind < AGENT_EVENTS);
    if (g->state == AGENT_DONE)
        return;
    handlers[ev->kind](g, ev, out);
    if (g->state != AGENT_DONE)
        settle_agent(g, ev->now_ns, out);
    g->next_ns = agent_due(g);
}

int agent_living(const struct agent *g)
{
    return g->attempts.living;
}
