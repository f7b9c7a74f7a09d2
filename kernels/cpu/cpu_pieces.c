// SPDX-License-Identifier: Apache-2.0
// SPLIT and STACK: a tensor cut along its first dimension into pieces, and back. Each piece is
// contiguous on both sides; bytes are copied, of any dtype.
#include "kernels/cpu/cpu_device.h"

#include <string.h>

struct pieces_work {
    const struct op_call *call;
    int64_t n; // elements of a piece
    size_t elem;
};

static void copy_slice(void *arg, int64_t begin, int64_t end)
{
    const struct pieces_work *w = arg;
    const struct op_call *c = w->call;
    const bool split = op_is(c->op, OP_MAKES_PIECES);
    while (begin < end) {
        int64_t piece = begin / w->n, at = begin % w->n;
        int64_t n = w->n - at < end - begin ? w->n - at : end - begin;
        const char *from = split ? c->in[0].data : c->in[piece].data;
        char *to = split ? c->out[piece].data : c->out[0].data;
        from += (size_t)(split ? begin : at) * w->elem;
        to += (size_t)(split ? at : begin) * w->elem;
        memcpy(to, from, (size_t)n * w->elem);
        begin += n;
    }
}

int op_pieces(struct stream_q *q, const struct op_call *c, struct err *e)
{
    const bool split = op_is(c->op, OP_MAKES_PIECES);
    const struct tensor *whole = split ? &c->in[0] : &c->out[0];
    int pieces = split ? c->nout : c->nin;
    int64_t count = shape_count(&whole->shape);
    struct pieces_work w = {.call = c, .n = count / pieces, .elem = dtype_size(whole->dtype)};
    int rc = op_check_pieces(c, e);
    if (rc)
        return rc;
    pool_for(q->device->pool, count, GRAIN, copy_slice, &w);
    return 0;
}
