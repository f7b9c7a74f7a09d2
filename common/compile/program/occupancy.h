// SPDX-License-Identifier: Apache-2.0
// Which bytes of a region are taken at which instructions: the memory plan asks where a buffer of
// some size has room for its lifetime, and enters where it put it.
// Inside common/compile/program/ only.
//
// A binary tree over the program: the root is all of it, a leaf one moment. Each node knows which
// offsets are taken at some moment of it, and which by buffers that live through all of it but not
// through all of its parent, each as a sorted list of intervals that do not touch. A lifetime is the
// sum of a few nodes, so that a question looks at as many lists as the tree is deep, and lists stay
// short, because buffers that lie side by side are one interval, however many they are.
#pragma once
#include "common/compile/program/program.h"

struct occupied; // of a node
struct occupancy {
    struct arena *arena;
    int *moments, n, leaves; // the instructions at which buffers begin, rising; a power of two
    struct occupied *node;   // the root is 1, the halves of i are 2i and 2i + 1
    int depth;               // of the tree, in nodes
};

// `buffers`: all that will be entered. Two of them live together at the first instruction of one
// of them, so these are moments enough.
void occupancy_init(struct occupancy *o, struct buffer *const *buffers, int n, struct arena *a);
// Returns the lowest offset from `base` on where `bytes` are free for the life of a buffer. Nothing
// may have been entered below `base`.
uint64_t occupancy_find(const struct occupancy *o, const struct buffer *b, uint64_t base,
                        uint64_t bytes);
// Enters a buffer at its offset. `bytes` are free there.
void occupancy_add(struct occupancy *o, const struct buffer *b, uint64_t bytes);
