// SPDX-License-Identifier: Apache-2.0
// What spans keys: defaults taken from other keys, sizes that must agree, keys that need another.
#include "tests/unit/job_case.h"

#include <stdio.h>

static void test_the_mesh_follows_the_devices(void **state)
{
    (void)state;
    struct job_case c;
    case_valid(&c, VALID "resources: {devices: 4}\n");
    assert_string_equal(c.job.mesh.axis[0].name, "dp");
    assert_int_equal(c.job.mesh.axis[0].size, 4);
    case_clear(&c);
}

static void test_the_devices_follow_the_mesh(void **state)
{
    (void)state;
    struct job_case c;
    case_valid(&c, VALID "mesh: {dp: 3}\n");
    assert_int_equal(c.job.resources.devices, 3);
    case_clear(&c);
}

static void test_minus_one_is_what_is_left_of_the_devices(void **state)
{
    (void)state;
    struct job_case c;
    case_valid(&c, VALID "mesh: {data: -1}\nresources: {devices: 6}\n");
    assert_string_equal(c.job.mesh.axis[0].name, "data");
    assert_int_equal(c.job.mesh.axis[0].size, 6);
    case_clear(&c);
    expect_errors(VALID "mesh: {dp: -1}\n", "job.yaml:5:7: mesh: -1 is what is left of "
                                            "resources.devices: say how many\n");
}

static void test_mesh_and_devices_must_agree(void **state)
{
    (void)state;
    expect_errors(VALID "mesh: {dp: 3}\nresources: {devices: 2}\n",
                  "job.yaml:5:7: mesh: {dp: 3} is a mesh of 3 devices: resources.devices is 2\n");
}

static void test_the_batch_is_cut_evenly_or_told_what_would_do(void **state)
{
    (void)state;
    expect_errors(
        VALID "mesh: {dp: 5}\n",
        "job.yaml:3:46: data.batch: 12 is not a multiple of 5 (5 data-parallel devices x 1 "
        "microbatches): 10 or 15 would do\n");
    expect_errors(
        NAME_LINE MODEL_LINE DATA_LINE "train: {steps: 1, microbatches: 4}\nmesh: {dp: 4}\n",
        "job.yaml:3:46: data.batch: 12 is not a multiple of 16 (4 data-parallel devices x 4 "
        "microbatches): 16 would do\n");
    expect_errors(
        NAME_LINE MODEL_LINE DATA_LINE "train: {steps: 1, microbatches: 3}\nmesh: {dp: 4}\n", "");
}

static void test_the_largest_mesh_times_the_most_microbatches_does_not_overflow(void **state)
{
    (void)state;
    expect_errors(
        NAME_LINE MODEL_LINE DATA_LINE "train: {steps: 1, microbatches: 1024}\nmesh: {dp: 65536}\n",
        "job.yaml:3:46: data.batch: 12 is not a multiple of 67108864 (65536 data-parallel "
        "devices x 1024 microbatches): 67108864 would do\n");
}

static void test_evaluation_keys_need_evaluation_data(void **state)
{
    (void)state;
    expect_errors(
        VALID "eval: {every: 5, batches: 2}\n",
        "job.yaml:5:8: eval.every: acts only when data.eval.images or data.eval.tokens is given\n"
        "job.yaml:5:18: eval.batches: acts only when data.eval.images or data.eval.tokens is "
        "given\n");
    struct job_case c;
    case_valid(&c, NAME_LINE MODEL_LINE TRAIN_LINE
               "eval: {every: 5}\n"
               "data: {train: {images: x, labels: y}, batch: 1, eval: {images: p, labels: q}}\n");
    assert_int_equal(c.job.eval.every, 5);
    assert_string_equal(c.job.data.eval.images, "p");
    case_clear(&c);
}

static void test_images_and_labels_come_together(void **state)
{
    (void)state;
    expect_errors(NAME_LINE MODEL_LINE TRAIN_LINE
                  "data: {train: {images: x, labels: y}, batch: 1, eval: {images: p}}\n",
                  "job.yaml:4:55: data.eval.labels: is missing: data.eval.images is given\n");
    expect_errors(NAME_LINE MODEL_LINE TRAIN_LINE
                  "data: {train: {images: x, labels: y}, batch: 1, eval: {labels: p}}\n",
                  "job.yaml:4:55: data.eval.images: is missing: data.eval.labels is given\n");
}

static void test_required_keys_are_asked_for_where_they_would_stand(void **state)
{
    (void)state;
    expect_errors("model: {hidden: [8]}\n" TRAIN_LINE,
                  "job.yaml:1:1: name: is missing: a name has 1 to 63 of a-z 0-9 . _ - and starts "
                  "with a letter or digit\n"
                  "job.yaml:1:1: data.train.images: is missing: file of training samples; relative "
                  "to the job file\n"
                  "job.yaml:1:1: data.batch: is missing: of a step, over all devices and "
                  "microbatches\n"
                  "job.yaml:1:1: data.train.labels: is missing: file of their classes\n"
                  "job.yaml:1:8: model.inputs: is missing: of a sample; for images height times "
                  "width\n"
                  "job.yaml:1:8: model.classes: is missing: labels are 0 to classes - 1\n");
}

static void test_keys_of_another_kind_are_refused_with_the_kind_they_need(void **state)
{
    (void)state;
    expect_errors(
        VALID "optimizer: {kind: sgd, betas: [0.9, 0.99], momentum: 0.9, weight_decay: 1}\n",
        "job.yaml:5:24: optimizer.betas: acts only when optimizer.kind is adam or adamw\n"
        "job.yaml:5:44: optimizer.momentum: acts only when optimizer.kind is momentum\n"
        "job.yaml:5:59: optimizer.weight_decay: acts only when optimizer.kind is adamw\n");
    expect_errors(VALID "schedule: {value: 1, peak: 2}\n",
                  "job.yaml:5:22: schedule.peak: acts only when schedule.kind is cosine or "
                  "warmup_cosine\n");
    expect_errors(VALID "schedule: {kind: cosine, warmup: 2, init: 1, steps: 3}\n",
                  "job.yaml:5:26: schedule.warmup: acts only when schedule.kind is warmup_cosine\n"
                  "job.yaml:5:37: schedule.init: acts only when schedule.kind is linear or "
                  "warmup_cosine\n"
                  "job.yaml:5:46: schedule.steps: acts only when schedule.kind is linear\n");
    expect_errors(VALID "optimizer: {kind: adam, groups: [{match: x, weight_decay: 1}]}\n",
                  "job.yaml:5:33: optimizer.groups: group 0: weight_decay acts only when "
                  "optimizer.kind is adamw\n");
}

static void test_a_wrong_kind_is_one_error_not_one_for_each_of_its_keys(void **state)
{
    (void)state;
    expect_errors(VALID "optimizer: {kind: admaw, betas: [0.9, 0.99]}\n",
                  "job.yaml:5:19: optimizer.kind: 'admaw' is not one of sgd, momentum, adam or "
                  "adamw: did you mean adamw?\n");
}

static void test_the_warm_up_ends_before_the_decay(void **state)
{
    (void)state;
    struct job_case c;
    case_valid(&c, VALID "schedule: {kind: warmup_cosine, warmup: 9}\n");
    assert_int_equal(c.job.schedule.decay, 10); // train.steps
    case_clear(&c);
    expect_errors(
        VALID "schedule: {kind: warmup_cosine, warmup: 10}\n",
        "job.yaml:5:41: schedule.warmup: warmup (10 steps) must be less than decay (10, by "
        "default train.steps), which counts it in\n");
    expect_errors(VALID "schedule: {kind: warmup_cosine, warmup: 10, decay: 5}\n",
                  "job.yaml:5:41: schedule.warmup: warmup (10 steps) must be less than decay (5), "
                  "which counts it in\n");
}

static void test_a_schedule_takes_the_jobs_steps_and_learns_something(void **state)
{
    (void)state;
    struct job_case c;
    case_valid(&c, VALID "schedule: {kind: linear, init: 1e-3}\n");
    assert_int_equal(c.job.schedule.steps, 10);
    case_clear(&c);
    case_valid(&c, VALID "schedule: {kind: cosine}\n");
    assert_int_equal(c.job.schedule.decay, 10);
    case_clear(&c);
    expect_errors(VALID "schedule: {kind: linear, steps: 5}\n",
                  "job.yaml:5:11: schedule.init: is 0 like end: nothing would be learned; init: "
                  "1e-3 would go down to 0\n");
    expect_errors(VALID "schedule: {kind: linear, end: 1, steps: 0}\n",
                  "job.yaml:5:41: schedule.steps: 0 is too small: it must be at least 1\n");
}

static void test_kept_steps_must_be_checkpoint_steps(void **state)
{
    (void)state;
    expect_errors(VALID "checkpoint: {keep_every: 10}\n",
                  "job.yaml:5:26: checkpoint.keep_every: acts only when checkpoint.every is more "
                  "than 0\n");
    expect_errors(VALID "checkpoint: {every: 4, keep_every: 10}\n",
                  "job.yaml:5:36: checkpoint.keep_every: 10 is not a multiple of checkpoint.every "
                  "(4): no checkpoint is made at most of these steps\n");
    expect_errors(VALID "checkpoint: {every: 5, keep_every: 10}\n", "");
}

static void test_the_first_wait_is_not_longer_than_the_longest(void **state)
{
    (void)state;
    expect_errors(VALID "restart: {backoff: [10s, 5s]}\n",
                  "job.yaml:5:20: restart.backoff: the first wait is longer than the longest\n");
    expect_errors(VALID "restart: {backoff: [5s, 5s]}\n", "");
}

static void test_at_least_two_checkpoints_stay(void **state)
{
    (void)state;
    expect_errors(VALID "checkpoint: {keep: 1}\n",
                  "job.yaml:5:20: checkpoint.keep: 1 is too small: it must be at least 2\n");
}

static void test_another_schema_version_is_refused(void **state)
{
    (void)state;
    expect_errors("schema: 2\n" VALID,
                  "job.yaml:1:9: schema: is 2: this version of weft reads schema 1\n");
}

static void test_a_vae_has_no_stages(void **state)
{
    (void)state;
    expect_errors("name: t\nmodel: {kind: vae, inputs: 9, hidden: [8], latent: 2}\n"
                  "data: {train: {images: i}, batch: 4}\n" TRAIN_LINE "mesh: {pp: 2}\n",
                  "job.yaml:5:7: mesh: pp: a vae has no pipeline stages: leave the axis out\n");
}

static void test_a_vae_has_one_hidden_width_and_no_labels(void **state)
{
    (void)state;
    expect_errors("name: t\nmodel: {kind: vae, inputs: 9, hidden: [8, 4], latent: 2, classes: 3}\n"
                  "data: {train: {images: i, labels: l}, batch: 4}\n" TRAIN_LINE,
                  "job.yaml:2:39: model.hidden: a vae has one width, of its encoder and of its "
                  "decoder: [8] would do\n"
                  "job.yaml:2:58: model.classes: acts only when model.kind is mlp\n"
                  "job.yaml:3:35: data.train.labels: acts only when model.kind is mlp\n");
    expect_errors("name: t\nmodel: {kind: vae, inputs: 9, hidden: [8]}\n"
                  "data: {train: {images: i}, eval: {images: i}, batch: 4}\n" TRAIN_LINE,
                  "job.yaml:2:8: model.latent: is missing: of what an image is encoded to\n");
}

static void test_a_share_that_is_dropped_is_below_one(void **state)
{
    (void)state;
    expect_errors(
        "name: t\nmodel: {kind: decoder, dropout: 1, dropout_residual: -0.1}\n"
        "data: {format: tokens, train: {tokens: t}, batch: 4}\n" TRAIN_LINE,
        "job.yaml:2:33: model.dropout: 1 is too large: it must be less than 1\n"
        "job.yaml:2:54: model.dropout_residual: -0.1 is too small: it must be at least 0\n");
}

static void test_everything_wrong_is_told_in_the_order_of_the_file(void **state)
{
    (void)state;
    expect_errors(
        "model: {inputs: 0, hidden: [8], classes: 1}\n"
        "name: Tiny\n"
        "trian: {steps: 1}\n"
        "train: {steps: -1}\n"
        "data: {train: {images: x, labels: y}, batch: 7}\n"
        "mesh: {dp: 2}\n",
        "job.yaml:1:17: model.inputs: 0 is too small: it must be at least 1\n"
        "job.yaml:1:42: model.classes: 1 is too small: it must be at least 2\n"
        "job.yaml:2:7: name: 'Tiny' will not do: a name has 1 to 63 of a-z 0-9 . _ - and "
        "starts with a letter or digit\n"
        "job.yaml:3:1: trian: unknown key: did you mean train?\n"
        "job.yaml:4:16: train.steps: -1 is too small: it must be at least 1\n"
        "job.yaml:5:46: data.batch: 7 is not a multiple of 2 (2 data-parallel devices x 1 "
        "microbatches): 6 or 8 would do\n");
}

#define A_DECODER                                                                       \
    "name: t\nmesh: {dp: 1}\nschedule: {kind: constant, value: 1}\ntrain: {steps: 1}\n" \
    "data: {format: tokens, train: {tokens: t}, batch: 4}\n"

static const struct job_model *decoder_of(struct arena *a, struct job *job, const char *model)
{
    struct job_errors errs = {0};
    struct buf said = {0};
    char text[400];
    snprintf(text, sizeof text, A_DECODER "model: {kind: decoder, %s}\n", model);
    if (job_parse(a, &weft_schema, "job.yaml", NULL, text, strlen(text), NULL, 0, job, &errs)) {
        job_errors_print(&errs, &said);
        fail_msg("%s", buf_str(&said));
    }
    return &job->model;
}

static void test_a_presets_sizes_follow_what_is_given(void **state)
{
    (void)state;
    struct arena a = {0};
    struct job job;
    const struct job_model *m = decoder_of(&a, &job, "preset: gpt2");
    assert_int_equal(m->layers * 1000 + m->head_dim, 12064);
    assert_int_equal(m->mlp, 3072);
    m = decoder_of(&a, &job, "preset: gpt2, layers: 6, embed: 384, heads: 6, seq: 256");
    assert_int_equal(m->head_dim, 64);
    assert_int_equal(m->kv_heads, 6);
    assert_int_equal(m->mlp, 1536);
    assert_int_equal(m->vocab, 50257);
    m = decoder_of(&a, &job, "preset: llama-8b, heads: 16");
    assert_int_equal(m->kv_heads, 8);
    assert_int_equal(m->head_dim, 256);
    assert_true(m->theta == 500000);
    m = decoder_of(&a, &job, "preset: llama, heads: 4, kv_heads: 2, embed: 64, mlp: 100");
    assert_int_equal(m->kv_heads * 1000 + m->mlp, 2100);
    arena_clear(&a);
}

static void test_a_decoders_sizes_must_fit_together(void **state)
{
    static const struct {
        const char *model, *says;
    } cases[] = {
        {"embed: 100, heads: 12", "12 heads do not divide the width, 100"},
        {"preset: llama, head_dim: 63", "a head of 63 elements: rotary positions turn pairs"},
        {"preset: llama, kv_heads: 5", "5 key heads do not divide the 32 query heads"},
        {"kv_heads: 2", "model.kv_heads: acts only when model.preset is llama or"},
        {"hidden: [3]", "model.hidden: acts only when model.kind is mlp"},
        {"layers: 0", "model.layers"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct arena a = {0};
        struct job job;
        struct job_errors errs = {0};
        struct buf said = {0};
        char text[400];
        snprintf(text, sizeof text, A_DECODER "model: {kind: decoder, %s}\n", cases[i].model);
        assert_true(job_parse(&a, &weft_schema, "job.yaml", NULL, text, strlen(text), NULL, 0, &job,
                              &errs) != 0);
        job_errors_print(&errs, &said);
        if (!strstr(buf_str(&said), cases[i].says))
            fail_msg("wanted '%s', got '%s'", cases[i].says, buf_str(&said));
        buf_clear(&said);
        arena_clear(&a);
    }
}

static void test_tokens_are_for_decoders_and_images_for_classifiers(void **state)
{
    (void)state;
    static const char *const texts[] = {
        A_DECODER "model: {kind: mlp, inputs: 2, hidden: [2], classes: 2}\n",
        "name: t\nmesh: {dp: 1}\nschedule: {kind: constant, value: 1}\ntrain: {steps: 1}\n"
        "data: {train: {images: i, labels: l}, batch: 4}\nmodel: {kind: decoder}\n"};
    static const char *const says[] = {"data.format: tokens are for model.kind: decoder",
                                       "data.format: must be tokens: model.kind is decoder"};
    for (int i = 0; i < 2; i++) {
        struct arena a = {0};
        struct job job;
        struct job_errors errs = {0};
        struct buf said = {0};
        assert_true(job_parse(&a, &weft_schema, "job.yaml", NULL, texts[i], strlen(texts[i]), NULL,
                              0, &job, &errs) != 0);
        job_errors_print(&errs, &said);
        if (!strstr(buf_str(&said), says[i]))
            fail_msg("wanted '%s', got '%s'", says[i], buf_str(&said));
        buf_clear(&said);
        arena_clear(&a);
    }
}

static void test_stages_hold_the_models_layers(void **state)
{
    (void)state;
    struct job_case c;
    case_valid(&c, NAME_LINE "model: {inputs: 4, hidden: [8, 8, 8, 8], classes: 3}\n" DATA_LINE
                             "train: {steps: 10}\nmesh: {dp: 2, stage: 3}\n");
    assert_int_equal(job_stages(&c.job), 3);
    assert_int_equal(job_pipeline_axis(&c.job), 1);
    static const int64_t layers[] = {2, 2, 1}; // five: the remainder earliest
    for (int s = 0; s < 3; s++)
        assert_int_equal(job_stage_layers(&c.job, s), layers[s]);
    case_clear(&c);
    expect_errors(VALID "mesh: {pp: 3}\n", "job.yaml:5:7: mesh: pp: 3 stages are more than the "
                                           "model's 2 layers: at most pp: 2\n");
    expect_errors(VALID "mesh: {pipe: 65}\n", "job.yaml:5:7: mesh: pipe: 65 stages: a pipeline has "
                                              "at most 64\n");
    expect_errors(
        VALID "mesh: {pp: 2}\npipeline: {stages: [1, 2]}\n",
        "job.yaml:6:20: pipeline.stages: the stages have 3 layers together, the model has "
        "2: [1, 1] would do\n");
    expect_errors(VALID "mesh: {pp: 2}\npipeline: {stages: [1, 1, 1]}\n",
                  "job.yaml:6:20: pipeline.stages: names 3 stages, the mesh has 2 (pp): [1, 1] "
                  "would do\n");
    expect_errors(VALID "mesh: {dp: 2}\npipeline: {stages: [1, 1]}\n",
                  "job.yaml:6:20: pipeline.stages: names 2 stages, the mesh has none: give it an "
                  "axis pp: 2\n");
    expect_errors(VALID "mesh: {a: 2, b: 2}\nsharding: {rules: {layers: [a, b]}}\n",
                  "job.yaml:6:19: sharding.rules: layers: the stages of a pipeline lie along one "
                  "axis, these are 2\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_mesh_follows_the_devices),
        cmocka_unit_test(test_the_devices_follow_the_mesh),
        cmocka_unit_test(test_minus_one_is_what_is_left_of_the_devices),
        cmocka_unit_test(test_mesh_and_devices_must_agree),
        cmocka_unit_test(test_the_batch_is_cut_evenly_or_told_what_would_do),
        cmocka_unit_test(test_the_largest_mesh_times_the_most_microbatches_does_not_overflow),
        cmocka_unit_test(test_evaluation_keys_need_evaluation_data),
        cmocka_unit_test(test_images_and_labels_come_together),
        cmocka_unit_test(test_required_keys_are_asked_for_where_they_would_stand),
        cmocka_unit_test(test_keys_of_another_kind_are_refused_with_the_kind_they_need),
        cmocka_unit_test(test_a_wrong_kind_is_one_error_not_one_for_each_of_its_keys),
        cmocka_unit_test(test_the_warm_up_ends_before_the_decay),
        cmocka_unit_test(test_a_schedule_takes_the_jobs_steps_and_learns_something),
        cmocka_unit_test(test_kept_steps_must_be_checkpoint_steps),
        cmocka_unit_test(test_the_first_wait_is_not_longer_than_the_longest),
        cmocka_unit_test(test_at_least_two_checkpoints_stay),
        cmocka_unit_test(test_another_schema_version_is_refused),
        cmocka_unit_test(test_a_presets_sizes_follow_what_is_given),
        cmocka_unit_test(test_a_decoders_sizes_must_fit_together),
        cmocka_unit_test(test_tokens_are_for_decoders_and_images_for_classifiers),
        cmocka_unit_test(test_a_vae_has_no_stages),
        cmocka_unit_test(test_a_vae_has_one_hidden_width_and_no_labels),
        cmocka_unit_test(test_a_share_that_is_dropped_is_below_one),
        cmocka_unit_test(test_stages_hold_the_models_layers),
        cmocka_unit_test(test_everything_wrong_is_told_in_the_order_of_the_file),
    };
    return cmocka_run_group_tests_name("job_check", tests, NULL, NULL);
}
