// SPDX-License-Identifier: Apache-2.0
// What a matmul is to a GEMM library; see op.h for labels.
#pragma once
#include "common/op/op.h"

// What a product may have on CUDA, whatever its size: a library's algorithms are chosen on the
// device, long after the plan, among those that need no more.
enum { GEMM_WORKSPACE = 32 << 20 };

// A matmul's labels as batched row-major GEMM: out[b][m][n] = Σk a[b][m][k]·b[b][k][n], where each
// of batch, m, n, k is a run of adjacent labels. Returns false when the layout needs a transpose
// that GEMM strides cannot express (the compiler then refuses it at plan time).
struct gemm {
    int64_t batch, m, n, k;
    bool trans_a, trans_b;                // a is stored [k][m]; b is stored [n][k]
    int64_t lda, ldb, ldc;                // row strides in elements
    int64_t stride_a, stride_b, stride_c; // of one batch
};
// A label that leads every operand that has it, and that one operand lacks, is a batch of stride 0
// there: where the output lacks it, the batches' products add up.
bool gemm_from_labels(const struct op_attr *attr, const struct shape *a, const struct shape *b,
                      const struct shape *out, struct gemm *g);
