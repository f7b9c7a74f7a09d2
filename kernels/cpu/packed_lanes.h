// SPDX-License-Identifier: Apache-2.0
// Lanes of panels: how packed.c and streamed.c load, turn and multiply them. Included by files that are
// compiled once for each instruction set. Inside kernels/cpu/ only.
#pragma once
#include "kernels/cpu/packed.h"
#include "kernels/cpu/simd.h"

_Static_assert(VL == 8 || VL == 16, "made for AVX2 and AVX-512");
enum {
    ROWS = VL == 8 ? 6 : 12, // of a tile
    COLUMNS = 2 * VL,
    LINE = 16,            // floats of a cache line
    GROUP = 64 / COLUMNS, // panels of b that are packed together, so that whole lines are read
    FETCHED = 8,          // how many rows ahead b is prefetched
    AHEAD = 4 * VL,       // how many elements ahead along a row
#if defined(__AVX512BF16__)
    EACH = 2 // elements along k in a lane of a panel
#else
    EACH = 1
#endif
};

#define PASTE_(a, b) a##b
#define PASTE(a, b)  PASTE_(a, b)

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

// The lane that starts at element i; its second element, if there is one, is `next` behind that.
VFN uint32_t load_one(const void *x, int64_t i, int64_t next, bool half)
{
    uint32_t bits;
    if (!half) {
        memcpy(&bits, (const float *)x + i, sizeof bits);
        return bits;
    }
    bits = ((const uint16_t *)x)[i];
    if (EACH == 1)
        return bits << 16;
    return next ? bits | (uint32_t)((const uint16_t *)x)[i + next] << 16 : bits;
}

#if defined(__AVX512F__)
VFN vu load_bf16(const uint16_t *x)
{
    __m256i bits;
    memcpy(&bits, x, sizeof bits);
    return (vu)_mm512_cvtepu16_epi32(bits);
}
#else
VFN vu load_bf16(const uint16_t *x)
{
    __m128i bits;
    memcpy(&bits, x, sizeof bits);
    return (vu)_mm256_cvtepu16_epi32(bits);
}
#endif

// VL lanes beside each other across the panels, from element i on; rows along k are ld apart.
VFN vf load_across(const void *x, int64_t i, int64_t ld, bool half)
{
    const uint16_t *first = (const uint16_t *)x + i;
    if (!half)
        return v_load((const float *)x + i);
    if (EACH == 1)
        return (vf)(load_bf16(first) << 16);
    return (vf)(load_bf16(first) | load_bf16(first + ld) << 16);
}

// VL lanes that follow each other along k, from element i on.
VFN vf load_along(const void *x, int64_t i, bool half)
{
    vf lanes;
    if (half && EACH == 1)
        return load_across(x, i, 0, true);
    memcpy(&lanes, find_element(x, half, i), sizeof lanes); // pairs lie at a multiple of 2 bytes
    return lanes;
}

// Fetches that much of each of the rows, `step` bytes apart, that a row of lanes is made of.
VFN void fetch_row(const char *row, int64_t step, int64_t bytes)
{
    for (int each = 0; each < EACH; each++)
        for (int64_t at = 0; at < bytes; at += LINE * 4)
            __builtin_prefetch(row + each * step + at);
}

#if defined(__AVX512F__)
#define LOW(a, b)         (vf) _mm512_unpacklo_ps((__m512)(a), (__m512)(b))
#define HIGH(a, b)        (vf) _mm512_unpackhi_ps((__m512)(a), (__m512)(b))
#define PAIRS(a, b, k)    (vf) _mm512_shuffle_ps((__m512)(a), (__m512)(b), k)
#define QUARTERS(a, b, k) (vf) _mm512_shuffle_f32x4((__m512)(a), (__m512)(b), k)
#else
#define LOW(a, b)       (vf) _mm256_unpacklo_ps((__m256)(a), (__m256)(b))
#define HIGH(a, b)      (vf) _mm256_unpackhi_ps((__m256)(a), (__m256)(b))
#define PAIRS(a, b, k)  (vf) _mm256_shuffle_ps((__m256)(a), (__m256)(b), k)
#define HALVES(a, b, k) (vf) _mm256_permute2f128_ps((__m256)(a), (__m256)(b), k)
#endif

// Transposes the 4 × 4 squares within each 128 bits of the vectors, then moves the squares.
VFN void transpose(vf r[VL])
{
    vf s[VL], t[VL];
    for (int i = 0; i < VL; i += 2) {
        s[i] = LOW(r[i], r[i + 1]);
        s[i + 1] = HIGH(r[i], r[i + 1]);
    }
    for (int i = 0; i < VL; i += 4)
        for (int j = 0; j < 2; j++) {
            t[i + 2 * j] = PAIRS(s[i + j], s[i + j + 2], 0x44);
            t[i + 2 * j + 1] = PAIRS(s[i + j], s[i + j + 2], 0xee);
        }
    for (int i = 0; i < 4; i++) {
#if defined(__AVX512F__)
        vf even[2], odd[2]; // quarters of rows i, i + 4; i + 8, i + 12
        for (int j = 0; j < 2; j++) {
            even[j] = QUARTERS(t[i + 8 * j], t[i + 8 * j + 4], 0x88);
            odd[j] = QUARTERS(t[i + 8 * j], t[i + 8 * j + 4], 0xdd);
        }
        r[i] = QUARTERS(even[0], even[1], 0x88);
        r[i + 4] = QUARTERS(odd[0], odd[1], 0x88);
        r[i + 8] = QUARTERS(even[0], even[1], 0xdd);
        r[i + 12] = QUARTERS(odd[0], odd[1], 0xdd);
#else
        r[i] = HALVES(t[i], t[i + 4], 0x20);
        r[i + 4] = HALVES(t[i], t[i + 4], 0x31);
#endif
    }
}

VFN vf load_everywhere(const float *x)
{
#if defined(__AVX512F__)
    return (vf)_mm512_set1_ps(*x);
#else
    return (vf)_mm256_broadcast_ss(x);
#endif
}

// a · b, lane by lane, added to c.
VFN vf multiply_add(vf a, vf b, vf c)
{
#if defined(__AVX512BF16__)
    return (vf)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
#else
    return v_fma(a, b, c);
#endif
}

// Packs `rows` rows of a from row i on, ROWS to a panel, `k` elements from `at` on: lane (row, p) of a
// panel is out[p · ROWS + row]. Panels are `stride` floats apart.
struct rows_packing {
    const struct packed_product *p;
    int64_t i, rows, at, k;
    float *out;
    int64_t stride;
};
void PASTE(pack_rows_, VEC_ISA)(const struct rows_packing *r);
void PASTE(streamed_multiply_, VEC_ISA)(const struct packed_product *p);
