// SPDX-License-Identifier: Apache-2.0
// The link. See rank_link.h.
//
// One mutex guards the connection's queues and the answers that came. The control thread takes it
// for each round of its loop; callers take it to queue a frame or to wait for an answer. Callbacks
// run without it, under a mutex of their own, so that they may call functions of the link.
#include "worker/rank/link/rank_link.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/attempt/frame.h"
#include "common/attempt/page.h"
#include "common/base/clock.h"
#include "common/base/heap.h"
#include "common/base/log.h"
#include "common/base/system.h"
#include "worker/rank/link/answers.h"
#include "worker/rank/link/rank_frames.h"

// Step reports that wait leave with the next look.
enum { LOOK_MS = 125, CLOSE_MS = 2000 };

struct link {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    struct frame_conn conn;
    int wake, signals; // eventfd, signalfd
    bool signalled;    // one has come
    struct list answers;
    struct list asks; // that came, in their order
    Weft__Rank__Frame *assign;
    int rank;      // −1 before Assign
    bool reported; // a step was reported; only the training thread uses this
    int unreached; // 1 + the rank that was not found at its address, 0: none; as `reported`
    bool closing;
    int64_t close_ns; // when closing gives up
    bool shut;        // this side sends nothing more
    atomic_bool stop, lost;
    atomic_bool called_off; // the leader has said that no rank begins
    char lost_text[1000];
    pthread_mutex_t calls; // held while a callback runs
    void (*on_lost)(void *, const char *);
    void *on_lost_ctx;
    bool on_lost_called;
    void (*on_event)(void *, const struct link_event *);
    void *on_event_ctx;
};

static void wake_thread(struct link *l)
{
    (void)eventfd_write(l->wake, 1); // full means it is awake already
}

// ---- lost ----

// The caller holds the mutex. Only the first reason is kept.
static void set_lost(struct link *l, const char *why)
{
    if (atomic_load(&l->lost))
        return;
    snprintf(l->lost_text, sizeof l->lost_text, "%s", why);
    atomic_store(&l->lost, true);
    pthread_cond_broadcast(&l->cond);
    wake_thread(l);
}

static void lose_agent(struct link *l, const char *how)
{
    char text[900];
    snprintf(text, sizeof text, "lost the agent: %s", how);
    set_lost(l, text);
}

// Runs on the control thread, which does not hold the mutex then.
static void call_on_lost(struct link *l)
{
    pthread_mutex_lock(&l->calls);
    if (l->on_lost && !l->on_lost_called) {
        l->on_lost_called = true;
        l->on_lost(l->on_lost_ctx, l->lost_text);
    }
    pthread_mutex_unlock(&l->calls);
}

const char *link_lost(const struct link *l)
{
    return atomic_load(&l->lost) ? l->lost_text : NULL;
}

bool link_stop_requested(const struct link *l)
{
    return atomic_load_explicit(&l->stop, memory_order_relaxed);
}

void link_on_lost(struct link *l, void (*fn)(void *ctx, const char *why), void *ctx)
{
    pthread_mutex_lock(&l->calls);
    l->on_lost = fn;
    l->on_lost_ctx = ctx;
    l->on_lost_called = false;
    pthread_mutex_unlock(&l->calls);
    wake_thread(l);
}

void link_on_event(struct link *l, void (*fn)(void *ctx, const struct link_event *ev), void *ctx)
{
    pthread_mutex_lock(&l->calls);
    l->on_event = fn;
    l->on_event_ctx = ctx;
    pthread_mutex_unlock(&l->calls);
}

// ---- frames that come ----

struct pending_ask {
    struct list link;
    Weft__Rank__Frame *frame;
};

static void keep_ask(struct link *l, Weft__Rank__Frame *f)
{
    struct pending_ask *p = heap_alloc(sizeof *p);
    p->frame = f;
    list_append(&l->asks, &p->link);
    pthread_cond_broadcast(&l->cond);
}

// The oldest, or null.
static Weft__Rank__Frame *take_ask(struct link *l)
{
    if (list_empty(&l->asks))
        return NULL;
    struct pending_ask *p = list_entry(l->asks.next, struct pending_ask, link);
    Weft__Rank__Frame *f = p->frame;
    list_remove(&p->link);
    free(p);
    return f;
}

static void keep_answer(struct link *l, struct answer_key key, const char *value,
                        const char *failed)
{
    answers_add(&l->answers, &key, value, failed);
    pthread_cond_broadcast(&l->cond);
}

static void note_stop(struct link *l, const char *reason)
{
    if (atomic_exchange(&l->stop, true))
        return;
    log_info("link", "asked to stop: %s", reason);
    pthread_cond_broadcast(&l->cond); // calls that wait for other ranks give up
}

// Takes in an answer, or news of the attempt; the mutex is held. False: the frame is neither.
static bool take_answer(struct link *l, Weft__Rank__Frame *f)
{
    switch (f->body_case) {
    case WEFT__RANK__FRAME__BODY_READY_DONE:
        if (f->ready_done->called_off) {
            atomic_store(&l->called_off, true);
            note_stop(l, "before all ranks were ready");
            return true;
        }
        keep_answer(l, (struct answer_key){ANSWER_READY, "", 0}, "", f->ready_done->failed);
        return true;
    case WEFT__RANK__FRAME__BODY_KV_VALUE:
        keep_answer(
            l,
            (struct answer_key){f->kv_value->put ? ANSWER_PUT : ANSWER_VALUE, f->kv_value->key, 0},
            f->kv_value->value, f->kv_value->failed);
        return true;
    case WEFT__RANK__FRAME__BODY_BARRIER_DONE:
        keep_answer(
            l, (struct answer_key){ANSWER_BARRIER, f->barrier_done->name, f->barrier_done->seq}, "",
            f->barrier_done->failed);
        return true;
    case WEFT__RANK__FRAME__BODY_STOP:
        note_stop(l, f->stop->reason);
        return true;
    case WEFT__RANK__FRAME__BODY_LOST:
        set_lost(l, f->lost->why);
        return true;
    default:
        return false;
    }
}

// Hands an event of a checkpoint to on_event; the mutex is not held.
static void emit_event(struct link *l, const Weft__Rank__Frame *f)
{
    struct link_event ev = {0};
    struct arena a = {0};
    if (rank_frame_to_event(f, &a, &ev)) {
        pthread_mutex_lock(&l->calls);
        if (l->on_event)
            l->on_event(l->on_event_ctx, &ev);
        pthread_mutex_unlock(&l->calls);
    } else {
        log_warn("link", "ignored a frame of kind %d, which is damaged or not for a rank",
                 (int)f->body_case);
    }
    arena_clear(&a);
}

// The mutex is held, and released while a callback runs.
static void handle_frame(struct link *l, Weft__Rank__Frame *f)
{
    if (f->body_case == WEFT__RANK__FRAME__BODY_ASSIGN && !l->assign) {
        l->assign = f;
        l->rank = f->assign->rank;
        pthread_cond_broadcast(&l->cond);
        return;
    }
    if (f->body_case == WEFT__RANK__FRAME__BODY_ASK) {
        keep_ask(l, f);
        return;
    }
    if (!take_answer(l, f)) {
        pthread_mutex_unlock(&l->mutex);
        emit_event(l, f);
        pthread_mutex_lock(&l->mutex);
    }
    weft__rank__frame__free_unpacked(f, NULL);
}

// ---- the control thread ----

static void read_frames(struct link *l)
{
    struct err e = {0}, bad = {0};
    int rc = frame_fill(&l->conn, &e);
    Weft__Rank__Frame *f;
    while (!frame_next(&l->conn, &f, &bad) && f)
        handle_frame(l, f);
    if (bad.code)
        lose_agent(l, bad.text);
    else if (rc && !l->closing)
        lose_agent(l, e.text);
    else if (rc)
        l->close_ns = 0; // the leader has closed its side too: run_timers() ends the thread
}

static void read_signals(struct link *l)
{
    struct signalfd_siginfo info;
    while (read(l->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        const char *name = info.ssi_signo == SIGINT ? "SIGINT" : "SIGTERM";
        // A scheduler signals all processes of a step: beside the Stop frame that the worker's own
        // signal leads to it is no second one.
        if (l->signalled)
            set_lost(l, "ended by a second signal");
        l->signalled = true;
        note_stop(l, name);
    }
}

// Does what each round of the loop begins with. False: the thread is done.
static bool run_timers(struct link *l)
{
    struct err e = {0};
    if (frame_flush(&l->conn, &e)) {
        if (l->closing)
            return false;
        lose_agent(l, e.text);
    }
    if (!l->closing)
        return true;
    if (!l->shut && !frame_conn_pending(&l->conn)) {
        shutdown(l->conn.fd, SHUT_WR);
        l->shut = true;
    }
    return clock_mono_ns() < l->close_ns;
}

static void *run_control(void *arg)
{
    struct link *l = arg;
    pthread_mutex_lock(&l->mutex);
    while (run_timers(l)) {
        bool lost = atomic_load(&l->lost);
        struct pollfd p[3] = {
            {.fd = l->wake, .events = POLLIN},
            {.fd = l->signals, .events = POLLIN},
            {.fd = lost && !l->closing ? -1 : l->conn.fd, .events = POLLIN},
        };
        if (frame_conn_pending(&l->conn))
            p[2].events |= POLLOUT;
        pthread_mutex_unlock(&l->mutex);
        if (lost)
            call_on_lost(l);
        int n = poll(p, 3, LOOK_MS);
        pthread_mutex_lock(&l->mutex);
        if (n <= 0)
            continue;
        if (p[0].revents) {
            eventfd_t count;
            (void)eventfd_read(l->wake, &count);
        }
        if (p[1].revents)
            read_signals(l);
        if (p[2].revents & (POLLIN | POLLHUP | POLLERR))
            read_frames(l);
    }
    pthread_mutex_unlock(&l->mutex);
    return NULL;
}

// ---- opening and closing ----

static void free_link(struct link *l)
{
    answers_clear(&l->answers);
    for (Weft__Rank__Frame *f; (f = take_ask(l));)
        weft__rank__frame__free_unpacked(f, NULL);
    weft__rank__frame__free_unpacked(l->assign, NULL);
    frame_conn_clear(&l->conn);
    system_close(&l->wake);
    system_close(&l->signals);
    pthread_cond_destroy(&l->cond);
    pthread_mutex_destroy(&l->mutex);
    pthread_mutex_destroy(&l->calls);
    free(l);
}

// The agent knows which rank it has started; it learns the version and the pid.
static void queue_hello(struct link *l)
{
    FRAME_BODY(body, Hello, hello);
    body.version = FRAME_VERSION;
    FRAME(f, HELLO, hello, &body);
    (void)frame_queue(&l->conn, &f, NULL); // the queue is empty, so there is room
}

int link_open(int fd, struct link **out, struct err *e)
{
    struct link *l = heap_alloc(sizeof *l);
    clock_cond_init(&l->cond);
    pthread_mutex_init(&l->mutex, NULL);
    pthread_mutex_init(&l->calls, NULL);
    frame_conn_init(&l->conn, fd);
    list_init(&l->answers);
    list_init(&l->asks);
    l->rank = -1;
    queue_hello(l);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    l->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = 0;
    if (l->signals < 0 || l->wake < 0)
        rc = err_errno(e, ERR_INTERNAL, "cannot make the link's descriptors");
    else if ((errno = pthread_create(&l->thread, NULL, run_control, l)))
        rc = err_errno(e, ERR_INTERNAL, "cannot start the link's thread");
    if (rc) {
        free_link(l);
        return rc;
    }
    *out = l;
    return 0;
}

// Queues a frame for the next round of the control thread. If there is no room the leader does not
// read any more, so it counts as lost.
static void queue_frame(struct link *l, const Weft__Rank__Frame *f)
{
    struct err e = {0};
    pthread_mutex_lock(&l->mutex);
    if (!atomic_load(&l->lost) && frame_queue(&l->conn, f, &e))
        lose_agent(l, e.text);
    pthread_mutex_unlock(&l->mutex);
}

static void send_frame(struct link *l, const Weft__Rank__Frame *f)
{
    queue_frame(l, f);
    wake_thread(l);
}

void link_close(struct link *l, int code, const char *why)
{
    if (!l)
        return;
    char text[1000];
    snprintf(text, sizeof text, "%s", why ? why : "");
    FRAME_BODY(body, Exit, exit);
    body.code = code;
    body.why = text;
    body.unreached = l->unreached;
    FRAME(f, EXIT, exit, &body);
    pthread_mutex_lock(&l->mutex);
    (void)frame_queue(&l->conn, &f, NULL);
    l->closing = true;
    l->close_ns = clock_mono_ns() + CLOSE_MS * CLOCK_MS;
    pthread_mutex_unlock(&l->mutex);
    wake_thread(l);
    pthread_join(l->thread, NULL);
    free_link(l);
}

// ---- waiting ----

// False at the deadline (0: none). The mutex is held.
static bool wait_until(struct link *l, int64_t deadline_ns)
{
    if (deadline_ns)
        return clock_cond_wait(&l->cond, &l->mutex, deadline_ns);
    return !pthread_cond_wait(&l->cond, &l->mutex);
}

// Waits for an answer and copies its value. One of a failure becomes the error `code`.
static int wait_answer(struct link *l, const struct answer_key *key, int code, char *value,
                       size_t size, int64_t deadline_ns, struct err *e)
{
    char about[ANSWER_TEXT_MAX];
    int rc = 0;
    bool in_time = true;
    const struct answer *a;
    answer_key_text(key, about);
    pthread_mutex_lock(&l->mutex);
    while (!(a = answers_find(&l->answers, key)) && !atomic_load(&l->lost) &&
           !atomic_load(&l->stop) && in_time)
        in_time = wait_until(l, deadline_ns);
    if (a && a->failed[0])
        rc = err_set(e, code, "%s", a->failed);
    else if (a && value && strlen(a->value) >= size)
        rc = err_set(e, ERR_LIMIT, "the value of %s is too long", about);
    else if (a && value)
        strcpy(value, a->value);
    else if (!a && atomic_load(&l->lost))
        rc = err_set(e, ERR_PEER, "%s", l->lost_text);
    else if (!a && atomic_load(&l->stop))
        rc = err_set(e, ERR_ABORTED, "asked to stop while waiting for %s", about);
    else if (!a)
        rc = err_set(e, ERR_TIMEOUT, "the agent did not answer in time about %s", about);
    pthread_mutex_unlock(&l->mutex);
    return rc;
}

const char *link_lost_wait(struct link *l, int64_t wait_ns)
{
    int64_t deadline_ns = clock_mono_ns() + wait_ns;
    bool in_time = true;
    pthread_mutex_lock(&l->mutex);
    while (!atomic_load(&l->lost) && in_time)
        in_time = wait_until(l, deadline_ns);
    pthread_mutex_unlock(&l->mutex);
    return link_lost(l);
}

int link_assign(struct link *l, struct assignment *a, int64_t deadline_ns, struct err *e)
{
    int rc = 0;
    bool in_time = true;
    pthread_mutex_lock(&l->mutex);
    while (!l->assign && !atomic_load(&l->lost) && !atomic_load(&l->stop) && in_time)
        in_time = wait_until(l, deadline_ns);
    if (l->assign)
        rc = rank_frame_to_assignment(l->assign->assign, a, e);
    else if (atomic_load(&l->lost))
        rc = err_set(e, ERR_PEER, "%s", l->lost_text);
    else if (atomic_load(&l->stop))
        rc = err_set(e, ERR_ABORTED, "asked to stop before the assignment");
    else
        rc = err_set(e, ERR_TIMEOUT, "the agent did not assign in time");
    pthread_mutex_unlock(&l->mutex);
    return rc;
}

// ---- bootstrap ----

#define ALIVE_NS CLOCK_S // a wait without a deadline moves the page so often

int link_kv_put(struct link *l, const char *key, const char *value, struct err *e)
{
    const struct answer_key about = {ANSWER_PUT, key, 0};
    FRAME_BODY(body, KvPut, kv_put);
    body.key = frame_text(key);
    body.value = frame_text(value);
    FRAME(f, KV_PUT, kv_put, &body);
    send_frame(l, &f);
    return wait_answer(l, &about, ERR_EXISTS, NULL, 0, 0, e);
}

static void ask_for_key(struct link *l, const char *key)
{
    FRAME_BODY(body, KvGet, kv_get);
    body.key = frame_text(key);
    FRAME(f, KV_GET, kv_get, &body);
    send_frame(l, &f);
}

int link_kv_get(struct link *l, const char *key, char *value, size_t size, int64_t deadline_ns,
                struct err *e)
{
    const struct answer_key about = {ANSWER_VALUE, key, 0};
    ask_for_key(l, key);
    return wait_answer(l, &about, ERR_NOTFOUND, value, size, deadline_ns, e);
}

int link_kv_await(struct link *l, const char *key, char *value, size_t size,
                  struct progress_page *page, struct err *e)
{
    const struct answer_key about = {ANSWER_VALUE, key, 0};
    int rc = ERR_TIMEOUT;
    ask_for_key(l, key);
    while (rc == ERR_TIMEOUT) {
        struct err late = {0};
        rc = wait_answer(l, &about, ERR_NOTFOUND, value, size, clock_mono_ns() + ALIVE_NS, &late);
        if (rc && rc != ERR_TIMEOUT)
            return err_set(e, rc, "%s", late.text);
        if (page)
            page_beat(page);
    }
    return 0;
}

void link_unreached(struct link *l, int rank)
{
    l->unreached = rank + 1;
}

// The leader answers at a barrier's deadline, with the ranks that are missing. So this side waits
// longer by GRACE_S.
enum { GRACE_S = 5, READY_LOOK_MS = 5, READY_TRIES = 2000 };

int link_barrier(struct link *l, const char *name, int64_t seq, int64_t deadline_ns, struct err *e)
{
    const struct answer_key about = {ANSWER_BARRIER, name, seq};
    FRAME_BODY(body, Barrier, barrier);
    body.name = frame_text(name);
    body.seq = seq;
    body.timeout_ns = deadline_ns ? deadline_ns - clock_mono_ns() : 0;
    if (deadline_ns && body.timeout_ns <= 0)
        body.timeout_ns = 1;
    FRAME(f, BARRIER, barrier, &body);
    send_frame(l, &f);
    return wait_answer(l, &about, ERR_TIMEOUT, NULL, 0,
                       deadline_ns ? deadline_ns + GRACE_S * CLOCK_S : 0, e);
}

int link_ready(struct link *l, const char *plan_hash, const char *note, int64_t deadline_ns,
               struct err *e)
{
    const struct answer_key about = {ANSWER_READY, "", 0};
    FRAME_BODY(body, Ready, ready);
    body.plan_hash = frame_text(plan_hash);
    body.note = frame_text(note);
    FRAME(f, READY, ready, &body);
    send_frame(l, &f);
    int rc = wait_answer(l, &about, ERR_INVALID, NULL, 0, deadline_ns, e);
    // All ranks begin, or none: after a stop too the leader answers which. Only one that is not reached
    // does not, and is not waited for long.
    for (int i = 0; rc == ERR_ABORTED && !atomic_load(&l->called_off) && i < READY_TRIES; i++) {
        clock_sleep_ms(READY_LOOK_MS);
        rc = wait_answer(l, &about, ERR_INVALID, NULL, 0, deadline_ns, e);
    }
    return rc;
}

// ---- what it is asked ----

int link_await_ask(struct link *l, struct progress_page *page, Weft__Rank__Frame **out,
                   struct err *e)
{
    int rc = 0;
    *out = NULL;
    pthread_mutex_lock(&l->mutex);
    while (!atomic_load(&l->lost) && !(*out = take_ask(l)) && !atomic_load(&l->stop)) {
        (void)wait_until(l, clock_mono_ns() + ALIVE_NS);
        page_beat(page);
    }
    if (atomic_load(&l->lost) && !*out)
        rc = err_set(e, ERR_PEER, "%s", l->lost_text);
    pthread_mutex_unlock(&l->mutex);
    return rc;
}

void link_answer(struct link *l, const Weft__Rank__Answer *a)
{
    FRAME(f, ANSWER, answer, frame_borrow(a));
    send_frame(l, &f);
}

// ---- training and checkpoints ----

// The first report and those of evaluations are sent at once. The others do not wake the control
// thread: in its next round it sends the newest, so that short steps do not each pay for two threads
// and a socket.
void link_step_report(struct link *l, const struct step_row *row)
{
    Weft__Rank__StepReport body;
    rank_frame_from_row(row, &body);
    FRAME(f, STEP_REPORT, step_report, &body);
    queue_frame(l, &f);
    if (!l->reported || row->evaluated)
        wake_thread(l);
    l->reported = true;
}

void link_shard_done(struct link *l, const struct shard_report *r)
{
    struct arena a = {0};
    Weft__Rank__ShardDone body;
    rank_frame_from_shard(r, &a, &body);
    body.rank = l->rank;
    FRAME(f, SHARD_DONE, shard_done, &body);
    send_frame(l, &f);
    arena_clear(&a);
}

void link_commit_done(struct link *l, int64_t step, int code, const char *text)
{
    FRAME_BODY(body, CommitDone, commit_done);
    body.step = step;
    body.code = code;
    body.text = frame_text(text);
    FRAME(f, COMMIT_DONE, commit_done, &body);
    send_frame(l, &f);
}

void link_deleted(struct link *l, struct store_entry id, int code)
{
    FRAME_BODY(body, Deleted, deleted);
    body.attempt = id.attempt;
    body.step = id.step;
    body.code = code;
    FRAME(f, DELETED, deleted, &body);
    send_frame(l, &f);
}
