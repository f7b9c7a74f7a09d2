// SPDX-License-Identifier: Apache-2.0
// COPY: copies a strided block to a strided place, as collectives along an inner dimension need it.
//
// It moves twice the block's bytes and computes nothing. A copy may run its loops in any order, so
// the host sorts them by the size of their steps in the destination, merges a loop into the next
// one where it continues exactly where that ends, and copies by the longest unit of which every
// step and address is a multiple. A block that is dense on both sides becomes one loop of 16-byte
// units; a transpose writes neighbours and reads with a stride.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/units.h"
#include "kernels/cuda/walk.h"

#include <string.h>

enum { THREADS = 256, BLOCKS_EACH = 8, LOOPS = 3 };

struct block { // in units
    int64_t extent[LOOPS], from[LOOPS], to[LOOPS];
    int unit;
};

KERNEL(THREADS) block_kernel(struct block b, void *to, const void *from, int64_t all)
{
    kernel_begin();
    int64_t stride = (int64_t)gridDim.x * THREADS, j, k;
    for (int64_t n = (int64_t)blockIdx.x * THREADS + threadIdx.x; n < all; n += stride) {
        int64_t i = walk_divide(walk_divide(n, b.extent[2], &k), b.extent[1], &j);
        unit_copy(to, i * b.to[0] + j * b.to[1] + k * b.to[2], from,
                  i * b.from[0] + j * b.from[1] + k * b.from[2], b.unit);
    }
}

// ---- the fewest loops for a block ---------------------------------------------------------------

// Loops that run once go outermost; of the others, the one with the larger steps in the destination,
// so that the innermost loop writes neighbours.
static void sort_loops(struct block *b)
{
    for (int end = LOOPS - 1; end > 0; end--)
        for (int i = 0; i < end; i++) {
            const int64_t extent = b->extent[i], from = b->from[i], to = b->to[i];
            const bool once = b->extent[i + 1] == 1;
            if (extent == 1 || (!once && b->to[i + 1] <= to))
                continue;
            b->extent[i] = b->extent[i + 1], b->from[i] = b->from[i + 1], b->to[i] = b->to[i + 1];
            b->extent[i + 1] = extent, b->from[i + 1] = from, b->to[i + 1] = to;
        }
}

// Merges an outer loop into the next one where each of its steps continues, in source and
// destination, exactly where the inner loop ended.
static void join_loops(struct block *b)
{
    for (int i = LOOPS - 1; i > 0; i--)
        for (int j = i - 1; j >= 0; j--) {
            bool joined = b->extent[j] == 1 || (b->from[j] == b->from[i] * b->extent[i] &&
                                                b->to[j] == b->to[i] * b->extent[i]);
            if (!joined)
                break;
            b->extent[i] *= b->extent[j];
            b->extent[j] = 1;
        }
    sort_loops(b);
}

// Copies by units longer than an element of `size` bytes, if the innermost loop is dense in source
// and destination and all lengths, steps and addresses are multiples of the unit.
static void choose_units(struct block *b, uint64_t size, uint64_t addresses)
{
    uint64_t bits = addresses;
    b->unit = (int)size;
    if (b->from[2] != 1 || b->to[2] != 1)
        return;
    bits |= (uint64_t)b->extent[2] * size;
    for (int i = 0; i < LOOPS - 1; i++)
        if (b->extent[i] > 1)
            bits |= (uint64_t)(b->from[i] | b->to[i]) * size;
    b->unit = unit_of(bits);
    int64_t each = b->unit / (int64_t)size;
    b->extent[2] /= each;
    for (int i = 0; i < LOOPS - 1; i++) {
        b->from[i] /= each;
        b->to[i] /= each;
    }
}

int op_copy(struct stream_q *q, const struct op_call *c, struct err *e)
{
    const struct op_block *o = &c->attr->block;
    struct block b;
    memset(&b, 0, sizeof b);
    for (int i = 0; i < LOOPS; i++)
        b.extent[i] = o->extent[i], b.from[i] = o->from[i], b.to[i] = o->to[i];
    if (b.extent[0] * b.extent[1] * b.extent[2] == 0)
        return 0;
    sort_loops(&b);
    join_loops(&b);
    choose_units(&b, dtype_size(c->in[0].dtype),
                 (uint64_t)(uintptr_t)c->in[0].data | (uint64_t)(uintptr_t)c->out[0].data);
    int64_t all = b.extent[0] * b.extent[1] * b.extent[2];
    LAUNCH(block_kernel, launch_blocks(all, THREADS, (int64_t)q->device->processors * BLOCKS_EACH),
           THREADS, 0, q, b, c->out[0].data, (const void *)c->in[0].data, all);
    return op_launched(q, c, e);
}
