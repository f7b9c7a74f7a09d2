// SPDX-License-Identifier: Apache-2.0
// What a job's model.init means for the parameters of a program.
#include "common/language/initial.h"
#include "tests/unit/model_case.h"

static const struct value *find_param(const struct model_case *c, const char *name)
{
    for (int i = 0; i < c->g.nvalues; i++)
        if (c->g.values[i].kind == VALUE_PARAM && strcmp(c->g.values[i].name, name) == 0)
            return &c->g.values[i];
    fail_msg("no parameter %s", name);
    return NULL;
}

// As build(), of a job that says what its weights are born with.
static void build_initial(struct model_case *c, const char *text, const char *initial)
{
    struct graph g;
    const struct model_run run = {.kind = PROGRAM_TRAIN, .batch = 4, .step_batch = 8, .seed = 1};
    if (model_case_build(c, text, strlen(text), PROGRAM_TRAIN))
        fail_msg("%s", c->e.text);
    assert_true(initial_read(initial, &c->sizes.initial));
    graph_init(&g, &c->arena, &c->dims, &c->e);
    assert_int_equal(model_build(&g, &c->sizes, &run), 0);
    c->g = g;
}

// The published variances (He et al. 2015, Glorot and Bengio 2010; jax.nn.initializers.variance_scaling
// with in_axis and out_axis of the dimensions that are summed over and made): he 2 / fan-in, xavier
// 2 / (fan-in + fan-out). Stacked and starred dimensions number products, so they are in neither.
static void a_jobs_initial_values_go_to_its_weights(void **state)
{
    static const char text[] =
        "sizes\n  embed = 8\n  heads = 4\n  head_dim = 6\n  experts = 3\n  seq = 5\n"
        "  vocab = 30 padded 16\nmodel\n  x = embed(tokens, table[vocab, embed] ~ normal(0.5))\n"
        "  q, k, v = linear(layernorm(x, norm), qkv[3, embed, heads, head_dim] ~ normal(0.25))\n"
        "  a = linear(q + k + v, out[heads, head_dim, embed] ~ zeros)\n"
        "  e = (x + a) @ up[experts, embed, mlp = 10] ~ fan_in(1)\n"
        "  x = e @ down[experts, mlp, embed]\n"
        "  loss = cross_entropy(x @ head[embed, vocab], targets)\n";
    static const struct {
        const char *name;
        int64_t in, out;
    } weights[] = {{"qkv/weight", 8, 24},
                   {"up/weight", 8, 30},
                   {"down/weight", 30, 8},
                   {"head/weight", 8, 30}};
    static const struct {
        const char *init;
        enum init_kind kind;
        double gain;
        bool both;
    } scaled[] = {{"he_normal", INIT_TRUNCATED, 2, false},
                  {"he_uniform", INIT_UNIFORM, 2, false},
                  {"xavier_normal", INIT_TRUNCATED, 2, true},
                  {"xavier_uniform", INIT_UNIFORM, 2, true},
                  {"fan_in(3)", INIT_NORMAL, 3, false}};
    struct model_case c;
    (void)state;
    for (size_t k = 0; k < sizeof scaled / sizeof *scaled; k++) {
        build_initial(&c, text, scaled[k].init);
        for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
            const struct value *w = find_param(&c, weights[i].name);
            int64_t fan = weights[i].in + (scaled[k].both ? weights[i].out : 0);
            assert_int_equal(w->init, scaled[k].kind);
            assert_true(fabs((double)w->init_std - sqrt(scaled[k].gain / (double)fan)) < 1e-6);
        }
        assert_int_equal(find_param(&c, "table")->init, INIT_NORMAL);
        assert_true(find_param(&c, "table")->init_std == 0.5f);
        assert_int_equal(find_param(&c, "out/weight")->init, INIT_ZERO);
        assert_int_equal(find_param(&c, "norm/weight")->init, INIT_ONE);
        assert_int_equal(find_param(&c, "qkv/bias")->init, INIT_ZERO);
        model_case_clear(&c);
    }
    build_initial(&c, text, "uniform(0.125)");
    assert_int_equal(find_param(&c, "table")->init, INIT_UNIFORM);
    assert_true(find_param(&c, "table")->init_std == 0.125f);
    assert_true(find_param(&c, "qkv/weight")->init_std == 0.125f);
    assert_int_equal(find_param(&c, "out/weight")->init, INIT_ZERO);
    assert_int_equal(find_param(&c, "norm/weight")->init, INIT_ONE);
    model_case_clear(&c);
}

static void what_is_no_initial_value_of_weights_is_not_read(void **state)
{
    static const char *const none[] = {"",
                                       "zeros",
                                       "ones",
                                       "normal",
                                       "normal()",
                                       "normal(0)",
                                       "normal(-1)",
                                       "normal(0.02",
                                       "normal(1)x",
                                       "normal(1,2)",
                                       "normal(nan)",
                                       "normal(1e999)",
                                       "he_normal(2)",
                                       "He_normal",
                                       "normal( 1)"};
    struct initial read;
    (void)state;
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        if (initial_read(none[i], &read))
            fail_msg("'%s' was read", none[i]);
    assert_true(initial_read("truncated(2e-2)", &read));
    assert_int_equal(read.kind, INITIAL_TRUNCATED);
    assert_true(read.number == 0.02);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_jobs_initial_values_go_to_its_weights),
        cmocka_unit_test(what_is_no_initial_value_of_weights_is_not_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
