// SPDX-License-Identifier: Apache-2.0
// What a plan says of experts: sizes that do not fit the mesh, an order of axes that costs gathers,
// and what a router's choices and places mean.
#include "common/explain/cost.h"
#include "tests/unit/moe_case.h"

// The finding of a code that the job has; its words have `says` in them.
static void expect_finding(const struct moe *m, const char *mesh, const char *sharding,
                           enum finding_code code, const char *says, char fix[200])
{
    struct fixture f;
    moe = *m;
    int rc = compile_moe(&f, moe_text(mesh, 1, sharding, ""));
    const struct finding *one = find_finding(&f, code, NULL);
    if (!one)
        fail_msg("{%s}: no %s", mesh, finding_name(code));
    if (!strstr(one->message, says))
        fail_msg("%s", one->message);
    assert_int_equal(rc, finding_is_error(code) ? ERR_INVALID : 0);
    snprintf(fix, 200, "%s", one->fix ? one->fix : "");
    fixture_clear(&f);
}

static bool has_finding(const struct moe *m, const char *mesh, const char *sharding,
                        enum finding_code code)
{
    struct fixture f;
    moe = *m;
    (void)compile_moe(&f, moe_text(mesh, 1, sharding, ""));
    bool has = find_finding(&f, code, NULL);
    fixture_clear(&f);
    return has;
}

static void sizes_that_do_not_fit_the_mesh_are_reported_with_what_fits(void **state)
{
    static const struct moe pairs = {6, 2, 0, 2, 1.5, 0, 0.01, 2, 0};
    static const struct moe sevens = {7, 2, 0, 1, 2.5, 0, 0.01, 2, 0};
    static const struct moe fours = {6, 2, 0, 4, 1.5, 0, 0.01, 2, 0};
    char fix[200];
    (void)state;
    expect_finding(&usual, "tp: 2, ep: 2", "", FINDING_INDIVISIBLE,
                   "dimension expert of size 6 does not divide by 4 (tp,ep)", fix);
    expect_finding(&pairs, "dp: 2, ep: 2", "rules: {expert: []}", FINDING_INDIVISIBLE,
                   "6 groups of 2 samples do not divide by 4 (dp,ep), which cut the batch; a group "
                   "lies on one device: try group=1",
                   fix);
    assert_string_equal(fix, "model.group=1");
    expect_finding(&fours, "dp: 2", "", FINDING_INDIVISIBLE, "try group=3", fix);
    expect_finding(&usual, "cp: 2", "", FINDING_INDIVISIBLE,
                   "3 slots an expert, for 12 tokens of a group and 6 experts, do not divide by 2 "
                   "(cp): capacity=1 gives 2 and capacity=2 gives 4",
                   fix);
    // ⌊12·2/7⌋ = 3, ⌊12·4/7⌋ = 6.
    expect_finding(&sevens, "cp: 3", "", FINDING_INDIVISIBLE,
                   "4 slots an expert, for 12 tokens of a group and 7 experts, do not divide by 3 "
                   "(cp): capacity=2 gives 3 and capacity=4 gives 6",
                   fix);
}

static void a_group_that_leaves_samples_over_is_refused(void **state)
{
    static const struct moe fives = {6, 2, 0, 5, 1.5, 0, 0.01, 2, 0};
    static const struct moe scarce = {6, 2, 0, 1, 0.25, 0, 0.01, 2, 0};
    struct fixture f;
    (void)state;
    moe = fives;
    assert_int_equal(compile_moe(&f, moe_text("dp: 1", 2, "", "")), ERR_INVALID);
    assert_non_null(strstr(f.e.text, "a microbatch of 6 samples is no whole number of groups of 5; "
                                     "try group=1, 2, 3 or 6"));
    fixture_clear(&f);
    moe = scarce;
    assert_int_equal(compile_moe(&f, moe_text("dp: 1", 1, "", "")), ERR_INVALID);
    assert_non_null(strstr(f.e.text, "an expert of 6 has no place for any of a group's 12 tokens; "
                                     "capacity=0.5 gives it one"));
    fixture_clear(&f);
}

// The same axes in another order compute the same; each exchange would gather what stands behind. The
// tokens in their places are [12 groups, 6 experts, 3 places, 12 wide] of 4 bytes, 10368 in all.
//
//   [ep, dp]         gather dp to a half: 2592; exchange halves of it: 2592; and as much back
//   [dp, ep]         exchange half of a quarter: 1296, and back
//   expert [ep, tp]  gather tp to a half: 2/3 of 5184; exchange halves of it: 2592; and back
//   expert [tp, ep]  exchange half of a sixth: 864, and back
static void the_axis_of_experts_comes_last(void **state)
{
    char fix[200], text[400];
    (void)state;
    expect_finding(&usual, "dp: 2, ep: 2", "rules: {batch: [ep, dp]}", FINDING_EXPERT_ORDER,
                   "sharding.rules.batch: ep deals tokens to experts and is not last: what stands "
                   "behind it is gathered for each exchange, 10.1 KiB a layer, microbatch and "
                   "direction instead of 2.5 KiB; ",
                   fix);
    assert_string_equal(fix, "sharding.rules.batch=[dp, ep]");
    // fsdp is no axis of this mesh: the same bytes.
    expect_finding(&usual, "dp: 2, ep: 2", "rules: {batch: [ep, dp, fsdp]}", FINDING_EXPERT_ORDER,
                   "exchange, 10.1 KiB a layer, microbatch and direction instead of 2.5 KiB; ",
                   fix);
    assert_string_equal(fix, "sharding.rules.batch=[dp, fsdp, ep]");
    expect_finding(&usual, "ep: 2, tp: 3", "rules: {expert: [ep, tp]}", FINDING_EXPERT_ORDER,
                   "exchange, 11.8 KiB a layer, microbatch and direction instead of 1.7 KiB", fix);
    assert_string_equal(fix, "sharding.rules.expert=[tp, ep]");
    snprintf(text, sizeof text, "rules: {expert: %s}", strchr(fix, '=') + 1);
    assert_false(has_finding(&usual, "ep: 2, tp: 3", text, FINDING_EXPERT_ORDER));
    assert_false(has_finding(&usual, "dp: 2, ep: 2", "", FINDING_EXPERT_ORDER));
    assert_false(has_finding(&usual, "tp: 2", "rules: {batch: [ep, dp]}", FINDING_EXPERT_ORDER));
}

// Experts dealt over an axis that the batch is not cut on: the rest is computed on all of it alike,
// and on its own samples once the batch has the axis too.
static void an_axis_of_experts_alone_repeats_the_rest(void **state)
{
    char fix[200], text[400];
    (void)state;
    expect_finding(&usual, "dp: 2, ep: 3", "rules: {batch: dp}", FINDING_EXPERTS_ALONE,
                   "ep deals experts and does not cut the batch: all else is computed 3 times over",
                   fix);
    assert_string_equal(fix, "sharding.rules.batch=[dp, ep]");
    assert_false(has_finding(&usual, "dp: 2, ep: 3", "rules: {batch: dp}", FINDING_REDUNDANT));
    snprintf(text, sizeof text, "rules: {batch: %s}", strchr(fix, '=') + 1);
    assert_false(has_finding(&usual, "dp: 2, ep: 3", text, FINDING_EXPERTS_ALONE));
    assert_false(has_finding(&usual, "dp: 2, ep: 3", text, FINDING_REDUNDANT));
    assert_false(has_finding(&usual, "dp: 2, tp: 3", "", FINDING_EXPERTS_ALONE));
}

static void a_router_of_one_choice_and_scarce_places_are_reported(void **state)
{
    static const struct moe one = {6, 1, 0, 1, 1, 0, 0.01, 2, 0};
    static const struct moe all = {6, 2, 0, 1, 0, 0, 0.01, 2, 0};
    char fix[200];
    (void)state;
    expect_finding(&one, "dp: 1", "", FINDING_ONE_CHOICE,
                   "layers/1: each token chooses one expert, whose weight is 1", fix);
    // 6 experts of 3 places for 24 choices.
    expect_finding(&usual, "dp: 1", "", FINDING_CHOICES_DROPPED, "at least 25 % are dropped", fix);
    assert_false(has_finding(&usual, "dp: 1", "", FINDING_ONE_CHOICE));
    assert_false(has_finding(&all, "dp: 1", "", FINDING_CHOICES_DROPPED));
}

// A layer's six experts have 12·24 + 24 + 24·12 + 12 = 612 parameters each, and a token needs two; all
// other parameters serve every token. Dropless there are 12 places an expert in a group of 12 tokens:
// 72 for 24 choices, so that two thirds of the experts' FLOPs, each place 2·(12·24 + 24·12), idle.
static void what_a_token_needs_is_counted_apart(void **state)
{
    static const struct moe dropless = {6, 2, 1, 1, 0, 0, 0.01, 2, 0};
    struct fixture f;
    struct cost cost;
    (void)state;
    moe = dropless;
    assert_int_equal(compile_moe(&f, moe_text("ep: 2", 2, "", "")), 0);
    cost_count(&f.c, &f.a, &cost);
    assert_int_equal(cost.params - cost.params_active, 4 * 612);
    double idle = 3.0 * BATCH * (72 - 24) * 2 * (12 * 24 + 24 * 12);
    assert_true(fabs(cost.flops_per_step - cost.flops_active - idle) < 1e-9 * idle);
    fixture_clear(&f);
    moe = usual; // 18 places for 24 choices: none idles
    assert_int_equal(compile_moe(&f, moe_text("dp: 1", 1, "", "")), 0);
    cost_count(&f.c, &f.a, &cost);
    assert_true(cost.flops_per_step == cost.flops_active);
    fixture_clear(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_that_do_not_fit_the_mesh_are_reported_with_what_fits),
        cmocka_unit_test(a_group_that_leaves_samples_over_is_refused),
        cmocka_unit_test(the_axis_of_experts_comes_last),
        cmocka_unit_test(an_axis_of_experts_alone_repeats_the_rest),
        cmocka_unit_test(what_a_token_needs_is_counted_apart),
        cmocka_unit_test(a_router_of_one_choice_and_scarce_places_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
