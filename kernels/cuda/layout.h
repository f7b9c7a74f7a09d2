// SPDX-License-Identifier: Apache-2.0
// A product with what may follow it in the same kernel, and that in cuBLASLt's words: descriptors of
// the operation, the matrices, and what is asked of an algorithm. Inside kernels/cuda/ only.
//
// The library's matrices are column-major: ours, read so, are their own transposes, and
// out^T[n][m] = b^T[n][k] · a^T[k][m]. So b is the library's A, a its B, n its rows, m its columns;
// an operand that lies transposed in our eyes is transposed in the library's too. A bias is one
// number a row there, a column here.
#pragma once
#include <cublasLt.h>

#include "common/op/gemm.h"
#include "kernels/cuda/cuda_device.h"

// What the kernel does to the product's sums before it stores them. AUX: it stores what goes into
// the gelu, too. DGELU: it multiplies them by gelu's slope at aux. BGRADA and BGRADB: it also sums
// an operand over k into `sums`: the library's A, which is our b, or its B, which is our a.
#define PRODUCT_ENDS(X)                            \
    X(NONE, none, DEFAULT)                         \
    X(BIAS, bias, BIAS)                            \
    X(GELU, gelu, GELU)                            \
    X(GELU_BIAS, gelu_bias, GELU_BIAS)             \
    X(GELU_AUX, gelu_aux, GELU_AUX)                \
    X(GELU_AUX_BIAS, gelu_aux_bias, GELU_AUX_BIAS) \
    X(DGELU, dgelu, DGELU)                         \
    X(BGRADA, bgrada, BGRADA)                      \
    X(BGRADB, bgradb, BGRADB)
enum product_end {
#define X(id, name, lt) END_##id,
    PRODUCT_ENDS(X)
#undef X
        PRODUCT_END_COUNT
};

// out[b][m][n] = end(Σk a[b][m][k]·b[b][k][n] + c[b][m][n] + bias[b][n]), row-major as g says;
// stride_c is not 0 where there are batches.
struct product {
    struct gemm g;
    enum dtype in, to; // of a and b; of out, c, bias, aux and sums
    bool tf32;
    enum product_end end;
    int64_t bias_stride; // of bias or sums, elements a batch; 0: one for all
    const void *a, *b;
    const void *c; // added; may be `out`; null: nothing is added
    const void *bias;
    void *aux, *out;
    void *sums; // of n or m numbers; written over, never added to
    // Scratch: 256-byte aligned, else it is left unused.
    void *workspace;
    size_t workspace_bytes;
};

// Whether bias, aux and sums, and aux's rows, are aligned as cuBLASLt's epilogues want them.
bool product_end_fits(const struct product *p);

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
// Whether an algorithm on tensor cores may split the product's sums. cuBLASLt 12.8 to 13.2 have been
// measured to leave the end of some out on an H100 and a GB200 (facebookexperimental/triton, pull
// request 2767): the parts are whole steps of 64, and what lies behind the last step may be nobody's.
// Nothing reports it. So a sum is split only if it is whole steps long.
bool layout_may_split(const struct product *p);
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
