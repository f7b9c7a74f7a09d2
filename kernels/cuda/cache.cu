// SPDX-License-Identifier: Apache-2.0
// APPEND and RING: rows of keys go to their places, and what position each place has. Bytes moved:
// twice the rows; 4 a place. No FLOPs. One unit of a row a thread: rows are few, and what reads the
// whole cache follows.
#include <string.h>

#include "common/op/cache.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/launch.h"

enum { THREADS = 256, BLOCKS_EACH = 8 };

struct cache {
    const void *from;
    void *to;
    const int32_t *positions, *last;
    int64_t count, rows, places, width; // of all; of a sample; of a row, in units
    int64_t unused;                     // position of a place without a row; 0: behind the last
};

// A unit is as many bytes as an access moves.
#define APPEND(name, type)                                                                      \
    KERNEL(THREADS) name(struct cache c)                                                        \
    {                                                                                           \
        kernel_begin();                                                                         \
        const int64_t step = (int64_t)gridDim.x * THREADS;                                      \
        for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < c.count; i += step) { \
            const int64_t row = i / c.width, b = row / c.rows;                                  \
            const int32_t at = c.positions[row];                                                \
            if (at >= 0 && at <= c.last[b])                                                     \
                ((type *)c.to)[(b * c.places + at % c.places) * c.width + i % c.width] =        \
                    ((const type *)c.from)[i];                                                  \
        }                                                                                       \
    }

APPEND(append_2, uint16_t)
APPEND(append_4, uint32_t)
APPEND(append_16, uint4)

KERNEL(THREADS) ring_kernel(struct cache c)
{
    kernel_begin();
    const int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < c.count; i += step) {
        const int64_t last = c.last[i / c.places], back = (last - i % c.places) % c.places;
        const int64_t position = last - (back < 0 ? back + c.places : back);
        ((int32_t *)c.to)[i] = (int32_t)(position >= 0 ? position : c.unused ? c.unused : last + 1);
    }
}

static int run_append(struct stream_q *q, const struct op_call *c, const struct cache_call *of,
                      struct cache *m, struct err *e)
{
    const size_t size = dtype_size(c->in[1].dtype);
    m->from = c->in[1].data;
    m->positions = (const int32_t *)c->in[2].data;
    m->last = (const int32_t *)c->in[3].data;
    if (m->to != c->in[0].data) {
        int rc =
            CUDA(q->device, q, e,
                 cudaMemcpyAsync(m->to, c->in[0].data, of->bytes * (size_t)(of->batch * of->places),
                                 cudaMemcpyDeviceToDevice, q->stream));
        if (rc)
            return rc;
    }
    bool whole = of->bytes % 16 == 0 && (uintptr_t)m->from % 16 == 0 && (uintptr_t)m->to % 16 == 0;
    m->width = (int64_t)(of->bytes / (whole ? 16 : size));
    m->count = of->batch * of->rows * m->width;
    unsigned grid = launch_blocks(m->count, THREADS, (int64_t)q->device->processors * BLOCKS_EACH);
    if (whole)
        LAUNCH(append_16, grid, THREADS, 0, q, *m);
    else if (size == 4)
        LAUNCH(append_4, grid, THREADS, 0, q, *m);
    else
        LAUNCH(append_2, grid, THREADS, 0, q, *m);
    return op_launched(q, c, e);
}

int op_cache(struct stream_q *q, const struct op_call *c, struct err *e)
{
    struct cache_call of;
    struct cache m;
    int rc = op_check_cache(c, &of, e);
    if (rc)
        return rc;
    memset(&m, 0, sizeof m);
    m.to = c->out[0].data;
    m.rows = of.rows;
    m.places = of.places;
    if (c->op == OP_APPEND)
        return run_append(q, c, &of, &m, e);
    m.last = (const int32_t *)c->in[0].data;
    m.unused = c->attr->limit;
    m.count = of.batch * of.places;
    unsigned grid = launch_blocks(m.count, THREADS, (int64_t)q->device->processors * BLOCKS_EACH);
    LAUNCH(ring_kernel, grid, THREADS, 0, q, m);
    return op_launched(q, c, e);
}
