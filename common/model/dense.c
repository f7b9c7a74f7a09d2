// SPDX-License-Identifier: Apache-2.0
// Images, linear layers, activations. See dense.h.
#include "common/model/dense.h"

#include <math.h>

#include "common/compile/graph/build.h"
#include "common/model/language/model_facts.h"

int dense_images(struct graph *g, const struct job *job, int64_t batch)
{
    enum dim dims[2] = {DIM_BATCH, DIM_EMBED};
    int64_t sizes[2] = {batch, job->model.facts->features};
    enum dtype t = job->data.dtype == JOB_DATA_F32 ? DT_F32 : DT_U8;
    graph_at(g, POINT_IDS);
    int images = graph_value(g, VALUE_INPUT, "images", t, 2, dims, sizes);
    graph_at(g, POINT_SEQ);
    if (t == DT_F32)
        return images;
    const struct op_attr to_one = {.scale = 1.0f / 255};
    return graph_shaped(g, OP_CAST, 1, &images, images, &to_one, DT_NONE);
}

int dense_linear(struct graph *g, const char *name, int x, struct dense_width in,
                 struct dense_width out, float gain)
{
    // A bias as wide as the residual carries `norm`, which no rule cuts.
    enum dim along[1] = {out.dim == DIM_EMBED ? DIM_NORM : out.dim};
    const char *weight = arena_printf(g->arena, "%s/weight", name);
    const char *bias = arena_printf(g->arena, "%s/bias", name);
    int w = graph_param(g, weight, 2, (enum dim[]){in.dim, out.dim}, (int64_t[]){in.size, out.size},
                        INIT_NORMAL, sqrtf(gain / (float)in.size));
    int y = graph_matmul(g, x, w, 2, (enum dim[]){DIM_BATCH, out.dim});
    int b = graph_param(g, bias, 1, along, &out.size, INIT_ZERO, 0);
    return add(g, y, b);
}

int dense_activate(struct graph *g, int x, int activation)
{
    static const enum op ops[] = {
        [ACTIVATION_RELU] = OP_RELU, [ACTIVATION_GELU] = OP_GELU, [ACTIVATION_TANH] = OP_TANH};
    return apply(g, ops[activation], x);
}

float dense_gain(int activation)
{
    return activation == ACTIVATION_TANH ? 1 : 2;
}
