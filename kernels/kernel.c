// SPDX-License-Identifier: Apache-2.0
// The checks that refuse calls which no kernel serves, and fused ops run as the ops that they fuse.
// See kernel.h.
#include "kernels/kernel.h"

#include <string.h>

#include "common/op/gemm.h"
#include "common/op/rotary.h"
#include "common/op/slots.h"

extern const struct backend weft_backend; // of the library that this file is linked into

int op_refuse(const struct op_call *c, struct err *e, const char *what)
{
    return err_set(e, ERR_UNSUPPORTED, "%s: %s: %s", weft_backend.name, op_name(c->op), what);
}

int op_want(const struct op_call *c, const struct tensor *t, enum dtype want, struct err *e)
{
    if (t->dtype == want)
        return 0;
    return err_set(e, ERR_UNSUPPORTED, "%s: %s: an operand is %s, not %s", weft_backend.name,
                   op_name(c->op), dtype_name(t->dtype), dtype_name(want));
}

int op_want_float(const struct op_call *c, const struct tensor *t, struct err *e)
{
    return t->dtype == DT_BF16 ? 0 : op_want(c, t, DT_F32, e);
}

int op_want_update(const struct op_call *c, struct err *e)
{
    int64_t n = shape_count(&c->in[0].shape);
    for (int k = 0; k < c->nin; k++) {
        int rc = op_want(c, &c->in[k], DT_F32, e);
        if (rc)
            return rc;
        if (k < c->nin - 2 && shape_count(&c->in[k].shape) != n)
            return op_refuse(c, e, "operands differ in size");
    }
    for (int k = 0; k < c->nout; k++) {
        int rc = op_want(c, &c->out[k], k < op_outputs(c->op) ? DT_F32 : DT_BF16, e);
        if (rc)
            return rc;
        if (shape_count(&c->out[k].shape) != n)
            return op_refuse(c, e, "results differ in size");
    }
    if (shape_count(&c->in[c->nin - 2].shape) < CLIP_SLOTS ||
        shape_count(&c->in[c->nin - 1].shape) < HYPER_SLOTS)
        return op_refuse(c, e, "clip or hyper vector is too short");
    return 0;
}

static int want_all(const struct op_call *c, enum dtype want, struct err *e)
{
    int rc = 0;
    for (int k = 0; k < c->nin + c->nout && !rc; k++)
        rc = op_want(c, k < c->nin ? &c->in[k] : &c->out[k - c->nin], want, e);
    return rc;
}

int op_want_metrics(const struct op_call *c, struct err *e)
{
    int64_t left = shape_count(&c->out[0].shape);
    int rc = want_all(c, DT_F32, e);
    for (int k = 0; k < c->nin; k++)
        left -= shape_count(&c->in[k].shape);
    if (rc || !left)
        return rc;
    return op_refuse(c, e,
                     left < 0 ? "more metrics than the output holds"
                              : "fewer metrics than the output holds");
}

int op_want_clip(const struct op_call *c, struct err *e)
{
    int rc = want_all(c, DT_F32, e);
    if (rc)
        return rc;
    if (shape_count(&c->in[0].shape) < METRIC_PARTS || shape_count(&c->out[0].shape) != CLIP_SLOTS)
        return op_refuse(c, e, "the metrics are too few, or the output is no clip vector");
    return 0;
}

int op_want_balance(const struct op_call *c, struct err *e)
{
    int64_t n = shape_count(&c->in[0].shape);
    int rc = want_all(c, DT_F32, e);
    if (rc)
        return rc;
    if (c->attr->start < 0 || c->attr->start + n > shape_count(&c->in[1].shape))
        return op_refuse(c, e, "the experts' loads lie outside the metrics");
    if (shape_count(&c->in[2].shape) < CLIP_SLOTS)
        return op_refuse(c, e, "the clip vector is too short");
    return shape_count(&c->out[0].shape) == n ? 0 : op_refuse(c, e, "results differ in size");
}

int op_want_embed(const struct op_call *c, struct err *e)
{
    const bool grad = c->op == OP_EMBED_GRAD;
    const struct tensor *table = grad ? &c->out[0] : &c->in[1];
    const struct tensor *rows = grad ? &c->in[1] : &c->out[0];
    int rc = op_want(c, &c->in[0], DT_I32, e);
    rc = rc ? rc : op_want_float(c, &c->in[1], e);
    if (!rc)
        rc = grad ? op_want_float(c, &c->out[0], e) : op_want(c, &c->out[0], c->in[1].dtype, e);
    if (rc)
        return rc;
    if (table->shape.n != 2 ||
        shape_count(&rows->shape) != shape_count(&c->in[0].shape) * table->shape.dim[1])
        return op_refuse(c, e, "operands disagree about an extent");
    return 0;
}

int op_want_rotary(const struct op_call *c, struct err *e)
{
    const struct shape *x = &c->in[0].shape;
    int rc = op_want_float(c, &c->in[0], e);
    rc = rc ? rc : op_want(c, &c->in[1], DT_I32, e);
    rc = rc ? rc : op_want_float(c, &c->out[0], e);
    if (rc)
        return rc;
    if (x->n < 2 || x->dim[x->n - 1] % 2 || x->dim[x->n - 1] / 2 > ROTARY_PAIRS_MAX)
        return op_refuse(c, e, "a head has an even number of elements, at most 1024");
    if (!rotary_row_of(c).heads || !shape_equal(x, &c->out[0].shape))
        return op_refuse(c, e, "operands disagree about an extent");
    return 0;
}

int op_want_pieces(const struct op_call *c, struct err *e)
{
    const bool split = op_is(c->op, OP_MAKES_PIECES);
    const struct tensor *whole = split ? &c->in[0] : &c->out[0], *piece = split ? c->out : c->in;
    int pieces = split ? c->nout : c->nin;
    for (int k = 0; k < pieces; k++) {
        int rc = op_want(c, &piece[k], whole->dtype, e);
        if (rc)
            return rc;
        if (shape_count(&piece[k].shape) * pieces != shape_count(&whole->shape))
            return op_refuse(c, e, "operands disagree about an extent");
    }
    return 0;
}

int op_want_draw(const struct op_call *c, int step, struct err *e)
{
    const struct shape *s = &c->out[0].shape;
    int rc = op_want(c, &c->in[step], DT_I32, e);
    if (!rc && (s->n < 1 || s->n != c->attr->draw.n))
        return op_refuse(c, e, "attr.draw has other dimensions than the output");
    return rc;
}

int op_want_dropout(const struct op_call *c, struct err *e)
{
    const struct shape *s = &c->out[0].shape;
    int rc = op_want_float(c, &c->in[0], e);
    rc = rc ? rc : op_want(c, &c->out[0], c->in[0].dtype, e);
    rc = rc ? rc : op_want_draw(c, 1, e);
    if (!rc && c->nin > 2)
        rc = op_want(c, &c->in[2], DT_I32, e);
    if (rc)
        return rc;
    if (!shape_equal(&c->in[0].shape, s) ||
        memcmp(c->attr->label[0], c->attr->label[c->nin], sizeof c->attr->label[0]) != 0)
        return op_refuse(c, e, "the operand is not laid out as the output");
    if (c->nin > 2 && (s->n < 3 || shape_count(&c->in[2].shape) != s->dim[0] * s->dim[1]))
        return op_refuse(c, e,
                         "the positions are not one for each sample and place of the sequence");
    return 0;
}

int op_want_step(const struct op_call *c, const struct tensor *t, struct err *e)
{
    if (op_is(c->op, OP_ON_IDS))
        return op_want(c, t, DT_I32, e);
    if (op_is(c->op, OP_FROM_INTS) && (t->dtype == DT_U8 || t->dtype == DT_I32))
        return 0;
    return op_want_float(c, t, e);
}

int op_want_attention(const struct op_call *c, struct attention_operands *o, struct err *e)
{
    enum dtype t = c->in[0].dtype;
    if (attention_operands(c->op, c->nin, o))
        return op_refuse(c, e, "has a number of inputs that the op does not have");
    int rc = op_want_float(c, &c->in[0], e);
    if (!rc && c->nout != (o->dy < 0 ? ATTENTION_OUTPUTS : o->dy))
        return op_refuse(c, e, "has a number of outputs that the op does not have");
    for (int i = 0; i < c->nin && !rc; i++)
        rc = op_want(c, &c->in[i], i == o->lse ? DT_F32 : i < o->at_q ? t : DT_I32, e);
    for (int i = 0; i < c->nout && !rc; i++)
        rc = op_want(c, &c->out[i], o->dy < 0 && i == ATTENTION_LSE ? DT_F32 : t, e);
    if (rc)
        return rc;
    if (!attention_fits(c, o))
        return op_refuse(c, e, "operands disagree about an extent");
    int64_t heads = attention_place(c, o, ATTENTION_Q).heads, group = c->attr->group;
    if (group < 1 || c->attr->start < 0 ||
        (c->attr->start + heads - 1) / group >= attention_place(c, o, ATTENTION_K).heads)
        return op_refuse(c, e, "query heads without a key head");
    return 0;
}

// Whether each row of `narrow` can hold k of the n elements of a row of `wide`.
static bool fits_topk(const struct op_call *c, const struct topk_call *t, const struct shape *wide,
                      const struct shape *narrow)
{
    return wide->n > 0 && narrow->n > 0 && t->n > 0 && t->k > 0 && t->k <= t->n &&
           shape_count(wide) / t->n * t->k == shape_count(narrow) &&
           shape_count(&t->ids->shape) == shape_count(narrow) &&
           (t->grad || c->nin < 2 || shape_equal(&c->in[1].shape, wide));
}

int op_want_topk(const struct op_call *c, struct topk_call *t, struct err *e)
{
    const bool grad = c->op == OP_TOPK_GRAD;
    const struct shape *wide = grad ? &c->out[0].shape : &c->in[0].shape;
    const struct shape *narrow = grad ? &c->in[1].shape : &c->out[0].shape;
    t->grad = grad;
    t->x = grad ? &c->in[1] : &c->in[0];
    t->ids = grad ? &c->in[0] : &c->out[1];
    int rc = op_want(c, t->x, DT_F32, e);
    rc = rc ? rc : op_want(c, &c->out[0], DT_F32, e);
    rc = rc ? rc : op_want(c, t->ids, DT_I32, e);
    if (!rc && !grad && c->nin > 1)
        rc = op_want(c, &c->in[1], DT_F32, e);
    if (rc)
        return rc;
    t->n = wide->n ? wide->dim[wide->n - 1] : 0;
    t->k = narrow->n ? narrow->dim[narrow->n - 1] : 0;
    if (!fits_topk(c, t, wide, narrow))
        return op_refuse(c, e, "operands disagree about an extent");
    t->rows = shape_count(wide) / t->n;
    return 0;
}

static bool fits_dispatch(const struct op_call *c, const struct dispatch_call *d)
{
    const struct shape *x = &d->tokens->shape, *y = &d->places->shape, *slots = &c->in[1].shape;
    const struct tensor *each = c->op == OP_SLOT_DOT ? &c->out[0] : d->weights; // one a choice
    return x->n == 3 && y->n == 4 && slots->n == 3 && c->attr->slots.group > 0 &&
           c->attr->slots.capacity > 0 && x->dim[0] == y->dim[0] * c->attr->slots.group &&
           x->dim[0] == slots->dim[0] && x->dim[1] == slots->dim[1] && x->dim[2] == y->dim[3] &&
           (!each || shape_equal(&each->shape, slots));
}

int op_want_dispatch(const struct op_call *c, struct dispatch_call *d, struct err *e)
{
    const bool dot = c->op == OP_SLOT_DOT, fill = c->op == OP_DISPATCH;
    d->tokens = fill ? &c->in[0] : dot ? &c->in[2] : &c->out[0];
    d->places = fill ? &c->out[0] : &c->in[0];
    d->weights = !dot && c->nin > 2 ? &c->in[2] : NULL;
    int rc = op_want_float(c, d->tokens, e);
    rc = rc ? rc : op_want(c, &c->in[1], DT_I32, e);
    rc = rc ? rc : op_want(c, d->places, d->tokens->dtype, e);
    if (!rc && (d->weights || dot))
        rc = op_want(c, dot ? &c->out[0] : d->weights, DT_F32, e);
    if (rc)
        return rc;
    return fits_dispatch(c, d) ? 0 : op_refuse(c, e, "operands disagree about an extent");
}

int64_t op_unpadded(const struct op_call *c, int64_t n)
{
    int64_t left = c->attr->limit - c->attr->start;
    if (!c->attr->limit || left >= n)
        return n;
    return left > 0 ? left : 0;
}

// One of the ops that a fused op is run as. operand[] says which of the fused op's operands it has,
// numbered as in attr.label (inputs, then outputs); the last one is its output.
struct op_part {
    enum op op;
    backend_op kernel;
    int nin, operand[5];
};

// The parts of NORM_GRADS. The gradient may be written over dy, which the first two read: so these
// come before it.
enum { NORM_PARTS = 4 };
static const struct op_part norm_grads[NORM_PARTS] = {
    {OP_NORM_WEIGHT_GRAD, op_norm, 2, {0, 1, 4}},
    {OP_SUM, op_sum, 1, {1, 5}},
    {OP_NORM_GRAD, op_norm, 3, {0, 1, 2, 3}},
    {OP_SUM, op_sum, 1, {3, 6}},
};
// The same parts where another gradient is added: it is operand 0.
static const struct op_part norm_grads_added[NORM_PARTS] = {
    {OP_NORM_WEIGHT_GRAD, op_norm, 2, {1, 2, 5}},
    {OP_SUM, op_sum, 1, {2, 6}},
    {OP_NORM_GRAD_ADD, op_norm, 4, {0, 1, 2, 3, 4}},
    {OP_SUM, op_sum, 1, {4, 7}},
};

static int run_part(struct stream_q *q, const struct op_call *c, const struct op_part *p,
                    struct err *e)
{
    struct op_attr attr = *c->attr;
    struct op_call part = {.op = p->op,
                           .attr = &attr,
                           .nin = p->nin,
                           .nout = 1,
                           .workspace = c->workspace,
                           .workspace_bytes = c->workspace_bytes,
                           .accumulate = c->accumulate && op_is(p->op, OP_ACCUMULATES)};
    attr.scale = 1;
    for (int k = 0; k <= p->nin; k++) {
        int at = p->operand[k];
        *(k < p->nin ? &part.in[k] : &part.out[0]) = at < c->nin ? c->in[at] : c->out[at - c->nin];
        memcpy(attr.label[k], c->attr->label[at], sizeof attr.label[k]);
    }
    return p->kernel(q, &part, e);
}

int op_norm_grads_unfused(struct stream_q *q, const struct op_call *c, struct err *e)
{
    const struct op_part *part = c->nin == 4 ? norm_grads_added : norm_grads;
    int rc = 0;
    for (int k = 0; k < NORM_PARTS && !rc; k++)
        if (part[k].operand[part[k].nin] < c->nin + c->nout)
            rc = run_part(q, c, &part[k], e);
    return rc;
}

int op_matmul_sum_unfused(struct stream_q *q, const struct op_call *c, struct err *e)
{
    const struct op_part product = {OP_MATMUL, op_matmul, 2, {0, 1, 2}};
    const struct op_part sum = {OP_SUM, op_sum, 1, {gemm_summed(c->attr, &c->in[0].shape), 3}};
    int rc = run_part(q, c, &product, e);
    return rc ? rc : run_part(q, c, &sum, e);
}
