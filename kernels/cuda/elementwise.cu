// SPDX-License-Identifier: Apache-2.0
// Elementwise ops: SCALE.
//
// Reads and writes every element once: 2 × the dtype's bytes and 1 FLOP an element, so it is bound
// by memory. A thread takes elements a grid apart: neighbours in a warp read neighbours in memory.
#include "kernels/cuda/device.h"
#include "kernels/cuda/numbers.h"
#include "kernels/cuda/walk.h"

enum { THREADS = 256, MOST_BLOCKS = 4096 };

KERNEL(THREADS)
scale_kernel(const void *x, enum dtype xt, void *y, enum dtype yt, struct loops l, int64_t n,
             float scale)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        store_f32(y, yt, i, scale * load_f32(x, xt, walk_offset(&l, l.n, 0, i)));
}

int op_elementwise(struct stream_q *q, const struct op_call *c, struct err *e)
{
    struct loops l;
    const int index[2] = {0, 1};
    int64_t n = shape_count(&c->out[0].shape);
    int rc = op_want_float(c, &c->in[0], e);
    rc = rc ? rc : op_want_float(c, &c->out[0], e);
    if (rc || !n)
        return rc;
    if (!loops_over(c, c->nin, c->out[0].shape.n, -1, index, c->nin + 1, &l))
        return op_refuse(c, e, "operands disagree about an extent");
    LAUNCH(scale_kernel, launch_blocks(n, THREADS, MOST_BLOCKS), THREADS, 0, q->stream,
           c->in[0].data, c->in[0].dtype, c->out[0].data, c->out[0].dtype, l, n, c->attr->scale);
    return op_launched(q, c, e);
}
