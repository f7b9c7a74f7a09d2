// SPDX-License-Identifier: Apache-2.0
// The contest among a product's algorithms: which is the fastest here, by the device's clock. One
// run of each that the library names is timed; the few that were fastest in it are timed with care.
// Inside kernels/cuda/ only.
#pragma once
#include "kernels/cuda/product_plan.h"

struct contest {            // of a device
    cudaEvent_t begin, end; // of the stopwatch
    bool warm;              // the device has been under load since it was opened
};

int contest_open(struct contest *c, struct device *d, struct err *e);
void contest_close(struct contest *c);

// Leaves in the plan only the fastest algorithm, or none if none runs. *us: what a run of it takes.
int contest_hold(struct contest *c, struct stream_q *q, const struct product *p, struct plan *plan,
                 double *us, struct err *e);
// Times `run`. *us: what one takes, the best of a few rounds.
int contest_time(struct contest *c, struct stream_q *q, int (*run)(void *ctx, struct err *e),
                 void *ctx, double *us, struct err *e);
