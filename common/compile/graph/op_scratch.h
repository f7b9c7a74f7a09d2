// SPDX-License-Identifier: Apache-2.0
// Rows of the op table (optable.h): how many bytes of scratch an op asks for, by the shapes of its
// operands. Functions whose name ends in _cuda answer for the GPU alone, as do those of parts and
// of products (gemm).
// Inside common/compile/graph/ only.
#pragma once
#include "common/compile/graph/optable.h"

size_t scratch_gemm(const struct node *n, const struct shape *in, const struct shape *out);
size_t scratch_chunks(const struct node *n, const struct shape *in, const struct shape *out);
size_t scratch_columns(const struct node *n, const struct shape *in, const struct shape *out);
size_t scratch_matmul_sum(const struct node *n, const struct shape *in, const struct shape *out);
size_t scratch_matmul_sum_cuda(const struct node *n, const struct shape *in,
                               const struct shape *out);
struct op_call attention_call(const struct node *n, const struct shape *in);
size_t scratch_attention(const struct node *n, const struct shape *in, const struct shape *out);
size_t scratch_attention_cuda(const struct node *n, const struct shape *in,
                              const struct shape *out);
size_t scratch_norm(const struct node *n, const struct shape *in, const struct shape *out);
size_t scratch_norm_parts(const struct node *n, const struct shape *in, const struct shape *out);
size_t scratch_norm_grads(const struct node *n, const struct shape *in, const struct shape *out);
size_t scratch_norm_grads_cuda(const struct node *n, const struct shape *in,
                               const struct shape *out);
size_t scratch_embed_grad(const struct node *n, const struct shape *in, const struct shape *out);
