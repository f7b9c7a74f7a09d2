// SPDX-License-Identifier: Apache-2.0
// The loop. See poll_loop.h. A dropped source is freed at the end of the call, since its list of
// ready ones may still hold it.
#include "worker/poll_loop.h"

#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/heap.h"
#include "common/base/list.h"

enum { READY_MAX = 64, WAIT_MAX_MS = 60000 };

struct poll_loop {
    int epoll;
    struct list sources, dropped;
};
struct poll_loop_source {
    struct list link;
    struct poll_loop *loop;
    int fd;
    uint32_t events;
    bool gone;
    poll_loop_fn *fn;
    void *ctx;
};

int poll_loop_open(struct poll_loop **out, struct err *e)
{
    struct poll_loop *l = heap_alloc(sizeof *l);
    list_init(&l->sources);
    list_init(&l->dropped);
    if ((l->epoll = epoll_create1(EPOLL_CLOEXEC)) < 0) {
        free(l);
        return err_errno(e, ERR_INTERNAL, "cannot make an epoll");
    }
    *out = l;
    return 0;
}

static void free_dropped(struct poll_loop *l)
{
    list_for_each (it, &l->dropped) {
        list_remove(it);
        free(list_entry(it, struct poll_loop_source, link));
    }
}

void poll_loop_close(struct poll_loop *l)
{
    if (!l)
        return;
    list_for_each (it, &l->sources)
        poll_loop_drop(list_entry(it, struct poll_loop_source, link));
    free_dropped(l);
    close(l->epoll);
    free(l);
}

int poll_loop_add(struct poll_loop *l, int fd, uint32_t events, poll_loop_fn *fn, void *ctx,
                  struct poll_loop_source **out, struct err *e)
{
    struct poll_loop_source *s = heap_alloc(sizeof *s);
    *s = (struct poll_loop_source){.loop = l, .fd = fd, .events = events, .fn = fn, .ctx = ctx};
    struct epoll_event ev = {.events = events, .data.ptr = s};
    *out = NULL;
    if (epoll_ctl(l->epoll, EPOLL_CTL_ADD, fd, &ev)) {
        free(s);
        return err_errno(e, ERR_INTERNAL, "cannot watch a descriptor");
    }
    list_append(&l->sources, &s->link);
    *out = s;
    return 0;
}

void poll_loop_want(struct poll_loop_source *s, uint32_t events)
{
    struct epoll_event ev = {.events = events, .data.ptr = s};
    if (s->events == events || s->gone)
        return;
    s->events = events;
    (void)epoll_ctl(s->loop->epoll, EPOLL_CTL_MOD, s->fd, &ev);
}

void poll_loop_drop(struct poll_loop_source *s)
{
    if (!s || s->gone)
        return;
    s->gone = true;
    (void)epoll_ctl(s->loop->epoll, EPOLL_CTL_DEL, s->fd, NULL);
    list_remove(&s->link);
    list_append(&s->loop->dropped, &s->link);
}

void poll_loop_run_once(struct poll_loop *l, int64_t timeout_ns)
{
    struct epoll_event ready[READY_MAX];
    int64_t ms = timeout_ns < 0 ? -1 : (timeout_ns + CLOCK_MS - 1) / CLOCK_MS;
    int n = epoll_wait(l->epoll, ready, READY_MAX, ms > WAIT_MAX_MS ? WAIT_MAX_MS : (int)ms);
    for (int i = 0; i < n; i++) {
        struct poll_loop_source *s = ready[i].data.ptr;
        if (!s->gone)
            s->fn(s->ctx, ready[i].events);
    }
    free_dropped(l);
}
