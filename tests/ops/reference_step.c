// SPDX-License-Identifier: Apache-2.0
// Rounding to bf16 and the elementwise ops in plain f64. See reference.h.
#include <math.h>

#include "common/base/err.h"
#include "tests/ops/reference.h"

// ---- bf16 --------------------------------------------------------------------------------------

// Eight bits of the number are kept, fewer below 2^-126; numbers, not bit patterns, so that a
// kernel's shifts are held against something else.
double ref_bf16(double x)
{
    double f = (double)(float)x;
    int exponent;
    if (isnan(f) || isinf(f) || f == 0)
        return f;
    frexp(f, &exponent);
    int unit = exponent - 8 > -133 ? exponent - 8 : -133;
    double near = ldexp(nearbyint(ldexp(f, -unit)), unit);
    return fabs(near) >= 0x1p128 ? copysign((double)INFINITY, f) : near;
}

// ---- elementwise -------------------------------------------------------------------------------

static double gelu_of(double x)
{
    return x / 2 * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x)
{
    double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    return (1 + t) / 2 + x / 2 * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

// `a` and `b` are an element of each input.
#define MAP(name, expr)                                        \
    static double map_##name(double a, double b, double scale) \
    {                                                          \
        (void)b;                                               \
        (void)scale;                                           \
        return (expr);                                         \
    }

MAP(scale, scale *a)
MAP(add, a + b)
MAP(sub, a - b)
MAP(mul, a *b)
MAP(div, a / b)
MAP(log, log(a))
MAP(exp, exp(a))
MAP(softplus, fmax(a, 0) + log1p(exp(-fabs(a))))
MAP(softplus_grad, b / (1 + exp(-a)))
MAP(relu, isnan(a) ? a : fmax(a, 0))
MAP(relu_grad, a > 0 ? b : 0)
MAP(gelu, gelu_of(a))
MAP(gelu_grad, b *gelu_slope(a))
MAP(tanh, tanh(a))
MAP(tanh_grad, b *(1 - a * a))
MAP(silu, a / (1 + exp(-a)))
MAP(silu_grad, b *(1 / (1 + exp(-a))) * (1 + a / (1 + exp(a))))
MAP(sigmoid, 1 / (1 + exp(-a)))
MAP(sigmoid_grad, b *a *(1 - a))
MAP(equal, a == b)

static double (*const table[OP_COUNT])(double a, double b, double scale) = {
#define OP(id, name, nin, nout, dtypes, kernel, whole, order, traits)
#define STEP(id, name, nin, slope, of) [OP_##id] = map_##name,
#include "common/op/ops.def"
    [OP_CAST] = map_scale,
    [OP_SCALE] = map_scale,
    [OP_EQUAL] = map_equal,
};

double ref_step(enum op op, double a, double b, double scale)
{
    PRE(table[op]);
    return table[op](a, b, scale);
}
