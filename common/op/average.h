// SPDX-License-Identifier: Apache-2.0
// The factors of a moving average in f32: average = beta · average + (1 − beta) · x.
//
// An f32 near 1 is too coarse to hold beta: of 0.999 the difference to 1 comes out 1.3e-5 off, and
// of 0.99999999 nothing is left of it. So beta is carried as the sum of two floats and its
// complement is taken of the double.
#pragma once

struct average {
    float keep, rest; // keep + rest is beta
    float gain;       // 1 − beta
};

static inline struct average average_of(double beta)
{
    struct average a;
    a.keep = (float)beta;
    a.rest = (float)(beta - (double)a.keep);
    a.gain = (float)(1 - beta);
    return a;
}
