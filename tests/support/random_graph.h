// SPDX-License-Identifier: Apache-2.0
// Random models: a graph of primitive ops that follows from a seed, for tests that hold a
// partitioned graph against the whole one.
//
// A graph is a list of deeds; each is a few random numbers that choose an op and its operands among
// the values made so far. Deeds that do not fit do nothing, so any of them may be left out and the
// rest still means a graph: that is how a failing case is made small.
#pragma once
#include "common/compile/graph/graph.h"

enum { DEEDS_MAX = 16, DEEDS_A_LAYER = 3 };

struct random_graph {
    uint64_t seed;
    int deeds;     // how many of them
    uint32_t drop; // bit i: deed i is left out
};

// Its forward part with inputs "x" f32 [batch, seq, embed], "ids" and "targets" i32 [batch, seq],
// "positions" i32 [batch, seq], the scalar "step" where it draws random numbers, and a loss over
// everything that nothing else reads. Scopes are `embed`, a layer for every few deeds, and `head`.
// Returns g->failed.
int random_graph_build(const struct random_graph *r, struct graph *g, int64_t batch,
                       int64_t step_batch);
int64_t random_size(enum dim d); // of a dimension, the batch excepted
// A number in [0, n) for the k-th question about thing `what` of a seed.
int random_pick(uint64_t seed, uint32_t what, int k, int n);
