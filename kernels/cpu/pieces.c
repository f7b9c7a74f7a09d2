// SPDX-License-Identifier: Apache-2.0
// SPLIT and STACK: a tensor as the list of what its first dimension counts, and back. Each piece is
// contiguous on both sides.
#include "kernels/cpu/device.h"

#include <string.h>

struct work {
    const struct op_call *call;
    int64_t n; // elements of a piece
};

static void slice(void *arg, int64_t begin, int64_t end)
{
    const struct work *w = arg;
    const struct op_call *c = w->call;
    while (begin < end) {
        int64_t piece = begin / w->n, at = begin % w->n;
        int64_t n = w->n - at < end - begin ? w->n - at : end - begin;
        const float *from = c->op == OP_SPLIT ? (const float *)c->in[0].data + begin
                                              : (const float *)c->in[piece].data + at;
        float *to =
            c->op == OP_SPLIT ? (float *)c->out[piece].data + at : (float *)c->out[0].data + begin;
        memcpy(to, from, (size_t)n * sizeof *to);
        begin += n;
    }
}

int op_pieces(struct stream_q *q, const struct op_call *c, struct err *e)
{
    const struct tensor *whole = c->op == OP_SPLIT ? &c->in[0] : &c->out[0];
    int pieces = c->op == OP_SPLIT ? c->nout : c->nin;
    int64_t count = shape_count(&whole->shape);
    struct work w = {.call = c, .n = count / pieces};
    for (int k = 0; k < pieces; k++) {
        const struct tensor *t = c->op == OP_SPLIT ? &c->out[k] : &c->in[k];
        int rc = op_want(c, t, DT_F32, e);
        if (rc)
            return rc;
        if (shape_count(&t->shape) * pieces != count)
            return op_refuse(c, e, "operands disagree about an extent");
    }
    pool_for(q->device->pool, count, GRAIN, slice, &w);
    return 0;
}
