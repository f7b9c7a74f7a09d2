// SPDX-License-Identifier: Apache-2.0
// The fixed summation tree. Work goes in tiles that stay in the first-level cache: a subtree's
// partial sums live in one tile a level, the last addition writes the destination. Elements are
// independent, so neither the tile nor the vector width can change a bit. There is no fused or
// reassociated arithmetic here, and no streaming stores: the destinations were just read.
#include "worker/collective/tree.h"

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
static inline __attribute__((always_inline)) void both_body(float *const *out,
                                                            const float *const *s, size_t n)
{
    float *x = out[0], *y = out[1];
    const float *a = s[0], *b = s[1];
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        *(vec *)(x + i) = *(vec *)(y + i) = *(const vec *)(a + i) + *(const vec *)(b + i);
    for (; i < n; i++)
        x[i] = y[i] = a[i] + b[i];
}

static inline __attribute__((always_inline)) void quad_body(float *out, const float *const *s,
                                                            size_t at, size_t n)
{
    const float *a = s[0] + at, *b = s[1] + at, *c = s[2] + at, *d = s[3] + at;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        *(vec *)(out + i) = (*(const vec *)(a + i) + *(const vec *)(b + i)) +
                            (*(const vec *)(c + i) + *(const vec *)(d + i));
    for (; i < n; i++)
        out[i] = (a[i] + b[i]) + (c[i] + d[i]);
}

struct adder {
    void (*pair)(float *out, const float *a, const float *b, size_t n);
    void (*quad)(float *out, const float *const *s, size_t at, size_t n);
    void (*both)(float *const *out, const float *const *s, size_t n);
};

static void pair_any(float *out, const float *a, const float *b, size_t n)
{
    pair_body(out, a, b, n);
}
static void quad_any(float *out, const float *const *s, size_t at, size_t n)
{
    quad_body(out, s, at, n);
}
static void both_any(float *const *out, const float *const *s, size_t n)
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
__attribute__((target("avx2"))) static void quad_avx2(float *out, const float *const *s, size_t at,
                                                      size_t n)
{
    quad_body(out, s, at, n);
}
__attribute__((target("avx2"))) static void both_avx2(float *const *out, const float *const *s,
                                                      size_t n)
{
    both_body(out, s, n);
}
static const struct adder adder_avx2 = {pair_avx2, quad_avx2, both_avx2};

static const struct adder *adder_best(void)
{
    return __builtin_cpu_supports("avx2") ? &adder_avx2 : &adder_any;
}
#else
static const struct adder *adder_best(void)
{
    return &adder_any;
}
#endif

// The size of the left subtree: the greatest power of two below n.
static int left_of(int n)
{
    int half = 1;
    while (half * 2 < n)
        half *= 2;
    return half;
}

// The sum of one tile of a subtree: a source itself, or `tmp`, whose following tiles are free.
static const float *subtree(const struct adder *add, const float *const *src, int n, size_t at,
                            size_t len, float *tmp)
{
    if (n == 1)
        return src[0] + at;
    if (n == 4) {
        add->quad(tmp, src, at, len);
        return tmp;
    }
    int half = left_of(n);
    const float *l = subtree(add, src, half, at, len, tmp);
    const float *r = subtree(add, src + half, n - half, at, len, tmp + TILE);
    add->pair(tmp, l, r, len);
    return tmp;
}

static void tile_sum(const struct adder *add, float *out, const float *const *src, int n, size_t at,
                     size_t len, float *tmp)
{
    if (n == 4) {
        add->quad(out, src, at, len);
        return;
    }
    if (n == 1) {
        memmove(out, src[0] + at, len * sizeof *out);
        return;
    }
    int half = left_of(n);
    const float *l = subtree(add, src, half, at, len, tmp);
    const float *r = subtree(add, src + half, n - half, at, len, tmp + TILE);
    add->pair(out, l, r, len);
}

void tree_max(float *const *dst, int nd, const float *const *src, int n, size_t count)
{
    PRE(n >= 1 && nd >= 1);
    float tmp[TILE];
    for (size_t at = 0; at < count; at += TILE) {
        size_t len = count - at < TILE ? count - at : TILE;
        memcpy(tmp, src[0] + at, len * sizeof(float));
        for (int k = 1; k < n; k++)
            for (size_t i = 0; i < len; i++)
                tmp[i] = tmp[i] >= src[k][at + i] || src[k][at + i] != src[k][at + i]
                             ? tmp[i]
                             : src[k][at + i];
        for (int d = 0; d < nd; d++)
            memcpy(dst[d] + at, tmp, len * sizeof(float));
    }
}

void tree_sum(float *const *dst, int nd, const float *const *src, int n, size_t count)
{
    PRE(n >= 1 && n <= TREE_MAX && nd >= 1);
    const struct adder *add = adder_best();
    float tmp[DEPTH * TILE];
    if (n == 2 && nd == 2) {
        add->both(dst, src, count);
        return;
    }
    for (size_t at = 0; at < count; at += TILE) {
        size_t len = count - at < TILE ? count - at : TILE;
        tile_sum(add, dst[0] + at, src, n, at, len, tmp);
        for (int d = 1; d < nd; d++)
            memcpy(dst[d] + at, dst[0] + at, len * sizeof(float));
    }
}
