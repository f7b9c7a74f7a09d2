// SPDX-License-Identifier: Apache-2.0
// A world of threads: pages and windows on the heap, one mutex and condition for naps. A
// rank that naps is counted; whoever wakes it uncounts it under the same lock, so the count is
// exact: when it reaches the number of ranks that are there, nothing can happen any more.
#include "tests/support/fake_world.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "worker/collective/world.h"

enum { FAKE_SPIN = 4 };

struct fake_rank {
    struct peer_page *page;
    unsigned char *window;
    size_t window_size;
    bool napping, woken, closed;
};

struct fake {
    int ranks;
    pthread_mutex_t lock;
    pthread_cond_t turn;
    bool stuck;
    char who[600]; // waits in what, once stuck
    struct fake_rank *rank;
};

struct fake *fake_new(int ranks)
{
    struct fake *f = calloc(1, sizeof *f);
    if (!f)
        return NULL;
    f->ranks = ranks;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->turn, NULL);
    f->rank = calloc((size_t)ranks, sizeof *f->rank);
    bool ok = f->rank != NULL;
    for (int i = 0; i < ranks && ok; i++) {
        f->rank[i].page = shm_private(sizeof(struct peer_page));
        ok = f->rank[i].page != NULL;
        if (ok)
            f->rank[i].page->rank = i;
    }
    if (ok)
        return f;
    fake_free(f);
    return NULL;
}

void fake_free(struct fake *f)
{
    for (int i = 0; i < f->ranks && f->rank; i++) {
        if (f->rank[i].page)
            munmap(f->rank[i].page, sizeof(struct peer_page));
        free(f->rank[i].window);
    }
    free(f->rank);
    pthread_cond_destroy(&f->turn);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

// ---- how its ranks wake each other and wait ----
static void rouse_rank(struct fake *f, int rank)
{
    pthread_mutex_lock(&f->lock);
    f->rank[rank].woken = true;
    f->rank[rank].napping = false;
    pthread_cond_broadcast(&f->turn);
    pthread_mutex_unlock(&f->lock);
}

static void fake_wake(struct world *w, struct peer *p)
{
    rouse_rank(w->own, p->rank);
}

static void fake_poke(struct world *w)
{
    rouse_rank(w->own, w->rank);
}

static bool are_all_napping(const struct fake *f)
{
    for (int i = 0; i < f->ranks; i++)
        if (!f->rank[i].closed && !f->rank[i].napping)
            return false;
    return true;
}

static void write_who(struct fake *f)
{
    for (int i = 0; i < f->ranks; i++) {
        char text[TEXT];
        const struct peer_page *p = f->rank[i].page;
        size_t len = strlen(f->who);
        if (f->rank[i].closed)
            continue;
        peer_page_text(p, text);
        snprintf(f->who + len, sizeof f->who - len, "%srank %d after entering #%" PRIu64 " (%s)",
                 len ? ", " : "", i, atomic_load(&p->entered), text);
    }
}

static int fake_nap(struct world *w, int64_t until, struct err *e)
{
    struct fake *f = w->own;
    struct fake_rank *me = &f->rank[w->rank];
    (void)until;
    pthread_mutex_lock(&f->lock);
    me->napping = !me->woken;
    if (!f->stuck && are_all_napping(f)) {
        f->stuck = true;
        write_who(f);
        pthread_cond_broadcast(&f->turn);
    }
    while (!me->woken && !f->stuck)
        pthread_cond_wait(&f->turn, &f->lock);
    me->woken = me->napping = false;
    int rc = f->stuck ? err_set(e, ERR_INTERNAL, "deadlock: every rank waits: %s", f->who) : 0;
    pthread_mutex_unlock(&f->lock);
    return rc;
}

static bool have_all_windows(void *arg)
{
    struct world *w = arg;
    struct fake *f = w->own;
    bool here = true;
    pthread_mutex_lock(&f->lock);
    for (int i = 0; i < w->ranks; i++) {
        w->peers[i].window = f->rank[i].window;
        w->peers[i].window_size = f->rank[i].window_size;
        here &= f->rank[i].window != NULL;
    }
    pthread_mutex_unlock(&f->lock);
    return here;
}

static int fake_window(struct world *w, size_t bytes, struct err *e)
{
    struct fake *f = w->own;
    unsigned char *mem = calloc(1, bytes);
    if (!mem)
        return err_set(e, ERR_NOMEM, "no memory for a window of %zu bytes", bytes);
    pthread_mutex_lock(&f->lock);
    f->rank[w->rank].window = w->window = mem;
    f->rank[w->rank].window_size = w->window_size = bytes;
    pthread_mutex_unlock(&f->lock);
    for (int i = 0; i < w->ranks; i++)
        if (i != w->rank)
            world_wake(w, &w->peers[i]);
    return world_wait(w, have_all_windows, w, 0, e);
}

static void fake_close(struct world *w)
{
    struct fake *f = w->own;
    pthread_mutex_lock(&f->lock);
    f->rank[w->rank].closed = true;
    pthread_mutex_unlock(&f->lock);
    for (int i = 0; i < w->ranks; i++) // whoever waits for us must look again
        if (i != w->rank)
            rouse_rank(f, i);
}

static const struct world_kind thread_world = {
    .wake = fake_wake,
    .nap = fake_nap,
    .window = fake_window,
    .poke = fake_poke,
    .close = fake_close,
};

struct world *fake_world(struct fake *f, int rank)
{
    PRE(rank >= 0 && rank < f->ranks);
    struct world *w = world_new(rank, f->ranks, &thread_world);
    w->own = f;
    w->spin = FAKE_SPIN;
    w->page = f->rank[rank].page;
    for (int i = 0; i < f->ranks; i++) {
        w->peers[i].local = true;
        w->peers[i].page = f->rank[i].page;
    }
    return w;
}
