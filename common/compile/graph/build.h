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
