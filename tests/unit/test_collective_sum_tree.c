// SPDX-License-Identifier: Apache-2.0
// The summation tree against its definition written as a plain recursion over one element.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/unit.h"
#include "worker/collective/sum_tree.h"

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
            const void *src[MOST];
            void *dst = out;
            fill();
            for (int i = 0; i < n; i++)
                src[i] = operand[i];
            out[counts[c]] = 42;
            tree_sum(DT_F32, &dst, 1, src, n, counts[c]);
            check(out, n, counts[c]);
            assert_true(out[counts[c]] == 42);
        }
}

static void every_operand_may_be_overwritten_by_the_sum(void **state)
{
    (void)state;
    for (int n = 1; n <= MOST; n++) {
        const void *src[MOST];
        void *dst[MOST];
        fill();
        for (int i = 0; i < n; i++) {
            src[i] = operand[i];
            dst[n - 1 - i] = operand[i];
        }
        tree_sum(DT_F32, dst, n, src, n, SIZE);
        for (int i = 0; i < n; i++)
            check(operand[i], n, SIZE);
    }
}

static void the_order_of_operands_shows_in_the_bits(void **state)
{
    static float straight[SIZE], turned[SIZE];
    (void)state;
    fill();
    const void *src[3] = {operand[0], operand[1], operand[2]};
    const void *rev[3] = {operand[2], operand[1], operand[0]};
    void *a = straight, *b = turned;
    tree_sum(DT_F32, &a, 1, src, 3, SIZE);
    tree_sum(DT_F32, &b, 1, rev, 3, SIZE);
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
    const void *src[3] = {a, b, c};
    void *dst[2] = {b, c}; // destinations may be sources
    tree_max(DT_F32, dst, 2, src, 3, N);
    for (int i = 0; i < N; i++) {
        assert_true(b[i] == (float)(i % 5 ? i % 7 : 100));
        assert_true(c[i] == b[i]);
    }
}

// ---- bf16 ----
static float wide(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint16_t sum_halves(int n, const uint16_t *halves)
{
    const void *src[8];
    uint16_t out = 0;
    void *dst = &out;
    for (int i = 0; i < n; i++)
        src[i] = &halves[i];
    tree_sum(DT_BF16, &dst, 1, src, n, 1);
    return out;
}

// Near 256 a bf16 holds even numbers only. Added one by one, each 1 would be lost (256 + 1 = 257
// ties to 256); in f32 the four make 260.
static void a_bf16_sum_is_rounded_once(void **state)
{
    enum { ONE = 0x3f80, K = 0x4380 }; // 1, 256
    (void)state;
    assert_true(wide(sum_halves(5, (uint16_t[]){K, ONE, ONE, ONE, ONE})) == 260);
    assert_true(wide(sum_halves(2, (uint16_t[]){K, ONE})) == 256);           // a tie, to even
    assert_true(wide(sum_halves(4, (uint16_t[]){K, ONE, ONE, ONE})) == 260); // 259 → 260: a tie
    assert_true(wide(sum_halves(3, (uint16_t[]){K, ONE, ONE})) == 258);
    assert_int_equal(sum_halves(2, (uint16_t[]){0x7f7f, 0x7f7f}), 0x7f80); // too large: infinity
    assert_true(isnan(wide(sum_halves(2, (uint16_t[]){0x7f80, 0xff80}))));
    assert_true(isnan(wide(sum_halves(2, (uint16_t[]){0x7fff, ONE}))));
}

// The f32 tree over the widened operands, rounded to nearest by hand: the tie is not hit here.
static void bf16_bits_are_the_f32_trees_rounded(void **state)
{
    static uint16_t half[MOST][SIZE];
    (void)state;
    for (int n = 1; n <= MOST; n++) {
        const void *src[MOST];
        void *dst[2] = {half[n - 1], half[0]};
        fill();
        for (int i = 0; i < n; i++) {
            src[i] = half[i];
            for (int k = 0; k < SIZE; k++) {
                uint32_t bits;
                memcpy(&bits, &operand[i][k], sizeof bits);
                half[i][k] = (uint16_t)(bits >> 16);
                before[i][k] = wide(half[i][k]);
            }
        }
        tree_sum(DT_BF16, dst, 2, src, n, SIZE);
        int size = 1;
        while (size < n)
            size *= 2;
        for (int k = 0; k < SIZE; k++) {
            float want = by_definition(0, size, n, k), got = wide(half[0][k]);
            float up = wide((uint16_t)(half[0][k] + 1)), down = wide((uint16_t)(half[0][k] - 1));
            assert_true(fabsf(want - got) <= fabsf(want - up) || got == 0);
            assert_true(fabsf(want - got) <= fabsf(want - down) || got == 0);
            assert_int_equal(half[n - 1][k], half[0][k]);
        }
    }
}

static void a_bf16_maximum_is_one_of_its_operands(void **state)
{
    uint16_t a[3] = {0x3f80, 0x7fc0, 0xff80}, b[3] = {0x4000, 0xc000, 0x7fc0}; // 1 nan −∞, 2 −2 nan
    const void *src[2] = {a, b};
    void *dst[2] = {b, a};
    (void)state;
    tree_max(DT_BF16, dst, 2, src, 2, 3);
    assert_memory_equal(a, ((uint16_t[]){0x4000, 0xc000, 0xff80}), sizeof a);
    assert_memory_equal(a, b, sizeof a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_of_the_tree_are_those_of_its_definition),
        cmocka_unit_test(every_operand_may_be_overwritten_by_the_sum),
        cmocka_unit_test(the_order_of_operands_shows_in_the_bits),
        cmocka_unit_test(a_maximum_passes_over_what_is_no_number),
        cmocka_unit_test(a_bf16_sum_is_rounded_once),
        cmocka_unit_test(bf16_bits_are_the_f32_trees_rounded),
        cmocka_unit_test(a_bf16_maximum_is_one_of_its_operands),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
