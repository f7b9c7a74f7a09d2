// SPDX-License-Identifier: Apache-2.0
// Dimensions of a program that no rule of the sharding section cuts, where one would expect it.
#pragma once
#include "common/compile/shard/sharding.h"
#include "common/language/model_program.h"

// A size that is a multiple of another, which has a rule, but does not say that it is like it. The
// program computes the same, but its weights stay whole where those beside them are cut.
struct unruled {
    const struct model_size *size, *base; // inner = 4 * mlp, mlp
};

// Those of the job's program, in the order of its text; the list lies in `a`. `g` is the graph on
// global shapes. Returns their number; 0 too for a model without a text.
int unruled_find(const struct job *job, const struct rules *rules, const struct graph *g,
                 struct arena *a, const struct unruled **out);
// Looks at the parameters that no rule cuts and no spec cuts on these axes. Returns the size, among
// those that no rule names, that most of their elements have; null: there is none. `share`: how
// much of all parameters that is.
const struct model_size *unruled_find_largest(const struct job *job, const struct sharding *s,
                                              const struct mesh *m, const struct graph *g,
                                              axis_set axes, double *share);
