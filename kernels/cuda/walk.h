// SPDX-License-Identifier: Apache-2.0
// Labels as strides for kernels: loops.h's loops, walked from any iteration.
// Inside kernels/cuda/ only.
//
// `struct loops` is made on the host and passed to a kernel by value. A thread that takes single
// iterations calls walk_offset; one that keeps to the innermost loop divides once and then moves by
// walk_step. Divisions are of 32 bits where the numbers are.
#pragma once
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/launch.h"

// Returns at / by; *rest: the remainder.
DEVICE int64_t walk_divide(int64_t at, int64_t by, int64_t *rest)
{
    if (((uint64_t)at | (uint64_t)by) >> 32) {
        int64_t quotient = at / by;
        *rest = at - quotient * by;
        return quotient;
    }
    unsigned quotient = (unsigned)at / (unsigned)by;
    *rest = (unsigned)at - quotient * (unsigned)by;
    return quotient;
}

// Returns where operand k is, in elements, at iteration `at` of the first n loops.
DEVICE int64_t walk_offset(const struct loops *l, int n, int k, int64_t at)
{
    int64_t offset = 0, index;
    for (int i = n - 1; i > 0; i--) {
        at = walk_divide(at, l->extent[i], &index);
        offset += index * l->stride[k][i];
    }
    return n ? offset + at * l->stride[k][0] : 0;
}

// Returns by how many elements operand k moves in the innermost loop; 0 if there is no loop.
HOST_DEVICE int64_t walk_step(const struct loops *l, int k)
{
    return l->n ? l->stride[k][l->n - 1] : 0;
}
