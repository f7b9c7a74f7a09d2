// SPDX-License-Identifier: Apache-2.0
// What a matmul is to a GEMM library; see op.h for labels.
#pragma once
#include "common/op/op.h"

// The workspace that the plan gives each product on CUDA, whatever its size, where the job names
// none (op_attr.scratch). The algorithm is chosen later, on the device, among those that need no
// more.
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
// A batch label must come first in each operand that has it; one that only two have may stand between
// rows and columns as well. An input without it is used again for every batch (stride 0); if the
// output is without it, the products of all batches are added up.
bool gemm_from_labels(const struct op_attr *attr, const struct shape *a, const struct shape *b,
                      const struct shape *out, struct gemm *g);
// The input that a MATMUL_SUM sums, 0 or 1, known by its second output's first loop.
int gemm_summed(const struct op_attr *attr, const struct shape *a);
