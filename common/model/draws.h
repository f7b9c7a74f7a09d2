// SPDX-License-Identifier: Apache-2.0
// Where a model's random numbers come from: sites with a path of their own in the unpartitioned
// model, the job's seed, and the step, a device scalar that the host sets ("step"). A training
// program alone draws. Inside common/model/ only.
#pragma once
#include "common/compile/graph/graph.h"

struct draws {
    struct graph *g;
    uint64_t seed;
    bool on;  // off: nothing is drawn, nothing is dropped
    int step; // value; set by the first draw
};
struct draws draws_init(struct graph *g, int64_t seed, bool on);

// Whether anything is dropped at this rate.
bool draws_drops(const struct draws *d, double rate);
int draws_step(struct draws *d);
struct op_draw draws_site(const struct draws *d, const char *path, double rate);

// Whether positions say the places along x's sequence where it is drawn: the dimension is one, and
// not the last. (Where another is born of the sequence, this must lie in order: graph.ordered.)
bool draws_want_positions(const struct graph *g, int x);
// x with a share of `rate` dropped (draws_drops), the rest scaled up; `positions`: −1: none are wanted.
int draws_dropout(struct draws *d, int x, int positions, const char *path, double rate);
// Standard normals, of x's dimensions.
int draws_normal(struct draws *d, int x, int positions, const char *path);
