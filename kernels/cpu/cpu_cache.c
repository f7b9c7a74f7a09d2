// SPDX-License-Identifier: Apache-2.0
// APPEND and RING: rows of keys go to their places, and what position each place has. A row is one
// memcpy; no two rows of a call have one place.
#include <string.h>

#include "common/op/cache.h"
#include "kernels/cpu/cpu_device.h"

struct cache_work {
    const struct op_call *call;
    struct cache_call of;
};

static void append_slice(void *arg, int64_t begin, int64_t end)
{
    const struct cache_work *w = arg;
    const int32_t *positions = w->call->in[2].data, *last = w->call->in[3].data;
    const char *rows = w->call->in[1].data;
    char *cache = w->call->out[0].data;
    const size_t bytes = w->of.bytes;
    for (int64_t i = begin; i < end; i++) {
        int64_t b = i / w->of.rows;
        if (positions[i] < 0 || positions[i] > last[b])
            continue;
        int64_t place = b * w->of.places + cache_place(positions[i], w->of.places);
        memcpy(cache + (size_t)place * bytes, rows + (size_t)i * bytes, bytes);
    }
}

static void ring_slice(void *arg, int64_t begin, int64_t end)
{
    const struct cache_work *w = arg;
    const int32_t *last = w->call->in[0].data;
    int32_t *to = w->call->out[0].data;
    for (int64_t i = begin; i < end; i++)
        to[i] = cache_position(last[i / w->of.places], i % w->of.places, w->of.places,
                               w->call->attr->limit);
}

int op_cache(struct stream_q *q, const struct op_call *c, struct err *e)
{
    struct cache_work w = {.call = c};
    int rc = op_check_cache(c, &w.of, e);
    if (rc)
        return rc;
    if (c->op == OP_RING) {
        pool_for(q->device->pool, w.of.batch * w.of.places, GRAIN, ring_slice, &w);
        return 0;
    }
    if (c->out[0].data != c->in[0].data)
        memcpy(c->out[0].data, c->in[0].data, w.of.bytes * (size_t)(w.of.batch * w.of.places));
    int64_t grain = GRAIN / (int64_t)(w.of.bytes + 1) + 1;
    pool_for(q->device->pool, w.of.batch * w.of.rows, grain, append_slice, &w);
    return 0;
}
