// SPDX-License-Identifier: Apache-2.0
// A crew: the ranks of a compiled job as threads of this process, with the CPU backend, or the one
// that keeps its memory and its time to itself, and the in-process communicator, which finds wrong
// orders and deadlocks. They train some steps, evaluate once, and leave what their buffers hold to
// be compared with whole tensors. Stages of a pipeline, cuts and the zig-zag order of sequences are
// minded here: the test knows whole tensors only.
//
//   crew_run → crew_compare … → crew_clear
#pragma once
#include "common/base/err.h"
#include "tests/support/interp.h"
#include "worker/rank/exec/exec.h"

enum { CREW_MAX = 12 };

// An input (all microbatches one after the other) or a scalar of the host.
struct crew_tensor {
    const char *name;
    const double *whole;
};

struct actor;
struct crew {
    const struct compiled *compiled; // borrowed, as is all of the first block
    const struct interp *start;      // parameters as they begin, by name
    const struct crew_tensor *data;  // ends with a null name; "step" is counted by itself
    int steps;
    bool late; // on the device that keeps its distance (late.c); else on the CPU
    const struct transport *transport; // null: the hosts'

    int ranks;
    struct actor *actors;
    const struct backend *backend;
    struct fake *fake;
};

// The first rank's failure, if one fails: with its rank in front. A parameter's copy that is not
// what a cast makes of it at the end is one.
int crew_run(struct crew *c, struct err *e);
void crew_clear(struct crew *c);

// Holds every rank's part of a parameter, state or the metrics against the whole tensor: each
// element is somewhere, replicas agree to the bit, and each is within `slack` + rtol·|want|.
// ERR_DATA with the element.
int crew_compare(const struct crew *c, enum program_kind kind, const char *name, const double *want,
                 double rtol, double slack, struct err *e);
