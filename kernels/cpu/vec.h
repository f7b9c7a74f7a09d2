// SPDX-License-Identifier: Apache-2.0
// The inner loops of the CPU backend: contiguous slices, one thread, no shapes.
// Inside kernels/cpu/ only.
//
// vec.c is compiled once for each instruction set into one table; the device picks the best table
// that the machine can run. (Not target_clones: its resolvers run before a sanitizer is up, and
// clang and gcc disagree about them.) Every function gives the same bits for an element or a row
// however the caller slices the work.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/op/average.h"
#include "common/op/op.h"

// One elementwise op over n elements. A step of 0 repeats the first element. `out` may be an input.
struct vec_map {
    float *out;
    const float *a, *b; // EQUAL: i32; b is unused by ops of one input
    int a_step, b_step; // 0 or 1
    int64_t n;
    float scale;
};

// One update over n elements, in place.
struct vec_update {
    float *p;
    const float *g;
    float *m, *v; // MOMENTUM: m is the velocity
    int64_t n;
    float clip, lr;               // gradient scale; rate of this parameter
    struct average first, second; // moments; MOMENTUM: first is the velocity's
    float eps, decay, bias1, bias2;
    bool nesterov;
};

// Where an op draws random numbers in one step (base/rand.h).
struct vec_draw {
    uint64_t seed;
    uint32_t stream, step;
    uint32_t threshold; // dropout keeps an element if its random word >> 8 is at least this,
    float scale;        // and multiplies it by this
};

// c (+)= scale · a · b, of matrices that lie in L1 or L2. An element is summed over k in order. Rows
// of b and c have room for n rounded up to a multiple of VEC_PRODUCT_COLUMNS.
enum { VEC_PRODUCT_COLUMNS = 32 };
struct vec_product {
    int64_t m, n, k;
    const float *a, *b;
    float *c;
    int64_t a_row, a_k; // from row to row of a; from element to element of its rows
    int64_t ldb, ldc;
    float scale;
    bool add;
};

struct vec {
    void (*map[OP_COUNT])(const struct vec_map *c);
    void (*update[OP_COUNT])(const struct vec_update *u);

    void (*from_u8)(float *out, const uint8_t *x, int64_t n);
    // bf16, the upper half of an f32: exact; rounded to the nearest, ties to even, NaN stays NaN.
    void (*widen)(float *out, const uint16_t *x, int64_t n);
    void (*narrow)(uint16_t *out, const float *x, int64_t n);

    double (*sum)(const float *x, int64_t n);
    double (*sqsum)(const float *x, int64_t n);
    // out[c] (+)= scale · Σ over `rows` of x[r·stride + c].
    void (*sum_columns)(float *out, const float *x, int64_t rows, int64_t stride, int64_t cols,
                        float scale, bool accumulate);

    float (*row_max)(const float *x, int64_t n); // NaN is skipped
    float (*row_sum_exp)(const float *x, int64_t n, float m);
    void (*row_exp_mul)(float *out, const float *x, int64_t n, float m, float g);
    // Finds both of the above in one pass. An empty row has −∞ and 0.
    void (*row_max_sum_exp)(const float *x, int64_t n, float *max, float *sum);

    void (*multiply)(const struct vec_product *p); // vec_product.c
    // out[j·ld_out + i] = x[i·ld + j] for `rows` × `cols` elements of x.
    void (*transpose)(float *out, int64_t ld_out, const float *x, int64_t ld, int64_t rows,
                      int64_t cols);

    float (*dot)(const float *a, const float *b, int64_t n);
    // Replaces x by its softmax over the keys from `first` to `last`, and by 0 at the others.
    // Returns ln Σ e^x over those keys, −∞ if there is none.
    float (*softmax)(float *x, const int32_t *key, int32_t first, int32_t last, int64_t n);
    // Makes the same softmax again from the ln Σ e^x that softmax returned.
    void (*softmax_again)(float *x, const int32_t *key, int32_t first, int32_t last, int64_t n,
                          float lse);
    // Replaces the cotangent of a softmax p by the cotangent of the softmax's input, times scale;
    // mean is the dot product of p and its cotangent.
    void (*softmax_grad)(float *dp, const float *p, float mean, int64_t n, float scale);

    // A row's mean (0 unless `center`) and 1/√(variance + eps).
    void (*norm_stats)(float stats[2], const float *x, int64_t n, float eps, bool center);
    // weight and bias may be null.
    void (*norm)(float *out, const float *x, const float stats[2], const float *weight,
                 const float *bias, int64_t n);
    // dx = the gradient, plus `add` unless that is null; dx may be `add`.
    void (*norm_grad)(float *dx, const float *x, const float *dy, const float stats[2],
                      const float *weight, const float *add, int64_t n, bool center);
    // out[c] (+)= Σ over `rows` of dy · the row's norm; stats has two numbers a row.
    void (*norm_columns)(float *out, const float *x, const float *dy, const float *stats,
                         int64_t rows, int64_t stride, int64_t cols, bool accumulate);
    // Rotates element i of a row with element n / 2 + i, by angles given as cosines and sines.
    void (*rotate)(float *out, const float *x, const float *cosine, const float *sine, int64_t n);
    // As rotate, but pairs neighbours: element 2i with element 2i + 1.
    void (*rotate_pairs)(float *out, const float *x, const float *cosine, const float *sine,
                         int64_t n);
    void (*add_to)(float *out, const float *x, int64_t n);

    // Draw for the n elements whose indices are first, first + 1, …; `out` may be x.
    void (*dropout)(float *out, const float *x, int64_t n, const struct vec_draw *d,
                    uint64_t first);
    void (*normals)(float *out, int64_t n, const struct vec_draw *d, uint64_t first);
};

extern const struct vec vec_baseline, vec_avx2, vec_avx512;

// Functions of vec_product.c, compiled once for each instruction set; only the tables name them.
#define VEC_PRODUCT(isa)                                                                           \
    void vec_multiply_##isa(const struct vec_product *p);                                          \
    void vec_transpose_##isa(float *out, int64_t ld_out, const float *x, int64_t ld, int64_t rows, \
                             int64_t cols);
VEC_PRODUCT(baseline)
VEC_PRODUCT(avx2)
VEC_PRODUCT(avx512)
#undef VEC_PRODUCT
