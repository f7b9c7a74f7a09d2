// SPDX-License-Identifier: Apache-2.0
// A mixture of experts as one writes it: which experts a token chooses, which places it gets there,
// and its way to them and back.
//
//   w = experts_top(g, s, by, k, &ids)              the k best scores of each token, and whose they are
//   slot = experts_slots(g, &how, ids, w, at, &n)   its place with each; how often each was chosen
//   e = experts_dispatch(g, x, slot)                [group, expert, capacity, width]
//   y = experts_combine(g, e, slot, w)              [batch, seq, width]
//
// Values stand at the point that is set (graph_at); ids, slots and counts at none.
#pragma once
#include "common/compile/graph/graph.h"

// x: [.., n], f32. The result and *ids are [.., k], along DIM_CHOICE. `by`: what is compared, like x,
// −1: x itself.
int experts_top(struct graph *g, int x, int by, int64_t k, int *ids);

// The capacity of an expert in a group: ⌊tokens of it · factor / experts⌋, or with a factor of 0 all
// of them, so that nothing is dropped.
int64_t experts_capacity(int64_t tokens, int64_t experts, double factor);
// A factor of few digits that makes `places` the capacity.
double experts_factor(int64_t tokens, int64_t experts, int64_t places);

// How tokens are dealt: groups of so many samples, experts, places of each; `dim` is the experts'
// dimension where they are counted. *chosen: [batch, dim]. Fails where the samples of a microbatch
// are no whole number of groups, or an expert has no place.
struct experts_dealing {
    int64_t group, experts, capacity;
    enum dim dim;
};
int experts_slots(struct graph *g, const struct experts_dealing *how, int ids, int weights,
                  int positions, int *chosen);

// The first SLOTS of a graph: the node that deals tokens to experts. Null: there is none.
const struct node *experts_find_router(const struct graph *g);

int experts_dispatch(struct graph *g, int x, int slot);
int experts_combine(struct graph *g, int y, int slot, int weights); // weights −1: all 1
