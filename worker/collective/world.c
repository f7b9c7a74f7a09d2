// SPDX-License-Identifier: Apache-2.0
// The world: waiting, breaking, closing. All waiting of all operations is world_wait(): it steps
// what is open, spins for a while, then naps until a peer wakes it, a connection ends or time is
// up. Nothing here knows what an operation does (operation.c), how a peer is reached
// (process_world.c; tests have one of threads) or who else moves data meanwhile (progress_thread.c).
#include "worker/collective/world.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/heap.h"

// Turns before a nap. A turn pauses for some 40 of a bare loop's; after QUIET of them it yields the
// core instead, which costs nothing where nobody else wants it.
enum { QUIET = 40, SPIN = 400 };

// ---- life ----
struct world *world_new(int rank, int ranks, const struct world_kind *kind)
{
    struct world *w = heap_alloc(sizeof *w);
    struct peer *peers = heap_alloc(sizeof *peers * (size_t)ranks);
    *w = (struct world){.rank = rank, .ranks = ranks, .kind = kind, .peers = peers, .spin = SPIN};
    pthread_mutex_init(&w->lock, NULL);
    pthread_mutex_init(&w->listener_lock, NULL);
    for (int i = 0; i < ranks; i++)
        peers[i] = (struct peer){.rank = i, .fd = -1};
    return w;
}

void world_free(struct world *w)
{
    for (int i = 0; i < w->ncommunicators; i++)
        communicator_delete(w->communicators[i]);
    pthread_mutex_destroy(&w->lock);
    pthread_mutex_destroy(&w->listener_lock);
    free(w->peers);
    free(w);
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
    pthread_mutex_lock(&w->listener_lock);
    if (w->listener)
        w->listener(w->listener_ctx, w->abort_why);
    w->listener = NULL;
    pthread_mutex_unlock(&w->listener_lock);
}

int world_cores(const struct world *w)
{
    cpu_set_t own;
    if (w)
        return w->cores > 0 ? w->cores : 1;
    return sched_getaffinity(0, sizeof own, &own) ? 1 : CPU_COUNT(&own);
}

void world_on_abort(struct world *w, void (*fn)(void *ctx, const char *why), void *ctx)
{
    pthread_mutex_lock(&w->listener_lock);
    bool aborted = atomic_load_explicit(&w->aborted, memory_order_acquire) == 2;
    if (aborted && fn)
        fn(ctx, w->abort_why);
    w->listener = aborted ? NULL : fn;
    w->listener_ctx = ctx;
    pthread_mutex_unlock(&w->listener_lock);
}

// Makes a broken peer's error our own. If it lost a peer or ran into a deadline we report the same;
// anything else that made it give up is a lost peer to us.
static int adopt_error(const struct peer *p, struct err *e)
{
    int code = (int)p->page->code;
    char why[sizeof p->page->why];
    snprintf(why, sizeof why, "%.*s", (int)sizeof why - 1, p->page->why);
    if (code == ERR_PEER || code == ERR_TIMEOUT)
        return err_set(e, code, "%s (says rank %d)", why, p->rank);
    return err_set(e, ERR_PEER, "rank %d gave up: %s", p->rank, why);
}

static enum peer_state read_state(const struct peer *p)
{
    return p->page ? (enum peer_state)atomic_load_explicit(&p->page->state, memory_order_acquire)
                   : PEER_OPEN;
}

// A peer that is gone without a word comes first: the others' words are about it.
int world_look_at_peers(struct world *w, struct err *e)
{
    for (int i = 0; i < w->ranks; i++) {
        const struct peer *p = &w->peers[i];
        if (!p->dead || read_state(p) != PEER_OPEN)
            continue;
        char text[TEXT];
        uint64_t entered = p->page ? atomic_load(&p->page->entered) : 0;
        const char *what = *p->why ? "is cut off: " : "died";
        if (!entered || !peer_page_text(p->page, text))
            return err_set(e, ERR_PEER, "rank %d %s%s", i, what, p->why);
        return err_set(e, ERR_PEER, "rank %d %s%s; it last entered #%" PRIu64 " (%s)", i, what,
                       p->why, entered, text);
    }
    for (int i = 0; i < w->ranks; i++)
        if (read_state(&w->peers[i]) == PEER_BROKEN && i != w->rank)
            return adopt_error(&w->peers[i], e);
    int gone = find_deserter(w);
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

bool world_is_open(struct world *w)
{
    for (int i = 0; i < w->ncommunicators; i++)
        if (w->communicators[i]->completed < w->communicators[i]->started)
            return !world_look(w, NULL);
    return false;
}

bool world_step(struct world *w)
{
    bool pumped = w->kind->pump && w->remotes && w->kind->pump(w);
    bool stepped = communicators_step(w);
    return w->moved = pumped || stepped;
}

// A fence between our store and our look at what the other side stores: `sleeping` and the notes.
// gcc warns that the thread sanitizer does not see it; all accesses around it are atomic anyway.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtsan"
#endif
static inline void fence_memory(void)
{
    atomic_thread_fence(memory_order_seq_cst);
}
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

void world_wake(struct world *w, struct peer *p)
{
    fence_memory();
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
static int sleep_unless(struct world *w, bool (*ready)(void *), void *arg, int64_t until,
                        struct err *e)
{
    int rc = 0;
    atomic_store(&w->page->sleeping, 1);
    fence_memory();
    if (!world_step(w) && !ready(arg)) {
        rc = world_look(w, e);
        if (!rc)
            rc = world_look_at_peers(w, e);
    }
    if (!rc && !w->moved && !ready(arg)) {
        publish_awaited(w, find_awaited(w));
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
            if (sleep_unless(w, ready, arg, until, e))
                return ready(arg) ? 0 : world_break(w, e);
        }
    }
}

// ---- the window, and the end ----
void world_close(struct world *w)
{
    if (!w)
        return;
    progress_stop(w);
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
