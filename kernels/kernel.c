// SPDX-License-Identifier: Apache-2.0
// How kernels refuse what they do not serve, and an op that is made of others. See kernel.h.
#include "kernels/kernel.h"

#include <string.h>

#include "common/op/gemm.h"
#include "common/op/slots.h"

extern const struct backend weft_backend; // the one that this is linked into

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

bool op_dispatch_fits(const struct op_call *c, const struct tensor *tokens,
                      const struct tensor *places)
{
    const struct shape *x = &tokens->shape, *y = &places->shape, *slots = &c->in[1].shape;
    return x->n == 3 && y->n == 4 && slots->n == 3 && c->attr->slots.group > 0 &&
           c->attr->slots.capacity > 0 && x->dim[0] == y->dim[0] * c->attr->slots.group &&
           x->dim[0] == slots->dim[0] && x->dim[1] == slots->dim[1] && x->dim[2] == y->dim[3];
}

int64_t op_unpadded(const struct op_call *c, int64_t n)
{
    int64_t left = c->attr->limit - c->attr->start;
    if (!c->attr->limit || left >= n)
        return n;
    return left > 0 ? left : 0;
}

// A part of an op that is made of others: which operands it has, inputs and then outputs as
// attr.label counts them; the last is the part's output.
struct op_part {
    enum op op;
    backend_op kernel;
    int nin, operand[5];
};

// Those of NORM_GRADS. The gradient may lie over what the first two sum: they come before it.
enum { NORM_PARTS = 4 };
static const struct op_part norm_grads[NORM_PARTS] = {
    {OP_NORM_WEIGHT_GRAD, op_norm, 2, {0, 1, 4}},
    {OP_SUM, op_sum, 1, {1, 5}},
    {OP_NORM_GRAD, op_norm, 3, {0, 1, 2, 3}},
    {OP_SUM, op_sum, 1, {3, 6}},
};
// The same where something is added to the gradient.
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

int op_norm_grads_apart(struct stream_q *q, const struct op_call *c, struct err *e)
{
    const struct op_part *part = c->nin == 4 ? norm_grads_added : norm_grads;
    int rc = 0;
    for (int k = 0; k < NORM_PARTS && !rc; k++)
        if (part[k].operand[part[k].nin] < c->nin + c->nout)
            rc = run_part(q, c, &part[k], e);
    return rc;
}

int op_matmul_sum_apart(struct stream_q *q, const struct op_call *c, struct err *e)
{
    const struct op_part product = {OP_MATMUL, op_matmul, 2, {0, 1, 2}};
    const struct op_part sum = {OP_SUM, op_sum, 1, {gemm_summed(c->attr, &c->in[0].shape), 3}};
    int rc = run_part(q, c, &product, e);
    return rc ? rc : run_part(q, c, &sum, e);
}
