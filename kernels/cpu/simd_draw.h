// SPDX-License-Identifier: Apache-2.0
// Random words of one instruction set: Philox 4x32-10 (base/rand.h) on whole vectors of counters,
// and the normals made of them. Included by vec.c alone, after simd_math.h.
// Inside kernels/cpu/ only.
//
// A counter's four words lie in the low halves of 64-bit lanes, where one instruction makes both
// halves of a product; what is left in the high halves is never read. A word depends on its index
// alone, so how the caller slices a run never changes a bit.
#pragma once

typedef uint64_t vw __attribute__((vector_size(VEC_BYTES)));
typedef uint64_t vw_any __attribute__((vector_size(VEC_BYTES), aligned(4), may_alias));
typedef uint32_t vu_any __attribute__((vector_size(VEC_BYTES), aligned(4), may_alias));

enum { WL = VEC_BYTES / 8, WORDS = 4 * WL, NORMALS = WORDS / 2 }; // of one vector of counters

#if VEC_BYTES == 64
#define ZIP_LOW(a, b)  __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#elif VEC_BYTES == 32
#define ZIP_LOW(a, b)  __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#else
#define ZIP_LOW(a, b)  __builtin_shufflevector(a, b, 0, 2)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 1, 3)
#endif

VFN vw w_set(uint64_t x)
{
    return x + (vw){0};
}

// Returns in each lane of 64 bits the product of its low 32 bits with m.
VFN vw w_mul(vw a, uint32_t m)
{
#if defined(__AVX512F__)
    return (vw)_mm512_mul_epu32((__m512i)a, (__m512i)w_set(m));
#elif defined(__AVX2__)
    return (vw)_mm256_mul_epu32((__m256i)a, (__m256i)w_set(m));
#else
    return (a & 0xffffffffu) * m;
#endif
}

// The words of the WL counters from `block` on, in the order of their indices.
VFN void v_words(uint32_t out[WORDS], const struct vec_draw *d, uint64_t block)
{
    vw c0, c1, c2 = w_set(d->step), c3 = w_set(d->stream);
    uint32_t k0 = (uint32_t)d->seed, k1 = (uint32_t)(d->seed >> 32);
    for (int i = 0; i < WL; i++)
        c0[i] = block + (uint64_t)i;
    c1 = c0 >> 32;
#pragma GCC unroll 10
    for (int i = 0; i < 10; i++) {
        vw p0 = w_mul(c0, 0xD2511F53u), p1 = w_mul(c2, 0xCD9E8D57u);
        c0 = (p1 >> 32) ^ c1 ^ w_set(k0);
        c2 = (p0 >> 32) ^ c3 ^ w_set(k1);
        c1 = p1;
        c3 = p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    vw a = (c0 & 0xffffffffu) | c1 << 32, b = (c2 & 0xffffffffu) | c3 << 32;
    *(vw_any *)(void *)out = ZIP_LOW(a, b);
    *(vw_any *)(void *)(out + WORDS / 2) = ZIP_HIGH(a, b);
}

VFN vu v_load_words(const uint32_t *p)
{
    return *(const vu_any *)p;
}

// ln((2u + 1)·2^-25) for u < 2^24. From a half on 2u + 1 has a bit more than f32 holds: there its
// distance from the next power of two is taken as a whole number.
VFN vf v_log_unit(vu u)
{
    vi k = (vi)(2 * u + 1);
    struct log_parts p = v_log_split(__builtin_convertvector(k, vf));
    vi upper = k >= 1 << 24, near_one = k > 23726566; // √½·2^25
    vf from_half = __builtin_convertvector(k - (1 << 24), vf) * 0x1p-24f;
    vf below_one = __builtin_convertvector(k - (1 << 25), vf) * 0x1p-25f;
    p.f = v_select(upper, v_select(near_one, below_one, from_half), p.f);
    p.e = v_select(upper, v_select(near_one, v_set(25), v_set(24)), p.e);
    return v_log_join(p.f, p.e - 25.0f);
}

// cos(2π·v·2^-24): the nearest quarter turn is taken off as a whole number, then the series of the
// sine or cosine of at most an eighth.
VFN vf v_cos_unit(vu v)
{
    vi quarter = (vi)((v + (1u << 21)) >> 22);
    vf a = __builtin_convertvector((vi)v - (quarter << 22), vf) * (6.28318531f * 0x1p-24f);
    vf z = a * a;
    vf s = v_fma(v_set(1.0f / 362880), z, v_set(-1.0f / 5040));
    s = v_fma(s, z, v_set(1.0f / 120));
    s = v_fma(s, z, v_set(-1.0f / 6));
    s = v_fma(s * z, a, a);
    vf c = v_fma(v_set(-1.0f / 3628800), z, v_set(1.0f / 40320));
    c = v_fma(c, z, v_set(-1.0f / 720));
    c = v_fma(c, z, v_set(1.0f / 24));
    c = v_fma(c, z, v_set(-0.5f));
    c = v_fma(c, z, v_set(1));
    vf r = v_select((quarter & 1) != 0, s, c);
    return (vf)((vi)r ^ (((quarter + 1) & 2) << 30));
}

// The NORMALS normals of one vector of counters.
VFN void v_normals(float out[NORMALS], const uint32_t words[WORDS])
{
    uint32_t u[NORMALS], v[NORMALS];
    for (int i = 0; i < NORMALS; i++) {
        u[i] = words[2 * i] >> 8;
        v[i] = words[2 * i + 1] >> 8;
    }
    v_store(out, v_sqrt(-2.0f * v_log_unit(v_load_words(u))) * v_cos_unit(v_load_words(v)));
}
