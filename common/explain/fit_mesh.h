// SPDX-License-Identifier: Apache-2.0
// Other meshes of the same devices. Inside explain/ only.
//
// The devices that lie along the usual axes for batch, weights, heads and stages (dp, fsdp, tp, pp,
// or by their other names) are dealt out anew: every product {fsdp: a, pp: b, tp: c} of at most
// FIT_STAGES stages, since what a plan costs grows with them. Axes for context and experts stay. A
// mesh with axes of the user's own has rules of its own too: no other is tried.
#pragma once
#include "common/explain/fit_try.h"

enum { FIT_STAGES = 8 };

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
