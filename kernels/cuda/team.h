// SPDX-License-Identifier: Apache-2.0
// Rows in packs, and the threads that share a row.
//
// A pack is LANES neighbours of a row that one thread loads, works on and stores, by 16-byte
// accesses where the whole operand allows it: that is found out once, on the host, so that kernels
// ask one flag. A row belongs to a team of threads: a warp, or the whole block. Which elements are
// whose does not depend on how they are loaded, so alignment never changes a bit.
#pragma once
#include "kernels/cuda/lanes.h"

// Before a loop over what must lie in registers.
#ifdef WEFT_EMULATE
#define UNROLL
#else
#define UNROLL _Pragma("unroll")
#endif

// ---- packs -------------------------------------------------------------------------------------

// Whether rows of n elements, one behind the other, begin and end where packs do.
static inline bool pack_fits(const void *p, int64_t n)
{
    return (uintptr_t)p % 16 == 0 && n % LANES == 0;
}

DEVICE void pack_whole(float v[LANES], const void *p, enum dtype t, int64_t i)
{
    if (t == DT_F32) {
        float4 b = *(const float4 *)(const void *)((const float *)p + i + 4);
        lanes_load_f32((const float *)p + i, v);
        v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else {
        lanes_load_bf16((const uint16_t *)p + i, LANES, v);
    }
}

// Elements i to i + 7 of p, f32 or bf16, of which `left` are there; `rest` stands for the others.
// `fits`: i is a multiple of 8, and as many elements lie there even where fewer count.
DEVICE void pack_load(float v[LANES], const void *p, enum dtype t, int64_t i, int64_t left,
                      bool fits, float rest)
{
    if (fits) {
        pack_whole(v, p, t, i);
        if (left < LANES)
            for (int k = 0; k < LANES; k++)
                v[k] = k < left ? v[k] : rest;
        return;
    }
    for (int k = 0; k < LANES; k++)
        v[k] = k < left ? load_f32(p, t, i + k) : rest;
}

DEVICE void pack_store(void *p, enum dtype t, int64_t i, int64_t left, bool fits,
                       const float v[LANES])
{
    if (!fits || left < LANES) {
        for (int k = 0; k < LANES; k++)
            if (k < left)
                store_f32(p, t, i + k, v[k]);
        return;
    }
    if (t == DT_F32) {
        *(float4 *)(void *)((float *)p + i) = make_float4(v[0], v[1], v[2], v[3]);
        *(float4 *)(void *)((float *)p + i + 4) = make_float4(v[4], v[5], v[6], v[7]);
    } else {
        lanes_store_bf16((uint16_t *)p + i, LANES, v);
    }
}

DEVICE float pack_sum(const float v[LANES])
{
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

// A NaN is no maximum: as on the CPU, where it shows in the sums.
DEVICE float pack_max(const float v[LANES], float m)
{
    for (int k = 0; k < LANES; k++)
        m = v[k] > m ? v[k] : m;
    return m;
}

// ---- teams ------------------------------------------------------------------------------------

// `part` is shared memory of 32 elements. Where a row has the whole block, all its threads come.
DEVICE float team_sum(float x, int team, float *part)
{
    return team == WARP ? warp_sum(x) : block_sum(x, part);
}

DEVICE double team_sum_f64(double x, int team, double *part)
{
    return team == WARP ? warp_sum_f64(x) : block_sum_f64(x, part);
}

DEVICE float team_max(float x, int team, float *part)
{
    return team == WARP ? warp_max(x) : block_max(x, part);
}

// The row that a thread begins with, and how far it is to its next.
DEVICE int64_t team_row(int team)
{
    return (int64_t)blockIdx.x * (blockDim.x / team) + threadIdx.x / team;
}

DEVICE int64_t team_step(int team)
{
    return (int64_t)gridDim.x * (blockDim.x / team);
}
