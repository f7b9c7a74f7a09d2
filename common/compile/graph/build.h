// SPDX-License-Identifier: Apache-2.0
// Ops as one writes them: x = add(g, x, mul(g, h, gate)).
//
// Each adds one op to the graph and returns the value that it makes. Where nothing else is said the
// value is shaped like the first operand; a second one may lack dimensions (it is broadcast). For
// .c files that build graphs: the names are short because such files do little else.
#pragma once
#include "common/compile/graph/graph.h"

// An elementwise op of one operand.
static inline int apply(struct graph *g, enum op op, int x)
{
    return graph_like(g, op, 1, &x, x);
}

static inline int add(struct graph *g, int a, int b)
{
    return graph_like(g, OP_ADD, 2, (int[]){a, b}, a);
}

static inline int sub(struct graph *g, int a, int b)
{
    return graph_like(g, OP_SUB, 2, (int[]){a, b}, a);
}

static inline int mul(struct graph *g, int a, int b)
{
    return graph_like(g, OP_MUL, 2, (int[]){a, b}, a);
}

// An elementwise op of two operands over n dimensions, of which each operand may lack some.
static inline int apply_over(struct graph *g, enum op op, int a, int b, int n, const enum dim *dims,
                             enum dtype t)
{
    return graph_op(
        g,
        &(struct op_args){
            .op = op, .nin = 2, .in = (int[]){a, b}, .nout_dims = n, .out_dims = dims, .dtype = t});
}

static inline int scale(struct graph *g, int x, float by)
{
    return graph_shaped(g, OP_SCALE, 1, &x, x, &(struct op_attr){.scale = by}, DT_NONE);
}

// x itself where it is of this dtype already.
static inline int cast(struct graph *g, int x, enum dtype t)
{
    return g->values[x].dtype == t
               ? x
               : graph_shaped(g, OP_CAST, 1, &x, x, &(struct op_attr){.scale = 1}, t);
}

// by · x, repeated over the dimensions of `like` that x lacks.
static inline int spread(struct graph *g, int x, int like, float by, enum dtype t)
{
    return graph_shaped(g, OP_SCALE, 1, &x, like, &(struct op_attr){.scale = by}, t);
}

// ATTENTION of those inputs: y, and behind it the log-sum-exp, which a gradient reads. It stays in
// the cuts in which it is made: a point's spec is about y.
static inline int attention(struct graph *g, int nin, const int *in, const struct op_attr *attr)
{
    enum { BATCH, SEQ, HEADS, WIDTH, DIMS };
    if (g->failed)
        return 0;
    struct value y = g->values[in[0]];
    y.dims[WIDTH] = g->values[in[2]].dims[WIDTH];
    y.shape.dim[WIDTH] = g->values[in[2]].shape.dim[WIDTH];
    const enum dim dims[] = {y.dims[BATCH], y.dims[HEADS], y.dims[SEQ]};
    const int64_t sizes[] = {y.shape.dim[BATCH], y.shape.dim[HEADS], y.shape.dim[SEQ]};
    const struct op_output outputs[] = {{DIMS, y.dims, y.shape.dim, DT_NONE},
                                        {DIMS - 1, dims, sizes, DT_F32}};
    int made = graph_op(g, &(struct op_args){.op = OP_ATTENTION,
                                             .nin = nin,
                                             .in = in,
                                             .nout_dims = DIMS,
                                             .out_dims = y.dims,
                                             .sizes = y.shape.dim,
                                             .attr = attr,
                                             .outputs = outputs});
    if (!g->failed)
        g->values[made + 1].point = POINT_NONE;
    return made;
}

// by · the sum of x over the dimensions that are not named.
static inline int sum(struct graph *g, int x, int n, const enum dim *dims, float by, enum dtype t)
{
    return graph_op(g, &(struct op_args){.op = OP_SUM,
                                         .nin = 1,
                                         .in = &x,
                                         .nout_dims = n,
                                         .out_dims = dims,
                                         .attr = &(struct op_attr){.scale = by},
                                         .dtype = t});
}
