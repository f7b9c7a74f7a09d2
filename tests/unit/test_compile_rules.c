// SPDX-License-Identifier: Apache-2.0
// The compiler's small parts, each against cases worked by hand: meshes, specs, the contraction
// rule, GEMM layouts, the order of a schedule.
#include <string.h>

#include "common/compile/shard/op_rules.h"
#include "common/compile/shard/partition.h"
#include "common/op/gemm.h"
#include "tests/unit/unit.h"

static const struct mesh grid = {.n = 3, .axis = {{"dp", 2}, {"tp", 3}, {"one", 1}}};

static struct spec spec_of(const char *text)
{
    // "d-t" style: one letter a dimension, d: dp, t: tp, -: uncut.
    struct spec s = {0};
    for (int i = 0; text[i]; i++)
        if (text[i] != '-')
            dim_append(&s.dim[i], text[i] == 't');
    return s;
}

// ---- meshes and specs --------------------------------------------------------------------------

static void ranks_lie_row_major_in_the_mesh(void **state)
{
    (void)state;
    int group[8];
    assert_int_equal(mesh_ranks(&grid), 6);
    assert_int_equal(mesh_coord(&grid, 5, 0), 1);
    assert_int_equal(mesh_coord(&grid, 5, 1), 2);
    assert_int_equal(mesh_all(&grid), 3); // the axis of size 1 counts as absent
    assert_int_equal(mesh_group(&grid, 4, 1 << 0, group), 2);
    assert_int_equal(group[0], 1);
    assert_int_equal(group[1], 4);
    assert_int_equal(mesh_group(&grid, 4, 1 << 1, group), 3);
    assert_int_equal(group[0], 3);
    assert_int_equal(group[2], 5);
}

static void the_first_axis_of_a_dimension_is_the_major_one(void **state)
{
    (void)state;
    struct shape whole = {2, {12, 5}};
    struct spec dt = {0}, td = {0};
    int64_t start[MAX_DIMS];
    dim_append(&dt.dim[0], 0);
    dim_append(&dt.dim[0], 1);
    dim_append(&td.dim[0], 1);
    dim_append(&td.dim[0], 0);
    assert_false(spec_equal(&dt, &td));
    struct shape local = spec_local(&dt, &grid, &whole);
    assert_int_equal(local.dim[0], 2);
    assert_int_equal(local.dim[1], 5);
    spec_start(&dt, &grid, &whole, 4, start); // rank 4: dp 1, tp 1 → part 1·3 + 1
    assert_int_equal(start[0], 8);
    spec_start(&td, &grid, &whole, 4, start); // part 1·2 + 1
    assert_int_equal(start[0], 6);
    int bad;
    assert_false(spec_divides(&dt, &grid, &(struct shape){2, {10, 5}}, &bad));
    assert_int_equal(bad, 0);
}

static void rules_skip_an_axis_that_an_earlier_dimension_uses(void **state)
{
    (void)state;
    struct rules rules = {0};
    rules.n = 2;
    rules.rule[0].dim = DIM_BATCH;
    dim_append(&rules.rule[0].axes, 0);
    rules.rule[1].dim = DIM_MLP;
    dim_append(&rules.rule[1].axes, 0);
    dim_append(&rules.rule[1].axes, 1);
    struct value v = {.shape = {2, {4, 12}}, .dims = {DIM_BATCH, DIM_MLP}};
    struct spec s = rules_spec(&rules, &grid, &v), want = spec_of("dt");
    assert_true(spec_equal(&s, &want));
}

static struct spec cut_rows_of(const struct rules *rules, enum dim dim)
{
    struct value v = {.kind = VALUE_PARAM, .shape = {2, {12, 12}}, .dims = {dim, DIM_NONE}};
    return rules_spec(rules, &grid, &v);
}

static void a_dimension_is_cut_by_its_own_rule_or_else_as_what_it_is_like(void **state)
{
    struct arena a = {0};
    struct dims dims;
    (void)state;
    dims_init(&dims, &a);
    enum dim shared = dims_id(&dims, "shared"), wide = dims_id(&dims, "wide"),
             latent = dims_id(&dims, "latent_of_keys");
    struct rules rules = {.dims = &dims, .n = 2, .rule = {{.dim = DIM_MLP}, {.dim = latent}}};
    dim_append(&rules.rule[0].axes, 1);
    dim_append(&rules.rule[1].axes, 0);
    dims_set_like(&dims, shared, DIM_MLP);
    dims_set_like(&dims, wide, shared);
    dims_set_like(&dims, latent, DIM_MLP);
    struct spec s = cut_rows_of(&rules, wide), by_mlp = spec_of("t-"), own = spec_of("d-");
    assert_true(spec_equal(&s, &by_mlp));
    s = cut_rows_of(&rules, latent);
    assert_true(spec_equal(&s, &own));
    s = cut_rows_of(&rules, dims_id(&dims, "nobody's"));
    assert_true(spec_equal(&s, &(struct spec){0}));
    assert_string_equal(dims_name(&dims, wide), "wide");
    assert_int_equal(dims_id(&dims, "wide"), wide);
    arena_clear(&a);
}

static void dimensions_that_would_be_like_each_other_stay_apart(void **state)
{
    struct arena a = {0};
    struct dims dims;
    (void)state;
    dims_init(&dims, &a);
    enum dim one = dims_id(&dims, "one"), two = dims_id(&dims, "two");
    dims_set_like(&dims, one, two);
    dims_set_like(&dims, two, one);
    assert_true(dims_follows(&dims, one, two));
    assert_false(dims_follows(&dims, two, one));
    arena_clear(&a);
}

// ---- the contraction rule ----------------------------------------------------------------------

struct product {
    struct arena a;
    struct err e;
    struct graph g;
    struct shard_query q;
    struct spec x, w, want;
};

// x [batch, embed] · w [embed, mlp] → [batch, mlp]
static void ask(struct product *p, const char *x, const char *w, const char *want, bool has_want)
{
    memset(p, 0, sizeof *p);
    graph_init(&p->g, &p->a, NULL, &p->e);
    graph_scope(&p->g, "s");
    int in = graph_value(&p->g, VALUE_TEMP, "x", DT_F32, 2, (enum dim[]){DIM_BATCH, DIM_EMBED},
                         (int64_t[]){6, 12});
    int weight = graph_param(&p->g, "w", 2, (enum dim[]){DIM_EMBED, DIM_MLP}, (int64_t[]){12, 18},
                             INIT_ZERO, 0);
    graph_matmul(&p->g, in, weight, 2, (enum dim[]){DIM_BATCH, DIM_MLP});
    p->x = spec_of(x);
    p->w = spec_of(w);
    p->want = spec_of(want);
    p->q = (struct shard_query){.mesh = &grid,
                                .graph = &p->g,
                                .node = &p->g.nodes[0],
                                .in = {&p->x, &p->w},
                                .want = &p->want,
                                .has_want = has_want};
    op_shard(&p->q);
}

static void check(const struct product *p, const char *x, const char *w, const char *out,
                  axis_set partial)
{
    struct spec sx = spec_of(x), sw = spec_of(w), so = spec_of(out);
    so.partial_sum = partial;
    assert_true(spec_equal(&p->q.need[0], &sx));
    assert_true(spec_equal(&p->q.need[1], &sw));
    assert_true(spec_equal(&p->q.out[0], &so));
}

static void a_batch_cut_passes_through_a_product(void **state)
{
    (void)state;
    struct product p;
    ask(&p, "d-", "--", "d-", true);
    check(&p, "d-", "--", "d-", 0);
    arena_clear(&p.a);
}

static void the_wanted_cut_comes_to_operands_that_lack_it(void **state)
{
    (void)state;
    struct product p;
    ask(&p, "--", "--", "dt", true);
    check(&p, "d-", "-t", "dt", 0);
    arena_clear(&p.a);
}

static void operands_cut_alike_on_the_contraction_stay_and_make_parts_of_a_sum(void **state)
{
    (void)state;
    struct product p;
    // Rule 0 comes before rule 1: the output wants tp on mlp and does not get it.
    ask(&p, "dt", "t-", "dt", true);
    check(&p, "dt", "t-", "d-", 1 << 1);
    arena_clear(&p.a);
}

static void a_contraction_cut_in_one_operand_cuts_the_other_too(void **state)
{
    (void)state;
    struct product p;
    ask(&p, "dt", "--", "d-", true);
    check(&p, "dt", "t-", "d-", 1 << 1);
    arena_clear(&p.a);
}

static void a_cut_elsewhere_gives_way_to_the_wanted_one(void **state)
{
    (void)state;
    struct product p;
    // Rule 1: w is cut on tp over embed, the output wants tp on mlp: w is gathered and cut there.
    ask(&p, "d-", "t-", "dt", true);
    check(&p, "d-", "-t", "dt", 0);
    arena_clear(&p.a);
}

// Rule 3: 12·18 of w gathered over tp (2/3·864) or 3·18 of the output (2/3·216): the cut stays.
static void a_free_cut_that_nobody_wants_is_kept_when_the_output_is_cheaper_to_gather(void **state)
{
    (void)state;
    struct product p;
    ask(&p, "d-", "-t", "d-", true);
    check(&p, "d-", "-t", "dt", 0);
    arena_clear(&p.a);
}

// x is cut on tp along the batch, which the output wants on dp only: x (6·12) or the output (6·18).
static void a_free_cut_that_nobody_wants_is_gathered_when_the_operand_is_cheaper(void **state)
{
    (void)state;
    struct product p;
    ask(&p, "t-", "--", "--", true);
    check(&p, "--", "--", "--", 0);
    arena_clear(&p.a);
}

static void a_free_cut_stays_where_nothing_is_wanted(void **state)
{
    (void)state;
    struct product p;
    ask(&p, "t-", "--", "--", false);
    check(&p, "t-", "--", "t-", 0);
    arena_clear(&p.a);
}

// ---- GEMM layouts ------------------------------------------------------------------------------

static void labels_become_batched_gemms(void **state)
{
    (void)state;
    struct gemm g;
    // dW [k,n] = xᵀ dy: x [b,k], dy [b,n]
    struct op_attr grad = {.label = {{2, 0}, {2, 1}, {0, 1}}};
    assert_true(gemm_from_labels(&grad, &(struct shape){2, {8, 3}}, &(struct shape){2, {8, 5}},
                                 &(struct shape){2, {3, 5}}, &g));
    assert_int_equal(g.m, 3);
    assert_int_equal(g.n, 5);
    assert_int_equal(g.k, 8);
    assert_true(g.trans_a && !g.trans_b);
    assert_int_equal(g.lda, 3);
    assert_int_equal(g.ldb, 5);
    // attention scores [b,h | q,k]: q [b,h,q,d] · k [b,h,k,d]
    struct op_attr att = {.label = {{0, 1, 2, 4}, {0, 1, 3, 4}, {0, 1, 2, 3}}};
    assert_true(gemm_from_labels(&att, &(struct shape){4, {2, 3, 5, 7}},
                                 &(struct shape){4, {2, 3, 6, 7}}, &(struct shape){4, {2, 3, 5, 6}},
                                 &g));
    assert_int_equal(g.batch, 6);
    assert_true(!g.trans_a && g.trans_b);
    assert_int_equal(g.stride_b, 42);
    // two contracted dimensions, adjacent in both: one k
    struct op_attr out = {.label = {{0, 2, 3}, {2, 3, 1}, {0, 1}}};
    assert_true(gemm_from_labels(&out, &(struct shape){3, {4, 2, 3}}, &(struct shape){3, {2, 3, 5}},
                                 &(struct shape){2, {4, 5}}, &g));
    assert_int_equal(g.k, 6);
    // the contracted pair in another order would need a transpose
    struct op_attr bad = {.label = {{0, 2, 3}, {3, 2, 1}, {0, 1}}};
    assert_false(gemm_from_labels(&bad, &(struct shape){3, {4, 2, 3}},
                                  &(struct shape){3, {3, 2, 5}}, &(struct shape){2, {4, 5}}, &g));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_lie_row_major_in_the_mesh),
        cmocka_unit_test(the_first_axis_of_a_dimension_is_the_major_one),
        cmocka_unit_test(rules_skip_an_axis_that_an_earlier_dimension_uses),
        cmocka_unit_test(a_dimension_is_cut_by_its_own_rule_or_else_as_what_it_is_like),
        cmocka_unit_test(dimensions_that_would_be_like_each_other_stay_apart),
        cmocka_unit_test(a_batch_cut_passes_through_a_product),
        cmocka_unit_test(the_wanted_cut_comes_to_operands_that_lack_it),
        cmocka_unit_test(operands_cut_alike_on_the_contraction_stay_and_make_parts_of_a_sum),
        cmocka_unit_test(a_contraction_cut_in_one_operand_cuts_the_other_too),
        cmocka_unit_test(a_cut_elsewhere_gives_way_to_the_wanted_one),
        cmocka_unit_test(a_free_cut_that_nobody_wants_is_kept_when_the_output_is_cheaper_to_gather),
        cmocka_unit_test(a_free_cut_that_nobody_wants_is_gathered_when_the_operand_is_cheaper),
        cmocka_unit_test(a_free_cut_stays_where_nothing_is_wanted),
        cmocka_unit_test(labels_become_batched_gemms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
