// SPDX-License-Identifier: Apache-2.0
// The ranks of a compiled job as threads of this process, with the CPU backend (or the one that
// WEFT_RIG names), or the one that keeps its memory and its time to itself, and the in-process
// communicator, which finds wrong orders and deadlocks. They train some steps, evaluate once, and
// leave what their buffers hold to be compared with whole tensors. Stages of a pipeline, cuts and
// the zig-zag order of sequences are minded here: the test knows whole tensors only.
//
//   rank_threads_run → rank_threads_compare … → rank_threads_clear
#pragma once
#include "common/base/err.h"
#include "tests/support/interp.h"
#include "worker/rank/exec/exec.h"

enum { RANK_THREADS = 12 };

// An input (all microbatches one after the other) or a scalar of the host.
struct whole_tensor {
    const char *name;
    const double *whole;
};

// A run of a program of a decoder (FILL, STEP), and the logits that the ranks then have.
struct rank_call {
    enum program_kind kind;
    const struct whole_tensor *data;
    double *got;
};

struct actor;
struct rank_threads {
    const struct compiled *compiled; // borrowed, as is all of the first block
    const struct interp *start;      // parameters as they begin, by name
    const struct whole_tensor *data; // ends with a null name; "step" is counted by itself
    int steps;
    const struct rank_call *calls; // in place of steps; caches begin with junk
    int ncalls;
    bool late; // on the device that keeps its distance (late.c); else on WEFT_RIG's
    const struct transport *transport; // null: the hosts'

    int ranks;
    struct actor *actors;
    const struct backend *backend;
    struct fake *fake;
};

// The first rank's failure, if one fails: with its rank in front. A parameter's copy that is not
// what a cast makes of it at the end is one.
int rank_threads_run(struct rank_threads *c, struct err *e);
void rank_threads_clear(struct rank_threads *c);

// Holds every rank's part of a parameter, state or the metrics against the whole tensor: each
// element is somewhere, replicas agree to the bit, and each is within `slack` + rtol·|want|.
// ERR_DATA with the element.
int rank_threads_compare(const struct rank_threads *c, enum program_kind kind, const char *name,
                         const double *want, double rtol, double slack, struct err *e);
// Holds what two runs of training left against each other, to the bit: on each rank its part of every
// parameter, of the optimiser's state, and the metrics. ERR_DATA with the tensor.
int rank_threads_same(const struct rank_threads *a, const struct rank_threads *b, struct err *e);
