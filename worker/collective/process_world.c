// SPDX-License-Identifier: Apache-2.0
// Worlds of processes: the ranks meet over sockets (greet.c), wake each other through them, pass
// their pages and windows as memfds within a host (shm.c) and frames between hosts (tcp.c).
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/deadline.h"
#include "common/base/heap.h"
#include "common/base/system.h"
#include "worker/collective/world.h"

enum { SPIN_YIELD = 20, SPIN_REMOTE = 50 }; // looks before a nap, where SPIN would be too many

struct sockets {
    int page_fd, window_fd, poke_fd;
    struct pollfd *polls; // [ranks + 1]
    struct peer **polled;
};

static void socket_wake(struct world *w, struct peer *p)
{
    (void)w;
    // If its socket is full, the peer has wake-ups to read anyway. A broken socket is seen by the
    // next nap.
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
    if (poll(s->polls, n, deadline_wait_ms(until, clock_mono_ns())) < 0)
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
    (void)eventfd_write(s->poke_fd, 1);
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
        err_set(e, rc, "rank %d has not made its memory for collectives ready", i);
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
        system_close(&p->fd);
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
        system_close(&fds[i]);
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
    struct sockets *s = heap_alloc(sizeof *s);
    w->own = s;
    s->page_fd = s->window_fd = -1;
    s->poke_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->polls = heap_alloc(sizeof *s->polls * (size_t)(w->ranks + 1));
    s->polled = heap_alloc(sizeof *s->polled * (size_t)(w->ranks + 1));
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

// With more ranks than cores a spinning rank takes the core from the one it waits for, and a
// progress thread takes it from the computation unless each has a core besides those that compute.
// The cores are those that any of the host's ranks may use: each may be bound to its own.
static void share_cores(struct world *w)
{
    int ranks = 0, threads = 0;
    cpu_set_t all;
    CPU_ZERO(&all);
    for (int i = 0; i < w->ranks; i++)
        if (w->peers[i].local) {
            ranks++;
            threads += w->peers[i].page->threads;
            CPU_OR(&all, &all, &w->peers[i].page->cpus);
        }
    PRE(ranks > 0); // this one
    w->yield = ranks > CPU_COUNT(&all);
    if (w->yield)
        w->spin = SPIN_YIELD;
    else if (w->remotes)
        w->spin = SPIN_REMOTE;
    w->cores = CPU_COUNT(&all) / ranks;
    w->spare_cores = threads && CPU_COUNT(&all) >= threads + ranks;
}

static int connect_peers(struct world *w, const struct world_options *o, struct err *e)
{
    struct sockets *s = w->own;
    PRE(s);
    int rc = greet_all(w, o, e);
    for (int i = 0; i < w->ranks && !rc; i++) {
        struct peer *p = &w->peers[i];
        if (i == w->rank)
            continue;
        if (p->local) {
            rc = shm_send(p, 'P', s->page_fd, e);
        } else {
            w->remotes++;
            p->link = tcp_link_new(o->plain ? NULL : &p->keys);
            if (!p->link || !(p->page = shm_private(sizeof *p->page)))
                rc = err_set(e, ERR_NOMEM, "no memory for rank %d", i);
        }
        explicit_bzero(&p->keys, sizeof p->keys);
    }
    if (!rc)
        rc = world_wait(w, have_all_pages, w, o->connect_ns, e);
    if (!rc)
        share_cores(w);
    return rc;
}

int world_open(const struct world_options *o, struct world **out, struct err *e)
{
    *out = NULL;
    if (o->ranks < 1 || o->ranks > RANK_MAX || o->rank < 0 || o->rank >= o->ranks)
        return err_set(e, ERR_INVALID, "rank %d of %d is out of range", o->rank, o->ranks);
    struct world *w = world_new(o->rank, o->ranks, &process_world);
    w->attempt = o->attempt;
    w->connect_ns = o->connect_ns;
    w->deadline_ns = o->deadline_ns;
    w->progress = o->progress;
    w->threads = o->threads;
    int rc = make_sockets(w, e);
    if (!rc)
        rc = connect_peers(w, o, e);
    if (!rc && progress_is_wanted(w))
        progress_start(w, world_is_open, world_step);
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
