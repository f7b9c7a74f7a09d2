// SPDX-License-Identifier: Apache-2.0
// The op table in plain f64: what every backend is compared with.
//
// Written from the comments of common/op/ops.def alone, index by index, with no thought of speed. A
// tensor of any dtype holds doubles (an i32 or u8 value is exact in one). Linked into tests only.
#pragma once
#include "common/op/op.h"

struct ref_tensor {
    struct shape shape;
    enum dtype dtype;
    double *v; // shape_count() of them, row-major
};

// As a program rounds: to f32, then to the nearest bf16, ties to even. NaN and infinity stay.
double ref_bf16(double x);

// An element of an elementwise op; b of one input: not read.
double ref_step(enum op op, double a, double b, double scale);

// MATMUL and SUM; and how far a tensor's element lies from the next along a label, which may be there twice.
void ref_product(enum op op, const struct op_attr *attr, const struct ref_tensor *in, int nin,
                 struct ref_tensor *out, bool accumulate);
int64_t ref_stride(int label, const struct ref_tensor *t, const int8_t *labels);

// TOPK, SLOTS and what reads what it makes, APPEND and RING: those of ref_op that reference.c leaves out.
void ref_route(enum op op, const struct op_attr *attr, const struct ref_tensor *in, int nin,
               struct ref_tensor *out, bool accumulate);

// What dropout leaves of 1 at an index of the draw's tensor.
double ref_kept(const struct op_draw *d, double step, const int64_t at[DRAW_DIMS]);

// reference_heads.c
void ref_rotary(const struct op_attr *attr, const struct ref_tensor *in, struct ref_tensor *out);
// Packed: `in` as in ops.def.
void ref_rotary_packed(const struct op_attr *attr, const struct ref_tensor *in,
                       struct ref_tensor *out);
void ref_attention_packed(bool grad, const struct op_attr *attr, const struct ref_tensor *in,
                          int nin, struct ref_tensor *out);
void ref_attention(enum op op, const struct op_attr *attr, const struct ref_tensor *in, int nin,
                   struct ref_tensor *out, int nout);

// Runs one op. Outputs may be the inputs' own arrays where op.h lets them alias. `accumulate` adds
// to what out[0] holds.
void ref_op(enum op op, const struct op_attr *attr, const struct ref_tensor *in, int nin,
            struct ref_tensor *out, int nout, bool accumulate);
