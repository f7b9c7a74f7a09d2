// SPDX-License-Identifier: Apache-2.0
// The running worker. See worker_daemon.h.
#include "worker/worker_daemon.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/attempt/frame.h"
#include "common/base/clock.h"
#include "common/base/deadline.h"
#include "common/base/entropy.h"
#include "common/base/heap.h"
#include "common/base/log.h"
#include "common/base/notify.h"
#include "worker/disk_room.h"
#include "worker/rank_logs.h"
#include "worker/sinks/sinks.h"
#include "worker/storage.h"
#include "worker/supervise.h"

#define LOOK_NS       (100 * CLOCK_MS) // between two looks at the pages, while ranks live
#define GOODBYE_NS    (500 * CLOCK_MS) // for the last words to leave
#define BACKOFF_NS    (200 * CLOCK_MS) // of the channel's own connecting; the agent's comes on top
#define LOGS_NS       (10 * CLOCK_MS) // between two looks whether the stream has room for logs again
#define REMIND_NS     (60 * CLOCK_S)  // between two lines about the same loss
#define SINKS_REST_NS (10 * CLOCK_S)  // for sinks, after the end of their rank 0
enum { LATE_MAX = 4096 };

const struct rpc_method hosts_attach = {.path = "/weft.v1.Hosts/Attach",
                                        .shape = RPC_BIDI,
                                        .request = &weft__v1__up__descriptor,
                                        .reply = &weft__v1__down__descriptor,
                                        .roles = RPC_WORKER};
const struct rpc_method hosts_join = {.path = "/weft.v1.Hosts/Join",
                                      .shape = RPC_UNARY,
                                      .request = &weft__v1__join_request__descriptor,
                                      .reply = &weft__v1__join_reply__descriptor,
                                      .roles = RPC_NONE};

struct late { // an event that an action caused: it is fed when all actions are done
    struct agent_event ev;
    char text[1000];
};

struct worker_daemon {
    const struct worker_daemon_config *c;
    struct agent *agent;
    struct poll_loop *loop; // borrowed
    struct logs *logs;
    struct supervise *supervise;
    struct storage *storage;
    struct sinks *sinks;
    struct buf lacks; // names of sinks that a job here wants; of lacks_slot, whose Ready says it
    int lacks_slot;
    struct rpc *rpc;
    struct rpc_channel *channel;
    uint64_t call;      // 0: no stream
    int64_t connect_ns; // when to open one; 0: not
    int64_t look_ns;    // the last look at the pages
    int64_t lost_ns;    // when the loss of the coordinator was last logged; 0: it is there
    char lost_why[64];  // as it was logged
    struct poll_loop_source *on_rpc, *on_storage;
    struct disk_room *room;
    struct late *late;
    int nlate;
    bool feeding, exits, attached, connected;
    char incarnation[ID_LEN];
    int code;
};

static void feed_agent(struct worker_daemon *d, struct agent_event ev);

// ---- actions ----

static void feed_later(struct worker_daemon *d, struct agent_event ev, const char *text)
{
    PRE(d->nlate < LATE_MAX);
    struct late *l = &d->late[d->nlate++];
    l->ev = ev;
    snprintf(l->text, sizeof l->text, "%s", text);
}

static void do_connect(struct worker_daemon *d, const struct agent_action *a)
{
    d->connect_ns = clock_mono_ns() + a->wait_ns;
}

static void do_disconnect(struct worker_daemon *d, const struct agent_action *a)
{
    log_warn("worker", "ends the stream to the coordinator: %s", a->text);
    rpc_cancel(d->rpc, d->call);
}

static void do_send(struct worker_daemon *d, const struct agent_action *a)
{
    struct err e = {0};
    if (!d->call || !rpc_send(d->rpc, d->call, &a->up->base, &e))
        return;
    log_warn("worker", "the coordinator does not read: %s", e.text);
    rpc_cancel(d->rpc, d->call); // what counts is brought by the next Register
}

static void begin_sinks(struct worker_daemon *d, const struct agent_action *a)
{
    buf_reset(&d->lacks);
    d->lacks_slot = a->slot;
    sinks_begin(d->sinks, a->slot, a->spawn->assign, &d->lacks);
    if (d->lacks.len)
        log_warn("worker", "job=%s this worker has no sinks of these names: %s", a->spawn->job,
                 buf_str(&d->lacks));
}

static void do_spawn(struct worker_daemon *d, const struct agent_action *a)
{
    struct err e = {0};
    struct agent_event ev = {.kind = AGENT_EV_SPAWNED, .slot = a->slot};
    ev.ok = supervise_spawn(d->supervise, a->slot, a->spawn, &ev.pid, &e) == 0;
    if (!ev.ok)
        log_error("worker", "job=%s rank=%d %s", a->spawn->job, a->spawn->rank, e.text);
    else if (a->spawn->rank == 0)
        begin_sinks(d, a);
    feed_later(d, ev, e.text);
}

static void do_frame(struct worker_daemon *d, const struct agent_action *a)
{
    supervise_frame(d->supervise, a->slot, a->frame);
}

static void do_kill(struct worker_daemon *d, const struct agent_action *a)
{
    supervise_kill(d->supervise, a->slot, a->signal);
}

static void do_storage(struct worker_daemon *d, const struct agent_action *a)
{
    storage_ask(d->storage, a->storage, d->c->home->cluster);
}

static void do_logs(struct worker_daemon *d, const struct agent_action *a)
{
    logs_ask(d->logs, a->log);
}

static void do_clear(struct worker_daemon *d, const struct agent_action *a)
{
    struct err e = {0};
    (void)a;
    int rc = supervise_prove(d->supervise, &e);
    if (!rc)
        rc = entropy_id(d->incarnation, &e);
    log_info("worker", "fenced; %s", rc ? e.text : "no rank lives, and it registers again");
    feed_later(d,
               (struct agent_event){
                   .kind = AGENT_EV_CLEARED, .ok = rc == 0, .incarnation = d->incarnation},
               e.text);
}

static void do_remember(struct worker_daemon *d, const struct agent_action *a)
{
    struct err e = {0};
    if (!home_remember(d->c->home, a->cluster, &e))
        return;
    log_error("worker", "%s", e.text);
    d->exits = true;
    d->code = WORKER_EXIT_INTERNAL;
}

static void do_forget(struct worker_daemon *d, const struct agent_action *a)
{
    supervise_forget(d->supervise, a->job, a->attempt);
}

static void do_exit(struct worker_daemon *d, const struct agent_action *a)
{
    log_info("worker", "ends: %s", a->text);
    d->exits = true;
    d->code = a->code;
}

static void carry_out(struct worker_daemon *d, const struct agent_out *out)
{
    static void (*const acts[])(struct worker_daemon *, const struct agent_action *) = {
        [AGENT_CONNECT] = do_connect, [AGENT_DISCONNECT] = do_disconnect,
        [AGENT_SEND] = do_send,       [AGENT_SPAWN] = do_spawn,
        [AGENT_FRAME] = do_frame,     [AGENT_KILL] = do_kill,
        [AGENT_STORAGE] = do_storage, [AGENT_LOGS] = do_logs,
        [AGENT_CLEAR] = do_clear,     [AGENT_REMEMBER] = do_remember,
        [AGENT_FORGET] = do_forget,   [AGENT_EXIT] = do_exit,
    };
    for (int i = 0; i < out->n && !d->exits; i++)
        acts[out->v[i].kind](d, &out->v[i]);
}

static void step_agent(struct worker_daemon *d, struct agent_event *ev)
{
    struct arena arena = {0};
    struct agent_out out = {.arena = &arena};
    ev->now_ns = clock_mono_ns();
    agent_step(d->agent, ev, &out);
    carry_out(d, &out);
    arena_clear(&arena);
}

// An event that an action causes (a spawn that failed, a line that was asked for) waits until all
// actions are done.
static void feed_agent(struct worker_daemon *d, struct agent_event ev)
{
    bool outer = !d->feeding;
    d->feeding = true;
    step_agent(d, &ev);
    for (int i = 0; outer && i < d->nlate; i++) { // more may come behind
        struct late l = d->late[i];
        l.ev.text = l.text;
        step_agent(d, &l.ev);
    }
    if (outer) {
        d->nlate = 0;
        d->feeding = false;
    }
}

// ---- the coordinator ----

// The first failure is logged, and one that says something new, then one a minute.
static void say_lost(struct worker_daemon *d, const char *why)
{
    int64_t now = clock_mono_ns();
    if (d->lost_ns && now - d->lost_ns < REMIND_NS &&
        !strncmp(d->lost_why, why, sizeof d->lost_why - 1))
        return;
    d->lost_ns = now;
    snprintf(d->lost_why, sizeof d->lost_why, "%s", why);
    log_warn("worker", "the stream to %s ended: %s", d->c->coordinator, why);
}

static void set_connected(struct worker_daemon *d, bool is)
{
    struct err e = {0};
    d->connected = is;
    d->attached |= is;
    if (home_mark_attached(d->c->home, is, &e))
        log_warn("worker", "probes see it wrongly: %s", e.text);
}

static void on_stream(struct worker_daemon *d, struct rpc_event *ev)
{
    if (ev->call != d->call)
        return;
    if (ev->kind == RPC_MESSAGE) {
        const Weft__V1__Down *down = (const Weft__V1__Down *)(const void *)ev->message;
        feed_agent(d, (struct agent_event){.kind = AGENT_EV_DOWN, .down = down});
        if (down->body_case == WEFT__V1__DOWN__BODY_REGISTERED) {
            log_info("worker", "attached to %s", d->c->coordinator);
            d->lost_ns = 0;
            set_connected(d, true);
        }
        rpc_more(d->rpc, ev->call);
    } else if (ev->kind == RPC_CLOSED) {
        d->call = 0;
        set_connected(d, false);
        say_lost(d, ev->text);
        logs_drop_all(d->logs);
        feed_agent(d, (struct agent_event){.kind = AGENT_EV_CLOSED, .text = ev->text});
    }
}

static void on_rpc(void *ctx, uint32_t events)
{
    struct worker_daemon *d = ctx;
    struct rpc_event ev;
    (void)events;
    while (!d->exits && rpc_next(d->rpc, &ev)) {
        on_stream(d, &ev);
        rpc_event_clear(&ev);
    }
}

// ---- this host ----

// The Ready of a rank 0 carries a note for people: sinks that are not here are said in it.
static void note_lacks(struct worker_daemon *d, const Weft__Rank__Ready *is)
{
    struct buf note = {0};
    buf_printf(&note, "%s%sthis host's worker has no sinks of these names: %s", is->note,
               *is->note ? "; " : "", buf_str(&d->lacks));
    Weft__Rank__Ready ready = *is;
    ready.note = note.data;
    FRAME(f, READY, ready, &ready);
    feed_agent(d, (struct agent_event){.kind = AGENT_EV_FRAME, .slot = d->lacks_slot, .frame = &f});
    buf_reset(&d->lacks);
    buf_clear(&note);
}

static void on_rank_frame(void *ctx, int slot, const Weft__Rank__Frame *f)
{
    struct worker_daemon *d = ctx;
    if (f->body_case == WEFT__RANK__FRAME__BODY_READY && d->lacks.len && slot == d->lacks_slot)
        note_lacks(d, f->ready);
    else
        feed_agent(d, (struct agent_event){.kind = AGENT_EV_FRAME, .slot = slot, .frame = f});
}

static void on_rank_page(void *ctx, int slot, const struct page_view *v)
{
    feed_agent(ctx, (struct agent_event){.kind = AGENT_EV_PAGE, .slot = slot, .page = v});
}

static void on_rank_ended(void *ctx, int slot, int code, int signal, const char *log)
{
    log_info("worker", "slot %d ended: %s %d", slot, signal ? "signal" : "exit code",
             signal ? signal : code);
    sinks_end(((struct worker_daemon *)ctx)->sinks, slot);
    feed_agent(
        ctx, (struct agent_event){
                 .kind = AGENT_EV_ENDED, .slot = slot, .code = code, .signal = signal, .log = log});
}

static void on_log(void *ctx, const Weft__V1__LogChunk *chunk)
{
    feed_agent(ctx, (struct agent_event){.kind = AGENT_EV_LOG, .chunk = chunk});
}

// Logs share the stream with heartbeats and frames, and give way to them.
static bool has_no_room_for_logs(void *ctx)
{
    struct worker_daemon *d = ctx;
    return rpc_lags(d->rpc, d->call);
}

static void on_storage(void *ctx, uint32_t events)
{
    struct worker_daemon *d = ctx;
    Weft__V1__StorageDone *m;
    (void)events;
    while ((m = storage_next(d->storage))) {
        if (!m->ok)
            log_warn("worker", "job=%s %s", m->job, m->why);
        feed_agent(d, (struct agent_event){.kind = AGENT_EV_STORAGE, .storage = m});
        weft__v1__storage_done__free_unpacked(m, NULL);
    }
}

void worker_daemon_stop(struct worker_daemon *d)
{
    notify_service("STOPPING=1");
    feed_agent(d, (struct agent_event){.kind = AGENT_EV_TERM});
}

void worker_daemon_signal_ranks(struct worker_daemon *d, int sig)
{
    supervise_signal_all(d->supervise, sig);
}

bool worker_daemon_attached(const struct worker_daemon *d)
{
    return d->attached;
}

bool worker_daemon_connected(const struct worker_daemon *d)
{
    return d->connected;
}

// ---- the loop ----

bool worker_daemon_turn(struct worker_daemon *d)
{
    int64_t now = clock_mono_ns(), due = deadline_earlier(agent_due(d->agent), d->connect_ns);
    if (agent_living(d->agent))
        due = deadline_earlier(due, d->look_ns + LOOK_NS);
    if (logs_waiting(d->logs))
        due = deadline_earlier(due, now + (has_no_room_for_logs(d) ? LOGS_NS : 0));
    poll_loop_run_once(d->loop, !due ? -1 : due > now ? due - now : 0);
    logs_resume(d->logs);
    now = clock_mono_ns();
    if (agent_living(d->agent) && now - d->look_ns >= LOOK_NS) {
        d->look_ns = now;
        supervise_look(d->supervise);
    }
    if (!d->exits && d->connect_ns && now >= d->connect_ns) {
        d->connect_ns = 0;
        d->call = rpc_call(d->channel, &hosts_attach, NULL, 0, false, d);
        feed_agent(d, (struct agent_event){.kind = AGENT_EV_OPEN});
    }
    struct agent_event seen = {.kind = AGENT_EV_ROOM};
    if (!d->exits && disk_room_take(d->room, &seen.room))
        feed_agent(d, seen);
    if (!d->exits && agent_due(d->agent) && now >= agent_due(d->agent))
        feed_agent(d, (struct agent_event){.kind = AGENT_EV_TICK});
    return !d->exits;
}

// Lets what was sent last leave before the process does.
static void say_goodbye(struct worker_daemon *d)
{
    int64_t until = clock_mono_ns() + GOODBYE_NS;
    struct rpc_event ev;
    bool open = d->call != 0;
    if (open)
        rpc_finish(d->rpc, d->call, RPC_OK, "");
    while (open && clock_mono_ns() < until) {
        (void)rpc_wait(d->rpc, until - clock_mono_ns());
        while (rpc_next(d->rpc, &ev)) {
            if (ev.call == d->call && ev.kind == RPC_MESSAGE)
                rpc_more(d->rpc, ev.call);
            if (ev.call == d->call && ev.kind == RPC_CLOSED)
                open = false;
            rpc_event_clear(&ev);
        }
    }
}

// ---- life ----

static int open_agent(struct worker_daemon *d, struct err *e)
{
    struct agent_config a = d->c->agent;
    int rc = entropy_id(d->incarnation, e);
    rc = rc ? rc : entropy_bytes(a.seed, sizeof a.seed, e);
    a.incarnation = d->incarnation;
    a.cluster = d->c->home->cluster;
    if (!rc)
        d->agent = agent_new(&a);
    return rc;
}

static int open_hands(struct worker_daemon *d, struct err *e)
{
    char jobs[4100];
    struct supervise_config s = {
        .loop = d->loop,
        .state = d->c->home->dir,
        .runs = d->c->runs,
        .rank = d->c->rank,
        .share = d->c->agent.about->share,
        .ops = {d, on_rank_frame, on_rank_page, on_rank_ended},
    };
    const Weft__V1__Register *about = d->c->agent.about;
    struct storage_config t = {about->checkpoint_root, about->data_root, about->host, about->name};
    snprintf(jobs, sizeof jobs, "%s/jobs", d->c->home->dir);
    s.logs = d->logs = logs_new(jobs, &(struct logs_ops){d, on_log, has_no_room_for_logs});
    int rc = supervise_open(&s, &d->supervise, e);
    return rc ? rc : storage_open(&t, &d->storage, e);
}

int worker_daemon_open(const struct worker_daemon_config *c, struct poll_loop *loop,
                       struct worker_daemon **out, struct err *e)
{
    struct worker_daemon *d = heap_alloc(sizeof *d);
    const struct rpc_channel_options channel = {
        .address = c->coordinator, .tls = c->tls, .max_backoff_ns = BACKOFF_NS};
    *d = (struct worker_daemon){
        .c = c, .loop = loop, .late = heap_alloc(sizeof *d->late * LATE_MAX)};
    int rc = open_agent(d, e);
    rc = rc ? rc : open_hands(d, e);
    rc = rc ? rc : sinks_open(c->sinks, c->nsinks, SINKS_REST_NS, &d->sinks, e);
    rc = rc ? rc : disk_room_open(c->home->dir, c->agent.about->checkpoint_root, &d->room, e);
    rc = rc ? rc : rpc_open(&d->rpc, e);
    rc = rc ? rc : rpc_dial(d->rpc, &channel, &d->channel, e);
    rc = rc ? rc : poll_loop_add(loop, rpc_fd(d->rpc), EPOLLIN, on_rpc, d, &d->on_rpc, e);
    rc =
        rc ? rc
           : poll_loop_add(loop, storage_fd(d->storage), EPOLLIN, on_storage, d, &d->on_storage, e);
    if (rc) {
        (void)worker_daemon_close(d);
        return rc;
    }
    notify_service("READY=1");
    feed_agent(d, (struct agent_event){.kind = AGENT_EV_TICK});
    *out = d;
    return 0;
}

int worker_daemon_close(struct worker_daemon *d)
{
    if (!d)
        return 0;
    int code = d->code;
    set_connected(d, false);
    poll_loop_drop(d->on_rpc);
    poll_loop_drop(d->on_storage);
    say_goodbye(d);
    supervise_close(d->supervise);
    sinks_close(d->sinks, d->c->sinks_wait);
    buf_clear(&d->lacks);
    storage_close(d->storage);
    disk_room_close(d->room);
    rpc_close(d->rpc);
    logs_free(d->logs);
    agent_free(d->agent);
    free(d->late);
    free(d);
    return code;
}
