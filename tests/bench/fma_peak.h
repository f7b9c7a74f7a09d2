// SPDX-License-Identifier: Apache-2.0
// Multiply-adds in registers, for bench_kernels: one function for each instruction set.
#pragma once
#include <stdint.h>

// Runs `rounds` of them in the calling thread and returns how many operations that were. What the
// sums come to goes to *end, so that they are made.
double fma_peak_baseline(int64_t rounds, float *end);
double fma_peak_avx2(int64_t rounds, float *end);
double fma_peak_avx512(int64_t rounds, float *end);
