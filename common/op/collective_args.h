// SPDX-License-Identifier: Apache-2.0
// What a collective is, for whoever carries it: the hosts (worker/collective) or the devices
// themselves (kernels/backend.h).
#pragma once
#include <stdint.h>

#include "common/op/op.h"

// The memory of a device that collectives reach best is taken in pieces of so many bytes.
enum { COLLECTIVE_PIECE = 2 << 20 };

enum collective_op {
    COLLECTIVE_ALL_REDUCE,
    COLLECTIVE_REDUCE_SCATTER,
    COLLECTIVE_ALL_GATHER,
    COLLECTIVE_ALL_TO_ALL,
    COLLECTIVE_BROADCAST,
    COLLECTIVE_SEND, // both in communicators of two only: one sends what the other receives
    COLLECTIVE_RECV,
    COLLECTIVE_BARRIER
};
enum collective_reduce { COLLECTIVE_SUM, COLLECTIVE_MAX }; // a maximum ignores NaN

struct collective_args {
    enum collective_op op;
    enum collective_reduce reduce; // ALL_REDUCE, REDUCE_SCATTER
    enum dtype dtype;              // reductions: DT_F32 or DT_BF16; any for the others
    void *from;                    // ALL_TO_ALL alone: the operand; slice k goes to coordinate k
    void *buf; // ALL_REDUCE, BROADCAST: in place. SEND: operand, RECV: result. REDUCE_SCATTER:
               // operand, the result is this coordinate's slice in place. ALL_GATHER: the whole
               // result, this coordinate's slice is the operand in place. ALL_TO_ALL: the result,
               // slice k came from coordinate k; it does not overlap `from`
    int64_t count;    // elements of `buf` (scatter, gather, all-to-all: divisible by the size)
    int root;         // BROADCAST: coordinate
    const char *name; // borrowed until the wait; for messages and the progress page
};
