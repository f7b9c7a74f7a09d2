// SPDX-License-Identifier: Apache-2.0
// A multi-layer perceptron that classifies: linear layers of any widths with an activation between
// them, cross-entropy over the classes, accuracy at evaluations.
//
// Linear i carries (embed, mlp) for even i and (mlp, embed) for odd i, so that cutting `mlp` cuts
// every second matmul's contraction. Weights are born normal with variance 2/fan-in before relu and
// gelu, 1/fan-in before tanh and the classes; biases are born zero.
#include <math.h>

#include "common/model/loss.h"
#include "common/model/model.h"

static int layer_bias(struct graph *g, const char *name, int y, enum dim width, int64_t n)
{
    // A bias as wide as the residual carries `norm`, which no rule cuts.
    enum dim dims[1] = {width == DIM_EMBED ? DIM_NORM : width};
    int b = graph_param(g, name, 1, dims, &n, INIT_ZERO, 0);
    return graph_like(g, OP_ADD, 2, (int[]){y, b}, y);
}

static int linear(struct graph *g, int layer, int x, enum dim in, int64_t nin, enum dim out,
                  int64_t nout, float gain)
{
    const char *weight = arena_printf(g->arena, "layers/%d/weight", layer);
    const char *bias = arena_printf(g->arena, "layers/%d/bias", layer);
    float std = sqrtf(gain / (float)nin);
    int w =
        graph_param(g, weight, 2, (enum dim[]){in, out}, (int64_t[]){nin, nout}, INIT_NORMAL, std);
    int y = graph_matmul(g, x, w, 2, (enum dim[]){DIM_BATCH, out});
    return layer_bias(g, bias, y, out, nout);
}

static int activate(struct graph *g, int x, int activation)
{
    static const enum op ops[] = {[JOB_RELU] = OP_RELU, [JOB_GELU] = OP_GELU, [JOB_TANH] = OP_TANH};
    return graph_like(g, ops[activation], 1, &x, x);
}

static int images_in(struct graph *g, const struct job *job, int64_t batch)
{
    enum dim dims[2] = {DIM_BATCH, DIM_EMBED};
    int64_t sizes[2] = {batch, job->model.inputs};
    enum dtype t = job->data.dtype == JOB_DATA_F32 ? DT_F32 : DT_U8;
    graph_at(g, POINT_IDS);
    int images = graph_value(g, VALUE_INPUT, "images", t, 2, dims, sizes);
    graph_at(g, POINT_SEQ);
    if (t == DT_F32)
        return images;
    struct op_attr attr = {.scale = 1.0f / 255};
    return graph_op(g, &(struct op_args){.op = OP_CAST,
                                         .nin = 1,
                                         .in = &images,
                                         .nout_dims = 2,
                                         .out_dims = dims,
                                         .attr = &attr});
}

int mlp_build(struct graph *g, const struct job *job, enum program_kind kind, int64_t batch,
              int64_t step_batch)
{
    const struct job_model *m = &job->model;
    const int64_t *hidden = m->hidden.items;
    enum dim in = DIM_EMBED;
    int64_t width = m->inputs;
    graph_scope(g, "layers/0");
    int x = images_in(g, job, batch);
    for (int i = 0; i < m->hidden.n; i++) {
        enum dim out = in == DIM_EMBED ? DIM_MLP : DIM_EMBED;
        graph_scope(g, "layers/%d", i);
        graph_at(g, out == DIM_MLP ? POINT_HIDDEN : POINT_SEQ);
        x = linear(g, i, x, in, width, out, hidden[i], m->activation == JOB_TANH ? 1 : 2);
        x = activate(g, x, m->activation);
        in = out;
        width = hidden[i];
    }
    graph_scope(g, "layers/%d", m->hidden.n);
    graph_at(g, POINT_LOGITS);
    int logits = linear(g, m->hidden.n, x, in, width, DIM_CLASSES, m->classes, 1);
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
        g->parts[g->nparts] = loss_mean(g, "accuracy", right, step_batch);
        g->part_name[g->nparts++] = "accuracy";
    }
    return g->failed;
}
