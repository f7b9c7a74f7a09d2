// SPDX-License-Identifier: Apache-2.0
// Numbers on the device: elements by dtype, bf16 by its bits, sums in a fixed order.
// Inside kernels/cuda/ only.
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

// Rounds to the nearest, ties to even; a NaN stays one. The device has an instruction for it.
DEVICE uint16_t f32_to_bf16(float x)
{
#ifdef WEFT_EMULATE
    unsigned bits = __float_as_uint(x);
    unsigned near = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16, nan = bits >> 16 | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : near);
#else
    uint16_t y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
#endif
}

// Two neighbours in a word, the first in its lower half.
DEVICE unsigned f32_to_bf16_pair(float first, float second)
{
#ifdef WEFT_EMULATE
    return (unsigned)f32_to_bf16(first) | (unsigned)f32_to_bf16(second) << 16;
#else
    unsigned y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(second), "f"(first));
    return y;
#endif
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

// Element i of an operand in f32 or bf16, in two steps: several loads come first and are under way
// together, then their bits become numbers (launch.h).
DEVICE unsigned load_bits(const void *p, enum dtype t, int64_t i)
{
    return t == DT_F32 ? ((const unsigned *)p)[i] : ((const uint16_t *)p)[i];
}

DEVICE float bits_f32(unsigned bits, enum dtype t)
{
    return __uint_as_float(t == DT_F32 ? bits : bits << 16);
}

// f32 or bf16, rounded to the nearest.
DEVICE void store_f32(void *p, enum dtype t, int64_t i, float x)
{
    if (t == DT_F32)
        ((float *)p)[i] = x;
    else
        ((uint16_t *)p)[i] = f32_to_bf16(x);
}

// a · b + c in one instruction, rounded once; nvcc fuses nothing else (NVCC_FLAGS). The emulator
// rounds twice: a C library's fmaf takes ten times as long.
DEVICE float mad(float a, float b, float c)
{
#ifdef WEFT_EMULATE
    return a * b + c;
#else
    return fmaf(a, b, c);
#endif
}

// 2^x within a few units of the last place, 0 where that is below the normal numbers: one
// instruction, where expf takes about ten.
DEVICE float exp2_fast(float x)
{
#ifdef WEFT_EMULATE
    return exp2f(x);
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
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

// A NaN wins: a maximum must not hide that a row is broken.
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

// Sums over all threads of a block of whole warps. `part` is shared memory of 32 elements, free
// again when the call returns: it begins and ends with a barrier.
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
