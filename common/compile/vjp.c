// SPDX-License-Identifier: Apache-2.0
// The vjp rules: one short function an op. Each adds the ops that carry the cotangent of its output
// to the inputs that need one; the activation point of what it makes is the input's own.
#include "common/compile/grad.h"
#include "common/compile/optable.h"

// Makes the input's cotangent with `op` over the operands, shaped like the input.
static int make(struct tape *t, enum op op, int nin, const int *in, int value)
{
    graph_at(t->g, t->g->values[value].point);
    return graph_like(t->g, op, nin, in, value);
}

int vjp_matmul(struct tape *t, const struct node *n, int cot)
{
    struct graph *g = t->g;
    int a = n->in[0], b = n->in[1];
    if (tape_needs(t, b)) {
        struct value v = g->values[b];
        graph_at(g, v.point);
        tape_add(t, b, graph_matmul(g, a, cot, v.shape.n, v.dims));
    }
    if (tape_needs(t, a)) {
        struct value v = g->values[a];
        graph_at(g, v.point);
        tape_add(t, a, graph_matmul(g, cot, b, v.shape.n, v.dims));
    }
    return g->failed;
}

int vjp_sum(struct tape *t, const struct node *n, int cot)
{
    struct graph *g = t->g;
    struct value x = g->values[n->in[0]];
    graph_at(g, x.point);
    struct op_attr attr = {.scale = n->attr.scale};
    tape_add(t, n->in[0],
             graph_op(g, &(struct op_args){.op = OP_SCALE,
                                           .nin = 1,
                                           .in = &cot,
                                           .nout_dims = x.shape.n,
                                           .out_dims = x.dims,
                                           .attr = &attr,
                                           .sizes = x.shape.dim}));
    return g->failed;
}

static void add_reduced(struct tape *t, int value, int cot, float scale)
{
    if (!tape_needs(t, value))
        return;
    graph_at(t->g, t->g->values[value].point);
    tape_add(t, value, tape_reduce_to(t, cot, value, scale));
}

int vjp_add(struct tape *t, const struct node *n, int cot)
{
    add_reduced(t, n->in[0], cot, 1);
    add_reduced(t, n->in[1], cot, 1);
    return t->g->failed;
}

int vjp_sub(struct tape *t, const struct node *n, int cot)
{
    add_reduced(t, n->in[0], cot, 1);
    add_reduced(t, n->in[1], cot, -1);
    return t->g->failed;
}

int vjp_mul(struct tape *t, const struct node *n, int cot)
{
    for (int k = 0; k < 2; k++) {
        if (!tape_needs(t, n->in[k]))
            continue;
        int product = make(t, OP_MUL, 2, (int[]){cot, n->in[1 - k]}, n->out[0]);
        add_reduced(t, n->in[k], product, 1);
    }
    return t->g->failed;
}

int vjp_scale(struct tape *t, const struct node *n, int cot)
{
    add_reduced(t, n->in[0], cot, n->attr.scale);
    return t->g->failed;
}

int vjp_log(struct tape *t, const struct node *n, int cot)
{
    tape_add(t, n->in[0], make(t, OP_DIV, 2, (int[]){cot, n->in[0]}, n->in[0]));
    return t->g->failed;
}

int vjp_relu(struct tape *t, const struct node *n, int cot)
{
    tape_add(t, n->in[0], make(t, OP_RELU_GRAD, 2, (int[]){n->out[0], cot}, n->in[0]));
    return t->g->failed;
}

int vjp_gelu(struct tape *t, const struct node *n, int cot)
{
    tape_add(t, n->in[0], make(t, OP_GELU_GRAD, 2, (int[]){n->in[0], cot}, n->in[0]));
    return t->g->failed;
}

int vjp_tanh(struct tape *t, const struct node *n, int cot)
{
    tape_add(t, n->in[0], make(t, OP_TANH_GRAD, 2, (int[]){n->out[0], cot}, n->in[0]));
    return t->g->failed;
}

// The row maximum is a constant shift that cancels: only x gets a cotangent.
int vjp_row_sum_exp(struct tape *t, const struct node *n, int cot)
{
    int x = n->in[0], max = n->in[1];
    tape_add(t, x, make(t, OP_ROW_EXP_MUL, 3, (int[]){x, max, cot}, x));
    return t->g->failed;
}

int vjp_pick(struct tape *t, const struct node *n, int cot)
{
    struct graph *g = t->g;
    struct value x = g->values[n->in[0]];
    graph_at(g, x.point);
    tape_add(t, n->in[0],
             graph_op(g, &(struct op_args){.op = OP_PICK_GRAD,
                                           .nin = 2,
                                           .in = (int[]){n->in[1], cot},
                                           .nout_dims = x.shape.n,
                                           .out_dims = x.dims,
                                           .sizes = x.shape.dim}));
    return g->failed;
}
