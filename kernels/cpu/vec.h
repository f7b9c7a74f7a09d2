// SPDX-License-Identifier: Apache-2.0
// The inner loops of the CPU backend: contiguous slices, one thread, no shapes.
//
// vec.c is compiled once for each instruction set into one table; the device picks the best table
// the machine runs. (Not target_clones: its resolvers run before a sanitizer is up, and clang and
// gcc disagree about them.) Every function gives the same bits for an element or a row however the
// caller slices the work.
#pragma once
#include <stdint.h>

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
    float clip, lr; // gradient scale; rate of this parameter
    float beta1, beta2, eps, decay, bias1, bias2;
    bool nesterov;
};

struct vec {
    const char *isa;
    void (*map[OP_COUNT])(const struct vec_map *c);
    void (*update[OP_COUNT])(const struct vec_update *u);

    void (*from_u8)(float *out, const uint8_t *x, int64_t n);

    double (*sum)(const float *x, int64_t n);
    double (*sqsum)(const float *x, int64_t n);
    // out[c] (+)= scale · Σ over `rows` of x[r·stride + c].
    void (*sum_columns)(float *out, const float *x, int64_t rows, int64_t stride, int64_t cols,
                        float scale, bool accumulate);

    float (*row_max)(const float *x, int64_t n); // NaN is passed over
    float (*row_sum_exp)(const float *x, int64_t n, float m);
    void (*row_exp_mul)(float *out, const float *x, int64_t n, float m, float g);
};

extern const struct vec vec_baseline, vec_avx2, vec_avx512;
