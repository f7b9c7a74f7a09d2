// SPDX-License-Identifier: Apache-2.0
// From one spec of a value to another: the cheapest sequence of steps by ring bytes; among
// equals the fewest steps, then the sequence least in the order of enum reshard_kind.
//
// A step adds an axis to a dimension only where it comes next in the target's list, and takes minor
// axes only off dimensions whose list is no prefix of the target's: no detours. One step moves any
// number of axes of one dimension; one all-reduce any set. A partial maximum is only all-reduced.
#pragma once
#include "common/base/arena.h"
#include "common/base/err.h"
#include "common/compile/layout/spec.h"

enum reshard_kind { // in the order that breaks ties
    RESHARD_SLICE,  // each device keeps its part: nothing is sent
    RESHARD_REDUCE_SCATTER,
    RESHARD_ALL_GATHER,
    RESHARD_ALL_TO_ALL,
    RESHARD_ALL_REDUCE,
    RESHARD_KINDS
};
const char *reshard_kind_name(enum reshard_kind k);

struct reshard_step {
    enum reshard_kind kind;
    int dim;            // ALL_TO_ALL: the dimension it leaves. ALL_REDUCE: −1
    int to;             // ALL_TO_ALL: the dimension it enters
    struct dim_cut cut; // the axes that move, major first (ALL_REDUCE: in mesh order)
    struct spec after;
    uint64_t bytes; // that a device sends round the ring
};

enum { RESHARD_STEPS_MAX = 32 };
struct reshard {
    int n;
    struct reshard_step step[RESHARD_STEPS_MAX];
    uint64_t bytes;
};

// What a ring sends for `kind` over n devices, rounded up; s: the bytes of a gather's result, else of
// one device's operand.
uint64_t reshard_ring_bytes(enum reshard_kind kind, uint64_t s, int n);

// `to` must be reachable: its partial axes are among those of `from`. ERR_INVALID: a cut of `to`
// does not divide the shape. Scratch memory is the arena's.
int reshard_find(const struct mesh *m, const struct shape *shape, size_t elem_bytes,
                 const struct spec *from, const struct spec *to, struct arena *a,
                 struct reshard *out, struct err *e);
