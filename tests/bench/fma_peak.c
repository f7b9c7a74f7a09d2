// SPDX-License-Identifier: Apache-2.0
// What the cores make of multiply-adds that need no memory: the peak that products are measured by.
// Compiled once per instruction set, with -DVEC_ISA=baseline|avx2|avx512 and that set's flags.
//
// SUMS independent sums stay in registers: more than two units of four cycles each need. Each is
// s = s · x + y, so nothing can be moved out of the loop. Without FMA that is two instructions.
#include "tests/bench/fma_peak.h"

#include "kernels/cpu/simd.h"

enum { SUMS = 12 };

#define PASTE_(a, b) a##b
#define PASTE(a, b)  PASTE_(a, b)

double PASTE(fma_peak_, VEC_ISA)(int64_t rounds, float *end)
{
    vf s[SUMS], x = v_set(0.5f), y = v_set(1), all = v_set(0);
#pragma GCC unroll 12
    for (int i = 0; i < SUMS; i++)
        s[i] = v_set((float)i);
    for (int64_t r = 0; r < rounds; r++)
#pragma GCC unroll 12
        for (int i = 0; i < SUMS; i++)
            s[i] = v_fma(s[i], x, y);
#pragma GCC unroll 12
    for (int i = 0; i < SUMS; i++)
        all += s[i];
    *end = all[0];
    return 2.0 * SUMS * VL * (double)rounds;
}
