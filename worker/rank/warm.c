// SPDX-License-Identifier: Apache-2.0
// Warming up. See warm.h.
#include "worker/rank/warm.h"

#include <pthread.h>
#include <stdlib.h>

#include "common/base/heap.h"
#include "kernels/backend.h"

struct warm {
    pthread_t thread;
    const char *backend;
};

static void *warm_main(void *arg)
{
    const struct warm *w = arg;
    const struct backend *b;
    struct err e = {0};
    if (!backend_load(w->backend, &b, &e) && b->device.warm_up)
        b->device.warm_up();
    return NULL;
}

struct warm *warm_start(const char *backend)
{
    struct warm *w = heap_alloc(sizeof *w);
    w->backend = backend;
    if (pthread_create(&w->thread, NULL, warm_main, w)) {
        free(w);
        return NULL;
    }
    return w;
}

void warm_join(struct warm *w)
{
    if (!w)
        return;
    pthread_join(w->thread, NULL);
    free(w);
}

void warm_leave(struct warm *w)
{
    if (w)
        pthread_detach(w->thread);
}
