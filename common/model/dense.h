// SPDX-License-Identifier: Apache-2.0
// What models of images are made of: the images themselves, linear layers, activations.
#pragma once
#include "common/compile/graph/graph.h"
#include "common/job/job.h"
#include "common/model/built_in.h"

// The input "images" as f32, [batch, embed]: bytes as 0 to 1.
int dense_images(struct graph *g, const struct job *job, int64_t batch);

// A dimension of a layer and its size.
struct dense_width {
    enum dim dim;
    int64_t size;
};
// x · "NAME/weight" + "NAME/bias". Weights are born normal with variance gain / fan-in, biases
// zero.
int dense_linear(struct graph *g, const char *name, int x, struct dense_width in,
                 struct dense_width out, float gain);

// `activation`: enum built_in_activation; the gain of the layer before it.
int dense_activate(struct graph *g, int x, int activation);
float dense_gain(int activation);
