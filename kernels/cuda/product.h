// SPDX-License-Identifier: Apache-2.0
// One product by cuBLASLt, with what may follow it in the same kernel, and the choice among the
// library's algorithms for it.
//
// A choice belongs to a key: sizes, layout, dtypes, what follows, and the alignment of the
// pointers. It is settled by product_tune(), or at the first product_run() by what the library
// names first. `struct gemm_state` is the device's: the library's handle and all choices.
#pragma once
#include "common/op/gemm.h"
#include "kernels/cuda/cuda_device.h"

// What the same kernel does to the sums before it stores them. AUX: what went into the gelu is
// stored too. DGELU: they are multiplied by gelu's slope at aux.
#define PRODUCT_ENDS(X)                            \
    X(NONE, none, DEFAULT)                         \
    X(BIAS, bias, BIAS)                            \
    X(RELU, relu, RELU)                            \
    X(RELU_BIAS, relu_bias, RELU_BIAS)             \
    X(GELU, gelu, GELU)                            \
    X(GELU_BIAS, gelu_bias, GELU_BIAS)             \
    X(GELU_AUX, gelu_aux, GELU_AUX)                \
    X(GELU_AUX_BIAS, gelu_aux_bias, GELU_AUX_BIAS) \
    X(DGELU, dgelu, DGELU)
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
    enum dtype in, to; // of a and b; of out, c, bias and aux
    bool tf32;
    enum product_end end;
    int64_t bias_stride; // elements a batch; 0: one for all
    const void *a, *b;
    const void *c; // added; may be `out`; null: nothing is
    const void *bias;
    void *aux, *out;
    // Scratch: 256-byte aligned, else it is left unused.
    void *workspace;
    size_t workspace_bytes;
};

// Whether cuBLASLt takes what follows here: the alignment of bias and aux, and of aux's rows.
bool product_end_fits(const struct product *p);

enum product_choice {
    PRODUCT_NONE,  // no algorithm: chosen so, or there is none
    PRODUCT_KNOWN, // one that was settled before, imported, in the cache, or named first
    PRODUCT_TIMED  // the fastest, timed now
};
// Settles the choice for p's key, if it is not: what was imported, if it runs here; with `time`
// what the cache on disk has, or the fastest of those the library proposes; else the first of them
// that runs. Queues and waits; out, aux and scratch are written.
int product_tune(struct stream_q *q, const struct product *p, bool time, enum product_choice *how,
                 struct err *e);
// Chooses none for p's key: the caller has a way that takes `apart` µs instead of `us`.
void product_drop(struct stream_q *q, const struct product *p, double us, double apart);
// Queues the product. *ran false: there is no algorithm, and nothing was queued.
int product_run(struct stream_q *q, const struct product *p, bool *ran, struct err *e);

// The time of one `run`, in µs by the device's clock: the best of a few rounds.
int product_stopwatch(struct stream_q *q, int (*run)(void *ctx, struct err *e), void *ctx,
                      double *us, struct err *e);
