// SPDX-License-Identifier: Apache-2.0
// Dimensions of a program that no rule of the sharding section cuts, where one would expect it.
#pragma once
#include "common/compile/shard/sharding.h"
#include "common/model/language/model_program.h"

// A size that is a multiple of one that has a rule, and says not that it is like it: a program is
// right without, and its weights are whole where those beside them are cut.
struct unruled {
    const struct model_size *size, *base; // inner = 4 * mlp, mlp
};

// Those of the job's program, in the order of its text; the list lies in `a`. `g` is the graph on
// global shapes. Returns their number; 0 too for a model without a text.
int unruled_find(const struct job *job, const struct rules *rules, const struct graph *g,
                 struct arena *a, const struct unruled **out);
// The size of the program that no rule names and that most elements are of, among the parameters of
// which no rule cuts any dimension and no spec cuts one on the axes; null: there is none. `share`: of
// all parameters.
const struct model_size *unruled_find_largest(const struct job *job, const struct sharding *s,
                                              const struct mesh *m, const struct graph *g,
                                              axis_set axes, double *share);
