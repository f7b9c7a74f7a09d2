// SPDX-License-Identifier: Apache-2.0
// Which values share a buffer on a stage: contributions lie in their sum's, an alias in that of what
// it changes, and an op that works in place writes over an input that nobody reads afterwards. The
// pieces that SPLIT makes and STACK reads lie within the whole's buffer where that is proven to be
// right, and so does what is made over a piece: keys that ROTARY turns. Found on the graph, so that it
// holds for every microbatch. Inside common/compile/program/ only.
#pragma once
#include "common/compile/program/part.h"

struct sharing {
    const struct graph *g; // borrowed, as is the mesh
    const struct mesh *mesh;
    const struct stage_part *part; // the stage's: of other values nothing is known
    int stage;
    int *root;      // value → the value whose buffer it shares
    int *last_read; // root → the last node of a microbatch that reads it
    int *first_of;  // value → 1 when it is the first contribution of its sum, 2 a later one
    // For a root that is a piece: the value in whose buffer it lies, else −1, and how many bytes
    // in.
    int *within;
    uint64_t *at;
};

void sharing_find(struct sharing *s, const struct graph *g, const struct mesh *m,
                  const struct stage_part *part, int stage, struct arena *a);
// Whether all microbatches share the value's buffer.
bool sharing_all_microbatches(const struct sharing *s, int root);
struct shape sharing_shape(const struct sharing *s, int value); // local
// The root in whose buffer a value lies; *offset: where.
int sharing_place(const struct sharing *s, int value, uint64_t *offset);
// Whether the pieces of a SPLIT or STACK lie in the buffer of the whole: it has nothing to do.
bool sharing_in_pieces(const struct sharing *s, const struct node *n);
