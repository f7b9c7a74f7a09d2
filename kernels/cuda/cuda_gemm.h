// SPDX-License-Identifier: Apache-2.0
// A call's labels as products (product.h). Inside kernels/cuda/ only.
#pragma once
#include "kernels/cuda/product.h"

// The product of the call's first two operands into `out`, labelled as attr's third operand; where
// out lacks the batch, stride_c is 0: gemm_run and gemm_tune add the batches up.
int product_of(const struct op_call *c, const struct op_attr *attr, const struct tensor *out,
               struct product *p, struct err *e);

// Queues the product, with nothing behind it, or settles the choices for all it is made of.
int gemm_run(struct stream_q *q, const struct op_call *c, const struct product *p, struct err *e);
int gemm_tune(struct stream_q *q, const struct op_call *c, const struct product *p, bool time,
              struct err *e);

// Settles a MATMUL's choices.
int matmul_tune(struct stream_q *q, const struct op_call *c, bool time, struct err *e);

// Settles a LINEAR's choices: also whether its chain is made in the product's kernel or by one of
// its own.
int linear_tune(struct stream_q *q, const struct op_call *c, bool time, struct err *e);

// Settles a MATMUL_SUM's choices: also whether the product's kernel makes the sum.
int matmul_sum_tune(struct stream_q *q, const struct op_call *c, bool time, struct err *e);
