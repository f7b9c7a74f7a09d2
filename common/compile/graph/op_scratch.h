// SPDX-License-Identifier: Apache-2.0
// Rows of the op table (optable.h): how many bytes of scratch an op asks for, by the shapes and
// dtypes of its operands and its attributes. Functions whose name ends in _cuda answer for the GPU
// alone, as do those of parts and of products (gemm).
// Inside common/compile/graph/ only.
#pragma once
#include "common/compile/graph/optable.h"

size_t scratch_gemm(const struct op_call *c);
size_t scratch_chunks(const struct op_call *c);
size_t scratch_columns(const struct op_call *c);
size_t scratch_matmul_sum(const struct op_call *c);
size_t scratch_matmul_sum_cuda(const struct op_call *c);
size_t scratch_attention(const struct op_call *c);
size_t scratch_attention_cuda(const struct op_call *c);
size_t scratch_norm(const struct op_call *c);
size_t scratch_norm_parts(const struct op_call *c);
size_t scratch_norm_grads(const struct op_call *c);
size_t scratch_norm_grads_cuda(const struct op_call *c);
size_t scratch_embed_grad(const struct op_call *c);
