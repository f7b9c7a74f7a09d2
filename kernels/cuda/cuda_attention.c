// SPDX-License-Identifier: Apache-2.0
// ATTENTION and its gradient: a call is checked and read as sizes, and served by cuDNN or by our own
// kernels. See cuda_attention.h.
//
// cuDNN serves bf16 where keys and queries are in their plain order and nothing is dropped; our own
// kernels serve the rest, and what no engine of cuDNN's takes. Which of the two a shape gets is
// decided when it is tuned, or at its first call, stays, and is among the device's choices. A build
// without cuDNN's headers has attention_alone.c in attention_library.c's place.
#include "kernels/cuda/cuda_attention.h"

#include <math.h>

static int check_call(const struct op_call *c, struct err *e)
{
    bool grad = c->op == OP_ATTENTION_GRAD;
    int positions = attention_positions(c->op), rc = 0;
    const struct shape *q = &c->in[0].shape, *k = &c->in[1].shape;
    const int64_t *dim = q->dim, *key_dim = k->dim;
    enum dtype t = c->in[0].dtype;
    rc = op_want_float(c, &c->in[0], e);
    for (int i = 0; i < c->nin && !rc; i++)
        rc = op_want(c, &c->in[i], i < positions ? t : DT_I32, e);
    for (int i = 0; i < c->nout && !rc; i++)
        rc = op_want(c, &c->out[i], t, e);
    if (rc)
        return rc;
    bool fit = q->n == 4 && k->n == 4 && shape_equal(k, &c->in[2].shape) && key_dim[0] == dim[0] &&
               key_dim[3] == dim[3] && shape_equal(q, &c->out[0].shape) &&
               (!grad || (shape_equal(q, &c->in[3].shape) && shape_equal(k, &c->out[1].shape) &&
                          shape_equal(k, &c->out[2].shape))) &&
               shape_count(&c->in[positions].shape) == dim[0] * dim[1] &&
               shape_count(&c->in[positions + 1].shape) == dim[0] * key_dim[1];
    if (!fit)
        return op_refuse(c, e, "operands disagree about an extent");
    if (dim[3] > ATTENTION_HEAD)
        return op_refuse(c, e, "heads of more than 256 elements");
    if (c->attr->group < 1 || c->attr->start < 0 ||
        (c->attr->start + dim[2] - 1) / c->attr->group >= key_dim[2])
        return op_refuse(c, e, "query heads without a key head");
    return 0;
}

// The site that the weights' numbers come from; the step is read on the device.
static void read_draw(struct attention *a, const struct op_draw *d, const void *step)
{
    double rate = (double)d->rate;
    a->step = step;
    a->seed = d->seed;
    a->stream = d->stream;
    a->threshold = (unsigned)ceil(rate * 0x1p24);
    a->kept_scale = (float)(1 / (1 - rate));
    for (int i = 0; i < 2; i++)
        a->from[i] = d->from[i];
    for (int i = 0; i < DRAW_DIMS; i++)
        a->extent[i] = d->extent[i];
}

static struct attention read_call(const struct op_call *c)
{
    bool grad = c->op == OP_ATTENTION_GRAD;
    int positions = attention_positions(c->op);
    const int64_t *dim = c->in[0].shape.dim, *key_dim = c->in[1].shape.dim;
    struct attention a = {.q = c->in[0].data,
                          .k = c->in[1].data,
                          .v = c->in[2].data,
                          .dy = grad ? c->in[3].data : NULL,
                          .at_q = c->in[positions].data,
                          .at_k = c->in[positions + 1].data,
                          .out = c->out[0].data,
                          .dk = grad ? c->out[1].data : NULL,
                          .dv = grad ? c->out[2].data : NULL,
                          .batch = dim[0],
                          .queries = dim[1],
                          .keys = key_dim[1],
                          .heads = dim[2],
                          .kv_heads = key_dim[2],
                          .d = dim[3],
                          .start = c->attr->start,
                          .group = c->attr->group,
                          .scale = c->attr->scale,
                          .dtype = c->in[0].dtype,
                          .in_order = c->attr->in_order};
    if (c->nin > positions + 2)
        read_draw(&a, &c->attr->draw, c->in[positions + 2].data);
    return a;
}

int attention_tune(struct stream_q *q, const struct op_call *c, struct err *e)
{
    int rc = check_call(c, e);
    if (!rc && shape_count(&c->out[0].shape)) {
        struct attention a = read_call(c);
        if (attention_is_plain(&a))
            rc = attention_library_settle(q, c, &a, e);
    }
    return rc;
}

int op_attention(struct stream_q *q, const struct op_call *c, struct err *e)
{
    bool served = false;
    int rc = check_call(c, e);
    if (rc || !shape_count(&c->out[0].shape))
        return rc;
    struct attention a = read_call(c);
    if (attention_is_plain(&a))
        rc = attention_library(q, c, &a, &served, e);
    return rc || served ? rc : attention_own(q, c, &a, e);
}
