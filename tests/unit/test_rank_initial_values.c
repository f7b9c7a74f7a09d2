// SPDX-License-Identifier: Apache-2.0
// The values that parameters are born with depend on seed, path and global index alone: neither on
// how a tensor is cut nor on how many threads draw it.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/rand.h"
#include "tests/support/normal.h"
#include "tests/unit/unit.h"
#include "worker/rank/exec/initial_values.h"

enum { ROWS = 300, COLUMNS = 97, USED = 90, SEED = 11 }; // columns from USED on are padding

static struct deal_part make_part(int64_t row, int64_t rows, int64_t column, int64_t columns)
{
    return (struct deal_part){
        .global = {.n = 2, .dim = {ROWS, COLUMNS}},
        .box = {.start = {row, column}, .shape = {.n = 2, .dim = {rows, columns}}}};
}

static struct value make_value(enum init_kind init, int64_t limit)
{
    return (struct value){.name = "layers/0/weight",
                          .shape = {.n = 2, .dim = {ROWS, COLUMNS}},
                          .dims = {DIM_EMBED, DIM_VOCAB},
                          .init = init,
                          .init_std = 0.5f,
                          .limit = {0, limit}};
}

static float *draw(const struct deal_part *p, const struct value *v, int threads)
{
    int64_t n = shape_count(&p->box.shape);
    float *out = malloc((size_t)n * sizeof *out);
    assert_non_null(out);
    memset(out, 0xff, (size_t)n * sizeof *out);
    initial_values(p, v, SEED, 0, n, threads, out);
    return out;
}

static void threads_do_not_change_what_is_drawn(void **state)
{
    (void)state;
    struct deal_part whole = make_part(0, ROWS, 0, COLUMNS);
    struct value v = make_value(INIT_NORMAL, 0);
    struct rand_site site = {.seed = SEED, .stream = hash_fnv1a32(v.name)};
    for (int threads = 1; threads <= 200; threads = threads * 2 + 1) {
        float *out = draw(&whole, &v, threads);
        for (uint64_t i = 0; i < ROWS * COLUMNS; i++)
            assert_true(out[i] == draw_normal(&site, i) * v.init_std);
        free(out);
    }
}

static void a_shard_has_the_whole_tensors_values(void **state)
{
    (void)state;
    struct deal_part part = make_part(20, 200, 40, 57); // its last columns are padding
    struct value v = make_value(INIT_NORMAL, USED);
    struct rand_site site = {.seed = SEED, .stream = hash_fnv1a32(v.name)};
    float *out = draw(&part, &v, 3);
    for (uint64_t r = 0; r < 200; r++)
        for (uint64_t c = 0; c < 57; c++) {
            uint64_t row = 20 + r, column = 40 + c;
            float want = column < USED ? draw_normal(&site, row * USED + column) * v.init_std : 0;
            assert_true(out[r * 57 + c] == want);
        }
    free(out);
}

static void a_piece_in_the_middle_is_that_of_the_whole(void **state)
{
    (void)state;
    struct deal_part whole = make_part(0, ROWS, 0, COLUMNS);
    struct value v = make_value(INIT_NORMAL, USED);
    enum { AT = 12345, LEN = 9999 };
    float *all = draw(&whole, &v, 1), piece[LEN];
    initial_values(&whole, &v, SEED, AT, LEN, 4, piece);
    assert_memory_equal(piece, all + AT, sizeof piece);
    free(all);
}

static void what_is_born_as_ones_is_ones(void **state)
{
    (void)state;
    struct deal_part whole = make_part(0, ROWS, 0, COLUMNS);
    struct value v = make_value(INIT_ONE, 0);
    float *out = draw(&whole, &v, 5);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        assert_true(out[i] == 1);
    free(out);
}

// 2 of the deviations before truncation are the farthest, which is 2 / .8796 of what is said; within
// one of those lie erf(√½) / erf(√2) = .7152 of all.
static void truncated_normals_have_the_deviation_that_is_said(void **state)
{
    (void)state;
    struct deal_part whole = make_part(0, ROWS, 0, COLUMNS);
    struct value v = make_value(INIT_TRUNCATED, 0);
    struct rand_site site = {.seed = SEED, .stream = hash_fnv1a32(v.name)};
    const double cut = 0.5 * 2 / 0.87962566, n = ROWS * COLUMNS;
    double squares = 0, near = 0, farthest = 0;
    float *out = draw(&whole, &v, 3);
    for (uint64_t i = 0; i < ROWS * COLUMNS; i++) {
        assert_true((out[i] > 0) == (draw_normal(&site, i) > 0));
        squares += (double)out[i] * (double)out[i];
        near += fabs((double)out[i]) < cut / 2;
        farthest = fmax(farthest, fabs((double)out[i]));
    }
    assert_true(fabs(sqrt(squares / n) - 0.5) < 0.005);
    assert_true(fabs(near / n - 0.7152) < 0.01);
    assert_true(farthest <= cut * (1 + 1e-6) && farthest > 0.99 * cut);
    free(out);
}

// Uniform within ± √3 deviations: a quarter lies in each quarter of that.
static void uniform_values_have_the_deviation_that_is_said(void **state)
{
    (void)state;
    struct deal_part whole = make_part(0, ROWS, 0, COLUMNS), part = make_part(20, 200, 40, 57);
    struct value v = make_value(INIT_UNIFORM, 0);
    const double end = 0.5 * sqrt(3), n = ROWS * COLUMNS;
    double squares = 0, sum = 0, least = 0, most = 0;
    int quarter[4] = {0};
    float *out = draw(&whole, &v, 3), *box = draw(&part, &v, 2);
    for (uint64_t i = 0; i < ROWS * COLUMNS; i++) {
        double x = (double)out[i];
        squares += x * x;
        sum += x;
        least = fmin(least, x);
        most = fmax(most, x);
        quarter[(int)fmin(3, (x + end) / end * 2)]++;
    }
    assert_true(fabs(sqrt(squares / n) - 0.5) < 0.005 && fabs(sum / n) < 0.01);
    assert_true(least >= -end * (1 + 1e-6) && least < -0.99 * end);
    assert_true(most <= end * (1 + 1e-6) && most > 0.99 * end);
    for (int i = 0; i < 4; i++)
        assert_true(fabs(quarter[i] / n - 0.25) < 0.01);
    for (int r = 0; r < 200; r++)
        assert_memory_equal(box + 57 * r, out + (size_t)(20 + r) * COLUMNS + 40, 57 * sizeof *out);
    free(out);
    free(box);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_do_not_change_what_is_drawn),
        cmocka_unit_test(a_shard_has_the_whole_tensors_values),
        cmocka_unit_test(a_piece_in_the_middle_is_that_of_the_whole),
        cmocka_unit_test(what_is_born_as_ones_is_ones),
        cmocka_unit_test(truncated_normals_have_the_deviation_that_is_said),
        cmocka_unit_test(uniform_values_have_the_deviation_that_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
