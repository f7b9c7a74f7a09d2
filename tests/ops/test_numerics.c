// SPDX-License-Identifier: Apache-2.0
// exp, ln, tanh and GELU of every instruction set against libm in double, over the whole of f32.
//
// An error is in units of the last place of the true result rounded to f32 (denormals included).
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ops/everywhere.h"
#include "tests/unit/unit.h"

enum { COUNT = 1 << 21, STEP = (1 << 11) - 3 }; // bit patterns tried: every STEP-th of 2^32

static const char *const isas[] = {"avx512", "avx2", "baseline"};
enum { ISAS = sizeof isas / sizeof *isas };
static const float special[] = {
    0.0f,      -0.0f,       1.0f,           -1.0f,          INFINITY,    -INFINITY,
    NAN,       0x1p-149f,   -0x1p-149f,     0x1p-126f,      -0x1p-126f,  0x1.fffffep127f,
    88.72283f, 88.722839f,  -87.33655f,     -103.97207f,    -103.97209f, -104.5f,
    0.625f,    0.62499994f, 0x1.6a09e6p-1f, 0x1.6a09e8p-1f, 9.0f,        -9.5f};
enum { SPECIALS = sizeof special / sizeof *special };

struct function {
    const char *name;
    enum op op;
    double (*exact)(double x);
    double ulps, absolute; // either is enough
    double cuda; // units on CUDA: what its guide promises for f32, and glibc (the emulator) keeps
};

static double exact_gelu(double x)
{
    return x / (1 + exp(-2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static const struct function functions[] = {
    {"exp", OP_ROW_EXP_MUL, exp, 1.2, 0, 2},
    {"ln", OP_LOG, log, 2.0, 0, 2},
    {"tanh", OP_TANH, tanh, 2.0, 0, 3},
    // The argument of the exponential is rounded: where GELU is nearly 0, that is many places.
    {"gelu", OP_GELU, exact_gelu, 4.0, 2e-7, 6},
};

static float *inputs(struct arena *a, int64_t *n)
{
    float *x = arena_array(a, float, COUNT + SPECIALS + 5);
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t bits = i * STEP;
        memcpy(&x[i], &bits, sizeof bits);
    }
    memcpy(x + COUNT, special, sizeof special);
    *n = COUNT + SPECIALS + 5; // a tail at the end
    return x;
}

static void run(const struct rig *r, enum op op, float *x, float *y, int64_t n)
{
    const float zero = 0, one = 1;
    size_t bytes = (size_t)n * sizeof(float);
    struct op_attr attr = {.label = {{0}}, .scale = 1};
    struct op_call c = {.op = op, .attr = &attr, .nin = op_inputs(op), .nout = 1};
    struct err e = {0};
    c.in[0] = c.out[0] = (struct tensor){rig_memory(r, x, bytes), DT_F32, {1, {n}}};
    c.in[1] = (struct tensor){rig_memory(r, &zero, sizeof zero), DT_F32, {0, {0}}};
    c.in[2] = (struct tensor){rig_memory(r, &one, sizeof one), DT_F32, {0, {0}}};
    c.out[0].data = rig_memory(r, NULL, bytes);
    if (r->backend->op.run[op](r->q, &c, &e))
        fail_msg("%s", e.text);
    rig_read(r, y, c.out[0].data, bytes);
    for (int k = 0; k < 3; k++)
        rig_free(r, c.in[k].data);
    rig_free(r, c.out[0].data);
}

static double error_ulps(float got, double want)
{
    float near = (float)want;
    if (isnan(want) || isinf(near))
        return isnan(want) ? (isnan(got) ? 0 : INFINITY) : (got == near ? 0 : INFINITY);
    if (isnan(got) || isinf(got))
        return INFINITY;
    int exponent;
    frexp(near == 0 ? 0x1p-149 : (double)near, &exponent);
    return fabs((double)got - want) / ldexp(1, exponent - 24 < -149 ? -149 : exponent - 24);
}

static void check(const struct function *f, const struct rig *r)
{
    struct arena a = {0};
    int64_t n;
    float *x = inputs(&a, &n), *y = arena_array(&a, float, n);
    run(r, f->op, x, y, n);
    const double allowed = rig_is_cuda() ? f->cuda : f->ulps;
    double most = 0;
    int64_t wrong = 0, worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double want = f->exact((double)x[i]), ulps = error_ulps(y[i], want);
        bool small = fabs((double)y[i] - want) <= f->absolute;
        wrong += ulps > allowed && !small;
        if (ulps > most && !small) {
            most = ulps;
            worst = i;
        }
    }
    if (wrong)
        rig_wrong("%s(%.9g) on %s is %.9g, not %.9g: %.2f units off, and %g are allowed; %lld of "
                  "%lld are wrong",
                  f->name, (double)x[worst], r->info.isa, (double)y[worst],
                  f->exact((double)x[worst]), most, allowed, (long long)wrong, (long long)n);
    arena_clear(&a);
}

static void functions_are_as_exact_as_they_say(void **state)
{
    (void)state;
    for (size_t i = 0; i < (rig_is_cuda() ? 1 : ISAS); i++) {
        struct rig r;
        rig_open(&r, 2, isas[i]);
        for (size_t f = 0; f < sizeof functions / sizeof *functions; f++)
            check(&functions[f], &r);
        rig_close(&r);
    }
}

static void an_element_has_one_value_wherever_it_lies(void **state)
{
    enum { N = 67 };
    (void)state;
    for (size_t i = 0; i < (rig_is_cuda() ? 1 : ISAS); i++) {
        struct rig r;
        float x[N], all[N], alone;
        rig_open(&r, 1, isas[i]);
        for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
            for (int k = 0; k < N; k++)
                x[k] = 0.01f + (float)k * 0.173f;
            run(&r, functions[f].op, x, all, N);
            for (int k = 0; k < N; k++) {
                run(&r, functions[f].op, x + k, &alone, 1);
                assert_memory_equal(&alone, &all[k], sizeof alone);
            }
        }
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(functions_are_as_exact_as_they_say),
        cmocka_unit_test(an_element_has_one_value_wherever_it_lies),
    };
    return cmocka_run_group_tests(tests, rig_set_up, NULL);
}
