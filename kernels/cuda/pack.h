// SPDX-License-Identifier: Apache-2.0
// Rows in packs: eight neighbouring elements that one thread loads, works on and stores, as 16-byte
// accesses where the rows lie so; and sums over the threads that share a row.
//
// A row belongs to `lanes` threads: a warp, or the whole block. Which elements are whose does not
// depend on how they are loaded, so alignment never changes a bit.
#pragma once
#include "kernels/cuda/numbers.h"

enum { PACK = 8 };

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
    return (uintptr_t)p % 16 == 0 && n % PACK == 0;
}

DEVICE void pack_whole(float v[PACK], const void *p, enum dtype t, int64_t i)
{
    if (t == DT_F32) {
        float4 a = *(const float4 *)(const void *)((const float *)p + i);
        float4 b = *(const float4 *)(const void *)((const float *)p + i + 4);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
        v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
        return;
    }
    uint4 w = *(const uint4 *)(const void *)((const uint16_t *)p + i);
    v[0] = __uint_as_float(w.x << 16), v[1] = __uint_as_float(w.x & 0xffff0000u);
    v[2] = __uint_as_float(w.y << 16), v[3] = __uint_as_float(w.y & 0xffff0000u);
    v[4] = __uint_as_float(w.z << 16), v[5] = __uint_as_float(w.z & 0xffff0000u);
    v[6] = __uint_as_float(w.w << 16), v[7] = __uint_as_float(w.w & 0xffff0000u);
}

// Elements i to i + 7 of p, f32 or bf16, of which `left` are there; `rest` stands for the others.
// `fits`: i is a multiple of 8, and as many elements lie there even where fewer count.
DEVICE void pack_load(float v[PACK], const void *p, enum dtype t, int64_t i, int64_t left,
                      bool fits, float rest)
{
    if (fits) {
        pack_whole(v, p, t, i);
        if (left < PACK)
            for (int k = 0; k < PACK; k++)
                v[k] = k < left ? v[k] : rest;
        return;
    }
    for (int k = 0; k < PACK; k++)
        v[k] = k < left ? load_f32(p, t, i + k) : rest;
}

DEVICE unsigned pack_two(float low, float high)
{
    return (unsigned)f32_to_bf16(low) | (unsigned)f32_to_bf16(high) << 16;
}

DEVICE void pack_store(void *p, enum dtype t, int64_t i, int64_t left, bool fits,
                       const float v[PACK])
{
    if (!fits || left < PACK) {
        for (int k = 0; k < PACK; k++)
            if (k < left)
                store_f32(p, t, i + k, v[k]);
        return;
    }
    if (t == DT_F32) {
        *(float4 *)(void *)((float *)p + i) = make_float4(v[0], v[1], v[2], v[3]);
        *(float4 *)(void *)((float *)p + i + 4) = make_float4(v[4], v[5], v[6], v[7]);
        return;
    }
    *(uint4 *)(void *)((uint16_t *)p + i) = make_uint4(
        pack_two(v[0], v[1]), pack_two(v[2], v[3]), pack_two(v[4], v[5]), pack_two(v[6], v[7]));
}

DEVICE float pack_sum(const float v[PACK])
{
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

// A NaN is no maximum: as on the CPU, where it shows in the sums.
DEVICE float pack_max(const float v[PACK], float m)
{
    for (int k = 0; k < PACK; k++)
        m = v[k] > m ? v[k] : m;
    return m;
}

// What the numbers are after they went to memory and back.
DEVICE void pack_round(float v[PACK], enum dtype t)
{
    for (int k = 0; k < PACK && t == DT_BF16; k++)
        v[k] = bf16_to_f32(f32_to_bf16(v[k]));
}

// ---- the threads of a row ----------------------------------------------------------------------

// `part` is shared memory of 32 elements. Where a row has the whole block, all its threads come.
DEVICE float lanes_sum(float x, int lanes, float *part)
{
    return lanes == WARP ? warp_sum(x) : block_sum(x, part);
}

DEVICE double lanes_sum_f64(double x, int lanes, double *part)
{
    return lanes == WARP ? warp_sum_f64(x) : block_sum_f64(x, part);
}

DEVICE float lanes_max(float x, int lanes, float *part)
{
    return lanes == WARP ? warp_max(x) : block_max(x, part);
}

// The row that a thread begins with, and how far it is to its next.
DEVICE int64_t lanes_row(int lanes)
{
    return (int64_t)blockIdx.x * (blockDim.x / lanes) + threadIdx.x / lanes;
}

DEVICE int64_t lanes_step(int lanes)
{
    return (int64_t)gridDim.x * (blockDim.x / lanes);
}
