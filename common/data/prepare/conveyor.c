// SPDX-License-Identifier: Apache-2.0
// Threads over documents. See conveyor.h.
#include "common/data/prepare/conveyor.h"

#include <pthread.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/heap.h"

struct slot {
    struct batch batch;
    void *result;
    int rc;
    struct err e;
    bool worked;
};

struct ring {
    const struct conveyor *use;
    struct documents *documents;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct slot *slots;
    uint64_t n;                    // slots
    uint64_t read, begun, written; // batches so far, each at least the next
    size_t bytes;                  // of the batches in the ring
    bool ended;                    // nothing more is read
    atomic_bool stop;              // all threads end
};

static void *read_batches(void *context)
{
    struct ring *r = context;
    pthread_mutex_lock(&r->lock);
    while (!r->ended && !r->stop) {
        if (r->read - r->written == r->n || (r->bytes > CONVEYOR_BYTES && r->read > r->written)) {
            pthread_cond_wait(&r->changed, &r->lock);
            continue;
        }
        struct slot *s = &r->slots[r->read % r->n];
        pthread_mutex_unlock(&r->lock);
        s->worked = false;
        s->rc = documents_next(r->documents, &s->batch, &s->e);
        pthread_mutex_lock(&r->lock);
        r->ended = s->rc || !s->batch.source;
        if (s->rc || s->batch.source) {
            r->bytes += s->batch.text.len;
            r->read++;
        }
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static void *work_batches(void *context)
{
    struct ring *r = context;
    void *thread = r->use->thread_new(r->use->context);
    pthread_mutex_lock(&r->lock);
    while (!r->stop && !(r->ended && r->begun == r->read)) {
        if (r->begun == r->read) {
            pthread_cond_wait(&r->changed, &r->lock);
            continue;
        }
        struct slot *s = &r->slots[r->begun++ % r->n];
        pthread_mutex_unlock(&r->lock);
        if (!s->rc)
            s->rc = r->use->work(thread, &s->batch, s->result, &s->e);
        pthread_mutex_lock(&r->lock);
        s->worked = true;
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->lock);
    r->use->thread_free(thread);
    return NULL;
}

// Waits for the next result, for a tenth of a second at most; null: there is none yet, or no more.
static struct slot *await_result(struct ring *r, bool *ended)
{
    enum { TICK_MS = 100 };
    PRE(r->n > 0);
    struct slot *s = &r->slots[r->written % r->n];
    int64_t until = clock_mono_ns() + TICK_MS * CLOCK_MS;
    pthread_mutex_lock(&r->lock);
    bool ready, late = false;
    while (!(ready = r->written < r->read && s->worked) &&
           !(*ended = r->ended && r->written == r->read) && !late)
        late = !clock_cond_wait(&r->changed, &r->lock, until);
    pthread_mutex_unlock(&r->lock);
    return ready ? s : NULL;
}

static void release_slot(struct ring *r, struct slot *s)
{
    enum { KEPT = 8 * BATCH_BYTES }; // a large document's memory is given back
    size_t len = s->batch.text.len;
    if (s->batch.text.cap > KEPT) {
        buf_clear(&s->batch.text);
        r->use->result_clear(s->result);
    }
    pthread_mutex_lock(&r->lock);
    r->bytes -= len;
    r->written++;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

static int take_results(struct ring *r, struct err *e)
{
    bool ended = false;
    int rc = 0;
    while (!rc && !ended) {
        struct slot *s = await_result(r, &ended);
        if (s && s->rc) {
            if (e)
                *e = s->e;
            return s->rc;
        }
        if (s && !(rc = r->use->take(r->use->context, &s->batch, s->result, e)))
            release_slot(r, s);
        if (!rc)
            rc = r->use->tick(r->use->context, e);
    }
    return rc;
}

int conveyor_run(const struct conveyor *p, struct documents *d, struct err *e)
{
    struct ring r = {.use = p, .documents = d, .n = 2};
    pthread_t threads[CONVEYOR_THREADS + 1];
    int started = 0, rc = 0;
    d->stop = &r.stop;
    PRE(p->threads >= 1 && p->threads <= CONVEYOR_THREADS);
    r.n += 2 * (uint64_t)p->threads;
    pthread_mutex_init(&r.lock, NULL);
    clock_cond_init(&r.changed);
    r.slots = heap_alloc(sizeof *r.slots * r.n);
    for (uint64_t i = 0; i < r.n; i++)
        r.slots[i].result = heap_alloc(p->result_size);
    for (; started <= p->threads && !rc; started++)
        if (pthread_create(&threads[started], NULL, started ? work_batches : read_batches, &r)) {
            rc = err_set(e, ERR_NOMEM, "cannot start thread %d: --threads makes them fewer",
                         started);
            break;
        }
    if (!rc)
        rc = take_results(&r, e);
    pthread_mutex_lock(&r.lock);
    r.stop = true;
    pthread_cond_broadcast(&r.changed);
    pthread_mutex_unlock(&r.lock);
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    for (uint64_t i = 0; i < r.n; i++) {
        buf_clear(&r.slots[i].batch.text);
        p->result_clear(r.slots[i].result);
        free(r.slots[i].result);
    }
    free(r.slots);
    pthread_cond_destroy(&r.changed);
    pthread_mutex_destroy(&r.lock);
    return rc;
}
