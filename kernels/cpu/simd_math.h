// SPDX-License-Identifier: Apache-2.0
// exp, ln, tanh and functions made of them, on vectors. Over the whole range errors stay below 1.2
// ulp for exp and 2 ulp for ln and tanh (tests/ops); denormals, infinities and NaN come out as
// libm's do. Inside kernels/cpu/ only.
#pragma once
#include <math.h>

#include "kernels/cpu/simd.h"

// 2^k for −127 < k < 128.
VFN vf v_pow2(vi k)
{
    return (vf)(((vu)k + 127u) << 23);
}

// x = n·ln 2 + r with |r| ≤ ln 2 / 2. e^r is its Taylor series (r^8/8! is below 6e-9), multiplied
// by 2^n in two factors, so that results beyond either end of the exponent are rounded once.
VFN vf v_exp(vf x)
{
    const float shift = 12582912.0f; // 1.5·2^23: adding it rounds to an integer in the low bits
    x = v_clamp(x, -104.0f, 89.0f);  // both beyond what rounds to 0 and to infinity
    vf t = v_fma(x, v_set(1.44269504f), v_set(shift));
    vf n = t - shift;
    vi k = (vi)((vu)t - (vu)v_set(shift));
    vf r = v_fma(n, v_set(-0.693359375f), x); // 355/512: n times it is exact
    r = v_fma(n, v_set(2.12194440e-4f), r);
    vf p = v_set(1.0f / 5040);
    p = v_fma(p, r, v_set(1.0f / 720));
    p = v_fma(p, r, v_set(1.0f / 120));
    p = v_fma(p, r, v_set(1.0f / 24));
    p = v_fma(p, r, v_set(1.0f / 6));
    p = v_fma(p, r, v_set(0.5f));
    p = v_fma(p * r, r, r) + 1.0f; // 1 + (r + r²·p)
    vi half = k >> 1;
    return p * v_pow2(half) * v_pow2((vi)((vu)k - (vu)half));
}

// x = m·2^e with m in [√½, √2); f = m − 1. For positive normal x.
struct log_parts {
    vf f, e;
};

VFN struct log_parts v_log_split(vf x)
{
    vu bits = (vu)x - 0x3f3504f3u; // √½
    vi k = (vi)bits >> 23;
    return (struct log_parts){(vf)((vu)x - ((vu)k << 23)) - 1.0f, __builtin_convertvector(k, vf)};
}

// With s = f/(2 + f), ln m = f − s·(f − R(s²)), which keeps the leading term exact.
VFN vf v_log_join(vf f, vf e)
{
    vf s = f / (f + 2.0f);
    vf z = s * s;
    vf q = v_set(2.0f / 11);
    q = v_fma(q, z, v_set(2.0f / 9));
    q = v_fma(q, z, v_set(2.0f / 7));
    q = v_fma(q, z, v_set(2.0f / 5));
    q = v_fma(q, z, v_set(2.0f / 3));
    vf low = v_fma(e, v_set(-2.12194440e-4f), -s * (f - q * z));
    return v_fma(e, v_set(0.693359375f), f + low);
}

VFN vf v_log(vf x)
{
    vi tiny = x < 1.17549435e-38f;
    struct log_parts p = v_log_split(v_select(tiny, x * 33554432.0f, x)); // 2^25
    vf r = v_log_join(p.f, p.e - v_select(tiny, v_set(25), v_set(0)));
    r = v_select(x == 0.0f, v_set(-INFINITY), r);
    r = v_select(x == v_set(INFINITY), x, r);
    return v_select(x >= 0.0f, r, v_set(NAN)); // negative or NaN
}

// max(x, 0) + ln(1 + t) with t = e^−|x|. Where (1 + t)/2 is nearer to 1, its logarithm is taken and
// ln 2 added.
VFN vf v_softplus(vf x)
{
    vf t = v_exp((vf)((vi)x | INT32_MIN));
    vi small = t < 0.41421356f;
    vf f = v_select(small, t, (t - 1.0f) * 0.5f);
    vf e = v_select(small, v_set(0), v_set(1));
    return v_select(x < 0.0f, v_set(0), x) + v_log_join(f, e);
}

// Below 0.625 a quotient from tanh's continued fraction, with the leading x kept exact; above it
// 1 − 2/(e^2|x| + 1).
VFN vf v_tanh(vf x)
{
    vf a = (vf)((vi)x & 0x7fffffff);
    vf z = x * x;
    vf num = v_fma(v_fma(v_set(-27), z, v_set(-2772)), z, v_set(-45045));
    vf den = v_fma(v_fma(v_fma(v_set(28), z, v_set(3150)), z, v_set(62370)), z, v_set(135135));
    vf small = v_fma(x * z, num / den, x);
    vf big = 1.0f - 2.0f / (v_exp(a + a) + 1.0f);
    big = (vf)((vi)big | ((vi)x & INT32_MIN));
    return v_select(a < 0.625f, small, big);
}

// The logistic function of twice the argument of GELU's tanh. x·v_gate(x) is GELU, without the
// cancellation of 1 + tanh where x is negative.
VFN vf v_gate(vf x)
{
    vf u2 = x * 1.59576912f * v_fma(x * x, v_set(0.044715f), v_set(1));
    return 1.0f / (1.0f + v_exp(-u2));
}

VFN vf v_gelu(vf x)
{
    return x * v_gate(x);
}

// σ(x) and σ(x)·(1 − σ(x)) from one exponential. Made of e^−|x|, both are accurate where they are
// near 0.
struct logistic {
    vf value, slope;
};

VFN struct logistic v_logistic(vf x)
{
    vf t = v_exp((vf)((vi)x | INT32_MIN));
    vf large = 1.0f / (1.0f + t), small = t * large;
    return (struct logistic){v_select(x < 0.0f, small, large), large * small};
}

// Beyond ±10 the slope is 1 or 0 in f32; clamping keeps its terms finite.
VFN vf v_gelu_slope(vf x)
{
    vf c = v_clamp(x, -10, 10);
    vf u2 = c * 1.59576912f * v_fma(c * c, v_set(0.044715f), v_set(1));
    vf du2 = 1.59576912f * v_fma(c * c, v_set(3 * 0.044715f), v_set(1));
    struct logistic gate = v_logistic(u2);
    return v_fma(c * gate.slope, du2, gate.value);
}

VFN vf v_sigmoid(vf x)
{
    return 1.0f / (1.0f + v_exp(-x));
}

// x·σ(x). Below −88.7 e^−x overflows and this gives −0; the true value lies above −3e-37.
VFN vf v_silu(vf x)
{
    return x / (1.0f + v_exp(-x));
}

VFN vf v_silu_slope(vf x)
{
    vf c = v_clamp(x, -80, 80); // beyond it the slope is 0 or 1 in f32; this keeps its terms finite
    struct logistic gate = v_logistic(c);
    return v_fma(c, gate.slope, gate.value);
}
