// SPDX-License-Identifier: Apache-2.0
// LANES neighbours of an operand in one thread's registers: what kernels that are bound by memory
// load and store at a time.
//
// Two accesses of 16 bytes (f32) or one (bf16) where all lanes are there and the address allows it;
// else element by element. The address is looked at, not the shape: a row that begins anywhere, and
// a view into the middle of a buffer, are served by the same call.
#pragma once
#include "kernels/cuda/numbers.h"

enum { LANES = 8 };

DEVICE bool lanes_aligned(const void *p)
{
    return ((uintptr_t)p & 15) == 0;
}

DEVICE void lanes_load_f32(const float *p, float v[LANES])
{
    float4 a = ((const float4 *)(const void *)p)[0], b = ((const float4 *)(const void *)p)[1];
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

DEVICE void lanes_store_f32(float *p, const float v[LANES])
{
    ((float4 *)(void *)p)[0] = make_float4(v[0], v[1], v[2], v[3]);
    ((float4 *)(void *)p)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

DEVICE void lanes_load_bf16(const uint16_t *p, float v[LANES])
{
    uint4 w = *(const uint4 *)(const void *)p;
    v[0] = __uint_as_float(w.x << 16), v[1] = __uint_as_float(w.x & 0xffff0000u);
    v[2] = __uint_as_float(w.y << 16), v[3] = __uint_as_float(w.y & 0xffff0000u);
    v[4] = __uint_as_float(w.z << 16), v[5] = __uint_as_float(w.z & 0xffff0000u);
    v[6] = __uint_as_float(w.w << 16), v[7] = __uint_as_float(w.w & 0xffff0000u);
}

DEVICE unsigned lanes_pair_bf16(float low, float high)
{
    return (unsigned)f32_to_bf16(low) | (unsigned)f32_to_bf16(high) << 16;
}

DEVICE void lanes_store_bf16(uint16_t *p, const float v[LANES])
{
    *(uint4 *)(void *)p = make_uint4(lanes_pair_bf16(v[0], v[1]), lanes_pair_bf16(v[2], v[3]),
                                     lanes_pair_bf16(v[4], v[5]), lanes_pair_bf16(v[6], v[7]));
}

// The first n lanes from elements i, i + stride, … as f32; the others are 0. A stride of 0 is one
// element for all.
DEVICE void lanes_load(const void *p, enum dtype t, int64_t i, int64_t stride, int n,
                       float v[LANES])
{
    bool whole = stride == 1 && n == LANES;
    if (whole && t == DT_F32 && lanes_aligned((const float *)p + i)) {
        lanes_load_f32((const float *)p + i, v);
    } else if (whole && t == DT_BF16 && lanes_aligned((const uint16_t *)p + i)) {
        lanes_load_bf16((const uint16_t *)p + i, v);
    } else if (stride == 0) {
        float x = load_f32(p, t, i);
        for (int k = 0; k < LANES; k++)
            v[k] = x;
    } else {
        for (int k = 0; k < LANES; k++)
            v[k] = k < n ? load_f32(p, t, i + k * stride) : 0;
    }
}

// The first n lanes to elements i, i + 1, …, f32 or bf16.
DEVICE void lanes_store(void *p, enum dtype t, int64_t i, int n, const float v[LANES])
{
    if (n == LANES && t == DT_F32 && lanes_aligned((float *)p + i))
        lanes_store_f32((float *)p + i, v);
    else if (n == LANES && t == DT_BF16 && lanes_aligned((uint16_t *)p + i))
        lanes_store_bf16((uint16_t *)p + i, v);
    else
        for (int k = 0; k < LANES; k++)
            if (k < n)
                store_f32(p, t, i + k, v[k]);
}

// A row cut into groups of LANES neighbours, the last of them shorter: how many there are.
HOST_DEVICE int64_t lanes_groups(int64_t row)
{
    return (row + LANES - 1) / LANES;
}

// Lanes of the group that begins at element `at` of a row.
DEVICE int lanes_left(int64_t row, int64_t at)
{
    return row - at < LANES ? (int)(row - at) : LANES;
}
