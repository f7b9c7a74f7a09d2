// SPDX-License-Identifier: Apache-2.0
// The contest among a product's algorithms: which is the fastest here, by the device's clock.
//
// Those that the library's heuristic names come first. With WEFT_CUDA_ENUMERATE other configurations
// (configs.h) follow: those that differ in one thing from the fastest so far, again and again while
// that finds a faster one, then an even sample of all, and from one of these that is the fastest the
// same again, until the time for it is over. The fastest of one run each are then timed with care.
//
// A configuration that the library did not name is not trusted. It is chosen only if its numbers are,
// where they are compared (witness.h), those of the first that the library named and that runs; if
// there is none, nothing else is tried. One that leaves the device useless ends the process, with an
// error that says which it was, and no later one tries it (suspects.h). Inside kernels/cuda/ only.
#pragma once
#include "kernels/cuda/product_plan.h"
#include "kernels/cuda/suspects.h"

struct contest {            // of a device
    cudaEvent_t begin, end; // of the stopwatch
    bool warm;              // the device has been under load since it was opened
    double enumerated_us;   // spent on what the library did not name
    int wrong;              // of that, those whose numbers were
    struct suspects suspects;
};

int contest_open(struct contest *c, struct device *d, struct err *e);
void contest_close(struct contest *c);

// Leaves the fastest of the plan's algorithms, or of the others, as its only one, and what one run
// of it takes; none, if none runs.
int contest_hold(struct contest *c, struct stream_q *q, const struct product *p, struct plan *plan,
                 double *us, struct err *e);
// The time of one `run`, in µs: the best of a few rounds.
int contest_time(struct contest *c, struct stream_q *q, int (*run)(void *ctx, struct err *e),
                 void *ctx, double *us, struct err *e);
