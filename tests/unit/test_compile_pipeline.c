// SPDX-License-Identifier: Apache-2.0
// Pipelines: stages take turns that come to an end, what crosses between them is what must, and no
// deal of the layers changes a step. Times, counts and bytes are worked out by hand.
#include "common/compile/cost.h"
#include "common/compile/verify.h"
#include "tests/unit/decoder_case.h"

// ---- the same step ------------------------------------------------------------------------------

// Gradients and the metrics are the last step's, parameters of two.
static void compare_steps(const struct interp *whole, const struct interp *parts, const char *what)
{
    compare_params(whole, parts, what);
    double *one = interp_get(whole, "metrics"), *all = interp_get(parts, "metrics");
    for (int i = 0; i < METRIC_PARTS; i++)
        if (!(fabs(one[i] - all[i]) <= 1e-9 * (1 + fabs(one[i]))))
            fail_msg("%s: metric %d: %.15g, not %.15g", what, i, all[i], one[i]);
    assert_true(one[METRIC_LOSS] > 0 && one[METRIC_SQNORM] > 0);
    free(one);
    free(all);
    for (int v = 0; v < whole->g->nvalues; v++) {
        const struct value *val = &whole->g->values[v];
        if (val->kind != VALUE_SUM || val->of < 0)
            continue;
        double *a = interp_get(whole, val->name), *b = interp_get(parts, val->name);
        for (int64_t i = 0; i < shape_count(&val->shape); i++)
            if (!(fabs(a[i] - b[i]) <= 1e-9 * (1 + fabs(a[i]))))
                fail_msg("%s: %s[%lld]: %.15g, not %.15g", what, val->name, (long long)i, b[i],
                         a[i]);
        free(a);
        free(b);
    }
}

static const char *mlp_text(const char *mesh, int microbatches, const char *more)
{
    static char text[1000];
    snprintf(text, sizeof text,
             "name: t\n"
             "model: {kind: mlp, inputs: 8, hidden: [16, 8, 16, 8], classes: 4, activation: gelu}\n"
             "mesh: {%s}\n"
             "data: {train: {images: i, labels: l}, eval: {images: i, labels: l}, batch: 16}\n"
             "optimizer: {kind: adamw, weight_decay: 0.1, clip_norm: 0.5}\n"
             "schedule: {kind: constant, value: 0.01}\n"
             "train: {steps: 3, microbatches: %d, seed: 5}\n%s",
             mesh, microbatches, more);
    return text;
}

struct piped {
    const char *mesh;
    int microbatches;
    const char *more; // of the job
};

static void mlp_case(const struct interp *whole, const struct piped *p)
{
    struct fixture f;
    struct interp parts;
    compile_text(&f, mlp_text(p->mesh, p->microbatches, p->more), 0);
    make_batch(&f);
    interp_init(&parts, f.c.program[PROGRAM_TRAIN]->graph, &f.c.mesh, p->microbatches);
    set_params(&parts);
    step(&f, &parts);
    step(&f, &parts);
    compare_steps(whole, &parts, p->mesh);
    assert_true(parts.sent > 0);
    interp_clear(&parts);
    fixture_clear(&f);
}

static void a_classifier_cut_into_stages_trains_as_on_one_device(void **state)
{
    static const struct piped cases[] = {
        {"pp: 2", 1, ""},
        {"pp: 2", 2, "pipeline: {schedule: gpipe}\n"},
        {"pipe: 4", 4, ""},
        {"stage: 5", 2, ""},
        {"pp: 4", 2, "pipeline: {schedule: gpipe, stages: [1, 1, 1, 2]}\n"},
        {"pp: 2", 4, "pipeline: {stages: [1, 4]}\n"},
        {"dp: 2, pp: 2", 2, ""},
        {"pp: 2, dp: 2", 4, "pipeline: {stages: [4, 1]}\n"},
        {"dp: 2, pp: 2, tp: 2", 2, ""},
        {"pp: 2, fsdp: 2", 2, ""},
        {"tp: 2, pp: 4", 1, "pipeline: {schedule: gpipe}\n"},
        {"data: 2, x: 2", 2, "sharding: {rules: {layers: x}}\n"},
    };
    struct fixture one;
    struct interp whole;
    (void)state;
    compile_text(&one, mlp_text("dp: 1", 1, ""), 0);
    make_batch(&one);
    interp_init(&whole, one.c.global[PROGRAM_TRAIN], NULL, 1);
    set_params(&whole);
    step(&one, &whole);
    step(&one, &whole);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        mlp_case(&whole, &cases[c]);
    interp_clear(&whole);
    fixture_clear(&one);
}

static const char *decoder_deep(const char *model, const char *mesh, int microbatches,
                                const char *train, const char *more)
{
    static char text[1200];
    const char *two = decoder_job(model, mesh, microbatches, "", train), *at = strstr(two, "layers: 2");
    const char *plain = strstr(two, "sharding: {}\n");
    assert_non_null(at);
    assert_non_null(plain);
    snprintf(text, sizeof text, "%.*slayers: 4%.*s%s%s", (int)(at - two), two,
             (int)(plain - at) - 9, at + 9, plain + strlen("sharding: {}\n"), more);
    return text;
}

static void decoder_case(const struct interp *whole, const char *model, const struct piped *p)
{
    struct fixture f;
    struct interp parts;
    compile_text(&f, decoder_deep(model, p->mesh, p->microbatches, "", p->more), 0);
    interp_init(&parts, f.c.program[PROGRAM_TRAIN]->graph, &f.c.mesh, p->microbatches);
    set_params(&parts);
    decoder_step(&parts);
    decoder_step(&parts);
    compare_steps(whole, &parts, p->mesh);
    interp_clear(&parts);
    fixture_clear(&f);
}

// gpt2's head is its embedding: a stage group. The others' is their own.
static void a_decoder_cut_into_stages_trains_as_on_one_device(void **state)
{
    static const struct piped cases[] = {
        {"pp: 2", 1, ""},
        {"pp: 2", 2, "pipeline: {schedule: gpipe}\n"},
        {"pp: 4", 4, ""},
        {"pp: 4", 2, "pipeline: {schedule: gpipe}\n"},
        {"pp: 2", 4, "pipeline: {stages: [1, 3]}\n"},
        {"dp: 2, pp: 2", 2, "pipeline: {stages: [3, 1]}\n"},
        {"dp: 2, pp: 2, tp: 2", 2, ""},
        {"pp: 2, fsdp: 2", 2, ""},
        {"pp: 2, tp: 2", 1, "sharding: {activations: {act_seq: [batch, [seq, tp]]}}\n"},
        {"pp: 3, fsdp: 2", 4, ""},
    };
    (void)state;
    for (int k = 0; k < MODELS; k++) {
        struct fixture one;
        struct interp whole;
        compile_text(&one, decoder_deep(models[k], "dp: 1", 1, "", ""), 0);
        interp_init(&whole, one.c.global[PROGRAM_TRAIN], NULL, 1);
        set_params(&whole);
        decoder_step(&whole);
        decoder_step(&whole);
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
            decoder_case(&whole, models[k], &cases[c]);
        interp_clear(&whole);
        fixture_clear(&one);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_classifier_cut_into_stages_trains_as_on_one_device),
        cmocka_unit_test(a_decoder_cut_into_stages_trains_as_on_one_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
