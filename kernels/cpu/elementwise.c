// SPDX-License-Identifier: Apache-2.0
// Elementwise ops: CAST to EQUAL in op.h's table.
//
// The output is walked in memory order, cut into slices of whole cache lines. In the innermost loop
// an operand usually moves by one element (same labels, or a bias) or by none (one value a row):
// then the vector loop reads it where it lies. Anything else (a transposed operand, integers to be
// cast, bf16) is gathered into a buffer in L1 first; what is bf16 is rounded from one.
#include "kernels/cpu/device.h"
#include "kernels/cpu/loops.h"

enum { BUFFERED = 512 }; // elements gathered at a time

struct work {
    const struct op_call *call;
    const struct vec *vec;
    struct loops loops; // operands: inputs, then the output
    bool gather[2];
    bool round; // the output is bf16
};

// Elements of an input as f32 (or as they are, if of 4 bytes), from `offset` in steps of `stride`.
static void gather(const struct work *w, int k, int64_t offset, int64_t stride, int64_t n,
                   float *to)
{
    const struct tensor *t = &w->call->in[k];
    const float *f32 = (const float *)t->data + offset;
    const int32_t *i32 = (const int32_t *)t->data + offset;
    const uint8_t *u8 = (const uint8_t *)t->data + offset;
    const uint16_t *bf16 = (const uint16_t *)t->data + offset;
    if (t->dtype == DT_U8 && stride == 1)
        w->vec->from_u8(to, u8, n);
    else if (t->dtype == DT_U8)
        for (int64_t i = 0; i < n; i++)
            to[i] = u8[i * stride];
    else if (t->dtype == DT_BF16)
        for (int64_t i = 0; i < n; i += stride == 1 ? n : 1)
            w->vec->widen(to + i, bf16 + i * stride, stride == 1 ? n : 1);
    else if (t->dtype == DT_I32 && w->call->op == OP_CAST)
        for (int64_t i = 0; i < n; i++)
            to[i] = (float)i32[i * stride];
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = f32[i * stride];
}

// `n` elements of the innermost loop, from the `at`-th of it on, to element `to` of the output.
static void run(const struct work *w, const int64_t offset[2], int64_t at, int64_t n, int64_t to)
{
    const struct loops *l = &w->loops;
    const struct op_call *c = w->call;
    float buffer[2][BUFFERED], rounded[BUFFERED];
    int64_t piece = w->gather[0] || w->gather[1] || w->round ? BUFFERED : n;
    for (int64_t i = 0; i < n; i += piece) {
        int64_t left = n - i < piece ? n - i : piece;
        struct vec_map m = {.n = left, .scale = c->attr->scale};
        m.out = w->round ? rounded : (float *)c->out[0].data + to + i;
        const float *in[2] = {0};
        int step[2] = {0};
        for (int k = 0; k < c->nin; k++) {
            int64_t stride = l->n ? l->stride[k][l->n - 1] : 0;
            int64_t from = offset[k] + (at + i) * stride;
            in[k] = (const float *)c->in[k].data + from;
            step[k] = stride != 0;
            if (w->gather[k]) {
                gather(w, k, from, stride, stride ? left : 1, buffer[k]);
                in[k] = buffer[k];
            }
        }
        m.a = in[0], m.a_step = step[0];
        m.b = in[1], m.b_step = step[1];
        w->vec->map[c->op](&m);
        if (w->round)
            w->vec->narrow((uint16_t *)c->out[0].data + to + i, rounded, left);
    }
}

static void slice(void *arg, int64_t begin, int64_t end)
{
    const struct work *w = arg;
    const struct loops *l = &w->loops;
    int outer = l->n ? l->n - 1 : 0;
    int64_t row = l->n ? l->extent[outer] : 1;
    while (begin < end) {
        int64_t r = begin / row, at = begin % row;
        int64_t n = row - at < end - begin ? row - at : end - begin;
        int64_t offset[2] = {0};
        for (int k = 0; k < w->call->nin; k++)
            offset[k] = loops_offset(l, outer, k, r);
        run(w, offset, at, n, begin);
        begin += n;
    }
}

static int check(const struct op_call *c, struct err *e)
{
    enum dtype want = c->op == OP_EQUAL ? DT_I32 : DT_F32;
    for (int k = 0; k < c->nin; k++) {
        enum dtype t = c->in[k].dtype;
        bool cast = c->op == OP_CAST && (t == DT_U8 || t == DT_I32);
        bool bf16 = c->op != OP_EQUAL && t == DT_BF16;
        int rc = cast || bf16 ? 0 : op_want(c, &c->in[k], want, e);
        if (rc)
            return rc;
    }
    return c->out[0].dtype == DT_BF16 ? 0 : op_want(c, &c->out[0], DT_F32, e);
}

int op_elementwise(struct stream_q *q, const struct op_call *c, struct err *e)
{
    struct work w = {.call = c, .vec = q->device->vec, .round = c->out[0].dtype == DT_BF16};
    const int index[3] = {0, 1, 2};
    int rc = check(c, e);
    if (rc)
        return rc;
    if (!loops_over(c, c->nin, c->out[0].shape.n, -1, index, c->nin + 1, &w.loops))
        return op_refuse(c, e, "operands disagree about an extent");
    for (int k = 0; k < c->nin; k++) {
        if (w.loops.covered[k] != shape_count(&c->in[k].shape))
            return op_refuse(c, e, "an operand has a dimension that the output lacks");
        int64_t stride = w.loops.n ? w.loops.stride[k][w.loops.n - 1] : 0;
        w.gather[k] = stride > 1 || c->in[k].dtype == DT_BF16 ||
                      (c->op == OP_CAST && c->in[k].dtype != DT_F32);
    }
    pool_for(q->device->pool, shape_count(&c->out[0].shape), GRAIN, slice, &w);
    return 0;
}
