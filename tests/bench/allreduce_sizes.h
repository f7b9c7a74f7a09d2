// SPDX-License-Identifier: Apache-2.0
// What both all-reduce benches measure, so that they cannot differ.
#pragma once
#include <stddef.h>
#include <stdlib.h>

enum { WARM = 3, MOST_BATCHES = 101, MOST_BYTES = 64 << 20 };
static const struct {
    size_t bytes;
    int batches, repeats; // the clock is read once a batch
} sizes[] = {{4 << 10, 101, 500}, {1 << 20, 101, 10}, {64 << 20, 11, 1}};

static inline int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 2];
}
