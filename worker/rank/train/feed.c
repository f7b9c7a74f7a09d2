// SPDX-License-Identifier: Apache-2.0
// The feed. See feed.h.
//
//   slot:  empty ──thread reads──► full ──feed_next──► taken ──the next feed_next──► empty
#include "worker/rank/train/feed.h"

#include <pthread.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/heap.h"

enum slot_state { SLOT_EMPTY, SLOT_FULL, SLOT_TAKEN };

struct feed {
    struct feed_options o;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum slot_state state[2];
    uint64_t next; // the step whose batch feed_next() will give
    uint64_t *ids; // of this rank's samples of one microbatch
    bool closing, running;
    struct err err; // why reading stopped
};

// Labels follow the images, where the next i32 may lie.
static size_t get_labels_offset(const struct dataset *set, size_t samples)
{
    return (dataset_sample_bytes(set) * samples + 3) / 4 * 4;
}

size_t feed_bytes(const struct dataset *set, int microbatches, int64_t local)
{
    size_t samples = (size_t)local * (size_t)microbatches;
    return get_labels_offset(set, samples) + samples * dataset_label_bytes(set);
}

static int32_t *find_labels(const struct feed_options *o, int slot)
{
    size_t samples = (size_t)o->local * (size_t)o->microbatches;
    return (int32_t *)(void *)((char *)o->host[slot] + get_labels_offset(o->set, samples));
}

static struct batch get_batch(const struct feed_options *o, int slot)
{
    return (struct batch){
        .images = o->host[slot], .labels = find_labels(o, slot), .packed = o->packed[slot]};
}

static int read_step(struct feed *f, uint64_t step, int slot, struct err *e)
{
    const struct feed_options *o = &f->o;
    size_t image = dataset_sample_bytes(o->set) * (size_t)o->local;
    for (int m = 0; m < o->microbatches; m++) {
        o->ids(o->ctx, step, (uint64_t)(m * o->microbatch + o->start), (size_t)o->local, f->ids);
        int rc = dataset_read(o->set, f->ids, (size_t)o->local,
                              (char *)o->host[slot] + image * (size_t)m,
                              find_labels(o, slot) + o->local * m, e);
        if (rc)
            return rc;
    }
    struct batch b = get_batch(o, slot);
    if (o->pack)
        o->pack(o->packer, &b);
    return 0;
}

static void *feed_main(void *arg)
{
    struct feed *f = arg;
    for (uint64_t step = f->o.first; step < f->o.end; step++) {
        int slot = (int)(step & 1);
        pthread_mutex_lock(&f->lock);
        while (f->state[slot] != SLOT_EMPTY && !f->closing)
            pthread_cond_wait(&f->changed, &f->lock);
        bool stop = f->closing;
        pthread_mutex_unlock(&f->lock);
        if (stop)
            break;
        struct err e = {0};
        int rc = read_step(f, step, slot, &e);
        pthread_mutex_lock(&f->lock);
        if (rc)
            f->err = e; // the slot stays empty; batches read before are still given
        else
            f->state[slot] = SLOT_FULL;
        pthread_mutex_unlock(&f->lock);
        pthread_cond_broadcast(&f->changed); // after unlocking: a woken thread wants the lock
        if (rc)
            break;
    }
    return NULL;
}

int feed_open(const struct feed_options *o, struct feed **out, struct err *e)
{
    struct feed *f = heap_alloc(sizeof *f);
    f->o = *o;
    f->ids = heap_alloc(sizeof *f->ids * (size_t)(o->local + 1));
    f->next = o->first;
    pthread_mutex_init(&f->lock, NULL);
    clock_cond_init(&f->changed);
    f->running = pthread_create(&f->thread, NULL, feed_main, f) == 0;
    if (!f->running) {
        feed_close(f);
        return err_set(e, ERR_INTERNAL, "cannot start the thread that reads the data");
    }
    *out = f;
    return 0;
}

void feed_close(struct feed *f)
{
    if (!f)
        return;
    pthread_mutex_lock(&f->lock);
    f->closing = true;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    if (f->running)
        pthread_join(f->thread, NULL);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    free(f->ids);
    free(f);
}

bool feed_wait(struct feed *f, int64_t until_ns)
{
    int slot = (int)(f->next & 1);
    bool ready, in_time = true;
    pthread_mutex_lock(&f->lock);
    while (!(ready = f->state[slot] == SLOT_FULL || f->err.code) && in_time)
        in_time = clock_cond_wait(&f->changed, &f->lock, until_ns);
    pthread_mutex_unlock(&f->lock);
    return ready;
}

int feed_next(struct feed *f, struct batch *out, struct err *e)
{
    PRE(f->next < f->o.end);
    int slot = (int)(f->next & 1), rc = 0;
    pthread_mutex_lock(&f->lock);
    if (f->next > f->o.first)
        f->state[slot ^ 1] = SLOT_EMPTY;
    // Nothing wakes the reading thread until this returns. That is no deadlock: while this slot is
    // not full the thread is reading into it, and waits for no slot.
    while (f->state[slot] != SLOT_FULL && !f->err.code)
        pthread_cond_wait(&f->changed, &f->lock);
    if (f->state[slot] == SLOT_FULL) {
        f->state[slot] = SLOT_TAKEN;
    } else {
        rc = f->err.code;
        *e = f->err;
    }
    pthread_mutex_unlock(&f->lock);
    pthread_cond_broadcast(&f->changed);
    if (rc)
        return rc;
    f->next++;
    *out = get_batch(&f->o, slot);
    return 0;
}
