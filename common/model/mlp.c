// SPDX-License-Identifier: Apache-2.0
// A multi-layer perceptron that classifies: linear layers of any widths with an activation between
// them, cross-entropy over the classes, accuracy at evaluations.
//
// Linear i carries (embed, mlp) for even i and (mlp, embed) for odd i, so that cutting `mlp` cuts
// every second matmul's contraction. Weights are born normal with variance 2/fan-in before relu and
// gelu, 1/fan-in before tanh and the classes; biases are born zero.
#include "common/model/dense.h"
#include "common/model/loss.h"
#include "common/model/model.h"

int mlp_build(struct graph *g, const struct job *job, enum program_kind kind, int64_t batch,
              int64_t step_batch)
{
    const struct built_in sizes = built_in_of(job), *m = &sizes;
    const int64_t *hidden = m->hidden.items;
    struct dense_width in = {DIM_EMBED, m->inputs};
    graph_scope(g, "layers/0");
    int x = dense_images(g, job, batch);
    for (int i = 0; i < m->hidden.n; i++) {
        struct dense_width out = {in.dim == DIM_EMBED ? DIM_MLP : DIM_EMBED, hidden[i]};
        graph_scope(g, "layers/%d", i);
        graph_at(g, out.dim == DIM_MLP ? POINT_HIDDEN : POINT_SEQ);
        x = dense_linear(g, g->scopes[g->scope], x, in, out, dense_gain(m->activation));
        x = dense_activate(g, x, m->activation);
        in = out;
    }
    graph_scope(g, "layers/%d", m->hidden.n);
    graph_at(g, POINT_LOGITS);
    int logits = dense_linear(g, g->scopes[g->scope], x, in,
                              (struct dense_width){DIM_CLASSES, m->classes}, 1);
    int labels = graph_value(g, VALUE_INPUT, "labels", DT_I32, 1, (enum dim[]){DIM_BATCH}, &batch);
    g->loss = loss_mean(g, "loss", loss_cross_entropy(g, logits, labels, 0), step_batch);
    if (kind == PROGRAM_EVAL) {
        graph_at(g, POINT_LOGITS);
        int best = loss_rows(g, OP_ROW_ARGMAX, 1, &logits, DT_I32, 0);
        int right = graph_op(g, &(struct op_args){.op = OP_EQUAL,
                                                  .nin = 2,
                                                  .in = (int[]){best, labels},
                                                  .nout_dims = 1,
                                                  .out_dims = (enum dim[]){DIM_BATCH}});
        loss_report(g, "accuracy", right, step_batch);
    }
    return g->failed;
}
