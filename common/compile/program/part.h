// SPDX-License-Identifier: Apache-2.0
// What each stage has of a graph: found once for all stages, so that lowering one stage takes the
// time of its own nodes and not of the whole model's. Inside common/compile/program/ only.
#pragma once
#include "common/compile/graph/graph.h"

// What is known of a value's readers, on all stages.
struct readers {
    int n;
    bool others; // some are no ops, or it is made by none: a collective or a message touches it
    bool ops;    // some are other ops than SPLIT
};

struct id_list {
    int n, cap, *at;
};
struct stage_part {                // a stage's
    struct id_list nodes;          // that it runs or receives, in the graph's order
    struct id_list values;         // that they touch, and those in whose buffers these may lie
    struct id_list sums;           // of these values
    const struct readers *readers; // of every value of the graph
};

// The parts of stages 0 to n − 1.
const struct stage_part *parts_find(const struct graph *g, int n, struct arena *a);
