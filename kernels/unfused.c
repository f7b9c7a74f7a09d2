// SPDX-License-Identifier: Apache-2.0
// Fused ops run as the ops that they fuse. See kernel.h.
#include <string.h>

#include "common/op/gemm.h"
#include "kernels/kernel.h"

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
    if (c->nin < 3 || c->nin > 4 || c->nout < 2 || c->nout > 4)
        return op_refuse(c, e, "has a number of operands that the op does not have");
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

int op_matmul_places_unfused(struct stream_q *q, const struct op_call *c, struct err *e)
{
    const struct op_part product = {OP_MATMUL, op_matmul, 2, {0, 1, 3}};
    struct places_call places;
    int rc = op_check_places(c, &places, e);
    return rc ? rc : run_part(q, c, &product, e);
}
