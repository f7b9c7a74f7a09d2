// SPDX-License-Identifier: Apache-2.0
// What a step costs, counted from the programs: collectives with bytes, FLOPs, how much of the work
// is not repeated; and how long it takes on a device whose rates are known. The room's README ("What
// `plan --json` counts") defines every number.
#pragma once
#include "common/compile/compile.h"
#include "common/explain/device_models.h"

// One row a (tensor, collective, axes, phase): totals of a step, for one device of the stages that
// run it. Stages whose totals differ have rows of their own.
struct collective_row {
    bool send; // from stage to stage, the sender's; else a collective
    enum reshard_kind op;
    axis_set axes;
    int group;       // ranks that take part
    uint64_t stages; // a bit each
    enum phase phase;
    const char *tensor;
    enum dtype dtype;
    int bucket; // of its stages, from 0, whose rows are one launch (bucket.h); −1: a launch for each
    int64_t count;
    uint64_t tensor_bytes; // count × the whole tensor's bytes, as cut on the axes outside the group
    uint64_t bytes;        // what a ring sends
};

struct axes_traffic {
    axis_set axes;
    uint64_t bytes;
};

struct cost {
    int ncollectives;
    struct collective_row *collectives; // of the program, in the order they first run
    // What a device of the stage that sends the most sends in a step, by the axes along which it does.
    int nalong;
    struct axes_traffic *along;    // the most first
    uint64_t sent;                 // the sum of them
    int64_t nsent;                 // in so many collectives and sends
    int64_t launches;              // started in so many turns: a bucket's at once
    double flops_per_step;         // whole job: matmuls, backward twice forward, no redundancy
    double flops_active;           // of these, without places of experts that no choice can fill
    int64_t params, params_active; // elements; those that serve one token
    double utilisation; // matmul FLOPs of the unpartitioned program / of all devices together
    double traffic;     // bytes a device's ops read and write in a step; the busiest stage's
};

// What a step takes at the shares of a device's rates that products, attention and memory reach.
struct estimate {
    const char *unknown; // why nothing is estimated, for people; null: it is
    double compute_s;    // of the busiest stage, with what it waits for others
    double send_s;       // a step takes compute_s where all of this is hidden, else the sum of both
};

const char *collective_row_name(const struct collective_row *r); // "all_reduce", "send"

// The bytes of one step's inputs on a device: whole samples, as it reads them.
uint64_t cost_batch_bytes(const struct program *p);
// Bytes of gradients, or of optimiser state, that a device does not hold because they are cut
// further than their parameters.
uint64_t cost_saved(const struct program *p, enum buffer_kind kind);
// What a run of a program sends: the first block of the struct.
void cost_count_sent(const struct compiled *c, enum program_kind kind, struct arena *a,
                     struct cost *out);
void cost_count(const struct compiled *c, struct arena *a,
                struct cost *out); // of the train program
struct estimate cost_estimate(const struct job *job, const struct compiled *c,
                              const struct cost *cost, const struct device_model *d);
