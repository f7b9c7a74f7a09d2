// SPDX-License-Identifier: Apache-2.0
// The compute threads. See pool.h.
//
// A loop is announced by raising `round`. Slice i is meant for thread i, whose caches and pages
// have its data. But a thread that is late (asleep, or preempted on a shared machine) is not waited
// for: the caller claims the slices that nobody has begun. A slice is claimed by swapping its
// `open` word from this round's number to 0, so only a thread that knows the round gets it. The
// loop cannot end while a claimed slice runs, so what the slice reads of the loop does not change.
// Who runs a slice changes no result.
//
// `round` and `pending` are futex words, each with a word beside it that says whether anybody
// sleeps there, so that the usual case makes no system call. The sleeper says so before it looks at
// the futex word for the last time, the waker changes the futex word before it looks who sleeps;
// all are sequentially consistent, so one of the two sees the other.
#include "kernels/cpu/pool.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SPINS = 4000 }; // some tens of µs: longer than the gap between two ops of a step

struct pool_thread {
    _Alignas(64) _Atomic uint32_t open; // the round whose slice waits for it; 0: none, or claimed
    struct pool *pool;
    pthread_t thread;
    int index;
};

struct pool {
    int threads; // with the caller
    struct pool_thread *workers;
    _Atomic bool stop;

    // The loop that runs; written before its slices are opened.
    pool_fn fn;
    void *arg;
    int64_t count, grain;
    int slices;

    _Alignas(64) _Atomic uint32_t round;
    _Atomic uint32_t sleepers;             // workers asleep on round
    _Alignas(64) _Atomic uint32_t pending; // slices not done
    _Atomic uint32_t caller_sleeps;
};

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void relax_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void run_slice(const struct pool *p, int index)
{
    int64_t units = (p->count + p->grain - 1) / p->grain;
    int64_t begin = units * index / p->slices * p->grain;
    int64_t end = units * (index + 1) / p->slices * p->grain;
    p->fn(p->arg, begin, end < p->count ? end : p->count);
}

// Runs slice `index` of the round if nobody has claimed it. Returns whether it was the last to end.
static bool claim_slice(struct pool *p, int index, uint32_t round)
{
    if (!atomic_compare_exchange_strong(&p->workers[index].open, &round, 0))
        return false;
    run_slice(p, index);
    return atomic_fetch_sub(&p->pending, 1) == 1;
}

static uint32_t wait_for_round(struct pool *p, uint32_t seen)
{
    uint32_t now;
    for (int i = 0; i < SPINS; i++) {
        if ((now = atomic_load_explicit(&p->round, memory_order_acquire)) != seen)
            return now;
        relax_cpu();
    }
    atomic_fetch_add(&p->sleepers, 1);
    while ((now = atomic_load(&p->round)) == seen)
        futex_wait(&p->round, seen);
    atomic_fetch_sub(&p->sleepers, 1);
    return now;
}

static void *run_worker(void *arg)
{
    struct pool_thread *w = arg;
    struct pool *p = w->pool;
    for (uint32_t seen = 0;;) {
        seen = wait_for_round(p, seen);
        if (p->stop)
            return NULL;
        if (claim_slice(p, w->index, seen) && atomic_load(&p->caller_sleeps))
            futex_wake(&p->pending);
    }
}

// Returns the number of the next round; never 0, which means that no slice is open.
static uint32_t next_round(const struct pool *p)
{
    uint32_t next = atomic_load(&p->round) + 1;
    return next ? next : 1;
}

static void raise_round(struct pool *p, uint32_t round)
{
    atomic_store(&p->round, round);
    if (atomic_load(&p->sleepers))
        futex_wake(&p->round);
}

static void wait_for_pending(struct pool *p)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&p->pending, memory_order_acquire) == 0)
            return;
        relax_cpu();
    }
    atomic_store(&p->caller_sleeps, 1);
    for (uint32_t left; (left = atomic_load(&p->pending)) != 0;)
        futex_wait(&p->pending, left);
    atomic_store(&p->caller_sleeps, 0);
}

void pool_for(struct pool *p, int64_t count, int64_t grain, pool_fn fn, void *arg)
{
    if (count <= 0)
        return;
    int64_t slices = count / grain;
    if (slices <= 1 || p->threads == 1) {
        fn(arg, 0, count);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    p->count = count;
    p->grain = grain;
    p->slices = slices < p->threads ? (int)slices : p->threads;
    uint32_t round = next_round(p);
    atomic_store(&p->pending, (uint32_t)p->slices - 1);
    for (int i = 1; i < p->slices; i++)
        atomic_store(&p->workers[i].open, round);
    raise_round(p, round);
    run_slice(p, 0);
    for (int i = 1; i < p->slices; i++)
        claim_slice(p, i, round);
    wait_for_pending(p);
}

int pool_new(int threads, struct pool **out, struct err *e)
{
    if (threads < 1 || threads > 1024)
        return err_set(e, ERR_INVALID, "%d compute threads were asked for: 1 to 1024 are possible",
                       threads);
    struct pool *p = aligned_alloc(64, sizeof *p);
    struct pool_thread *workers = aligned_alloc(64, (size_t)threads * sizeof *workers);
    if (!p || !workers) {
        free(p);
        free(workers);
        return err_set(e, ERR_NOMEM, "no memory for %d compute threads", threads);
    }
    *p = (struct pool){.threads = 1, .workers = workers};
    // Workers block all signals: they are for the program's other threads.
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (int i = 1; i < threads; i++, p->threads++) {
        workers[i] = (struct pool_thread){.pool = p, .index = i};
        if (pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]))
            break;
        pthread_setname_np(workers[i].thread, "weft-cpu");
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (p->threads < threads) {
        int rc =
            err_set(e, ERR_LIMIT, "cannot start compute thread %d of %d", p->threads + 1, threads);
        pool_free(p);
        return rc;
    }
    *out = p;
    return ERR_OK;
}

void pool_free(struct pool *p)
{
    if (!p)
        return;
    p->stop = true;
    raise_round(p, next_round(p));
    for (int i = 1; i < p->threads; i++)
        pthread_join(p->workers[i].thread, NULL);
    free(p->workers);
    free(p);
}

int pool_threads(const struct pool *p)
{
    return p->threads;
}
