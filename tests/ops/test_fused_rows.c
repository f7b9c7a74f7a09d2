// SPDX-License-Identifier: Apache-2.0
// What fusion makes of norms and of the loss's rows: held against the reference like every op
// (test_ops.c has the common shapes), against the parts it stands for bit by bit where the order of
// additions is the same, and where a row is cut, padded or not of numbers alone.
#include "tests/ops/everywhere.h"

static void fill(struct rig_case *c, double lo, double hi)
{
    for (int k = 0; k < c->nin; k++)
        rig_fill(&c->in[k], (uint64_t)k + 1, c->in[k].dtype == DT_I32 ? -2 : lo,
                 c->in[k].dtype == DT_I32 ? 14 : hi);
    c->attr.eps = 1e-5f;
    c->attr.center = true;
}

// ---- norms -------------------------------------------------------------------------------------

static const struct extents shapes[] = {
    {1, 1, 1, 1}, {1, 7, 3, 2}, {7, 1, 2, 3}, {33, 17, 9, 3}, {257, 65, 2, 1}, {40, 130, 3, 1},
};

static void a_norms_gradient_is_added_to_what_came_before(void **state)
{
    static const char *const einsum[] = {"ij,ij,ij->ij", "ij,ij,ij,j->ij", "kij,kij,kij,j->kij"};
    (void)state;
    for (size_t t = 0; t < 12; t++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            struct arena a = {0};
            struct rig_case c;
            int64_t ext[26];
            letters(ext, shapes[s]);
            rig_case(&c, &a, OP_NORM_GRAD_ADD, einsum[t % 3], ext);
            fill(&c, -1, 3);
            c.attr.center = t / 3 % 2;
            c.in_place = t / 6;
            run_everywhere(&c, einsum[t % 3], 2e-5, 3e-5);
            arena_clear(&a);
        }
}

static void a_norms_gradient_comes_with_sums_over_rows(void **state)
{
    static const char *const einsum[] = {"ij,ij,ij,j->ij,j,j,j", "kij,kij,kij,j->kij,j,j,j",
                                         "ij,ij,j->ij,j,j,j", "kij,kij,j->kij,j,j,j"};
    (void)state;
    for (int t = 0; t < 24; t++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            struct arena a = {0};
            struct rig_case c;
            int64_t ext[26];
            letters(ext, shapes[s]);
            rig_case(&c, &a, OP_NORM_GRADS, einsum[t % 4], ext);
            fill(&c, -1, 3);
            c.attr.center = t / 4 % 2;
            c.in_place = c.accumulate = t / 4 % 3 == 1;
            c.nout = 2 + t / 4 % 3;
            run_everywhere(&c, einsum[t % 4], 2e-5, 2e-4);
            arena_clear(&a);
        }
}

// Result k of the second case is operand `to` of the first's part; both on one rig.
static void parts_agree(const struct rig *r, const struct rig_case *whole, int k,
                        const struct rig_case *last, struct arena *a)
{
    double *fused[OP_MAX_OUT], *parts[OP_MAX_OUT];
    rig_run(r, whole, a, fused);
    rig_run(r, last, a, parts);
    same_bits(op_name(whole->op), fused[k], parts[0], shape_count(&last->start[0].shape));
}

// Whether a sum was made on the way or came from memory, a row's norm has the same bits.
static void one_pass_has_the_bits_of_two(void **state)
{
    (void)state;
    for (int r = 0; r < nrigs; r++) {
        struct arena a = {0};
        struct rig_case both, add, norm, grad, rest;
        double *out[OP_MAX_OUT];
        int64_t ext[26];
        letters(ext, (struct extents){37, 1031, 1, 1});
        rig_case(&both, &a, OP_ADD_NORM, "ij,ij,j,j->ij,ij", ext);
        rig_case(&add, &a, OP_ADD, "ij,ij->ij", ext);
        rig_case(&norm, &a, OP_NORM, "ij,j,j->ij", ext);
        fill(&both, -1, 2);
        fill(&norm, 0, 1);
        add.in[0] = both.in[0];
        add.in[1] = both.in[1];
        rig_run(&rigs[r], &add, &a, out);
        norm.in[0].v = out[0];
        norm.in[1] = both.in[2];
        norm.in[2] = both.in[3];
        parts_agree(&rigs[r], &both, 0, &add, &a);
        parts_agree(&rigs[r], &both, 1, &norm, &a);

        rig_case(&rest, &a, OP_NORM_GRAD_ADD, "ij,ij,ij,j->ij", ext);
        rig_case(&grad, &a, OP_NORM_GRAD, "ij,ij,j->ij", ext);
        fill(&rest, -1, 2);
        fill(&grad, 0, 1);
        for (int k = 0; k < 3; k++)
            grad.in[k] = rest.in[k + 1];
        rig_run(&rigs[r], &grad, &a, out);
        add.in[0] = rest.in[0];
        add.in[1].v = out[0];
        parts_agree(&rigs[r], &rest, 0, &add, &a);
        arena_clear(&a);
    }
}

// ---- the loss ----------------------------------------------------------------------------------

// 11 of a row's elements, from 22 on; from the limit on they are padding, which an id may still
// name: its number is picked, and its gradient given, as by the parts.
static void padding_takes_no_part_in_the_loss(void **state)
{
    static const int64_t limits[] = {0, 33, 30, 25, 23};
    (void)state;
    for (size_t t = 0; t < 10; t++) {
        struct arena a = {0};
        struct rig_case c;
        int64_t ext[26];
        letters(ext, (struct extents){40, 11, 1, 1});
        bool grad = t % 2;
        rig_case(&c, &a, grad ? OP_ROW_LOSS_GRAD : OP_ROW_LOSS,
                 grad ? "ij,i,i,i,i->ij" : "ij,i->i,i,i", ext);
        fill(&c, -2, 2);
        rig_fill(&c.in[grad ? 3 : 1], 9, 18, 38); // ids before, in and behind the row
        c.attr.start = 22;
        c.attr.limit = limits[t / 2];
        c.in_place = grad;
        run_everywhere(&c, "with padding", 2e-6, 1e-7);
        arena_clear(&a);
    }
}

// Logits, ids and the gradient's dtype are alike in the whole and in its parts.
static void both_as_parts(const struct rig *r, enum dtype t, int64_t n, bool in_place)
{
    struct arena a = {0};
    struct rig_case both, loss, grad;
    double *whole[OP_MAX_OUT], *first[OP_MAX_OUT], *second[OP_MAX_OUT];
    int64_t ext[26];
    letters(ext, (struct extents){19, n, 1, 1});
    rig_case(&both, &a, OP_ROW_LOSS_BOTH, "ij,i,->i,i,i,ij", ext);
    rig_case(&loss, &a, OP_ROW_LOSS, "ij,i->i,i,i", ext);
    rig_case(&grad, &a, OP_ROW_LOSS_GRAD, "ij,i,i,i,i->ij", ext);
    both.in[0].dtype = both.start[3].dtype = loss.in[0].dtype = t;
    grad.in[0].dtype = grad.start[0].dtype = t;
    fill(&both, -3, 3);
    rig_fill(&both.in[1], 7, -1, (double)n + 1);
    both.attr.scale = 0.37f;
    both.attr.limit = loss.attr.limit = grad.attr.limit = n - n / 5;
    both.in_place = in_place;
    loss.in[0] = grad.in[0] = both.in[0];
    loss.in[1] = grad.in[3] = both.in[1];
    rig_run(r, &both, &a, whole);
    rig_run(r, &loss, &a, first);
    grad.in[1].v = first[0];
    const float cotangent = 0.37f * (float)both.in[2].v[0];
    for (int i = 0; i < 19; i++) {
        grad.in[2].v[i] = (double)(cotangent / (float)first[1][i]);
        grad.in[4].v[i] = (double)-cotangent;
    }
    rig_run(r, &grad, &a, second);
    for (int k = 0; k < 3; k++)
        same_bits("a row's loss", whole[k], first[k], 19);
    same_bits("its gradient", whole[3], second[0], 19 * n);
    arena_clear(&a);
}

// Rows of a warp, of a block, and of several turns of it.
static void a_loss_and_its_gradient_have_the_bits_of_both_apart(void **state)
{
    static const int64_t lengths[] = {1, 13, 1000, 1032, 4101, 20008};
    (void)state;
    for (int r = 0; r < nrigs; r++)
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++)
            for (int t = 0; t < 4; t++)
                both_as_parts(&rigs[r], t % 2 ? DT_BF16 : DT_F32, lengths[k], t / 2);
}

// A rank whose part of the vocabulary is all padding gives no gradient but to ids.
static void a_part_of_padding_alone_has_no_exponential(void **state)
{
    (void)state;
    struct arena a = {0};
    struct rig_case c;
    int64_t ext[26];
    letters(ext, (struct extents){5, 8, 1, 1});
    rig_case(&c, &a, OP_ROW_LOSS_GRAD, "ij,i,i,i,i->ij", ext);
    fill(&c, -2, 2);
    rig_fill(&c.in[3], 4, 0, 7); // of other ranks
    c.attr.start = 16;
    c.attr.limit = 12;
    for (int r = 0; r < nrigs; r++) {
        double *got[OP_MAX_OUT];
        rig_run(&rigs[r], &c, &a, got);
        for (int64_t i = 0; i < 40; i++)
            assert_true(got[0][i] == 0);
    }
    arena_clear(&a);
}

// The maximum found on the way grows, falls, comes last, or stands alone far above the rest: a row
// of four and a bit of the pieces that are summed at once.
static void the_sum_follows_a_maximum_wherever_it_stands(void **state)
{
    enum { N = 4500, ROWS = 6 };
    (void)state;
    struct arena a = {0};
    struct rig_case c;
    int64_t ext[26];
    letters(ext, (struct extents){ROWS, N, 1, 1});
    rig_case(&c, &a, OP_ROW_LOSS, "ij,i->i,i,i", ext);
    fill(&c, -1, 1);
    for (int64_t i = 0; i < N; i++) {
        double *x = c.in[0].v + i;
        x[0 * N] = (double)(float)(20.0 * (double)i / N);
        x[1 * N] = (double)(float)(-20.0 * (double)i / N);
        x[2 * N] = i == N - 1 ? 300 : x[2 * N];
        x[3 * N] = i == 0 ? 300 : x[3 * N];
        x[4 * N] = i < 2000 ? -(double)INFINITY : x[4 * N];
        x[5 * N] = i > 1100 ? -(double)INFINITY : x[5 * N];
    }
    run_everywhere(&c, "of a long row", 2e-6, 0);
    arena_clear(&a);
}

// Diverged logits must reach the skip flag: their sum is not finite.
static void what_is_no_number_reaches_the_sum(void **state)
{
    enum { N = 2100 };
    static const struct {
        double first, at_1500, rest;
    } rows[] = {
        {0, (double)NAN, 1},
        {(double)NAN, 1, 1},
        {0, (double)INFINITY, 1},
        {-(double)INFINITY, -(double)INFINITY, -(double)INFINITY},
        {(double)NAN, -(double)INFINITY, -(double)INFINITY},
        {-(double)INFINITY, (double)NAN, -(double)INFINITY},
        {(double)NAN, 2, -(double)INFINITY},
    };
    enum { ROWS = sizeof rows / sizeof *rows };
    (void)state;
    struct arena a = {0};
    struct rig_case c;
    int64_t ext[26];
    letters(ext, (struct extents){ROWS, N, 1, 1});
    rig_case(&c, &a, OP_ROW_LOSS, "ij,i->i,i,i", ext);
    fill(&c, -1, 1);
    for (int64_t i = 0; i < ROWS * N; i++)
        c.in[0].v[i] = i % N == 0      ? rows[i / N].first
                       : i % N == 1500 ? rows[i / N].at_1500
                                       : rows[i / N].rest;
    for (int r = 0; r < nrigs; r++) {
        double *got[OP_MAX_OUT];
        rig_run(&rigs[r], &c, &a, got);
        for (int i = 0; i < ROWS; i++)
            if (isfinite(got[1][i]))
                fail_msg("row %d on %s: the sum is %g", i, rigs[r].info.isa, got[1][i]);
    }
    arena_clear(&a);
}

// The softmax's gradient by differences: of ln Σ exp(x − m) + m − x[id], row by row.
static void the_losss_gradient_is_its_slope(void **state)
{
    enum { ROWS = 5, N = 9 };
    (void)state;
    struct arena a = {0};
    struct rig_case f, g;
    int64_t ext[26];
    letters(ext, (struct extents){ROWS, N, 1, 1});
    rig_case(&f, &a, OP_ROW_LOSS, "ij,i->i,i,i", ext);
    rig_case(&g, &a, OP_ROW_LOSS_GRAD, "ij,i,i,i,i->ij", ext);
    fill(&f, -2, 2);
    rig_fill(&f.in[1], 5, 0, N);
    for (int r = 0; r < nrigs; r++) {
        double *out[OP_MAX_OUT], *d[OP_MAX_OUT];
        rig_run(&rigs[r], &f, &a, out);
        g.in[0] = f.in[0];
        g.in[1].v = out[0];
        g.in[3] = f.in[1];
        for (int i = 0; i < ROWS; i++) {
            g.in[2].v[i] = (double)(float)(1 / out[1][i]);
            g.in[4].v[i] = -1;
        }
        rig_run(&rigs[r], &g, &a, d);
        for (int64_t i = 0; i < (int64_t)ROWS * N; i++) {
            double loss[2];
            for (int side = 0; side < 2; side++) {
                const double h = 1e-5;
                double was = f.in[0].v[i], *x = f.in[0].v + i / N * N, sum = 0;
                f.in[0].v[i] = was + (side ? h : -h);
                for (int k = 0; k < N; k++)
                    sum += exp(x[k]);
                loss[side] = log(sum) - x[(int)f.in[1].v[i / N]];
                f.in[0].v[i] = was;
            }
            double slope = (loss[1] - loss[0]) / 2e-5;
            if (!(fabs(slope - d[0][i]) <= 1e-5))
                fail_msg("element %lld is %.9g, by differences %.9g", (long long)i, d[0][i], slope);
        }
    }
    arena_clear(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_norms_gradient_is_added_to_what_came_before),
        cmocka_unit_test(a_norms_gradient_comes_with_sums_over_rows),
        cmocka_unit_test(one_pass_has_the_bits_of_two),
        cmocka_unit_test(padding_takes_no_part_in_the_loss),
        cmocka_unit_test(a_loss_and_its_gradient_have_the_bits_of_both_apart),
        cmocka_unit_test(a_part_of_padding_alone_has_no_exponential),
        cmocka_unit_test(the_sum_follows_a_maximum_wherever_it_stands),
        cmocka_unit_test(what_is_no_number_reaches_the_sum),
        cmocka_unit_test(the_losss_gradient_is_its_slope),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
