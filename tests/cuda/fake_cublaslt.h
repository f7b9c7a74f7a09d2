// SPDX-License-Identifier: Apache-2.0
// What the files of the fake cuBLASLt share: fake_cublaslt_problem.c checks what is asked for,
// fake_cublaslt.c which algorithm may do it, fake_cublaslt_run.c computes it. Theirs alone.
#pragma once
#include <cublasLt.h>
#include <stdbool.h>
#include <stdint.h>

struct layout {
    int32_t magic, type, order, batch;
    uint64_t rows, columns;
    int64_t ld, stride;
};

struct operation {
    int32_t magic, compute, scale, pointer_mode, a, b;
    uint32_t end;
    const void *bias;
    int64_t bias_stride;
    void *aux;
    int64_t aux_ld, aux_stride;
    int32_t bias_type, aux_type;
};

struct problem {
    struct operation op;
    struct layout a, b, c, d;
    int64_t m, n, k; // D is m × n
};

// An algorithm, as the heuristic proposes it.
struct row {
    int id;
    unsigned align; // of pointers, leading dimensions and strides, in bytes; 0: an element's
    int splits;
    uint32_t scheme;
    double us;           // what a million multiply-adds take
    cublasStatus_t says; // when it is run; none of those that refuse is started
    bool halves;         // reads f32 as bf16
    bool failed;         // its entry in the list says that it is none
};

// Parts that nothing is said to reduce: each is added to the result, in the result's dtype.
static inline bool row_chains(const struct row *r)
{
    return r->splits > 1 && r->scheme == CUBLASLT_REDUCTION_SCHEME_NONE;
}

// A call that is right, on its way through a stream.
struct job {
    struct problem p;
    struct row row;
    const void *a, *b, *c;
    void *d;
    float alpha, beta;
};

// Those that sum A or B over k, into what the bias's pointer says.
enum { SUMS = CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB };

// Whether the epilogue has any of this.
static inline bool has(const struct problem *p, uint32_t bit)
{
    return p->op.end != CUBLASLT_EPILOGUE_DEFAULT && p->op.end & bit;
}

enum { LT_LAYOUT = 0x1a70, LT_OPERATION = 0x09e1 }; // the magic of each

// What the library's own hold; null: they hold something else.
struct layout *lt_layout_of(cublasLtMatrixLayout_t l);
struct operation *lt_operation_of(cublasLtMatmulDesc_t d);
size_t lt_size_of(int32_t type);
bool lt_types_known(const struct problem *p);
cublasStatus_t lt_problem(cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a,
                          cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                          cublasLtMatrixLayout_t d, struct problem *p);

// Runs a job, in stream order.
void lt_run(const void *args);
// From now on lt_cold's products are counted.
void lt_run_cold(void);
