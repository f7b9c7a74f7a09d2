// SPDX-License-Identifier: Apache-2.0
// What models share of their losses. See loss.h.
#include "common/model/loss.h"

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
    int sum = loss_rows(g, OP_ROW_SUM_EXP, 2, (int[]){logits, max}, DT_F32, limit);
    int log = graph_like(g, OP_LOG, 1, &sum, sum);
    int lse = graph_like(g, OP_ADD, 2, (int[]){log, max}, log);
    int pick = loss_rows(g, OP_PICK, 2, (int[]){logits, targets}, DT_F32, 0);
    return graph_like(g, OP_SUB, 2, (int[]){lse, pick}, lse);
}

int loss_mean(struct graph *g, const char *name, int rows, int64_t of)
{
    struct op_attr attr = {.scale = 1.0f / (float)of};
    graph_at(g, POINT_NONE);
    int part = graph_op(g, &(struct op_args){.op = OP_SUM, .nin = 1, .in = &rows, .attr = &attr});
    if (g->failed)
        return -1;
    int sum = graph_sum(g, name, -1, part);
    graph_contribute(g, sum, part);
    return sum;
}
