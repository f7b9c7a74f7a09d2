// SPDX-License-Identifier: Apache-2.0
// How tokens are dealt to experts, as SLOTS and TOPK of both backends see it: which of two comes
// first, a token's key, the groups of a call, and the scratch that the plan gives each.
//
// A key is a weight in 4,096ths: equal tokens tie, whatever rounding made of their weights on one
// mesh or another, and a tie goes by the sample and its logical position, which are the same on
// every mesh.
#pragma once
#ifdef __cplusplus
extern "C" {
#endif

#include "common/op/op.h"

enum { ROUTE_KEYS = 4097 };

// Marks a function that kernels of both backends call.
#ifdef __CUDACC__
#define ROUTE_FN static __host__ __device__ __forceinline__
#else
#define ROUTE_FN static inline __attribute__((unused))
#endif

// Whether element i of a row comes before element j: a NaN before numbers, the greater, the earlier.
ROUTE_FN bool route_before(float a, int64_t i, float b, int64_t j)
{
    bool nan_a = a != a, nan_b = b != b;
    if (nan_a != nan_b)
        return nan_a;
    return a > b || (!(b > a) && i < j);
}

// 0 for the greatest weight, 1: what is more is 1, what is less than 0, or a NaN, is 0.
ROUTE_FN int route_key(float weight)
{
    float units = weight * 4096.0f + 0.5f;
    int whole = units >= (float)(ROUTE_KEYS - 1) ? ROUTE_KEYS - 1 : units > 0 ? (int)units : 0;
    return ROUTE_KEYS - 1 - whole;
}

// A call of SLOTS; of a group `tokens` are samples · seq.
struct route {
    int64_t groups, samples, seq, tokens, choices, experts, capacity;
};
// Returns false if the operands disagree.
bool route_of(const struct op_call *c, struct route *out);
// Bytes of scratch for each group.
size_t route_scratch_cpu(const struct route *r);
size_t route_scratch_cuda(const struct route *r);

#ifdef __cplusplus
}
#endif
