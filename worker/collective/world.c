// SPDX-License-Identifier: Apache-2.0
// The world: opening, waiting, breaking, closing. All waiting of all operations is world_wait():
// it steps what is open, spins for a while, then naps until a peer wakes it, a
// connection ends or time is up. Nothing here knows what an operation does (operation.c) or how a peer
// is reached (shm.c, tcp.c). There is no thread: a rank that computes does not move data.
#include "worker/collective/world.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"

// Turns before a nap. A turn pauses for some 40 of a bare loop's; after QUIET of them it yields the
// core instead, which costs nothing where nobody else wants it.
enum { QUIET = 40, SPIN = 400, SPIN_YIELD = 20, SPIN_REMOTE = 50 };

struct sockets {
    int page_fd, window_fd, poke_fd;
    struct pollfd *polls; // [ranks + 1]
    struct peer **polled;
};

static const struct world_kind process_world;

// ---- life ----
struct world *world_new(int rank, int ranks, const struct world_kind *kind)
{
    struct world *w = calloc(1, sizeof *w);
    struct peer *peers = calloc((size_t)ranks, sizeof *peers);
    if (!w || !peers) {
        free(w);
        free(peers);
        return NULL;
    }
    *w = (struct world){.rank = rank, .ranks = ranks, .kind = kind, .peers = peers, .spin = SPIN};
    for (int i = 0; i < ranks; i++)
        peers[i] = (struct peer){.rank = i, .fd = -1};
    return w;
}

void world_free(struct world *w)
{
    for (int i = 0; i < w->ncommunicators; i++)
        communicator_delete(w->communicators[i]);
    free(w->peers);
    free(w);
}

int world_rank(const struct world *w)
{
    return w->rank;
}

int world_ranks(const struct world *w)
{
    return w->ranks;
}

// ---- breaking ----
static void publish_state(struct world *w, enum peer_state state, const struct err *e)
{
    struct peer_page *page = w->page;
    if (e) {
        page->code = (uint32_t)e->code;
        snprintf(page->why, sizeof page->why, "%s", e->text);
    }
    atomic_store_explicit(&page->state, state, memory_order_release);
    for (int i = 0; i < w->ranks; i++) {
        struct peer *p = &w->peers[i];
        if (p->link && !p->dead)
            tcp_send_bye(w, p);
        else if (p->local && i != w->rank && p->page)
            world_wake(w, p);
    }
}

int world_break(struct world *w, struct err *e)
{
    if (!w->broken.code) {
        w->broken = *e;
        publish_state(w, PEER_BROKEN, e);
    }
    return e->code;
}

void world_abort(struct world *w, const char *why)
{
    uint32_t none = 0;
    if (!atomic_compare_exchange_strong(&w->aborted, &none, 1))
        return;
    snprintf(w->abort_why, sizeof w->abort_why, "%s", why);
    atomic_store_explicit(&w->aborted, 2, memory_order_release);
    w->kind->poke(w);
}

// What a peer said when it broke, as our own error: who is lost or late stays the same thing, an
// abort there is a lost peer here.
static int adopt_error(const struct peer *p, struct err *e)
{
    int code = (int)p->page->code;
    char why[sizeof p->page->why];
    snprintf(why, sizeof why, "%.*s", (int)sizeof why - 1, p->page->why);
    if (code == ERR_PEER || code == ERR_TIMEOUT)
        return err_set(e, code, "%s (told by rank %d)", why, p->rank);
    return err_set(e, ERR_PEER, "rank %d gave up: %s", p->rank, why);
}

static enum peer_state read_state(const struct peer *p)
{
    return p->page ? (enum peer_state)atomic_load_explicit(&p->page->state, memory_order_acquire)
                   : PEER_OPEN;
}

// A peer that is gone without a word comes first: the others' words are about it.
static int look_at_peers(struct world *w, struct err *e)
{
    for (int i = 0; i < w->ranks; i++) {
        const struct peer *p = &w->peers[i];
        if (!p->dead || read_state(p) != PEER_OPEN)
            continue;
        char text[TEXT];
        uint64_t entered = p->page ? atomic_load(&p->page->entered) : 0;
        if (!entered || !peer_page_text(p->page, text))
            return err_set(e, ERR_PEER, "rank %d died%s%s", i, *p->why ? ": " : "", p->why);
        return err_set(e, ERR_PEER, "rank %d died%s%s; it last entered #%" PRIu64 " (%s)", i,
                       *p->why ? ": " : "", p->why, entered, text);
    }
    for (int i = 0; i < w->ranks; i++)
        if (read_state(&w->peers[i]) == PEER_BROKEN && i != w->rank)
            return adopt_error(&w->peers[i], e);
    int gone = world_find_deserter(w);
    if (gone >= 0)
        return err_set(e, ERR_PEER, "rank %d has left", gone);
    return 0;
}

int world_look(struct world *w, struct err *e)
{
    if (w->broken.code) {
        if (e)
            *e = w->broken;
        return w->broken.code;
    }
    if (atomic_load_explicit(&w->aborted, memory_order_acquire) == 2)
        return err_set(e, ERR_ABORTED, "%s", w->abort_why);
    return 0;
}

// ---- waiting ----
static inline void pause_core(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

bool world_step(struct world *w)
{
    w->moved = false;
    if (w->kind->pump && w->remotes && w->kind->pump(w))
        w->moved = true;
    if (world_step_all(w))
        w->moved = true;
    return w->moved;
}

// Between a store and the look at what the other side stores: `sleeping` and the notes. gcc warns
// that the thread sanitizer does not see it; all accesses around it are atomic anyway.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtsan"
#endif
static inline void full_fence(void)
{
    atomic_thread_fence(memory_order_seq_cst);
}
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

void world_wake(struct world *w, struct peer *p)
{
    full_fence();
    if (atomic_load_explicit(&p->page->sleeping, memory_order_relaxed) &&
        atomic_exchange(&p->page->sleeping, 0))
        w->kind->wake(w, p);
}

static void publish_awaited(struct world *w, uint64_t word)
{
    if (w->progress)
        atomic_store_explicit(&w->progress->awaited, word, memory_order_relaxed);
}

// Naps unless there is something to do after all. The peer that stores after our last look sees
// `sleeping` and wakes us.
static int nap_unless(struct world *w, bool (*ready)(void *), void *arg, int64_t until,
                      struct err *e)
{
    int rc = 0;
    atomic_store(&w->page->sleeping, 1);
    full_fence();
    if (!world_step(w) && !ready(arg)) {
        rc = world_look(w, e);
        if (!rc)
            rc = look_at_peers(w, e);
    }
    if (!rc && !w->moved && !ready(arg)) {
        publish_awaited(w, world_find_awaited(w));
        rc = w->kind->nap(w, until, e);
    }
    atomic_store(&w->page->sleeping, 0);
    return rc;
}

int world_wait(struct world *w, bool (*ready)(void *), void *arg, int64_t limit_ns, struct err *e)
{
    struct err own;
    int idle = 0;
    int64_t until = 0;
    bool napped = false;
    if (!e)
        e = &own;
    for (;;) {
        if (world_look(w, e))
            return world_break(w, e);
        w->moved = false;
        if (ready(arg)) {
            if (napped)
                publish_awaited(w, 0);
            return 0;
        }
        if (w->moved || ((w->remotes || idle % 16 == 15) && world_step(w)))
            idle = 0;
        else if (++idle < w->spin)
            w->yield || idle > QUIET ? (void)sched_yield() : pause_core();
        else {
            if (!until && limit_ns)
                until = clock_mono_ns() + limit_ns;
            if (until && clock_mono_ns() >= until)
                return err_set(e, ERR_TIMEOUT, "not within %.3g s", (double)limit_ns / 1e9);
            napped = true;
            if (nap_unless(w, ready, arg, until, e))
                return ready(arg) ? 0 : world_break(w, e);
        }
    }
}

// ---- worlds of processes ----
static void socket_wake(struct world *w, struct peer *p)
{
    (void)w;
    // A full socket means that it has wake-ups to read; a broken one is seen by the next nap.
    (void)!send(p->fd, "w", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static bool socket_pump(struct world *w)
{
    bool moved = false;
    for (int i = 0; i < w->ranks; i++) {
        struct peer *p = &w->peers[i];
        if (!p->link || p->dead)
            continue;
        moved |= tcp_receive(w, p);
        moved |= !p->dead && tcp_send(w, p);
    }
    return moved;
}

static int64_t milliseconds_until(int64_t until)
{
    if (!until)
        return -1;
    int64_t left = (until - clock_mono_ns() + CLOCK_MS - 1) / CLOCK_MS;
    return left < 0 ? 0 : left > 3600000 ? 3600000 : left;
}

static int socket_nap(struct world *w, int64_t until, struct err *e)
{
    struct sockets *s = w->own;
    nfds_t n = 0;
    s->polls[n++] = (struct pollfd){.fd = s->poke_fd, .events = POLLIN};
    for (int i = 0; i < w->ranks; i++) {
        struct peer *p = &w->peers[i];
        if (p->fd < 0 || p->dead)
            continue;
        s->polled[n] = p;
        short out = p->link && tcp_is_blocked(p) ? POLLOUT : 0;
        s->polls[n++] = (struct pollfd){.fd = p->fd, .events = POLLIN | out};
    }
    if (poll(s->polls, n, (int)milliseconds_until(until)) < 0)
        return 0; // a signal: look again
    for (nfds_t i = 1; i < n; i++)
        if (s->polls[i].revents && s->polled[i]->local)
            shm_read(w, s->polled[i]);
    (void)e;
    return 0;
}

static void socket_poke(struct world *w)
{
    struct sockets *s = w->own;
    uint64_t one = 1;
    (void)!write(s->poke_fd, &one, sizeof one);
}

static bool have_all_windows(void *arg)
{
    struct world *w = arg;
    for (int i = 0; i < w->ranks; i++)
        if (w->peers[i].local && !w->peers[i].window)
            return false;
    return true;
}

static int socket_window(struct world *w, size_t bytes, struct err *e)
{
    struct sockets *s = w->own;
    int rc = shm_window(w, bytes, &s->window_fd, e);
    for (int i = 0; i < w->ranks && !rc; i++)
        if (w->peers[i].local && i != w->rank)
            rc = shm_send(&w->peers[i], 'W', s->window_fd, e);
    if (rc)
        return world_break(w, e);
    rc = world_wait(w, have_all_windows, w, w->connect_ns, e);
    if (rc == ERR_TIMEOUT && !w->broken.code) {
        int i = 0;
        while (i < w->ranks - 1 && (!w->peers[i].local || w->peers[i].window))
            i++;
        err_set(e, rc, "rank %d has not opened its window", i);
        world_break(w, e);
    }
    return rc;
}

static bool are_all_flushed(void *arg)
{
    struct world *w = arg;
    for (int i = 0; i < w->ranks; i++)
        if (w->peers[i].link && !w->peers[i].dead && !tcp_is_flushed(&w->peers[i]))
            return false;
    return true;
}

static void socket_close(struct world *w)
{
    struct sockets *s = w->own;
    // The last frames go out even if the peer is slow to read; one that never does is not waited
    // for long. What came meanwhile is read, or close() would reset what we sent.
    int64_t until = clock_mono_ns() + CLOCK_S / 2;
    while (!are_all_flushed(w) && clock_mono_ns() < until)
        if (!socket_pump(w))
            clock_sleep_ms(1);
    for (int i = 0; i < w->ranks; i++) {
        struct peer *p = &w->peers[i];
        if (p->fd >= 0)
            close(p->fd);
        tcp_link_free(p->link);
        if (p->window && i != w->rank)
            munmap(p->window, p->window_size);
        if (p->page && i != w->rank)
            munmap(p->page, sizeof *p->page);
    }
    if (w->window)
        munmap(w->window, w->window_size);
    if (w->page)
        munmap(w->page, sizeof *w->page);
    int fds[] = {s->page_fd, s->window_fd, s->poke_fd};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    free(s->polls);
    free(s->polled);
    free(s);
}

static const struct world_kind process_world = {
    .wake = socket_wake,
    .pump = socket_pump,
    .nap = socket_nap,
    .window = socket_window,
    .poke = socket_poke,
    .close = socket_close,
};

// ---- opening ----
static int make_sockets(struct world *w, struct err *e)
{
    struct sockets *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ERR_NOMEM, "no memory for %d ranks", w->ranks);
    w->own = s;
    s->page_fd = s->window_fd = -1;
    s->poke_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->polls = calloc((size_t)w->ranks + 1, sizeof *s->polls);
    s->polled = calloc((size_t)w->ranks + 1, sizeof *s->polled);
    if (!s->polls || !s->polled)
        return err_set(e, ERR_NOMEM, "no memory for %d ranks", w->ranks);
    if (s->poke_fd < 0)
        return err_errno(e, ERR_IO, "cannot make an event descriptor");
    return shm_page_new(w, &s->page_fd, e);
}

static bool have_all_pages(void *arg)
{
    struct world *w = arg;
    for (int i = 0; i < w->ranks; i++)
        if (!w->peers[i].page)
            return false;
    return true;
}

// With more ranks than cores a spinning rank takes the core from the one it waits for. The cores
// are those that any of the host's ranks may use: each may be bound to its own.
static void choose_spin(struct world *w)
{
    int here = 0;
    cpu_set_t all;
    CPU_ZERO(&all);
    for (int i = 0; i < w->ranks; i++)
        if (w->peers[i].local) {
            here++;
            CPU_OR(&all, &all, &w->peers[i].page->cpus);
        }
    w->yield = here > CPU_COUNT(&all);
    w->spin = w->yield ? SPIN_YIELD : w->remotes ? SPIN_REMOTE : SPIN;
}

static int meet_peers(struct world *w, const struct world_options *o, struct err *e)
{
    struct sockets *s = w->own;
    PRE(s);
    int rc = greet_all(w, o, e);
    for (int i = 0; i < w->ranks && !rc; i++) {
        struct peer *p = &w->peers[i];
        if (i == w->rank)
            continue;
        if (p->local)
            rc = shm_send(p, 'P', s->page_fd, e);
        else if (!(p->link = tcp_link_new()) || !(p->page = shm_private(sizeof *p->page)))
            rc = err_set(e, ERR_NOMEM, "no memory for rank %d", i);
        w->remotes += !p->local;
    }
    if (!rc)
        rc = world_wait(w, have_all_pages, w, o->connect_ns, e);
    if (!rc)
        choose_spin(w);
    return rc;
}

int world_open(const struct world_options *o, struct world **out, struct err *e)
{
    *out = NULL;
    if (o->ranks < 1 || o->ranks > RANKS_MAX || o->rank < 0 || o->rank >= o->ranks)
        return err_set(e, ERR_INVALID, "rank %d of %d is out of range", o->rank, o->ranks);
    struct world *w = world_new(o->rank, o->ranks, &process_world);
    if (!w)
        return err_set(e, ERR_NOMEM, "no memory for %d ranks", o->ranks);
    w->epoch = o->epoch;
    w->connect_ns = o->connect_ns;
    w->deadline_ns = o->deadline_ns;
    w->progress = o->progress;
    int rc = make_sockets(w, e);
    if (!rc)
        rc = meet_peers(w, o, e);
    if (!rc) {
        *out = w;
        return 0;
    }
    if (e)
        err_wrap(e, "rank %d cannot meet its peers", o->rank);
    if (w->own)
        socket_close(w);
    world_free(w);
    return rc;
}

void world_close(struct world *w)
{
    if (!w)
        return;
    if (!w->broken.code)
        publish_state(w, PEER_LEFT, NULL);
    w->kind->close(w);
    world_free(w);
}

int world_window(struct world *w, size_t bytes, void **out, struct err *e)
{
    PRE(!w->window);
    int rc = world_look(w, e);
    if (!rc)
        rc = w->kind->window(w, bytes ? bytes : 1, e);
    *out = rc ? NULL : w->window;
    return rc;
}
