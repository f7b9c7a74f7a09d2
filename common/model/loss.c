// SPDX-License-Identifier: Apache-2.0
// What models share of their losses. See loss.h.
#include "common/model/loss.h"

#include "common/compile/graph/build.h"

int loss_rows(struct graph *g, enum op op, int nin, const int *in, enum dtype t, int64_t limit)
{
    struct value v = g->values[in[0]];
    struct op_attr attr = {.limit = limit};
    return graph_op(g, &(struct op_args){.op = op,
                                         .nin = nin,
                                         .in = in,
                                         .nout_dims = v.shape.n - 1,
                                         .out_dims = v.dims,
                                         .attr = &attr,
                                         .dtype = t});
}

// = ln Σ exp(x − max) + max − x[target]
int loss_cross_entropy(struct graph *g, int logits, int targets, int64_t limit)
{
    int max = loss_rows(g, OP_ROW_MAX, 1, &logits, DT_F32, limit);
    int exps = loss_rows(g, OP_ROW_SUM_EXP, 2, (int[]){logits, max}, DT_F32, limit);
    int lse = add(g, apply(g, OP_LOG, exps), max);
    int pick = loss_rows(g, OP_PICK, 2, (int[]){logits, targets}, DT_F32, 0);
    return sub(g, lse, pick);
}
