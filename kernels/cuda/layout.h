// SPDX-License-Identifier: Apache-2.0
// A product in cuBLASLt's words: descriptors of the operation, the matrices, and what is asked of
// an algorithm. Inside kernels/cuda/ only.
//
// The library's matrices are column-major: ours, read so, are their own transposes, and
// out^T[n][m] = b^T[n][k] · a^T[k][m]. So b is the library's A, a its B, n its rows, m its columns;
// an operand that lies transposed in our eyes is transposed in the library's too. A bias is one
// number a row there, a column here.
#pragma once
#include <cublasLt.h>

#include "kernels/cuda/product.h"

struct layout {
    cublasLtMatmulDescOpaque_t op;
    cublasLtMatrixLayoutOpaque_t a, b, d; // d: of C too
};
struct preference {
    cublasLtMatmulPreferenceOpaque_t p;
};

// Returns 0, or ERR_DEVICE with the library's text for the status that `call` returned.
int layout_check(const char *call, cublasStatus_t rc, struct err *e);
#define LT(e, call) layout_check(#call, call, e)

int layout_make(const struct product *p, struct layout *l, struct err *e);
// Sets the epilogue, and where bias and aux lie, which differs from call to call.
int layout_end(const struct product *p, struct layout *l, struct err *e);
// Sets what is asked of an algorithm. One that splits its sums must keep the parts in f32 and, if
// the product is to be `reproducible`, add them so that its bits depend on nothing but the
// operands.
int layout_preference(const struct product *p, bool reproducible, struct preference *f,
                      struct err *e);

// The alignment of a pointer in bytes, at most that of one load: no kernel asks for more. A null
// pointer counts as aligned so.
unsigned layout_alignment(const void *p);
// Scratch that an algorithm may have: the library wants it at a multiple of 256.
size_t layout_scratch(const struct product *p);
