// SPDX-License-Identifier: Apache-2.0
// Vectors of one instruction set, as long as its registers: VL lanes of 32 bits. Included by files
// that are compiled once for each instruction set. Inside kernels/cpu/ only.
//
// Contraction is off and fma is asked for by name, so a lane's result does not depend on where in
// a vector, a tail or a slice its element lies.
#pragma once
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define VEC_BYTES 64
#elif defined(__AVX2__)
#define VEC_BYTES 32
#else
#define VEC_BYTES 16
#endif
#if defined(__AVX2__)
#include <immintrin.h>
#endif

enum { VL = VEC_BYTES / 4 };
typedef float vf __attribute__((vector_size(VEC_BYTES)));
typedef int32_t vi __attribute__((vector_size(VEC_BYTES)));
typedef uint32_t vu __attribute__((vector_size(VEC_BYTES)));
typedef float vf_any __attribute__((vector_size(VEC_BYTES), aligned(4), may_alias));
#define VFN static inline __attribute__((always_inline))

// ---- memory ------------------------------------------------------------------------------------

VFN vf v_load(const float *p)
{
    return *(const vf_any *)p;
}

VFN void v_store(float *p, vf v)
{
    *(vf_any *)p = v;
}

VFN vf v_set(float x)
{
    return x - (vf){0}; // −0 stays −0
}

// Loads the first n lanes; `rest` fills the others.
VFN vf v_load_part(const float *p, int64_t n, float rest)
{
    float lane[VL];
    for (int i = 0; i < VL; i++)
        lane[i] = i < n ? p[i] : rest;
    return v_load(lane);
}

VFN void v_store_part(float *p, vf v, int64_t n)
{
    float lane[VL];
    v_store(lane, v);
    for (int i = 0; i < VL && i < n; i++)
        p[i] = lane[i];
}

// ---- arithmetic --------------------------------------------------------------------------------

VFN vf v_select(vi mask, vf yes, vf no)
{
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}

// a·b + c in one rounding where the instruction set has it.
VFN vf v_fma(vf a, vf b, vf c)
{
#if defined(__AVX512F__)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

VFN vf v_sqrt(vf x)
{
#if defined(__AVX512F__)
    return (vf)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX2__)
    return (vf)_mm256_sqrt_ps((__m256)x);
#else
    for (int i = 0; i < VL; i++)
        x[i] = __builtin_sqrtf(x[i]);
    return x;
#endif
}

// A NaN in x stays one.
VFN vf v_clamp(vf x, float lo, float hi)
{
    x = v_select(x < lo, v_set(lo), x);
    return v_select(x > hi, v_set(hi), x);
}
