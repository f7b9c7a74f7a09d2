// SPDX-License-Identifier: Apache-2.0
// Other meshes of the same devices. Inside explain/ only.
//
// The devices along the axes for the batch, stages and heads (fit_axes.h) are dealt out anew: every
// product of the three. Weights are cut on the axis of the batch. Axes for
// context and experts stay or, where that is not enough, are dealt out too. Other axes stay.
#pragma once
#include "common/explain/fit_try.h"

struct other_mesh {
    bool tried;              // there were others
    struct settings fits;    // one that fits; n is 0: none
    struct settings nearest; // the one that needs the least with remat and microbatches
    struct settings few;     // the same with few microbatches, for smaller batches
    uint64_t about;          // what it needs, about
};

// Tries them in the order of their stages, then of the ways that heads are cut. One that fits by
// itself is taken before one that does with remat and microbatches.
void fit_mesh_find(struct fitting *f, struct other_mesh *out);
