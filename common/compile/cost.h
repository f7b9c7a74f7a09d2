// SPDX-License-Identifier: Apache-2.0
// What a step costs, counted from the programs: collectives with bytes, FLOPs, how much of the work
// is not repeated. compiler.md ("What plan --json counts") defines every number.
#pragma once
#include "common/compile/compile.h"

// One row a (tensor, collective, axes, phase): totals of a step, for one device.
struct coll_row {
    enum reshard_kind op;
    axis_set axes;
    int group; // ranks that take part
    enum phase phase;
    const char *tensor;
    enum dtype dtype;
    int64_t count;
    uint64_t tensor_bytes; // count × the whole tensor's bytes, as cut on the axes outside the group
    uint64_t bytes;        // what a ring sends
};

struct cost {
    int ncolls;
    struct coll_row *colls; // of the train program, in the order they first run
    double flops_per_step;  // whole job: matmuls, backward twice forward, no redundancy
    double utilisation;     // matmul FLOPs of the unpartitioned program / of all devices together
    double traffic;         // bytes a device's ops read and write in a step
    uint64_t batch_bytes;   // of one step's inputs on a device
};

// One node's, on one device of the mesh (null: whole).
double cost_node_flops(const struct graph *g, const struct mesh *m, const struct node *n);
void cost_count(const struct compiled *c, struct arena *a, struct cost *out);
