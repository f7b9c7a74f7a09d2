// SPDX-License-Identifier: Apache-2.0
// How an op whose kernel knows f32 alone serves bf16 operands: they are widened into scratch, the
// kernel runs there, and what it makes is rounded back, to the nearest, ties to even.
//
// The work is done in chunks over the leading dimensions that operands share (batch, sequence), so
// that scratch holds a few rows and what has no such dimensions (a weight), not whole activations.
// Compiler and kernels ask the same function: the plan's workspace is what the kernel uses. Ops
// that take bf16 as it is (elementwise ones, copies) ask for nothing.
#pragma once
#include "common/op/op.h"

struct widen_operand {
    bool wide;    // bf16 that the kernel does not take: has a place in scratch
    bool chunked; // has the leading dimensions: a part of it each chunk
    int64_t each; // elements of a row of the leading dimensions, or of the whole
    size_t at;    // its place
};
struct widen {
    int lead;            // leading dimensions that are walked in chunks; 0: one chunk
    int64_t rows, chunk; // of them together; of one chunk, the last may be shorter
    size_t bytes;        // of scratch; 0: the kernel takes the operands as they are
    struct widen_operand operand[OP_MAX_IN + OP_MAX_OUT]; // inputs, then outputs
};

// Looks at op, attributes, shapes and dtypes of the call; no data is touched.
void widen_of(const struct op_call *c, struct widen *out);
