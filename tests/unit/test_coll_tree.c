// SPDX-License-Identifier: Apache-2.0
// The summation tree against its definition written as a plain recursion over one element.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "worker/collective/tree.h"

enum { MOST = 9, SIZE = 1337 };
static float operand[MOST][SIZE], before[MOST][SIZE];

// The tree of the next power of two, `size`, whose leaves from n on are missing.
static float by_definition(int lo, int size, int n, int at)
{
    if (size == 1)
        return before[lo][at];
    float left = by_definition(lo, size / 2, n, at);
    return lo + size / 2 < n ? left + by_definition(lo + size / 2, size / 2, n, at) : left;
}

// Magnitudes spread over 2^±20, so that another order of additions gives other bits.
static void fill(void)
{
    uint64_t x = 88172645463325252u;
    for (int i = 0; i < MOST; i++)
        for (int k = 0; k < SIZE; k++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            float mantissa = (float)((int64_t)(x >> 40) - (1 << 23));
            int scale = (int)(x % 41) - 20;
            operand[i][k] =
                scale < 0 ? mantissa / (float)(1 << -scale) : mantissa * (float)(1 << scale);
        }
    memcpy(before, operand, sizeof before);
}

static void check(const float *got, int n, size_t count)
{
    int size = 1;
    while (size < n)
        size *= 2;
    for (size_t k = 0; k < count; k++) {
        float want = by_definition(0, size, n, (int)k);
        assert_memory_equal(&got[k], &want, sizeof want);
    }
}

static void bits_of_the_tree_are_those_of_its_definition(void **state)
{
    static float out[SIZE + 1];
    static const size_t counts[] = {0, 1, 7, 8, 511, 512, 513, SIZE};
    (void)state;
    for (int n = 1; n <= MOST; n++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            const float *src[MOST];
            float *dst = out;
            fill();
            for (int i = 0; i < n; i++)
                src[i] = operand[i];
            out[counts[c]] = 42;
            tree_sum(&dst, 1, src, n, counts[c]);
            check(out, n, counts[c]);
            assert_true(out[counts[c]] == 42);
        }
}

static void every_operand_may_be_overwritten_by_the_sum(void **state)
{
    (void)state;
    for (int n = 1; n <= MOST; n++) {
        const float *src[MOST];
        float *dst[MOST];
        fill();
        for (int i = 0; i < n; i++) {
            src[i] = operand[i];
            dst[n - 1 - i] = operand[i];
        }
        tree_sum(dst, n, src, n, SIZE);
        for (int i = 0; i < n; i++)
            check(operand[i], n, SIZE);
    }
}

static void the_order_of_operands_shows_in_the_bits(void **state)
{
    static float straight[SIZE], turned[SIZE];
    (void)state;
    fill();
    const float *src[3] = {operand[0], operand[1], operand[2]};
    const float *rev[3] = {operand[2], operand[1], operand[0]};
    float *a = straight, *b = turned;
    tree_sum(&a, 1, src, 3, SIZE);
    tree_sum(&b, 1, rev, 3, SIZE);
    assert_memory_not_equal(straight, turned, sizeof straight);
}

static void a_maximum_passes_over_what_is_no_number(void **state)
{
    (void)state;
    enum { N = 1100 }; // over a tile
    static float a[N], b[N], c[N];
    for (int i = 0; i < N; i++) {
        a[i] = (float)(i % 7);
        b[i] = i % 3 ? -1 : NAN;
        c[i] = i % 5 ? -INFINITY : 100;
    }
    const float *src[3] = {a, b, c};
    float *dst[2] = {b, c}; // destinations may be sources
    tree_max(dst, 2, src, 3, N);
    for (int i = 0; i < N; i++) {
        assert_true(b[i] == (float)(i % 5 ? i % 7 : 100));
        assert_true(c[i] == b[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_of_the_tree_are_those_of_its_definition),
        cmocka_unit_test(every_operand_may_be_overwritten_by_the_sum),
        cmocka_unit_test(the_order_of_operands_shows_in_the_bits),
        cmocka_unit_test(a_maximum_passes_over_what_is_no_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
