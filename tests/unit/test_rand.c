// SPDX-License-Identifier: Apache-2.0
// Philox against Random123's known answers; draws against their definition; permutations counted
// out.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rand.h"
#include "tests/support/normal.h"
#include "tests/unit/unit.h"

static void philox_gives_the_known_answers_of_random123(void **state)
{
    (void)state;
    static const struct {
        uint32_t ctr[4], key[2], out[4];
    } rows[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint32_t out[4];
        philox4x32(rows[i].ctr, rows[i].key, out);
        assert_memory_equal(out, rows[i].out, sizeof out);
    }
}

static void a_word_comes_from_the_documented_counter_and_key(void **state)
{
    (void)state;
    const struct rand_site s = {.seed = 0x1111111122222222u, .stream = 0x33333333, .step = 44};
    const uint32_t ctr[4] = {0x66666666, 0x15555555, 44, 0x33333333};
    const uint32_t key[2] = {0x22222222, 0x11111111};
    uint32_t block[4];
    philox4x32(ctr, key, block);
    for (uint64_t i = 0; i < 4; i++)
        assert_int_equal(rand_word(&s, (0x1555555566666666u << 2) + i), block[i]);
}

static void uniforms_are_the_top_24_bits_and_fill_the_unit_interval(void **state)
{
    (void)state;
    const struct rand_site s = {.seed = 7, .stream = 1, .step = 2};
    double sum = 0;
    for (uint64_t i = 0; i < 100000; i++) {
        float u = rand_uniform(&s, i);
        assert_true(u >= 0 && u < 1);
        assert_true(ldexp((double)u, 24) == (double)(rand_word(&s, i) >> 8));
        sum += (double)u;
    }
    assert_true(fabs(sum / 100000 - 0.5) < 5 * sqrt(1.0 / 12 / 100000)); // five sigmas
}

static void normals_have_the_moments_of_a_normal(void **state)
{
    (void)state;
    const struct rand_site s = {.seed = 8, .stream = 3, .step = 0};
    enum { N = 100000 };
    double m1 = 0, m2 = 0, m4 = 0;
    for (uint64_t i = 0; i < N; i++) {
        double z = (double)draw_normal(&s, i);
        assert_true(isfinite(z));
        m1 += z / N;
        m2 += z * z / N;
        m4 += z * z * z * z / N;
    }
    // Variances of the estimates: 1/N, 2/N, 96/N; bounds are five sigmas.
    assert_true(fabs(m1) < 5 * sqrt(1.0 / N));
    assert_true(fabs(m2 - 1) < 5 * sqrt(2.0 / N));
    assert_true(fabs(m4 - 3) < 5 * sqrt(96.0 / N));
}

static void a_normal_is_the_documented_function_of_two_uniforms(void **state)
{
    (void)state;
    const struct rand_site s = {.seed = 9, .stream = 4, .step = 5};
    for (uint64_t i = 0; i < 1000; i++) {
        double u = (double)rand_uniform(&s, 2 * i), v = (double)rand_uniform(&s, 2 * i + 1);
        double want = sqrt(-2 * log(u + ldexp(1, -25))) * cos(2 * acos(-1.0) * v);
        assert_true(fabs((double)draw_normal(&s, i) - want) <= 1e-6 * (1 + fabs(want)));
    }
}

static void a_run_of_normals_is_each_of_them(void **state)
{
    (void)state;
    const struct rand_site s = {.seed = 9, .stream = 4, .step = 5};
    float run[9];
    for (uint64_t first = 0; first < 4; first++)
        for (size_t n = 0; n <= 9; n++) {
            rand_normals(&s, first, n, run);
            for (size_t i = 0; i < n; i++)
                assert_true(run[i] == draw_normal(&s, first + i));
        }
}

static void check_bijection(uint64_t n, uint64_t seed, uint64_t round)
{
    unsigned char *seen = calloc(n, 1);
    assert_non_null(seen);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t p = rand_permute(i, n, seed, round);
        assert_true(p < n);
        assert_int_equal(seen[p]++, 0);
    }
    free(seen);
}

static void every_index_appears_exactly_once(void **state)
{
    (void)state;
    for (uint64_t n = 1; n <= 130; n++)
        check_bijection(n, 5, n);
    static const uint64_t sizes[] = {1023, 1024, 1025, 60000, 65536, 65537, 100003};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        check_bijection(sizes[i], ~0ull, 1ull << 40);
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void huge_domains_keep_their_bounds_and_never_collide(void **state)
{
    (void)state;
    enum { N = 2000 };
    static const uint64_t sizes[] = {(1ull << 33) + 1, (1ull << 62) + 1, (1ull << 63) - 1,
                                     1ull << 63};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        uint64_t n = sizes[k], got[N];
        int upper = 0;
        for (uint64_t i = 0; i < N; i++) {
            got[i] = rand_permute(i % 2 ? n - i : i, n, 3, 4);
            assert_true(got[i] < n);
            upper += got[i] >= n / 2;
        }
        assert_true(upper > N / 2 - 112 && upper < N / 2 + 112); // five sigmas
        qsort(got, N, sizeof *got, by_value);
        for (int i = 1; i < N; i++)
            assert_true(got[i - 1] != got[i]);
    }
}

static void another_round_or_seed_is_another_order(void **state)
{
    (void)state;
    enum { N = 1000 };
    int same_round = 0, same_seed = 0, same_high = 0, fixed = 0;
    for (uint64_t i = 0; i < N; i++) {
        uint64_t p = rand_permute(i, N, 1, 1);
        same_round += p == rand_permute(i, N, 1, 2);
        same_seed += p == rand_permute(i, N, 2, 1);
        same_high += p == rand_permute(i, N, 1, 1 + (1ull << 32));
        fixed += p == i;
    }
    // Two random orders agree in about one place; ten or more has a chance of 1e-7.
    assert_true(same_round < 10 && same_seed < 10 && same_high < 10 && fixed < 10);
}

static void all_orders_of_a_few_samples_are_equally_likely(void **state)
{
    (void)state;
    enum { CODES = 46656, EACH = 500 }; // 6^6
    static int count[CODES];
    int orders = 2;
    for (uint64_t n = 3; n <= 6; n++) {
        orders *= (int)n;
        memset(count, 0, sizeof count);
        for (int r = 0; r < orders * EACH; r++) {
            uint64_t code = 0;
            for (uint64_t i = 0; i < n; i++)
                code = code * n + rand_permute(i, n, 12, (uint64_t)r);
            count[code]++;
        }
        double chi2 = 0;
        int seen = 0;
        for (int i = 0; i < CODES; i++) {
            double off = count[i] - EACH;
            seen += count[i] > 0;
            chi2 += count[i] ? off * off / EACH : 0;
        }
        assert_int_equal(seen, orders);
        assert_true(chi2 < orders + 5 * sqrt(2.0 * orders)); // five sigmas
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_known_answers_of_random123),
        cmocka_unit_test(a_word_comes_from_the_documented_counter_and_key),
        cmocka_unit_test(uniforms_are_the_top_24_bits_and_fill_the_unit_interval),
        cmocka_unit_test(normals_have_the_moments_of_a_normal),
        cmocka_unit_test(a_normal_is_the_documented_function_of_two_uniforms),
        cmocka_unit_test(a_run_of_normals_is_each_of_them),
        cmocka_unit_test(every_index_appears_exactly_once),
        cmocka_unit_test(huge_domains_keep_their_bounds_and_never_collide),
        cmocka_unit_test(another_round_or_seed_is_another_order),
        cmocka_unit_test(all_orders_of_a_few_samples_are_equally_likely),
    };
    return cmocka_run_group_tests_name("rand", tests, NULL, NULL);
}
