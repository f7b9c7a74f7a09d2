// SPDX-License-Identifier: Apache-2.0
// The vjp rules: one short function an op. Each adds the ops that carry the cotangent of its output
// to the inputs that need one; the activation point of what it makes is the input's own.
#include "common/compile/graph/grad.h"
#include "common/compile/graph/optable.h"

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
        tape_add(t, b, graph_matmul_as(g, a, cot, v.shape.n, v.dims, tape_dtype(t, b)));
    }
    if (tape_needs(t, a)) {
        struct value v = g->values[a];
        graph_at(g, v.point);
        tape_add(t, a, graph_matmul_as(g, cot, b, v.shape.n, v.dims, tape_dtype(t, a)));
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
                                           .dtype = x.dtype,
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

int vjp_cast(struct tape *t, const struct node *n, int cot)
{
    struct value x = t->g->values[n->in[0]];
    struct op_attr attr = {.scale = n->attr.scale};
    graph_at(t->g, x.point);
    tape_add(t, n->in[0],
             graph_op(t->g, &(struct op_args){.op = OP_CAST,
                                              .nin = 1,
                                              .in = &cot,
                                              .nout_dims = x.shape.n,
                                              .out_dims = x.dims,
                                              .attr = &attr,
                                              .dtype = x.dtype}));
    return t->g->failed;
}

int vjp_exp(struct tape *t, const struct node *n, int cot)
{
    tape_add(t, n->in[0], make(t, OP_MUL, 2, (int[]){cot, n->out[0]}, n->in[0]));
    return t->g->failed;
}

int vjp_softplus(struct tape *t, const struct node *n, int cot)
{
    tape_add(t, n->in[0], make(t, OP_SOFTPLUS_GRAD, 2, (int[]){n->in[0], cot}, n->in[0]));
    return t->g->failed;
}

// The same draws drop the cotangent: no mask is kept.
int vjp_dropout(struct tape *t, const struct node *n, int cot)
{
    struct value x = t->g->values[n->in[0]];
    int in[3] = {cot, n->in[1], n->in[2]};
    graph_at(t->g, x.point);
    tape_add(t, n->in[0],
             graph_op(t->g, &(struct op_args){.op = OP_DROPOUT,
                                              .nin = n->nin,
                                              .in = in,
                                              .nout_dims = x.shape.n,
                                              .out_dims = x.dims,
                                              .attr = &n->attr}));
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
    struct value v = t->g->values[x];
    graph_at(t->g, v.point);
    tape_add(t, x,
             graph_op(t->g, &(struct op_args){.op = OP_ROW_EXP_MUL,
                                              .nin = 3,
                                              .in = (int[]){x, max, cot},
                                              .nout_dims = v.shape.n,
                                              .out_dims = v.dims,
                                              .attr = &n->attr}));
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
                                           .dtype = x.dtype,
                                           .sizes = x.shape.dim}));
    return g->failed;
}

int vjp_silu(struct tape *t, const struct node *n, int cot)
{
    tape_add(t, n->in[0], make(t, OP_SILU_GRAD, 2, (int[]){n->in[0], cot}, n->in[0]));
    return t->g->failed;
}

// All pieces are read, or their whole would not have been made.
int vjp_split(struct tape *t, const struct node *n, int cot)
{
    struct value x = t->g->values[n->in[0]];
    int cots[OP_MAX_OUT] = {cot};
    for (int k = 1; k < n->nout; k++) {
        cots[k] = t->cot[n->out[k]];
        PRE(cots[k] >= 0);
    }
    graph_at(t->g, x.point);
    tape_add(t, n->in[0],
             graph_op(t->g, &(struct op_args){.op = OP_STACK,
                                              .nin = n->nout,
                                              .in = cots,
                                              .nout_dims = x.shape.n,
                                              .out_dims = x.dims,
                                              .sizes = x.shape.dim}));
    return t->g->failed;
}

int vjp_embed(struct tape *t, const struct node *n, int cot)
{
    struct value table = t->g->values[n->in[1]];
    graph_at(t->g, table.point);
    tape_add(t, n->in[1],
             graph_op(t->g, &(struct op_args){.op = OP_EMBED_GRAD,
                                              .nin = 2,
                                              .in = (int[]){n->in[0], cot},
                                              .nout_dims = table.shape.n,
                                              .out_dims = table.dims,
                                              .dtype = tape_dtype(t, n->in[1]),
                                              .sizes = table.shape.dim}));
    return t->g->failed;
}

static void norm_weight(struct tape *t, const struct node *n, int cot)
{
    struct value x = t->g->values[n->in[0]];
    graph_at(t->g, POINT_NONE);
    tape_add(t, n->in[1],
             graph_op(t->g, &(struct op_args){.op = OP_NORM_WEIGHT_GRAD,
                                              .nin = 2,
                                              .in = (int[]){n->in[0], cot},
                                              .nout_dims = 1,
                                              .out_dims = &x.dims[x.shape.n - 1],
                                              .dtype = tape_dtype(t, n->in[1]),
                                              .attr = &n->attr}));
}

int vjp_norm(struct tape *t, const struct node *n, int cot)
{
    struct value x = t->g->values[n->in[0]];
    if (n->nin > 2)
        add_reduced(t, n->in[2], cot, 1);
    if (n->nin > 1 && tape_needs(t, n->in[1]))
        norm_weight(t, n, cot);
    if (!tape_needs(t, n->in[0]))
        return t->g->failed;
    graph_at(t->g, x.point);
    tape_add(t, n->in[0],
             graph_op(t->g, &(struct op_args){.op = OP_NORM_GRAD,
                                              .nin = n->nin > 1 ? 3 : 2,
                                              .in = (int[]){n->in[0], cot, n->in[1]},
                                              .nout_dims = x.shape.n,
                                              .out_dims = x.dims,
                                              .attr = &n->attr}));
    return t->g->failed;
}

int vjp_rotary(struct tape *t, const struct node *n, int cot)
{
    struct value x = t->g->values[n->in[0]];
    struct op_attr back = n->attr;
    back.scale = -back.scale;
    graph_at(t->g, x.point);
    tape_add(t, n->in[0],
             graph_op(t->g, &(struct op_args){.op = OP_ROTARY,
                                              .nin = 2,
                                              .in = (int[]){cot, n->in[1]},
                                              .nout_dims = x.shape.n,
                                              .out_dims = x.dims,
                                              .attr = &back}));
    return t->g->failed;
}

int vjp_attention(struct tape *t, const struct node *n, int cot)
{
    struct value q = t->g->values[n->in[0]];
    graph_at(t->g, q.point);
    int dq = graph_op(t->g, &(struct op_args){.op = OP_ATTENTION_GRAD,
                                              .nin = n->nin + 1,
                                              .in = (int[]){n->in[0], n->in[1], n->in[2], cot,
                                                            n->in[3], n->in[4], n->in[5]},
                                              .nout_dims = q.shape.n,
                                              .out_dims = q.dims,
                                              .attr = &n->attr,
                                              .like = n->in});
    for (int k = 0; k < 3 && !t->g->failed; k++)
        tape_add(t, n->in[k], dq + k);
    return t->g->failed;
}
