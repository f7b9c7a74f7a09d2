// SPDX-License-Identifier: Apache-2.0
// What is wrong with a job's sharding section, as the compiler finds it: which entry of which list,
// which tensor, which axes and numbers. common/explain turns each into a sentence and a setting
// that would help; here nothing is phrased. Inside common/compile/shard/ only.
#pragma once
#include "common/base/arena.h"
#include "common/compile/layout/spec.h"

enum fact_code {
    // About a name in the sharding section:
    FACT_NAME_UNKNOWN, // it is no axis, no rule and no usual name of an axis
    FACT_NAME_TWICE,   // it stands more than once in a list
    FACT_STAGE_AXIS,   // `axes` holds the stages of the pipeline: it cuts no tensor
    FACT_AXIS_TWICE,   // `axes` would cut two dimensions of one tensor
    // About an entry and the tensors that it matches:
    FACT_NO_MATCH,    // no parameter matches the entry
    FACT_SPEC_LENGTH, // the entry's spec cuts dimensions that `value` does not have
    FACT_INDIVISIBLE, // dimension `dim` of `value`, of `size`, is cut into `parts`
    FACT_CHUNKS,      // the same of the chunks of a sequence: two for each place on `axes`
    FACT_NOT_FINER,   // `has` does not continue the coarser cut `within`
    FACT_WEIGHT_ON_BATCH_AXIS,
    FACT_BATCH_DROPPED, // a point leaves out `axes`, which cut the batch
    FACT_CODES
};

// The lists of the sharding section.
enum fact_list { FACT_RULES, FACT_PARAMS, FACT_POINTS, FACT_GATHER, FACT_GRADS, FACT_OPTIMIZER };

struct fact {
    enum fact_code code;
    enum fact_list list;
    int entry;     // of the list, −1: of none, or of the axes that grads and optimizer name
    int dim, name; // the name: which dimension of the entry's spec has it, and at which place
    axis_set axes;
    int value; // of the unpartitioned graph
    int64_t size, parts;
    struct spec has, within;
};

struct facts {
    struct arena *arena;
    int n, cap, errors;
    struct fact *items;
};

void facts_add(struct facts *f, const struct fact *one);
