// SPDX-License-Identifier: Apache-2.0
// The partitioner: from a graph on global values to one in which every value has a spec and every
// movement of data between devices is a collective node. The rules are those of the op table and
// of the job's sharding section; nothing here knows a model.
#pragma once
#include "common/compile/graph.h"

// Which mesh axes cut a logical dimension, in order.
struct rule {
    enum dim dim;
    struct dim_cut axes;
};
struct rules {
    int n;
    struct rule rule[DIM_COUNT];
};

// The default rules, as far as the mesh has their axes. An alias (data) stands for its axis (dp).
void rules_default(const struct mesh *m, struct rules *out);
// The spec that the rules give a value: an axis used by an earlier dimension is skipped.
struct spec rules_spec(const struct rules *r, const struct mesh *m, const struct value *v);

int partition(const struct graph *g, const struct mesh *m, const struct rules *r, struct graph *out,
              struct err *e);
