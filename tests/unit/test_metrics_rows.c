// SPDX-License-Identifier: Apache-2.0
// Which rows of metrics hold, over resumes, writers that were believed dead, and damaged lines: against
// a plain model that keeps one row a step. And the numbers of a row by their keys.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/buf.h"
#include "common/base/rand.h"
#include "common/metrics/rows.h"

static const char *const keys[] = {"loss", "eval_loss", "detail.groups.embed.weight_norm"};

static uint64_t drawn; // numbers of the random file so far

static uint32_t draw(uint64_t seed, uint32_t below)
{
    const struct rand_site site = {seed, 1, 0};
    return rand_word(&site, drawn++) % below;
}

static void add(struct rows *r, const char *line)
{
    (void)rows_add(r, line, strlen(line));
}

static void numbers_are_found_by_their_keys(void **state)
{
    struct rows r;
    (void)state;
    rows_init(&r, keys, 3);
    add(&r,
        "{\"step\":7,\"attempt\":2,\"note\":\"\\\"loss\\\":9\",\"loss\":-1.5e-3,\"eval_loss\":null,"
        "\"deep\":{\"loss\":4,\"l\":[{\"loss\":5}]},"
        "\"detail\":{\"step\":6,\"groups\":{\"mlp\":{\"weight_norm\":3},\"embed\":{\"weight_norm\":"
        "0.25}}}}\n");
    assert_int_equal(r.n, 1);
    assert_int_equal(r.row[0].step, 7);
    assert_int_equal(r.row[0].attempt, 2);
    assert_true(rows_value(&r, 0, 0) == -1.5e-3);
    assert_true(isnan(rows_value(&r, 0, 1)));
    assert_true(rows_value(&r, 0, 2) == 0.25);
    rows_clear(&r);
}

static void what_is_no_row_is_counted_and_left_out(void **state)
{
    static const char *const lines[] = {
        "\n",
        "{}\n",
        "{\"loss\":1}\n",
        "{\"step\":1\n",
        "{\"step\":1}x\n",
        "[{\"step\":1}]\n",
        "{\"step\":-1}\n",
        "{\"step\":1.5}\n",
        "{\"step\":\"1\"}\n",
        "{\"step\":1,}\n",
        "{\"step\":1,\"a\":}\n",
        "{\"step\":1,\"a\":[}]}\n",
        "{\"step\":1,\"a\":\"\n",
        "{\"step\":1,\"a\\\n",
        "{\"step\" 1}\n",
        "{\"step\":99999999999999999999}\n",
    };
    struct rows r;
    (void)state;
    rows_init(&r, keys, 1);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        assert_false(rows_add(&r, lines[i], strlen(lines[i])));
        assert_int_equal(r.left_out, i + 1);
    }
    assert_int_equal(r.n, 0);
    struct buf deep = {0};
    buf_puts(&deep, "{\"step\":1,\"a\":");
    for (int i = 0; i < 100000; i++)
        buf_putc(&deep, '[');
    buf_puts(&deep, "}\n");
    add(&r, buf_str(&deep));
    assert_int_equal(r.n, 0);
    buf_clear(&deep);
    rows_clear(&r);
}

// The rule said plainly: of each step the last row of the newest attempt so far, if no row of a
// smaller or the same step came after it.
enum { STEPS = 60 };
struct model {
    double loss[STEPS + 1];
    int attempt[STEPS + 1], newest; // attempt 0: the step has no row
};

static void model_add(struct model *m, int step, int attempt, double loss)
{
    if (attempt < m->newest)
        return;
    m->newest = attempt;
    for (int s = step; s <= STEPS; s++)
        m->attempt[s] = 0;
    m->attempt[step] = attempt;
    m->loss[step] = loss;
}

static void assert_same(const struct rows *r, const struct model *m)
{
    size_t n = 0;
    for (int s = 1; s <= STEPS; s++) {
        if (!m->attempt[s])
            continue;
        assert_true(n < r->n);
        assert_int_equal(r->row[n].step, s);
        assert_int_equal(r->row[n].attempt, m->attempt[s]);
        assert_true(rows_value(r, n, 0) == m->loss[s]);
        n++;
    }
    assert_int_equal(r->n, n);
}

// A file that grows by random pieces, also in the middle of a line, is read after each.
static void random_files_hold_what_the_model_says(void **state)
{
    struct err e = {0};
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct model m = {0};
        struct rows r;
        FILE *file = tmpfile();
        assert_non_null(file);
        int fd = fileno(file);
        int attempt = 1, step = 0, old_step = 0;
        rows_init(&r, keys, 1);
        for (int i = 0; i < 200; i++) {
            char line[200];
            unsigned kind = draw(seed, 20);
            double loss = (double)draw(seed, 100000) / 7;
            int whose = attempt, at;
            if (kind == 0 && step > 0) { // resumes at an older step; the old writer may live on
                attempt += 1 + (int)draw(seed, 2);
                old_step = step;
                step = (int)draw(seed, (uint32_t)step);
                whose = attempt;
            }
            if (kind == 1 && attempt > 1 && old_step < STEPS) {
                whose = attempt - 1;
                at = ++old_step;
            } else {
                at = step < STEPS ? ++step : STEPS;
            }
            int n = snprintf(line, sizeof line, "{\"step\":%d,\"attempt\":%d,\"loss\":%.17g}\n", at,
                             whose, loss);
            if (kind == 2) { // torn: its end was never written
                n = 1 + (int)draw(seed, (uint32_t)n - 2);
                line[n++] = '\n';
            } else {
                model_add(&m, at, whose, loss);
            }
            int first = (int)draw(seed, (uint32_t)n);
            assert_int_equal(write(fd, line, (size_t)first), first);
            if (kind > 10)
                assert_int_equal(rows_read(&r, fd, &e), 0);
            assert_int_equal(write(fd, line + first, (size_t)(n - first)), n - first);
            if (kind % 3 == 0) {
                assert_int_equal(rows_read(&r, fd, &e), 0);
                assert_same(&r, &m);
            }
        }
        assert_int_equal(rows_read(&r, fd, &e), 0);
        assert_same(&r, &m);
        if (r.n) {
            struct arena a = {0};
            const char *text;
            assert_int_equal(rows_text(&r, fd, r.n - 1, &a, &text, &e), 0);
            assert_non_null(strstr(text, "\"loss\":"));
            assert_int_equal(strlen(text), r.row[r.n - 1].bytes - 1);
            arena_clear(&a);
        }
        rows_clear(&r);
        fclose(file);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_found_by_their_keys),
        cmocka_unit_test(what_is_no_row_is_counted_and_left_out),
        cmocka_unit_test(random_files_hold_what_the_model_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
