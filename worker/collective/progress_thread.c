// SPDX-License-Identifier: Apache-2.0
// The progress thread: what was started moves while the rank's own thread computes. Without it data
// moves only inside the calls of collective.h.
//
// The world's lock keeps it: each call of the rank's own thread holds it from start to end, a wait
// all the while, so the thread works only while the rank is elsewhere. It takes one step at a time,
// a piece of work of each open operation, and then lets the rank pass. It never naps on the peers'
// behalf (`sleeping` is the rank's own word): while nothing moves it looks again every LOOK_NS.
//
// Errors are not its affair: a step that finds one breaks the world, and the rank's next call says
// so. Neither are deadlines nor dead peers: whoever waits looks for them.
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/heap.h"
#include "common/base/log.h"
#include "worker/collective/world.h"

enum { LOOK_NS = 20 * 1000 };

struct progress_thread {
    pthread_t id;
    pthread_cond_t begun;
    bool (*is_open)(struct world *w);
    bool (*step)(struct world *w);
    bool asleep, stop; // under the world's lock
};

// Whether a thread is worth its core: where no core is left to it, it costs the computation more
// than it hides (README.md).
bool progress_is_wanted(const struct world *w)
{
    const char *asked = getenv("WEFT_PROGRESS");
    if (w->ranks == 1)
        return false;
    return asked ? !strcmp(asked, "on") : w->spare_cores;
}

static void pause_thread(void)
{
    nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
}

static void *move_data(void *arg)
{
    struct world *w = arg;
    struct progress_thread *t = w->thread;
    pthread_mutex_lock(&w->lock);
    while (!t->stop) {
        if (!t->is_open(w)) {
            t->asleep = true;
            pthread_cond_wait(&t->begun, &w->lock);
            continue;
        }
        bool moved = t->step(w);
        pthread_mutex_unlock(&w->lock);
        if (!moved)
            pause_thread();
        while (atomic_load_explicit(&w->rank_comes, memory_order_relaxed))
            sched_yield();
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

void progress_start(struct world *w, bool (*is_open)(struct world *w),
                    bool (*step)(struct world *w))
{
    struct progress_thread *t = heap_alloc(sizeof *t);
    t->is_open = is_open;
    t->step = step;
    pthread_cond_init(&t->begun, NULL);
    w->thread = t;
    int error = pthread_create(&t->id, NULL, move_data, w);
    if (!error)
        return;
    log_warn("collective",
             "cannot start the progress thread, so collectives move only while the rank waits for "
             "them: %s",
             strerror(error));
    w->thread = NULL;
    free(t);
}

void progress_stop(struct world *w)
{
    struct progress_thread *t = w->thread;
    if (!t)
        return;
    world_lock(w);
    t->stop = true;
    pthread_cond_signal(&t->begun);
    world_unlock(w);
    pthread_join(t->id, NULL);
    pthread_cond_destroy(&t->begun);
    free(t);
    w->thread = NULL;
}

void world_lock(struct world *w)
{
    if (!pthread_mutex_trylock(&w->lock))
        return;
    atomic_store_explicit(&w->rank_comes, true, memory_order_relaxed);
    pthread_mutex_lock(&w->lock);
    atomic_store_explicit(&w->rank_comes, false, memory_order_relaxed);
}

void world_unlock(struct world *w)
{
    pthread_mutex_unlock(&w->lock);
}

void progress_begin(struct world *w)
{
    struct progress_thread *t = w->thread;
    if (!t || !t->asleep)
        return;
    t->asleep = false;
    pthread_cond_signal(&t->begun);
}
