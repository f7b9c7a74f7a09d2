// SPDX-License-Identifier: Apache-2.0
// How many layers a model has. Inside common/model/language/ only.
//
// A layer is a turn of a repeat, a `layer` block or a numbered one that lies in no other layer, in
// the model section or in a `let` that it calls: what the builder opens as one. Here the text is
// walked with the numbers that its sizes give; what only a graph or a step would tell (values,
// `training`) is unknown. Where the number of layers depends on that there is none, and so no
// pipeline.
#pragma once
#include "common/model/language/model_sizes.h"

struct layer_count {
    int64_t layers;
    bool blocks; // there are named blocks outside layers
    int skipped; // the line of a loss or a report, which sampling leaves out, with layers ahead of
                 // some that sampling needs; 0: there is none
    int unclear; // a line on which the number of layers depends and sizes alone do not tell it: then
                 // `layers` is 0; 0: there is none
};

// 0, or ERR_INVALID with what cannot be in `errs`: too many layers, or sizes that make no number of
// them. What else is wrong with the text is for the builder to find.
int layer_count_find(const struct model_sizes *s, struct layer_count *out,
                     struct model_errors *errs);
