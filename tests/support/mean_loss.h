// SPDX-License-Identifier: Apache-2.0
// The loss of a model that a test builds by hand.
#pragma once
#include "common/compile/graph/build.h"

// Σ rows / `of`, collected over the microbatches: a sum of that name.
static inline int mean_loss(struct graph *g, const char *name, int rows, int64_t of)
{
    graph_at(g, POINT_NONE);
    int part = sum(g, rows, 0, NULL, 1.0f / (float)of, DT_NONE);
    if (g->failed)
        return -1;
    int total = graph_sum(g, name, -1, part);
    graph_contribute(g, total, part);
    return total;
}
