// SPDX-License-Identifier: Apache-2.0
// CUDA's intrinsics on the host; see emulate.h.
#pragma once

static inline unsigned __float_as_uint(float x)
{
    unsigned u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float __uint_as_float(unsigned u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

#define EMULATE_FN(type, name, params, value)              \
    static inline __attribute__((unused)) type name params \
    {                                                      \
        return value;                                      \
    }
EMULATE_FN(int, __float_as_int, (float x), (int)__float_as_uint(x))
EMULATE_FN(float, __int_as_float, (int i), __uint_as_float((unsigned)i))
EMULATE_FN(unsigned, __umulhi, (unsigned a, unsigned b), (unsigned)((uint64_t)a *b >> 32))
EMULATE_FN(int, __popc, (unsigned x), __builtin_popcount(x))
EMULATE_FN(int, __popcll, (unsigned long long x), __builtin_popcountll(x))
EMULATE_FN(int, __clz, (int x), x ? __builtin_clz((unsigned)x) : 32)
EMULATE_FN(int, __ffs, (int x), __builtin_ffs(x))
EMULATE_FN(float, rsqrtf, (float x), (float)(1 / sqrt((double)x)))
EMULATE_FN(double, rsqrt, (double x), 1 / sqrt(x))
EMULATE_FN(float, __fdividef, (float a, float b), a / b)
EMULATE_FN(float, __fadd_rn, (float a, float b), a + b)
EMULATE_FN(float, __fsub_rn, (float a, float b), a - b)
EMULATE_FN(float, __fmul_rn, (float a, float b), a *b)
EMULATE_FN(float, __fdiv_rn, (float a, float b), a / b)
EMULATE_FN(float, __fsqrt_rn, (float x), sqrtf(x))
EMULATE_FN(float, __fmaf_rn, (float a, float b, float c), fmaf(a, b, c))
EMULATE_FN(double, __dadd_rn, (double a, double b), a + b)
EMULATE_FN(double, __dmul_rn, (double a, double b), a *b)
EMULATE_FN(float2, make_float2, (float x, float y), ((float2){x, y}))
EMULATE_FN(float4, make_float4, (float x, float y, float z, float w), ((float4){x, y, z, w}))
EMULATE_FN(int4, make_int4, (int x, int y, int z, int w), ((int4){x, y, z, w}))
EMULATE_FN(uint2, make_uint2, (unsigned x, unsigned y), ((uint2){x, y}))
EMULATE_FN(uint4, make_uint4, (unsigned x, unsigned y, unsigned z, unsigned w),
           ((uint4){x, y, z, w}))
#undef EMULATE_FN
#define __expf(x) expf(x) // the C library has these names for itself
#define __logf(x) logf(x)
#define min(a, b)                                 \
    ({                                            \
        __typeof__((a) + (b)) a_ = (a), b_ = (b); \
        a_ < b_ ? a_ : b_;                        \
    })
#define max(a, b)                                 \
    ({                                            \
        __typeof__((a) + (b)) a_ = (a), b_ = (b); \
        a_ > b_ ? a_ : b_;                        \
    })
