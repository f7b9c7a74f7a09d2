// SPDX-License-Identifier: Apache-2.0
// PAD: a copy with a number in the padding of one dimension. Bytes moved: twice the tensor; no
// FLOPs. Only models with padding in a dimension that they add up have it, so it is one element a
// thread at a time.
#include <string.h>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/numbers.h"
#include "kernels/cuda/walk.h"

enum { THREADS = 256, BLOCKS_EACH = 8 };

struct pad {
    const void *x;
    void *y;
    enum dtype dtype;
    int64_t count, left, whole; // elements; before the padding, and with it, of one index in front
    float by;
};

KERNEL(THREADS) pad_kernel(struct pad p)
{
    kernel_begin();
    int64_t stride = (int64_t)gridDim.x * THREADS, at;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < p.count; i += stride) {
        (void)walk_divide(i, p.whole, &at);
        store_f32(p.y, p.dtype, i, at < p.left ? load_f32(p.x, p.dtype, i) : p.by);
    }
}

int op_pad(struct stream_q *q, const struct op_call *c, struct err *e)
{
    struct pad_place at;
    struct pad p;
    int rc = op_check_pad(c, &at, e);
    if (rc)
        return rc;
    memset(&p, 0, sizeof p);
    p.x = c->in[0].data;
    p.y = c->out[0].data;
    p.dtype = c->in[0].dtype;
    p.count = shape_count(&c->out[0].shape);
    p.left = at.left * at.inner;
    p.whole = at.n * at.inner;
    p.by = c->attr->scale;
    if (!p.count)
        return 0;
    unsigned blocks = launch_blocks(p.count, THREADS, (int64_t)q->device->processors * BLOCKS_EACH);
    LAUNCH(pad_kernel, blocks, THREADS, 0, q, p);
    return op_launched(q, c, e);
}
