// SPDX-License-Identifier: Apache-2.0
// ATTENTION and its gradient: checks a call, reads its sizes and addresses, and gives it to cuDNN
// or to our own kernels. See cuda_attention.h.
//
// cuDNN serves bf16 where keys and queries are in their plain order and nothing is dropped; our own
// kernels serve the rest, and what no engine of cuDNN's takes. Which of the two serves a shape is
// decided when it is tuned, or at its first call; it stays so and is among the device's choices. A
// build without cuDNN's headers has attention_alone.c in place of attention_library.c.
#include "kernels/cuda/cuda_attention.h"

#include <math.h>
#include <string.h>

static int check_call(const struct op_call *c, struct attention_operands *o, struct err *e)
{
    int rc = op_check_attention(c, o, e);
    if (rc)
        return rc;
    int64_t q = attention_place(c, o, ATTENTION_Q).width,
            v = attention_place(c, o, ATTENTION_V).width;
    int64_t r = o->qr < 0 ? 0 : c->in[o->qr].shape.dim[3];
    return q + r > ATTENTION_HEAD || v > ATTENTION_HEAD
               ? op_refuse(c, e, "heads of more than 256 elements")
               : 0;
}

// Where q, k or v, or its gradient, begins in its operand.
static void *find_begin(const struct tensor *t, const struct attention_place *p)
{
    return (char *)t->data + (size_t)p->from * dtype_size(t->dtype);
}

static struct attention read_call(const struct op_call *c, const struct attention_operands *o)
{
    bool grad = o->dy >= 0, pair = o->qr >= 0;
    const struct attention_place q = attention_place(c, o, ATTENTION_Q);
    const struct attention_place k = attention_place(c, o, ATTENTION_K);
    const struct attention_place v = attention_place(c, o, ATTENTION_V);
    const struct attention_sight sight = attention_sight(c->attr, 0);
    struct attention a = {.q = find_begin(&c->in[o->q], &q),
                          .k = find_begin(&c->in[o->k], &k),
                          .v = find_begin(&c->in[o->v], &v),
                          .dy = grad ? c->in[o->dy].data : NULL,
                          .y = grad ? c->in[o->y].data : NULL,
                          .lse = grad ? c->in[o->lse].data : c->out[ATTENTION_LSE].data,
                          .at_q = c->in[o->at_q].data,
                          .at_k = c->in[o->at_k].data,
                          .out = grad ? find_begin(&c->out[o->q], &q) : c->out[ATTENTION_Y].data,
                          .dk = grad ? find_begin(&c->out[o->k], &k) : NULL,
                          .dv = grad ? find_begin(&c->out[o->v], &v) : NULL,
                          .batch = q.batch,
                          .queries = q.rows,
                          .keys = k.rows,
                          .heads = q.heads,
                          .kv_heads = k.heads,
                          .d = q.width,
                          .e = v.width,
                          .q_pitch = q.pitch,
                          .k_pitch = k.pitch,
                          .v_pitch = v.pitch,
                          .start = c->attr->start,
                          .group = c->attr->group,
                          .back = -(int64_t)sight.first,
                          .ahead = sight.last,
                          .scale = c->attr->scale,
                          .cap = c->attr->cap,
                          .dtype = c->in[0].dtype,
                          .in_order = c->attr->in_order};
    if (pair) {
        a.qr = c->in[o->qr].data;
        a.kr = c->in[o->kr].data;
        a.dqr = grad ? c->out[o->qr].data : NULL;
        a.dkr = grad ? c->out[o->kr].data : NULL;
        a.r = c->in[o->kr].shape.dim[2];
    }
    if (o->step >= 0) { // the step itself is read on the device
        const struct op_draw *d = &c->attr->draw;
        double rate = (double)d->rate;
        a.step = c->in[o->step].data;
        a.seed = d->seed;
        a.stream = d->stream;
        a.threshold = (unsigned)ceil(rate * 0x1p24);
        a.drop_scale = (float)(1 / (1 - rate));
        memcpy(a.from, d->from, sizeof a.from);
        memcpy(a.extent, d->extent, sizeof a.extent);
    }
    return a;
}

int attention_tune(struct stream_q *q, const struct op_call *c, struct err *e)
{
    struct attention_operands o;
    int rc = check_call(c, &o, e);
    if (!rc && shape_count(&c->out[0].shape)) {
        struct attention a = read_call(c, &o);
        if (attention_is_plain(&a))
            rc = attention_library_settle(q, c, &a, e);
    }
    return rc;
}

int op_attention(struct stream_q *q, const struct op_call *c, struct err *e)
{
    bool served = false;
    struct attention_operands o;
    int rc = check_call(c, &o, e);
    if (rc || !shape_count(&c->out[0].shape))
        return rc;
    struct attention a = read_call(c, &o);
    if (attention_is_plain(&a))
        rc = attention_library(q, c, &a, &served, e);
    return rc || served ? rc : attention_own(q, c, &a, e);
}
