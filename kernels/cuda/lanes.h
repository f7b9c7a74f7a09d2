// SPDX-License-Identifier: Apache-2.0
// Loads and stores neighbouring elements of an operand, `wide` at a time, for kernels that are
// bound by memory: 4 where an operand is f32, 8 where all are bf16. Inside kernels/cuda/ only.
//
// Where all lanes exist and the address allows it, that is one access of at most 16 bytes, and
// those of a warp leave no gaps; else it goes element by element. The address is looked at, not the
// shape: a row that begins anywhere, and a view into the middle of a buffer, are served by the same
// call. `wide` is a constant where these are called, so that lanes beyond it cost nothing.
#pragma once
#include "kernels/cuda/numbers.h"

enum { LANES = 8 }; // at most

DEVICE bool lanes_aligned(const void *p, int bytes)
{
    return ((uintptr_t)p & (uintptr_t)(bytes - 1)) == 0;
}

DEVICE void lanes_load_f32(const float *p, float v[LANES])
{
    float4 a = *(const float4 *)(const void *)p;
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
}

DEVICE void lanes_load_pair(unsigned pair, float v[2])
{
    v[0] = __uint_as_float(pair << 16);
    v[1] = __uint_as_float(pair & 0xffff0000u);
}

DEVICE unsigned lanes_store_pair(const float v[2])
{
    return f32_to_bf16_pair(v[0], v[1]);
}

DEVICE void lanes_load_bf16(const uint16_t *p, int wide, float v[LANES])
{
    uint2 a;
    if (wide == 8) {
        uint4 w = *(const uint4 *)(const void *)p;
        lanes_load_pair(w.z, v + 4);
        lanes_load_pair(w.w, v + 6);
        a = make_uint2(w.x, w.y);
    } else {
        a = *(const uint2 *)(const void *)p;
    }
    lanes_load_pair(a.x, v);
    lanes_load_pair(a.y, v + 2);
}

DEVICE void lanes_store_bf16(uint16_t *p, int wide, const float v[LANES])
{
    uint2 a = make_uint2(lanes_store_pair(v), lanes_store_pair(v + 2));
    if (wide == 8)
        *(uint4 *)(void *)p =
            make_uint4(a.x, a.y, lanes_store_pair(v + 4), lanes_store_pair(v + 6));
    else
        *(uint2 *)(void *)p = a;
}

// Loads the first n lanes from elements i, i + stride, … as f32; the others are 0. With a stride of
// 0 all lanes are element i.
DEVICE void lanes_load(const void *p, enum dtype t, int64_t i, int64_t stride, int n, int wide,
                       float v[LANES])
{
    bool whole = stride == 1 && n == wide;
    if (whole && wide == 4 && t == DT_F32 && lanes_aligned((const float *)p + i, 16)) {
        lanes_load_f32((const float *)p + i, v);
    } else if (whole && t == DT_BF16 && lanes_aligned((const uint16_t *)p + i, 2 * wide)) {
        lanes_load_bf16((const uint16_t *)p + i, wide, v);
    } else if (stride == 0) {
        float x = load_f32(p, t, i);
        for (int k = 0; k < wide; k++)
            v[k] = x;
    } else {
        for (int k = 0; k < wide; k++)
            v[k] = k < n ? load_f32(p, t, i + k * stride) : 0;
    }
}

// Stores the first n lanes to elements i, i + 1, …, f32 or bf16.
DEVICE void lanes_store(void *p, enum dtype t, int64_t i, int n, int wide, const float v[LANES])
{
    if (n == wide && wide == 4 && t == DT_F32 && lanes_aligned((float *)p + i, 16))
        *(float4 *)(void *)((float *)p + i) = make_float4(v[0], v[1], v[2], v[3]);
    else if (n == wide && t == DT_BF16 && lanes_aligned((uint16_t *)p + i, 2 * wide))
        lanes_store_bf16((uint16_t *)p + i, wide, v);
    else
        for (int k = 0; k < wide; k++)
            if (k < n)
                store_f32(p, t, i + k, v[k]);
}

// Returns into how many groups of `wide` neighbours a row is cut; the last may be shorter.
HOST_DEVICE int64_t lanes_groups(int64_t row, int wide)
{
    return (row + wide - 1) / wide;
}

// Returns the lanes of the group that begins at element `at` of a row.
DEVICE int lanes_left(int64_t row, int64_t at, int wide)
{
    return row - at < wide ? (int)(row - at) : wide;
}
