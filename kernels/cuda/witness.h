// SPDX-License-Identifier: Apache-2.0
// What an algorithm that the library named makes of a product, so that the numbers of one that it did
// not name can be held against it: the check of a configuration (configs.h) says that it can be
// started, not that anybody ever did. Inside kernels/cuda/ only.
//
// Before either runs, its results are filled: with NaN, so that what is left unwritten is seen, or
// with one small number where the product adds to them. Of results of over 1 MiB sixteen pieces of
// 64 KiB are compared, the first and the last among them.
//
// Two numbers x and y agree within u·|y| + 2·(k·2^-23 + v)·r. The first is a step of the output: u is
// 2^-7 of bf16, 2^-22 of f32. The second is that of the sums: r is the root mean square of the
// results, k the summands of each, whose sums are kept in f32, in some order and rounded in some
// way; v is 2^-7 where f32 is read as tf32, and 2^-9 more where a gelu follows, which libraries
// approximate.
#pragma once
#include "kernels/cuda/product.h"

struct witness;

// Queues p once.
typedef int witness_run(void *ctx, struct err *e);

// Runs the product by the algorithm that is trusted and keeps what it makes.
int witness_open(struct stream_q *q, const struct product *p, witness_run *run, void *ctx,
                 struct witness **out, struct err *e);
void witness_close(struct witness *w); // null is fine

// Runs it by another. *off: the largest difference, as a multiple of what is allowed; not over 1: the
// two agree.
int witness_compare(struct witness *w, struct stream_q *q, witness_run *run, void *ctx, double *off,
                    struct err *e);
