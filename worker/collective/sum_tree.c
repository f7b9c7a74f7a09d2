// SPDX-License-Identifier: Apache-2.0
// The fixed summation tree. Work goes in tiles that stay in the first-level cache: a subtree's
// partial sums live in one tile a level, the last addition writes the destination. Elements are
// independent, so neither the tile nor the vector width can change a bit. There is no fused or
// reassociated arithmetic here, and no streaming stores: the destinations were just read.
#include "worker/collective/sum_tree.h"

#include <string.h>

#include "common/base/err.h"

enum { TILE = 512, DEPTH = 13 }; // floats a tile; tiles for TREE_MAX operands

typedef float vec __attribute__((vector_size(32), aligned(4), may_alias));
enum { LANES = sizeof(vec) / sizeof(float) };

static inline __attribute__((always_inline)) void pair_body(float *out, const float *a,
                                                            const float *b, size_t n)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        *(vec *)(out + i) = *(const vec *)(a + i) + *(const vec *)(b + i);
    for (; i < n; i++)
        out[i] = a[i] + b[i];
}

// Two sources, two destinations: two ranks of one host. Both stores go out with the addition; a
// copy of the tile afterwards fetches lines of the peer twice: at 1 MB it took as long again.
static inline __attribute__((always_inline)) void both_body(void *const *out, const void *const *s,
                                                            size_t n)
{
    float *x = out[0], *y = out[1];
    const float *a = s[0], *b = s[1];
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        *(vec *)(x + i) = *(vec *)(y + i) = *(const vec *)(a + i) + *(const vec *)(b + i);
    for (; i < n; i++)
        x[i] = y[i] = a[i] + b[i];
}

static inline __attribute__((always_inline)) void quad_body(float *out, const void *const *s,
                                                            size_t at, size_t n)
{
    const float *a = (const float *)s[0] + at, *b = (const float *)s[1] + at;
    const float *c = (const float *)s[2] + at, *d = (const float *)s[3] + at;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        *(vec *)(out + i) = (*(const vec *)(a + i) + *(const vec *)(b + i)) +
                            (*(const vec *)(c + i) + *(const vec *)(d + i));
    for (; i < n; i++)
        out[i] = (a[i] + b[i]) + (c[i] + d[i]);
}

struct adder {
    void (*pair)(float *out, const float *a, const float *b, size_t n);
    void (*quad)(float *out, const void *const *s, size_t at, size_t n);
    void (*both)(void *const *out, const void *const *s, size_t n);
};

static void pair_any(float *out, const float *a, const float *b, size_t n)
{
    pair_body(out, a, b, n);
}
static void quad_any(float *out, const void *const *s, size_t at, size_t n)
{
    quad_body(out, s, at, n);
}
static void both_any(void *const *out, const void *const *s, size_t n)
{
    both_body(out, s, n);
}
static const struct adder adder_any = {pair_any, quad_any, both_any};

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void pair_avx2(float *out, const float *a, const float *b,
                                                      size_t n)
{
    pair_body(out, a, b, n);
}
__attribute__((target("avx2"))) static void quad_avx2(float *out, const void *const *s, size_t at,
                                                      size_t n)
{
    quad_body(out, s, at, n);
}
__attribute__((target("avx2"))) static void both_avx2(void *const *out, const void *const *s,
                                                      size_t n)
{
    both_body(out, s, n);
}
static const struct adder adder_avx2 = {pair_avx2, quad_avx2, both_avx2};

static const struct adder *choose_adder(void)
{
    return __builtin_cpu_supports("avx2") ? &adder_avx2 : &adder_any;
}
#else
static const struct adder *choose_adder(void)
{
    return &adder_any;
}
#endif

// The size of the left subtree: the greatest power of two below n.
static int find_left_size(int n)
{
    int half = 1;
    while (half * 2 < n)
        half *= 2;
    return half;
}

// The sum of one tile of a subtree: a source itself, or `tmp`, whose following tiles are free.
static const float *sum_subtree(const struct adder *add, const void *const *src, int n, size_t at,
                                size_t len, float *tmp)
{
    if (n == 1)
        return (const float *)src[0] + at;
    if (n == 4) {
        add->quad(tmp, src, at, len);
        return tmp;
    }
    int half = find_left_size(n);
    const float *l = sum_subtree(add, src, half, at, len, tmp);
    const float *r = sum_subtree(add, src + half, n - half, at, len, tmp + TILE);
    add->pair(tmp, l, r, len);
    return tmp;
}

static void sum_tile(const struct adder *add, float *out, const void *const *src, int n, size_t at,
                     size_t len, float *tmp)
{
    if (n == 4) {
        add->quad(out, src, at, len);
        return;
    }
    if (n == 1) {
        memmove(out, (const float *)src[0] + at, len * sizeof *out);
        return;
    }
    int half = find_left_size(n);
    const float *l = sum_subtree(add, src, half, at, len, tmp);
    const float *r = sum_subtree(add, src + half, n - half, at, len, tmp + TILE);
    add->pair(out, l, r, len);
}

static void sum_f32(void *const *dst, int nd, const void *const *src, int n, size_t count)
{
    const struct adder *add = choose_adder();
    float tmp[DEPTH * TILE];
    if (n == 2 && nd == 2) {
        add->both(dst, src, count);
        return;
    }
    for (size_t at = 0; at < count; at += TILE) {
        size_t len = count - at < TILE ? count - at : TILE;
        sum_tile(add, (float *)dst[0] + at, src, n, at, len, tmp);
        for (int d = 1; d < nd; d++)
            memcpy((float *)dst[d] + at, (float *)dst[0] + at, len * sizeof(float));
    }
}

// ---- bf16: the upper half of an f32 ------------------------------------------------------------

static void widen_tile(float *to, const uint16_t *from, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)from[i] << 16;
        memcpy(&to[i], &bits, sizeof bits);
    }
}

// Rounds to the nearest bf16, ties to even. NaN gets its quiet bit set, because its upper half
// alone could be that of infinity.
static void narrow_tile(uint16_t *to, const float *from, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &from[i], sizeof bits);
        uint32_t even = bits + 0x7fff + (bits >> 16 & 1);
        to[i] = (uint16_t)((from[i] == from[i] ? even : bits | 0x400000) >> 16);
    }
}

// The sum of one tile of a subtree, always in `tmp`.
static void sum_subtree_bf16(const struct adder *add, const void *const *src, int n, size_t at,
                             size_t len, float *tmp)
{
    if (n == 1) {
        widen_tile(tmp, (const uint16_t *)src[0] + at, len);
        return;
    }
    int half = find_left_size(n);
    sum_subtree_bf16(add, src, half, at, len, tmp);
    sum_subtree_bf16(add, src + half, n - half, at, len, tmp + TILE);
    add->pair(tmp, tmp, tmp + TILE, len);
}

static void sum_bf16(void *const *dst, int nd, const void *const *src, int n, size_t count)
{
    const struct adder *add = choose_adder();
    float tmp[DEPTH * TILE];
    for (size_t at = 0; at < count; at += TILE) {
        size_t len = count - at < TILE ? count - at : TILE;
        sum_subtree_bf16(add, src, n, at, len, tmp);
        for (int d = 0; d < nd; d++)
            narrow_tile((uint16_t *)dst[d] + at, tmp, len);
    }
}

// ---- both --------------------------------------------------------------------------------------

void tree_sum(enum dtype t, void *const *dst, int nd, const void *const *src, int n, size_t count)
{
    PRE(n >= 1 && n <= TREE_MAX && nd >= 1 && (t == DT_F32 || t == DT_BF16));
    if (t == DT_F32)
        sum_f32(dst, nd, src, n, count);
    else
        sum_bf16(dst, nd, src, n, count);
}

static void load_tile(enum dtype t, float *to, const void *from, size_t at, size_t len)
{
    if (t == DT_F32)
        memcpy(to, (const float *)from + at, len * sizeof *to);
    else
        widen_tile(to, (const uint16_t *)from + at, len);
}

static void store_tile(enum dtype t, void *to, size_t at, const float *from, size_t len)
{
    if (t == DT_F32)
        memcpy((float *)to + at, from, len * sizeof *from);
    else
        narrow_tile((uint16_t *)to + at, from, len); // it was a bf16: nothing is rounded
}

void tree_max(enum dtype t, void *const *dst, int nd, const void *const *src, int n, size_t count)
{
    PRE(n >= 1 && nd >= 1 && (t == DT_F32 || t == DT_BF16));
    float best[TILE], next[TILE];
    for (size_t at = 0; at < count; at += TILE) {
        size_t len = count - at < TILE ? count - at : TILE;
        load_tile(t, best, src[0], at, len);
        for (int k = 1; k < n; k++) {
            load_tile(t, next, src[k], at, len);
            for (size_t i = 0; i < len; i++)
                best[i] = best[i] >= next[i] || next[i] != next[i] ? best[i] : next[i];
        }
        for (int d = 0; d < nd; d++)
            store_tile(t, dst[d], at, best, len);
    }
}
