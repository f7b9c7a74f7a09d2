// SPDX-License-Identifier: Apache-2.0
// The contest among a product's algorithms: which is the fastest here, by the device's clock.
//
// One run of each algorithm is timed. Those that the library's heuristic names come first. With
// WEFT_CUDA_ENUMERATE other configurations (configs.h) follow until the time for them is over:
// first the neighbours of the fastest so far, which differ from it in one setting, again and again
// while one of them is faster; then an even sample of all, and from each of the sample that is the
// fastest so far its neighbours likewise. The few that were fastest in one run are then timed with
// care.
//
// A configuration that the library did not name is not trusted. It can be chosen only if its
// results agree (witness.h) with those of the first algorithm that the library named and that runs;
// if none of these runs, no other configuration is tried. One that leaves the device useless ends
// the process with an error that names it, and no later process tries it (suspects.h). Inside
// kernels/cuda/ only.
#pragma once
#include "kernels/cuda/product_plan.h"
#include "kernels/cuda/suspects.h"

struct contest {            // of a device
    cudaEvent_t begin, end; // of the stopwatch
    bool warm;              // the device has been under load since it was opened
    double enumerated_us;   // spent on configurations that the library did not name
    int wrong;              // how many of these gave wrong numbers
    struct suspects suspects;
};

int contest_open(struct contest *c, struct device *d, struct err *e);
void contest_close(struct contest *c);

// Leaves in the plan only the fastest algorithm, or none if none runs. *us: what a run of it takes.
int contest_hold(struct contest *c, struct stream_q *q, const struct product *p, struct plan *plan,
                 double *us, struct err *e);
// Times `run`. *us: what one takes, the best of a few rounds.
int contest_time(struct contest *c, struct stream_q *q, int (*run)(void *ctx, struct err *e),
                 void *ctx, double *us, struct err *e);
