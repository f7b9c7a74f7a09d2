// SPDX-License-Identifier: Apache-2.0
// Axes, ticks and points of charts, and that whatever a curve holds or is called becomes a whole picture.
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/plain.h"
#include "common/metrics/chart.h"

static void ticks_are_round_and_within_the_axis(void **state)
{
    static const struct {
        double from, to;
        int n;
        double first, step;
    } cases[] = {{0, 10, 6, 0, 2},
                 {1, 60, 6, 10, 10},
                 {3.85, 5.52, 4, 4, 0.5},
                 {-1, 1, 5, -1, 0.5},
                 {0.0012, 0.0019, 4, 0.0012, 0.0002}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const double at[2] = {cases[i].from, cases[i].to};
        const struct chart c = {.x_name = "step", .ncurves = 1, .curve = {{"a", at, at, 2}}};
        struct axis x, y;
        assert_true(chart_axes(&c, &x, &y));
        assert_int_equal(y.nticks, cases[i].n);
        for (int k = 0; k < y.nticks; k++) {
            double want = cases[i].first + k * cases[i].step;
            assert_true(fabs(y.tick[k] - want) < 1e-9);
            assert_true(y.tick[k] >= y.from - 1e-9 && y.tick[k] <= y.to + 1e-9);
        }
    }
}

static void a_log_axis_has_powers_of_ten_and_leaves_out_what_is_not_above_zero(void **state)
{
    const double x[] = {1, 2, 3, 4, 5}, y[] = {1000, 0, -3, 10, 0.1};
    const struct chart c = {.x_name = "step", .log = true, .ncurves = 1, .curve = {{"a", x, y, 5}}};
    struct axis ax, ay;
    struct chart_point *p;
    struct arena a = {0};
    char label[32];
    (void)state;
    assert_true(chart_axes(&c, &ax, &ay));
    assert_int_equal(ay.nticks, 5);
    assert_string_equal(axis_label(&ay, ay.tick[0], label), "0.1");
    assert_string_equal(axis_label(&ay, ay.tick[4], label), "1e+03");
    assert_int_equal(chart_thin(&c, 0, &ax, &ay, 100, &a, &p), 3);
    assert_true(p[0].y == 1 && p[2].y == 0 && fabs(p[1].y - 0.5) < 1e-12);
    arena_clear(&a);
}

static void thinning_keeps_every_peak(void **state)
{
    enum { N = 100000, PEAK = 54321, LOW = 12345, COLUMNS = 80 };
    static double x[N], y[N];
    const struct chart c = {.x_name = "step", .ncurves = 1, .curve = {{"a", x, y, N}}};
    struct axis ax, ay;
    struct chart_point *p;
    struct arena a = {0};
    (void)state;
    for (int i = 0; i < N; i++) {
        x[i] = i;
        y[i] = i % 7 == 3 ? (double)NAN : sin(i);
    }
    y[PEAK] = 50;
    y[LOW] = -40;
    assert_true(chart_axes(&c, &ax, &ay));
    size_t n = chart_thin(&c, 0, &ax, &ay, COLUMNS, &a, &p);
    assert_in_range(n, COLUMNS, 4 * COLUMNS);
    bool peak = false, low = false;
    for (size_t i = 0; i < n; i++) {
        assert_true(p[i].x >= 0 && p[i].x <= 1 && p[i].y >= 0 && p[i].y <= 1);
        assert_true(i == 0 || p[i].x > p[i - 1].x);
        peak |= p[i].y == 1;
        low |= p[i].y == 0;
    }
    assert_true(peak && low);
    arena_clear(&a);
}

static void assert_whole(const struct chart *c)
{
    struct buf text = {0}, svg = {0};
    for (int columns = 0; columns <= 220; columns += 55) {
        const struct chart_text t = {
            .columns = columns, .lines = columns / 4, .colour = columns % 2};
        chart_braille(c, &t, &text);
    }
    chart_svg(c, "a < b", &svg);
    assert_true(strncmp(buf_str(&svg), "<svg ", 5) == 0);
    assert_string_equal(buf_str(&svg) + svg.len - 7, "</svg>\n");
    assert_null(strstr(buf_str(&svg), "nan"));
    assert_null(strstr(buf_str(&svg), "inf"));
    buf_clear(&text);
    buf_clear(&svg);
}

static void whatever_a_curve_holds_is_drawn(void **state)
{
    static const double values[] = {0,      1,        -1,        DBL_MAX, -DBL_MAX, DBL_MIN, 1e300,
                                    1e-300, INFINITY, -INFINITY, NAN,     5,        5};
    enum { N = sizeof values / sizeof *values };
    const double x[N] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 1e9, 1e12};
    (void)state;
    for (int from = 0; from < N; from++)
        for (size_t n = 0; n + (size_t)from <= N; n++)
            for (int log = 0; log < 2; log++) {
                struct chart c = {.x_name = "step", .log = log, .ncurves = 1};
                c.curve[0] = (struct curve){"a", x + from, values + from, n};
                assert_whole(&c);
            }
    assert_whole(&(struct chart){.x_name = "step"});
}

static void names_steer_no_terminal_and_end_no_tag(void **state)
{
    const double at[2] = {1, 2};
    struct chart c = {.x_name = "step", .ncurves = 2};
    struct buf svg = {0}, text = {0};
    (void)state;
    c.curve[0] = (struct curve){"</text><script>\x1b[31m&\xff\x01", at, at, 2};
    c.curve[1] = (struct curve){"b", at, at, 2};
    chart_svg(&c, c.curve[0].name, &svg);
    assert_null(strstr(buf_str(&svg), "<script"));
    assert_non_null(strstr(buf_str(&svg), "&lt;/text&gt;&lt;script&gt;"));
    assert_null(strchr(buf_str(&svg), '\x1b'));
    chart_braille(&c, &(struct chart_text){.columns = 80, .lines = 20}, &text);
    for (size_t i = 0; i < text.len; i++)
        assert_true((unsigned char)text.data[i] >= 0x20 || text.data[i] == '\n');
    assert_non_null(strstr(buf_str(&text), "b: b"));
    buf_clear(&svg);
    buf_clear(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ticks_are_round_and_within_the_axis),
        cmocka_unit_test(a_log_axis_has_powers_of_ten_and_leaves_out_what_is_not_above_zero),
        cmocka_unit_test(thinning_keeps_every_peak),
        cmocka_unit_test(whatever_a_curve_holds_is_drawn),
        cmocka_unit_test(names_steer_no_terminal_and_end_no_tag),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
