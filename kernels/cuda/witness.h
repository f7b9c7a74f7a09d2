// SPDX-License-Identifier: Apache-2.0
// Keeps the results of an algorithm that the library named, so that those of a configuration which
// it did not name can be compared with them: the library's check of a configuration (configs.h)
// says that it can be started, not that its results are right. Inside kernels/cuda/ only.
//
// Before each run the memory of the results is filled: with NaN, so that an element that is left
// unwritten shows, or with one small number where the product adds to it. Of a result of over 1 MiB
// sixteen pieces of 64 KiB are compared, among them its first and its last.
//
// Two numbers x and y agree if they differ by at most u·|y| + 2·(k·2^-23 + v)·r. The first term is
// a step of the output's dtype: u is 2^-7 for bf16 and 2^-22 for f32. The second allows for the
// sums, each of k summands that are added in f32 in some order: r is the root mean square of the
// results; v is 2^-7 where f32 is read as tf32, and 2^-9 more where a gelu follows, which libraries
// approximate.
#pragma once
#include "kernels/cuda/product.h"

struct witness;

// Queues the product once.
typedef int witness_run(void *ctx, struct err *e);

// Runs the product by the algorithm that is trusted and keeps what it makes.
int witness_open(struct stream_q *q, const struct product *p, witness_run *run, void *ctx,
                 struct witness **out, struct err *e);
void witness_close(struct witness *w); // null is fine

// Runs the product by another algorithm. *off: the largest difference, as a multiple of what is
// allowed; up to 1 the two agree.
int witness_compare(struct witness *w, struct stream_q *q, witness_run *run, void *ctx, double *off,
                    struct err *e);
