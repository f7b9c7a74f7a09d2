// SPDX-License-Identifier: Apache-2.0
// The names of dimensions in one compile: those that the compiler knows (op.h), and whatever else
// a model calls its own. Ids hold for all graphs that share the table, and for their rules.
#pragma once
#include "common/base/arena.h"
#include "common/op/op.h"

struct dims {
    struct arena *arena;
    int n, cap; // own names; the id of the first is DIM_KNOWN
    struct dim_own {
        const char *name;
        enum dim like;
    } * own;
    enum dim like[DIM_KNOWN];
};

void dims_init(struct dims *d, struct arena *a);

// The id of a name; a new name gets one.
enum dim dims_id(struct dims *d, const char *name);
const char *dims_name(const struct dims *d, enum dim id); // "batch"; "-" for DIM_NONE

// From now on `id` is cut by the rule of `like` where it has none of its own; a call that would
// close a circle changes nothing. Heads of keys are like heads from the start, groups of samples
// like the batch, and places of an expert like the sequence.
void dims_set_like(struct dims *d, enum dim id, enum dim like);
// The dimension that an id is like; DIM_NONE: it is like none.
enum dim dims_like(const struct dims *d, enum dim id);
// Whether an id is this one or like it, over any number of others.
bool dims_follows(const struct dims *d, enum dim id, enum dim like);
