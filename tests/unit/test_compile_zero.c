// SPDX-License-Identifier: Apache-2.0
// Optimiser state and gradients cut further than their parameters: which cuts are taken, what they
// save, what is refused, and that no step changes. What they communicate is in
// test_compile_collectives.c.
#include "common/explain/cost.h"
#include "tests/unit/decoder_case.h"

// ---- cuts --------------------------------------------------------------------------------------

// layers/0: [embed 8, mlp 16], [mlp 16] · layers/1: [mlp 16, embed 8], [norm 8] · layers/2:
// [embed 8, classes 4], [classes 4]. 316 floats.
#define JOB                                                           \
    "name: t\n"                                                       \
    "model: {program: mlp, inputs: 8, hidden: [16, 8], classes: 4}\n" \
    "data: {train: {images: i, labels: l}, batch: 16}\n"              \
    "optimizer: {kind: adamw}\n"                                      \
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
        assert_int_equal(cost_saved(p, BUFFER_GRAD), params - 4 * cases[i].grads);
        assert_int_equal(cost_saved(p, BUFFER_OPTIMIZER), 2 * params - 4 * cases[i].optimizer);
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
    {"dp: 2, pp: 2", "optimizer: [dp]"},
    {"pp: 2, dp: 2, tp: 2", "grads: [dp], optimizer: [dp, tp]"},
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

// ---- frozen groups -----------------------------------------------------------------------------

static bool made(const struct graph *g, const char *scope, enum phase phase)
{
    for (int i = 0; i < g->nnodes; i++)
        if (g->nodes[i].phase == phase && !strcmp(g->scopes[g->nodes[i].scope], scope))
            return true;
    return false;
}

static const char *frozen_text(const char *groups, const char *mesh)
{
    static char text[1000];
    snprintf(text, sizeof text,
             "name: t\nmodel: {%s, layers: 2, seq: %d, vocab: %d, vocab_multiple: "
             "24}\nmesh: {%s}\ndata: {format: tokens, train: {tokens: t}, batch: %d}\n"
             "optimizer: {weight_decay: 0.1, clip_norm: 0.5, groups: [%s]}\n"
             "schedule: {value: 0.01}\ntrain: {steps: 3}\n",
             models[1], SEQ, VOCAB, mesh, BATCH, groups);
    return text;
}

// All below the last layer's attention is frozen: the backward ends there.
static void frozen_parameters_have_no_gradient_no_state_and_no_backward(void **state)
{
    struct fixture f;
    (void)state;
    compile_text(&f,
                 frozen_text("{match: \"embed/*\", freeze: true}, {match: \"layers/0/*\", "
                             "freeze: true}",
                             "fsdp: 2"),
                 0);
    const struct graph *g = f.c.program[PROGRAM_TRAIN]->graph;
    assert_true(made(g, "layers/0", PHASE_FORWARD) && !made(g, "layers/0", PHASE_BACKWARD));
    assert_true(made(g, "layers/1", PHASE_BACKWARD) && !made(g, "embed", PHASE_BACKWARD));
    // Left: layers/1 (norms 2·24, q 24·8·4, kv 2·24·4·4, out 8·4·24, gate up out 3·24·24), norm,
    // head 24·24; fsdp cuts embed, the norms are whole.
    const uint64_t cut = 24 * 32 + 2 * 24 * 16 + 32 * 24 + 3 * 24 * 24 + 24 * 24, whole = 3 * 24;
    assert_int_equal(f.c.memory.grads, 4 * (cut / 2 + whole));
    assert_int_equal(f.c.memory.optimizer, 2 * 4 * (cut / 2 + whole));
    fixture_clear(&f);
}

static void compare_to_bit(const struct interp *a, const struct interp *b, const char *name)
{
    double *x = interp_get(a, name), *y = interp_get(b, name);
    int64_t n = shape_count(&a->g->values[interp_find(a, name)].shape);
    assert_memory_equal(x, y, sizeof *x * (size_t)n);
    free(x);
    free(y);
}

// The norm and the clip are those of what moves, and what is frozen stays to the bit.
static void frozen_parameters_stay_and_take_no_part_in_the_norm(void **state)
{
    static const char *const frozen[] = {"{match: \"layers/1/*\", freeze: true}",
                                         ("{match: '*/mlp/*', freeze: true}, "
                                          "{match: '*norm*', lr_scale: 0.5}"),
                                         "{match: \"embed/*\", freeze: true}"};
    (void)state;
    for (size_t k = 0; k < sizeof frozen / sizeof *frozen; k++) {
        struct fixture one, f;
        struct interp whole, parts, start;
        compile_text(&one, frozen_text(frozen[k], "dp: 1"), 0);
        interp_init(&whole, one.c.global[PROGRAM_TRAIN], NULL, 1);
        interp_init(&start, one.c.global[PROGRAM_TRAIN], NULL, 1);
        set_params(&whole);
        set_params(&start);
        decoder_step(&whole);
        double sum = 0, *metrics = interp_get(&whole, "metrics");
        for (int v = 0; v < whole.g->nvalues; v++) {
            const struct value *val = &whole.g->values[v];
            if (val->kind == VALUE_SUM && val->of >= 0) {
                assert_false(whole.g->values[val->of].frozen);
                for (int64_t i = 0; i < shape_count(&val->shape); i++)
                    sum += whole.value[v][i] * whole.value[v][i];
            } else if (val->kind == VALUE_PARAM && val->frozen) {
                compare_to_bit(&start, &whole, val->name);
            }
        }
        assert_true(fabs(metrics[METRIC_SQNORM] - sum) <= 1e-12 * sum && sum > 0.25);
        free(metrics);
        decoder_step(&whole);
        compile_text(&f, frozen_text(frozen[k], "dp: 2, fsdp: 2, tp: 2"), 0);
        interp_init(&parts, f.c.program[PROGRAM_TRAIN]->graph, &f.c.mesh, 1);
        set_params(&parts);
        decoder_step(&parts);
        decoder_step(&parts);
        compare_params(&whole, &parts, frozen[k]);
        interp_clear(&whole);
        interp_clear(&parts);
        interp_clear(&start);
        fixture_clear(&one);
        fixture_clear(&f);
    }
}

static void a_job_that_freezes_all_is_refused_with_its_line(void **state)
{
    struct fixture f;
    (void)state;
    compile_text(&f, frozen_text("{match: \"*\", freeze: true}", "dp: 1"), ERR_INVALID);
    assert_non_null(
        strstr(f.e.text, "optimizer.groups (line 5): every parameter is frozen: nothing would"));
    fixture_clear(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_axis_goes_to_the_largest_local_dimension_it_divides),
        cmocka_unit_test(specs_of_ones_own_cut_what_they_match),
        cmocka_unit_test(the_plan_shows_what_is_saved),
        cmocka_unit_test(no_cut_of_state_or_gradients_changes_a_step),
        cmocka_unit_test(frozen_parameters_have_no_gradient_no_state_and_no_backward),
        cmocka_unit_test(frozen_parameters_stay_and_take_no_part_in_the_norm),
        cmocka_unit_test(a_job_that_freezes_all_is_refused_with_its_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
