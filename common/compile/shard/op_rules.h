// SPDX-License-Identifier: Apache-2.0
// The sharding rules, one an op: from the inputs' specs and the wanted output spec, the specs that
// the op needs and makes. Inside shard/ only.
#pragma once
#include "common/compile/graph/graph.h"

// A question to a rule, and its answer. Specs are over global dimensions.
struct shard_query {
    const struct mesh *mesh;
    const struct graph *graph;
    const struct node *node;
    const struct spec *in[OP_MAX_IN]; // what the inputs have; null: an input from data, any cut
    struct spec asked[OP_MAX_IN];     // of inputs from data: what their point asks for
    const struct spec *want;          // what the output's point or parameter asks for; never null
    bool has_want;                    // false: the rule may choose (scalars, sums of scalars)
    bool uncut;                       // the output is reported: each device adds to all of it
    struct spec need[OP_MAX_IN];      // answer: what the inputs must be brought to
    struct spec out[OP_MAX_OUT];      // answer: what comes out, before a reshard to `want`
};

// Answers for the ops of models and gradients; what fusion makes of them is sharded already.
void op_shard(struct shard_query *q);
