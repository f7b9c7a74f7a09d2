// SPDX-License-Identifier: Apache-2.0
// Optimiser state and gradients cut further than their parameters: which cuts are taken, what they
// save, what is refused, and that no step changes. What they communicate is in
// test_compile_collectives.c.
#include "common/compile/refine.h"
#include "tests/unit/decoder_case.h"

// ---- cuts --------------------------------------------------------------------------------------

// layers/0: [embed 8, mlp 16], [mlp 16] · layers/1: [mlp 16, embed 8], [norm 8] · layers/2:
// [embed 8, classes 4], [classes 4]. 316 floats.
#define JOB                                                        \
    "name: t\n"                                                    \
    "model: {kind: mlp, inputs: 8, hidden: [16, 8], classes: 4}\n" \
    "data: {train: {images: i, labels: l}, batch: 16}\n"           \
    "optimizer: {kind: adamw}\n"                                   \
    "train: {steps: 1, microbatches: 2}\n"

static const struct value *value_named(const struct fixture *f, const char *name)
{
    const struct graph *g = f->c.program[PROGRAM_TRAIN]->graph;
    for (int v = 0; v < g->nvalues; v++)
        if (g->values[v].name && !strcmp(g->values[v].name, name))
            return &g->values[v];
    fail_msg("no %s", name);
    return NULL;
}

static void assert_cut(const struct fixture *f, const char *name, const char *want)
{
    const struct value *v = value_named(f, name);
    struct buf text = {0};
    struct spec cuts = v->spec;
    cuts.partial_sum = 0;
    spec_print(&cuts, &f->c.mesh, v->shape.n, &text);
    if (strcmp(buf_str(&text), want) != 0)
        fail_msg("%s: %s, not %s", name, buf_str(&text), want);
    buf_clear(&text);
}

static void an_axis_goes_to_the_largest_local_dimension_it_divides(void **state)
{
    struct fixture f;
    (void)state;
    compile_text(&f, JOB "mesh: {dp: 8}\nsharding: {optimizer: [dp]}\n", 0);
    assert_cut(&f, "layers/0/weight", "[~, ~]");
    assert_cut(&f, "m/layers/0/weight", "[~, dp]");
    assert_cut(&f, "v/layers/1/weight", "[dp, ~]");
    assert_cut(&f, "m/layers/2/weight", "[dp, ~]"); // 8 divides, 4 does not
    assert_cut(&f, "m/layers/2/bias", "[~]");       // 4 by 8
    fixture_clear(&f);
    // What fsdp cut is half as large: 8 and 16 become 4 and 16; 8 and 4 are a tie, the earliest
    // wins.
    compile_text(&f, JOB "mesh: {dp: 2, fsdp: 2}\nsharding: {optimizer: [dp]}\n", 0);
    assert_cut(&f, "m/layers/0/weight", "[fsdp, dp]");
    assert_cut(&f, "m/layers/2/weight", "[[fsdp, dp], ~]");
    fixture_clear(&f);
    // Each axis on what the one before left: 16 → 4, so the 8 is next. A rule's name is its axes.
    compile_text(&f,
                 JOB "mesh: {x: 4, y: 2}\nsharding: {rules: {batch: [x, y]}, "
                     "optimizer: batch}\n",
                 0);
    assert_cut(&f, "m/layers/0/weight", "[y, x]");
    fixture_clear(&f);
    // In front of the gradient's cut stands the parameter's, behind it the state's.
    compile_text(
        &f, JOB "mesh: {dp: 2, fsdp: 2, tp: 2}\nsharding: {grads: [dp], optimizer: [tp]}\n", 0);
    assert_cut(&f, "layers/1/weight", "[tp, fsdp]");
    assert_cut(&f, "grad/layers/1/weight", "[[tp, dp], fsdp]");
    assert_cut(&f, "m/layers/1/bias", "[[dp, tp]]");
    fixture_clear(&f);
}

static void specs_of_ones_own_cut_what_they_match(void **state)
{
    struct fixture f;
    (void)state;
    compile_text(&f,
                 JOB "mesh: {dp: 2, tp: 2}\nsharding: {optimizer: [{match: \"*/0/weight\", spec: "
                     "[dp, tp]}, {match: \"*/weight\", min: [16], spec: [[tp, dp]]}]}\n",
                 0);
    assert_cut(&f, "layers/0/weight", "[~, tp]");
    assert_cut(&f, "m/layers/0/weight", "[dp, tp]");
    assert_cut(&f, "m/layers/1/weight", "[[tp, dp], ~]");
    assert_cut(&f, "m/layers/2/weight", "[~, ~]");
    assert_cut(&f, "m/layers/0/bias", "[tp]");
    fixture_clear(&f);
}

static void the_plan_shows_what_is_saved(void **state)
{
    static const struct {
        const char *mesh;
        uint64_t grads, optimizer; // floats
    } cases[] = {
        {"{dp: 4}\n", 316, 2 * 316},
        {"{dp: 4}\nsharding: {optimizer: [dp]}\n", 316, 2 * 316 / 4},
        {"{dp: 4}\nsharding: {grads: [dp], optimizer: [dp]}\n", 316 / 4, 2 * 316 / 4},
        {"{dp: 8}\nsharding: {optimizer: [dp]}\n", 316, 2 * (312 / 8 + 4)},
        // fsdp halves the weights (288), dp halves what is left: 144 + 28, of that a half.
        {"{dp: 2, fsdp: 2}\nsharding: {optimizer: [dp]}\n", 144 + 28, 144 + 28},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fixture f;
        char text[600];
        snprintf(text, sizeof text, "%smesh: %s", JOB, cases[i].mesh);
        compile_text(&f, text, 0);
        assert_int_equal(f.c.memory.grads, 4 * cases[i].grads);
        assert_int_equal(f.c.memory.optimizer, 4 * cases[i].optimizer);
        const struct program *p = f.c.program[PROGRAM_TRAIN];
        uint64_t params = f.c.memory.params;
        assert_int_equal(refine_saved(p, BUFFER_GRAD), params - 4 * cases[i].grads);
        assert_int_equal(refine_saved(p, BUFFER_OPTIMIZER), 2 * params - 4 * cases[i].optimizer);
        fixture_clear(&f);
    }
}

// ---- the same step -----------------------------------------------------------------------------

static const struct {
    const char *mesh, *sharding;
} meshes[] = {
    {"dp: 2", "optimizer: [dp]"},
    {"dp: 4", "optimizer: [dp]"},
    {"dp: 4", "grads: [dp], optimizer: [dp]"},
    {"data: 4, model: 2", "optimizer: [data]"},
    {"dp: 2, fsdp: 2", "optimizer: [dp]"},
    {"dp: 2, fsdp: 2", "grads: [dp], optimizer: [dp]"},
    {"dp: 2, tp: 2", "optimizer: [dp]"},
    {"dp: 2, tp: 2", "grads: [dp], optimizer: [dp, tp]"},
    {"dp: 2, tp: 4", "optimizer: batch, activations: {act_seq: [batch, [seq, tp]]}"},
    {"dp: 2, fsdp: 2, tp: 2", "optimizer: [dp]"},
    {"dp: 2, fsdp: 2, tp: 2",
     "grads: [dp], optimizer: [dp, tp], activations: {act_seq: [batch, [seq, tp]]}"},
    {"x: 2, y: 2", "rules: {batch: [x, y]}, grads: [y], optimizer: [x, y]"},
    {"x: 2, y: 4", "rules: {batch: [x], mlp: y, heads: y}, optimizer: [y, x]"},
    {"dp: 2, tp: 2", "optimizer: [{match: \"*mlp/out/weight\", spec: [[tp, dp]]}, "
                     "{match: embed/tokens, spec: [tp, dp]}, {match: norm/weight, spec: [dp]}]"},
};

static void no_cut_of_state_or_gradients_changes_a_step(void **state)
{
    (void)state;
    for (int k = 0; k < MODELS; k++) {
        struct fixture one;
        struct interp whole;
        compile_text(&one, decoder_text(models[k], "dp: 1", 2, ""), 0);
        interp_init(&whole, one.c.global[PROGRAM_TRAIN], NULL, 2);
        set_params(&whole);
        decoder_step(&whole);
        decoder_step(&whole);
        for (size_t c = 0; c < sizeof meshes / sizeof *meshes; c++) {
            struct fixture f;
            struct interp parts;
            compile_text(&f, decoder_text(models[k], meshes[c].mesh, 2, meshes[c].sharding), 0);
            interp_init(&parts, f.c.program[PROGRAM_TRAIN]->graph, &f.c.mesh, 2);
            set_params(&parts);
            decoder_step(&parts);
            decoder_step(&parts);
            compare_params(&whole, &parts, meshes[c].sharding);
            compare(&whole, &parts, "metrics"); // the norm counts each shard once
            interp_clear(&parts);
            fixture_clear(&f);
        }
        interp_clear(&whole);
        fixture_clear(&one);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_axis_goes_to_the_largest_local_dimension_it_divides),
        cmocka_unit_test(specs_of_ones_own_cut_what_they_match),
        cmocka_unit_test(the_plan_shows_what_is_saved),
        cmocka_unit_test(no_cut_of_state_or_gradients_changes_a_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
