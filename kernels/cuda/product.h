// SPDX-License-Identifier: Apache-2.0
// One product by cuBLASLt, with what may follow it in the same kernel, and the choice among the
// library's algorithms for it. Inside kernels/cuda/ only.
//
// A choice belongs to a key: sizes, layout, dtypes, what follows, and the alignment of the
// pointers. It is settled by product_tune(), or at the first product_run() by what the library
// names first. `struct gemm_state` is the device's: the library's handle and all choices.
#pragma once
#include "common/op/gemm.h"
#include "kernels/cuda/cuda_device.h"

// What the kernel does to the product's sums before it stores them. AUX: it stores what goes into
// the gelu, too. DGELU: it multiplies them by gelu's slope at aux. BGRADA and BGRADB: it also sums
// an operand over k into `sums`: the library's A, which is our b, or its B, which is our a.
#define PRODUCT_ENDS(X)                            \
    X(NONE, none, DEFAULT)                         \
    X(BIAS, bias, BIAS)                            \
    X(RELU, relu, RELU)                            \
    X(RELU_BIAS, relu_bias, RELU_BIAS)             \
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

enum product_choice {
    PRODUCT_NONE,  // no algorithm: none runs, or two kernels were found to be faster
    PRODUCT_KNOWN, // one that was settled before, imported, in the cache, or named first
    PRODUCT_TIMED  // the fastest, timed now
};
// Settles the choice for p's key if it is not settled: what was imported, if it runs here; with
// `time` what the cache on disk has, or the fastest of those that the library proposes; else the
// first of them that runs. Queues and waits; writes out, aux, sums and scratch.
int product_tune(struct stream_q *q, const struct product *p, bool time, enum product_choice *how,
                 struct err *e);
// Times p, for which product_tune() found an algorithm, against the caller's own two kernels, which
// do the same; chooses none for p's key if these are faster.
int product_compare(struct stream_q *q, const struct product *p,
                    int (*two)(void *ctx, struct err *e), void *ctx, struct err *e);
// Queues the product. *ran false: there is no algorithm, and nothing was queued.
int product_run(struct stream_q *q, const struct product *p, bool *ran, struct err *e);
