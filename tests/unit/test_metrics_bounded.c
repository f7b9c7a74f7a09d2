// SPDX-License-Identifier: Apache-2.0
// A curve in bounded memory against the list of all its points.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/rand.h"
#include "common/metrics/bounded_curve.h"

enum { MOST = 20000 };
static double x[BOUNDED_POINTS], y[BOUNDED_POINTS];

static uint64_t drawn; // numbers so far

static int64_t draw(uint64_t seed, int64_t below)
{
    const struct rand_site site = {seed, 1, 0};
    int64_t high = (int64_t)rand_word(&site, drawn++) << 20;
    return (high ^ rand_word(&site, drawn++)) % below;
}

// The steps of the points rise, and each is one of the list.
static size_t get_points(const struct bounded_curve *c, const int64_t *step, const double *value,
                         size_t n)
{
    size_t got = bounded_curve_points(c, x, y), at = 0;
    assert_true(got <= BOUNDED_POINTS);
    for (size_t i = 0; i < got; i++) {
        assert_true(i == 0 || x[i] > x[i - 1]);
        while (at < n && (double)step[at] < x[i])
            at++;
        assert_true(at < n && (double)step[at] == x[i] && value[at] == y[i]);
    }
    return got;
}

static void whatever_comes_back_is_what_holds(void **state)
{
    static int64_t step[MOST];
    static double value[MOST];
    static struct bounded_curve c;
    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        size_t n = 0;
        int64_t at = 0, stride = INT64_C(1) << draw(seed, 40);
        memset(&c, 0, sizeof c);
        for (int i = 0; i < 3000; i++) {
            at += 1 + draw(seed, stride);
            if (draw(seed, 500) == 0)
                at = draw(seed, at); // an attempt that went back
            double v = draw(seed, 10) ? (double)draw(seed, 1000) : (double)NAN;
            while (n && step[n - 1] >= at)
                n--;
            if (isfinite(v)) {
                step[n] = at;
                value[n++] = v;
            }
            bounded_curve_add(&c, at, v);
        }
        (void)get_points(&c, step, value, n);
    }
}

static void no_peak_is_lost_and_the_ends_are_kept(void **state)
{
    enum { N = 1000000, PEAK = 765432, LOW = 12345 };
    static struct bounded_curve c;
    (void)state;
    for (int64_t i = 0; i < N; i++)
        bounded_curve_add(&c, i, i == PEAK ? 50 : i == LOW ? -50 : sin((double)i));
    size_t n = bounded_curve_points(&c, x, y), peak = 0, low = 0;
    assert_in_range(n, BOUNDED_COLUMNS, BOUNDED_POINTS);
    assert_true(x[0] == 0 && x[n - 1] == N - 1);
    for (size_t i = 0; i < n; i++) {
        peak += x[i] == PEAK && y[i] == 50;
        low += x[i] == LOW && y[i] == -50;
    }
    assert_true(peak == 1 && low == 1);
}

static void what_few_points_there_are_is_all_kept(void **state)
{
    static struct bounded_curve c;
    (void)state;
    assert_int_equal(bounded_curve_points(&c, x, y), 0);
    for (int64_t i = 0; i < BOUNDED_COLUMNS; i++)
        bounded_curve_add(&c, 7 + i, (double)(i % 5));
    assert_int_equal(bounded_curve_points(&c, x, y), BOUNDED_COLUMNS);
    bounded_curve_add(&c, 10, 1); // a new attempt
    assert_int_equal(bounded_curve_points(&c, x, y), 4);
    bounded_curve_add(&c, 1, 1);
    assert_int_equal(bounded_curve_points(&c, x, y), 1);
    bounded_curve_add(&c, 0, (double)NAN);
    assert_int_equal(bounded_curve_points(&c, x, y), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_comes_back_is_what_holds),
        cmocka_unit_test(no_peak_is_lost_and_the_ends_are_kept),
        cmocka_unit_test(what_few_points_there_are_is_all_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
