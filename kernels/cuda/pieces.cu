// SPDX-License-Identifier: Apache-2.0
// SPLIT and STACK: a tensor cut along its first dimension into pieces, and back.
//
// Every piece is contiguous on both sides. Bytes moved: twice the tensor; no FLOPs. One launch for
// all pieces, a row of blocks each, in units of 16 bytes where addresses and sizes allow.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/units.h"

#include <string.h>

enum { THREADS = 256, BLOCKS_EACH = 8 };

struct pieces {
    void *to[OP_MAX_IN];
    const void *from[OP_MAX_IN];
    int64_t units; // of a piece
    int unit;
};

KERNEL_BESIDE(THREADS, 4) pieces_kernel(struct pieces p)
{
    kernel_begin();
    void *to = p.to[blockIdx.y];
    const void *from = p.from[blockIdx.y];
    int64_t stride = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < p.units; i += stride)
        unit_copy(to, i, from, i, p.unit);
}

int op_pieces(struct stream_q *q, const struct op_call *c, struct err *e)
{
    bool split = op_is(c->op, OP_MAKES_PIECES);
    const struct tensor *whole = split ? &c->in[0] : &c->out[0];
    int pieces = split ? c->nout : c->nin;
    int64_t count = shape_count(&whole->shape);
    int64_t bytes = count / pieces * (int64_t)dtype_size(whole->dtype);
    uint64_t bits = (uint64_t)bytes;
    struct pieces p;
    int rc = op_check_pieces(c, e);
    if (rc)
        return rc;
    memset(&p, 0, sizeof p);
    for (int k = 0; k < pieces; k++) {
        const struct tensor *t = split ? &c->out[k] : &c->in[k];
        char *part = (char *)whole->data + k * bytes;
        p.to[k] = split ? t->data : part;
        p.from[k] = split ? part : (char *)t->data;
        bits |= (uint64_t)(uintptr_t)p.to[k] | (uint64_t)(uintptr_t)p.from[k];
    }
    p.unit = unit_of(bits);
    p.units = bytes / p.unit;
    if (!p.units)
        return 0;
    int64_t most = ((int64_t)q->device->processors * BLOCKS_EACH + pieces - 1) / pieces;
    unsigned blocks = launch_blocks(p.units, THREADS, most);
    LAUNCH(pieces_kernel, launch_dim(blocks, (unsigned)pieces, 1), THREADS, 0, q, p);
    return op_launched(q, c, e);
}
