// SPDX-License-Identifier: Apache-2.0
// COPY: a strided block to a strided place, as collectives along an inner dimension need it. Bytes
// moved: twice the block. The rows of the two outer loops are dealt out over the threads; a row
// that is dense on both sides is one memcpy, one row alone is cut into pieces.
#include <string.h>

#include "kernels/cpu/cpu_device.h"

struct block_work {
    const struct op_call *call;
    size_t elem;
    int64_t piece, pieces; // of a dense row: elements each, and how many
};

static void copy_slice(void *arg, int64_t begin, int64_t end)
{
    const struct block_work *w = arg;
    const struct op_block *b = &w->call->attr->block;
    for (int64_t at = begin; at < end; at++) {
        int64_t row = at / w->pieces, first = at % w->pieces * w->piece;
        int64_t i = row / b->extent[1], j = row % b->extent[1];
        int64_t left = b->extent[2] - first, n = left < w->piece ? left : w->piece;
        const char *from = (const char *)w->call->in[0].data +
                           (size_t)(i * b->from[0] + j * b->from[1] + first) * w->elem;
        char *to =
            (char *)w->call->out[0].data + (size_t)(i * b->to[0] + j * b->to[1] + first) * w->elem;
        if (b->from[2] == 1 && b->to[2] == 1) {
            memcpy(to, from, (size_t)n * w->elem);
            continue;
        }
        for (int64_t k = 0; k < b->extent[2]; k++)
            memcpy(to + (size_t)(k * b->to[2]) * w->elem, from + (size_t)(k * b->from[2]) * w->elem,
                   w->elem);
    }
}

int op_copy(struct stream_q *q, const struct op_call *c, struct err *e)
{
    const struct op_block *b = &c->attr->block;
    (void)e;
    bool dense = b->from[2] == 1 && b->to[2] == 1;
    struct block_work w = {.call = c, .elem = dtype_size(c->in[0].dtype), .piece = b->extent[2]};
    if (dense && w.piece > 4 * GRAIN)
        w.piece = 4 * GRAIN;
    w.pieces = (b->extent[2] + w.piece - 1) / w.piece;
    int64_t grain = w.piece < GRAIN ? GRAIN / w.piece : 1;
    pool_for(q->device->pool, b->extent[0] * b->extent[1] * w.pieces, grain, copy_slice, &w);
    return 0;
}
