// SPDX-License-Identifier: Apache-2.0
// What every model with experts reports of its routers, worked by hand: a job's program is run in double
// precision, and its parts of the metrics are looked at.
#include "tests/unit/compile_case.h"

// Token t has row t of the table, so that a row of the router is its scores.
#define ROUTED(scores)                                                                 \
    "sizes\\n  embed = 2\\n  seq = 2\\n  vocab = 2\\n  experts = 2\\n  group = 1\\n"   \
    "model\\n"                                                                         \
    "  x = embed(tokens, table[vocab, embed])\\n"                                      \
    "  s = " scores "\\n"                                                              \
    "  w, id = top(s, 1)\\n"                                                           \
    "  slot, chosen = slots(id, w, experts, 1, group)\\n"                              \
    "  e = swap(dispatch(x, slot)) @ up[expert* = experts, embed, feature = embed]\\n" \
    "  x = x + combine(swap(e), slot, w){feature as embed}\\n"                         \
    "  loss = cross_entropy(x @ table[vocab, embed], targets)\\n"
#define LOGITS "f32(x) @ router[embed, router = experts]"

struct routed {
    struct fixture f;
    struct interp x;
};

// The first sample's tokens are 0 and 1, the second one's 0 and 0.
static void run_step(struct routed *r, const char *program, int group, const double router[4])
{
    static const double tokens[] = {0, 1, 0, 0}, positions[] = {0, 1, 0, 1}, one = 1;
    static const double table[] = {1, 0, 0, 1};
    char text[2000];
    snprintf(text, sizeof text,
             "name: t\nmodel: {program: ./t.model, group: %d, text: \"%s\"}\n"
             "data: {format: tokens, train: {tokens: t}, batch: 2}\noptimizer: {kind: sgd}\n"
             "schedule: {kind: constant, value: 0.01}\ntrain: {steps: 1}\n",
             group, program);
    compile_text(&r->f, text, 0);
    interp_init(&r->x, r->f.c.global[PROGRAM_TRAIN], NULL, 1);
    set_params(&r->x);
    interp_set(&r->x, "table", table);
    interp_set(&r->x, "router/weight", router);
    interp_set(&r->x, "one", &one);
    interp_feed(&r->x, "tokens", tokens, 0);
    interp_feed(&r->x, "targets", tokens, 0);
    interp_feed(&r->x, "positions", positions, 0);
    interp_phase(&r->x, PHASE_FORWARD, 0);
}

static void expect_part(const struct routed *r, const char *name, const double *want, int n)
{
    double *got = interp_get(&r->x, name);
    for (int i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) < 1e-6)) // a factor is single
            fail_msg("%s[%d]: %.9g, not %.9g", name, i, got[i], want[i]);
    free(got);
}

static void clear(struct routed *r)
{
    interp_clear(&r->x);
    fixture_clear(&r->f);
}

// Token 0 has shares 3/4 and 1/4, token 1 1/10 and 9/10, whichever way the scores are made.
//
//   chosen      [3, 1]; a group of one sample has 1 place an expert, one of two has 2: one finds none
//   balance     2 · Σ choices · shares, of the samples: ½·(.75+.1)/2 + ½·(.25+.9)/2 = 1/2 and
//               1 · 3/4; the mean is 5/4. Of both as one group: 3/4·2.35/4 + 1/4·1.65/4, twice
//   entropy     of 3/4: .562335, of 1/10: .325083; three tokens are 0
static void a_router_reports_its_balance_and_its_entropy(void **state)
{
    static const struct {
        const char *program;
        double router[4];
    } ways[] = {
        {ROUTED("softmax(" LOGITS ", router)"), {1.0986122886681098, 0, 0, 2.1972245773362196}},
        {ROUTED("sigmoid(" LOGITS ")"), // 9/10 and 3/10; 1/10 and 9/10
         {2.1972245773362196, -0.84729786038720367, -2.1972245773362196, 2.1972245773362196}},
        {ROUTED(LOGITS), {1.0986122886681098, 0, 0, 2.1972245773362196}},
    };
    static const double tokens[] = {3, 1}, entropy = (3 * 0.56233514 + 0.32508297) / 4;
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        for (int group = 1; group <= 2; group++) {
            struct routed r;
            const double balance = group == 1 ? 1.25 : 2 * (3 * 2.35 + 1.65) / 16;
            const double dropped = 0.25;
            run_step(&r, ways[i].program, group, ways[i].router);
            expect_part(&r, "expert_tokens", tokens, 2);
            expect_part(&r, "expert_dropped", &dropped, 1);
            expect_part(&r, "expert_balance", &balance, 1);
            expect_part(&r, "router_entropy", &entropy, 1);
            clear(&r);
        }
}

// e^−2000 is 0 in any precision, and 0 · ln 0 no number.
static void a_router_that_is_sure_has_no_entropy(void **state)
{
    static const double sure[] = {2000, 0, 2000, 0}, tokens[] = {4, 0}, none = 0, most = 2;
    struct routed r;
    (void)state;
    run_step(&r, ROUTED("softmax(" LOGITS ", router)"), 1, sure);
    expect_part(&r, "expert_tokens", tokens, 2);
    expect_part(&r, "router_entropy", &none, 1);
    expect_part(&r, "expert_balance", &most, 1);
    clear(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_router_reports_its_balance_and_its_entropy),
        cmocka_unit_test(a_router_that_is_sure_has_no_entropy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
