// SPDX-License-Identifier: Apache-2.0
// Numbers on the device: elements by dtype, bf16 by its bits, draws, sums in a fixed order.
//
// bf16 lives as uint16_t, as on the host; arithmetic is in f32. Sums over a warp or a block take
// the same tree whatever is scheduled when: the same operands give the same bits. Every lane of a
// warp, and every thread of a block, has to come to these calls, and each gets the result.
#pragma once
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/launch.h"

enum { WARP = 32 };
#define WARP_ALL 0xffffffffu

// ---- elements ----------------------------------------------------------------------------------

DEVICE float bf16_to_f32(uint16_t x)
{
    return __uint_as_float((unsigned)x << 16);
}

// To the nearest, ties to even; a NaN stays one.
DEVICE uint16_t f32_to_bf16(float x)
{
    unsigned bits = __float_as_uint(x);
    unsigned near = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16, nan = bits >> 16 | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : near);
}

// Element i of an operand as f32. The dtype is the same for all threads: the branches are free.
DEVICE float load_f32(const void *p, enum dtype t, int64_t i)
{
    if (t == DT_F32)
        return ((const float *)p)[i];
    if (t == DT_BF16)
        return bf16_to_f32(((const uint16_t *)p)[i]);
    if (t == DT_I32)
        return (float)((const int32_t *)p)[i];
    return (float)((const uint8_t *)p)[i];
}

// f32 or bf16, rounded to the nearest.
DEVICE void store_f32(void *p, enum dtype t, int64_t i, float x)
{
    if (t == DT_F32)
        ((float *)p)[i] = x;
    else
        ((uint16_t *)p)[i] = f32_to_bf16(x);
}

// Four elements in a row, f32 or bf16, of which the first lies at a multiple of four elements from
// memory aligned to 16 bytes: one access of 16 or 8 bytes.
DEVICE float4 load4_f32(const void *p, enum dtype t, int64_t i)
{
    float4 v;
    if (t == DT_F32)
        return *(const float4 *)(const void *)((const float *)p + i);
    uint2 w = *(const uint2 *)(const void *)((const uint16_t *)p + i);
    v.x = __uint_as_float(w.x << 16);
    v.y = __uint_as_float(w.x & 0xffff0000u);
    v.z = __uint_as_float(w.y << 16);
    v.w = __uint_as_float(w.y & 0xffff0000u);
    return v;
}

DEVICE void store4_f32(void *p, enum dtype t, int64_t i, float4 v)
{
    uint2 w;
    if (t == DT_F32) {
        *(float4 *)(void *)((float *)p + i) = v;
        return;
    }
    w.x = (unsigned)f32_to_bf16(v.x) | (unsigned)f32_to_bf16(v.y) << 16;
    w.y = (unsigned)f32_to_bf16(v.z) | (unsigned)f32_to_bf16(v.w) << 16;
    *(uint2 *)(void *)((uint16_t *)p + i) = w;
}

// a · b + c in one instruction, rounded once; nothing else is (NVCC_FLAGS). The emulator rounds
// twice: a C library's fmaf takes ten times as long.
DEVICE float mad(float a, float b, float c)
{
#ifdef WEFT_EMULATE
    return a * b + c;
#else
    return fmaf(a, b, c);
#endif
}

// ---- sums and maxima ---------------------------------------------------------------------------

DEVICE float warp_sum(float x)
{
    for (int lane = WARP / 2; lane; lane /= 2)
        x += __shfl_xor_sync(WARP_ALL, x, lane);
    return x;
}

DEVICE double warp_sum_f64(double x)
{
    for (int lane = WARP / 2; lane; lane /= 2)
        x += __shfl_xor_sync(WARP_ALL, x, lane);
    return x;
}

// A NaN wins, as in the CPU's kernels: a maximum must not hide that a row is broken.
DEVICE float max_nan(float a, float b)
{
    return a > b || isnan(a) ? a : b;
}

DEVICE float warp_max(float x)
{
    for (int lane = WARP / 2; lane; lane /= 2)
        x = max_nan(x, __shfl_xor_sync(WARP_ALL, x, lane));
    return x;
}

DEVICE unsigned block_thread(void)
{
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

DEVICE unsigned block_warps(void)
{
    return blockDim.x * blockDim.y * blockDim.z / WARP;
}

// Over all threads of a block of whole warps. `part` is shared memory of 32 elements, free again
// when the call returns: it begins and ends with a barrier.
DEVICE float block_sum(float x, float *part)
{
    unsigned thread = block_thread();
    x = warp_sum(x);
    __syncthreads();
    if (thread % WARP == 0)
        part[thread / WARP] = x;
    __syncthreads();
    x = warp_sum(thread % WARP < block_warps() ? part[thread % WARP] : 0);
    __syncthreads();
    return x;
}

DEVICE double block_sum_f64(double x, double *part)
{
    unsigned thread = block_thread();
    x = warp_sum_f64(x);
    __syncthreads();
    if (thread % WARP == 0)
        part[thread / WARP] = x;
    __syncthreads();
    x = warp_sum_f64(thread % WARP < block_warps() ? part[thread % WARP] : 0);
    __syncthreads();
    return x;
}

DEVICE float block_max(float x, float *part)
{
    unsigned thread = block_thread();
    x = warp_max(x);
    __syncthreads();
    if (thread % WARP == 0)
        part[thread / WARP] = x;
    __syncthreads();
    x = warp_max(thread % WARP < block_warps() ? part[thread % WARP] : -INFINITY);
    __syncthreads();
    return x;
}

// ---- draws: those of common/base/rand.h --------------------------------------------------------

// The four words of a block of a site's numbers: those at indices 4·block to 4·block + 3.
DEVICE uint4 draw_block(uint64_t seed, unsigned stream, unsigned step, uint64_t block)
{
    unsigned k0 = (unsigned)seed, k1 = (unsigned)(seed >> 32);
    uint4 c;
    c.x = (unsigned)block;
    c.y = (unsigned)(block >> 32);
    c.z = step;
    c.w = stream;
    for (int i = 0; i < 10; i++) {
        unsigned h0 = __umulhi(0xD2511F53u, c.x), l0 = 0xD2511F53u * c.x;
        unsigned h1 = __umulhi(0xCD9E8D57u, c.z), l1 = 0xCD9E8D57u * c.z;
        c.x = h1 ^ c.y ^ k0;
        c.y = l1;
        c.z = h0 ^ c.w ^ k1;
        c.w = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

DEVICE unsigned draw_word(uint4 block, unsigned at)
{
    unsigned low = at & 1 ? block.y : block.x, high = at & 1 ? block.w : block.z;
    return at & 2 ? high : low;
}

// [0, 1): what a word stands for.
DEVICE float draw_uniform_of(unsigned word)
{
    return (float)(word >> 8) * 0x1p-24f;
}

DEVICE float draw_uniform(uint64_t seed, unsigned stream, unsigned step, uint64_t index)
{
    uint4 block = draw_block(seed, stream, step, index >> 2);
    return draw_uniform_of(draw_word(block, (unsigned)(index & 3)));
}

// Normal number `half` (0 or 1) of a block: that of index 2·block + half. In double, as the host.
DEVICE float draw_normal_of(uint4 block, unsigned half)
{
    double u = draw_uniform_of(half ? block.z : block.x);
    double v = draw_uniform_of(half ? block.w : block.y);
    return (float)(sqrt(-2 * log(u + 0x1p-25)) * cos(2 * 3.14159265358979323846 * v));
}
