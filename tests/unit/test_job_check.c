// SPDX-License-Identifier: Apache-2.0
// What spans keys: defaults taken from other keys, sizes that must agree, keys that need another.
#include "common/language/model_sizes.h"
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

static int64_t threads_in(const char *file, const char *text)
{
    struct job_case c = {0};
    assert_int_equal(job_parse(&c.arena, &weft_schema, file, NULL, text, strlen(text), NULL, 0,
                               &c.job, &c.errors),
                     0);
    int64_t threads = c.job.resources.threads;
    case_clear(&c);
    return threads;
}

static void test_threads_are_open_where_the_job_names_none(void **state)
{
    (void)state;
    assert_int_equal(threads_in("job.yaml", VALID), 0);
    assert_int_equal(threads_in(NULL, VALID), 0);
    assert_int_equal(threads_in("job.yaml", VALID "resources: {threads: 7}\n"), 7);
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

static void test_the_batch_is_cut_evenly_or_refused_with_what_fits(void **state)
{
    (void)state;
    expect_errors(
        VALID "mesh: {dp: 5}\n",
        "job.yaml:3:46: data.batch: 12 is not a multiple of 5 (5 data-parallel devices x 1 "
        "microbatches): try 10 or 15\n");
    expect_errors(
        NAME_LINE MODEL_LINE DATA_LINE "train: {steps: 1, microbatches: 4}\nmesh: {dp: 4}\n",
        "job.yaml:3:46: data.batch: 12 is not a multiple of 16 (4 data-parallel devices x 4 "
        "microbatches): try 16\n");
    expect_errors(
        NAME_LINE MODEL_LINE DATA_LINE "train: {steps: 1, microbatches: 3}\nmesh: {dp: 4}\n", "");
}

static void test_the_largest_mesh_times_the_most_microbatches_does_not_overflow(void **state)
{
    (void)state;
    expect_errors(
        NAME_LINE MODEL_LINE DATA_LINE "train: {steps: 1, microbatches: 1024}\nmesh: {dp: 65536}\n",
        "job.yaml:3:46: data.batch: 12 is not a multiple of 67108864 (65536 data-parallel "
        "devices x 1024 microbatches): try 67108864\n");
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
                  "to the job file, for weft submit to the workers' --data-root\n"
                  "job.yaml:1:1: data.batch: is missing: of a step, over all devices and "
                  "microbatches\n"
                  "job.yaml:1:8: model.program: is missing: the model: one that comes with weft "
                  "(weft model list), or the path of a text of your own (weft model new), relative "
                  "to the job file; its sizes are the section's other keys\n");
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

static void test_a_batch_per_device_is_that_times_the_devices_that_share_it(void **state)
{
    (void)state;
    static const struct {
        const char *text, *override;
        int64_t batch;
    } cases[] = {
        {"mesh: {dp: 2, tp: 2}\n", NULL, 6},
        {"mesh: {dp: 2, fsdp: 4, tp: 2}\n", NULL, 24},
        {"mesh: {dp: 2, tp: 2}\nsharding: {rules: {batch: [tp, dp]}}\n", NULL, 12},
        {"mesh: {tp: 2}\n", NULL, 3},
        {"mesh: {dp: 2}\n", "data.batch=10", 10},
        {"mesh: {dp: 2}\n", "data.batch_per_device=5", 10},
        {"mesh: {dp: 2}\n", "mesh={dp: 4}", 12},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct job_case c, again;
        char text[400];
        snprintf(text, sizeof text,
                 NAME_LINE MODEL_LINE
                 "data: {train: {images: x, labels: y}, batch_per_device: 3}\n" TRAIN_LINE "%s",
                 cases[i].text);
        if (case_read(&c, text, strlen(text), &cases[i].override, cases[i].override != NULL))
            fail_msg("%s", buf_str(&c.text));
        assert_int_equal(c.job.data.batch, cases[i].batch);
        case_valid(&again, buf_str(&c.text)); // the resolved job says the batch itself
        assert_int_equal(again.job.data.batch, cases[i].batch);
        assert_string_equal(buf_str(&again.text), buf_str(&c.text));
        case_clear(&c);
        case_clear(&again);
    }
}

static void test_two_sizes_of_one_batch_are_refused(void **state)
{
    (void)state;
#define BATCH(b) NAME_LINE MODEL_LINE "data: {train: {images: x, labels: y}, " b "}\n" TRAIN_LINE
    expect_errors(BATCH("batch: 4, batch_per_device: 2"),
                  "job.yaml:3:67: data.batch_per_device: data.batch says how large the batch is: "
                  "leave one of them out\n");
    expect_errors(BATCH("batch_per_device: 0"),
                  "job.yaml:3:7: data.batch: is missing: of a step, over all devices and "
                  "microbatches\n");
    expect_errors(BATCH("batch_per_device: 16777216") "mesh: {dp: 2}\n",
                  "job.yaml:3:57: data.batch_per_device: 16777216 for each of 2 devices is "
                  "33554432 samples: try at most 8388608\n");
    expect_errors(NAME_LINE MODEL_LINE
                  "data: {train: {images: x, labels: y}, batch_per_device: 3}\n"
                  "train: {steps: 1, microbatches: 2}\n",
                  "job.yaml:3:7: data.batch: 3 is not a multiple of 2 (1 data-parallel devices x 2 "
                  "microbatches): try 2 or 4\n");
#undef BATCH
}

static void test_weights_are_born_as_the_job_says(void **state)
{
    (void)state;
    struct job_case c;
    case_valid(&c, NAME_LINE "model: {program: mlp, init: normal(0.5)}\n" DATA_LINE TRAIN_LINE);
    assert_int_equal(c.job.model.sizes->initial.kind, INITIAL_NORMAL);
    assert_true(c.job.model.sizes->initial.number == 0.5);
    assert_non_null(strstr(buf_str(&c.text), "  init: \"normal(0.5)\"\n"));
    case_clear(&c);
    case_valid(&c, VALID);
    assert_int_equal(c.job.model.sizes->initial.kind, INITIAL_UNSAID);
    case_clear(&c);
    const char *text = NAME_LINE "model: {program: mlp, init: orthogonal}\n" DATA_LINE TRAIN_LINE;
    assert_int_equal(case_read(&c, text, strlen(text), NULL, 0), ERR_INVALID);
    assert_non_null(
        strstr(buf_str(&c.text), "job.yaml:2:29: model.init: 'orthogonal' will not do: "));
    case_clear(&c);
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

static void test_at_least_one_checkpoint_stays(void **state)
{
    (void)state;
    expect_errors(VALID "checkpoint: {keep: 1, first: true}\n", "");
    expect_errors(VALID "checkpoint: {keep: 0}\n",
                  "job.yaml:5:20: checkpoint.keep: 0 is too small: it must be at least 1\n");
}

static void test_the_best_checkpoint_is_one_that_was_evaluated(void **state)
{
    (void)state;
#define EVAL                                                                                    \
    NAME_LINE MODEL_LINE "data: {train: {images: x, labels: y}, eval: {images: x, labels: y}, " \
                         "batch: 12}\n" TRAIN_LINE
    expect_errors(VALID "checkpoint: {every: 2, best: eval_loss}\n",
                  "job.yaml:5:30: checkpoint.best: acts only when data.eval is given\n");
    expect_errors(EVAL "checkpoint: {every: 2, best: eval_loss}\n",
                  "job.yaml:5:30: checkpoint.best: checkpoint.every (2) is not a multiple of "
                  "eval.every (0): no evaluation says how good most of the checkpoints are\n");
    expect_errors(EVAL "checkpoint: {every: 4, best: eval_loss}\neval: {every: 3}\n",
                  "job.yaml:5:30: checkpoint.best: checkpoint.every (4) is not a multiple of "
                  "eval.every (3): no evaluation says how good most of the checkpoints are\n");
    expect_errors(EVAL "checkpoint: {every: 6, best: eval_loss}\neval: {every: 3}\n", "");
    expect_errors(EVAL "checkpoint: {best: eval_loss}\n", "");
#undef EVAL
}

static void test_another_schema_version_is_refused(void **state)
{
    (void)state;
    expect_errors("schema: 3\n" VALID,
                  "job.yaml:1:9: schema: is 3: this version of weft reads schema 2\n");
}

// Nothing is repeated in it; the second has blocks.
#define BARE                                                                                \
    "model: {program: ./bare.model, text: \"sizes\\n  inputs = 9\\nmodel\\n  y = images @ " \
    "w[inputs, out = 3]\\n  loss = sum(y) / samples\\n\"}\n"
#define TIED "model: {program: ./tests/unit/programs/tied.model}\n"

static void test_a_model_without_layers_has_no_stages(void **state)
{
    (void)state;
    expect_errors(
        "name: t\n" BARE "data: {train: {images: i}, batch: 4}\n" TRAIN_LINE "mesh: {pp: 2}\n",
        "job.yaml:5:7: mesh: pp: 2 stages: a pipeline is cut between layers, turns of "
        "`repeat` or `layer` blocks, and with its sizes the model has none: leave the axis out\n");
}

static void test_a_model_without_layers_has_no_insides_to_remake(void **state)
{
    (void)state;
    expect_errors("name: t\n" BARE "data: {train: {images: i}, batch: 4}\n"
                  "train: {steps: 2, remat: block}\n",
                  "job.yaml:4:26: train.remat: acts on layers, turns of `repeat` or `layer` "
                  "blocks, and with its sizes the model has none: try none\n");
    expect_errors("name: t\n" TIED "data: {train: {images: i}, batch: 4}\n"
                  "train: {steps: 2, remat: block}\n",
                  "");
}

// Of a vae each width of either side is a layer, the latent one and the output another.
static void test_every_program_has_stages(void **state)
{
    static const char *const each[] = {
        "model: {program: vae}\nmesh: {pp: 2}\ndata: {train: {images: i}, batch: 4}\n",
        "model: {program: vae, hidden: [9, 8]}\nmesh: {pp: 6}\ndata: {train: {images: i}, batch: "
        "4}\n",
        "model: {program: mlp, hidden: [9]}\nmesh: {pp: 2}\n" DATA_LINE,
        "model: {program: mlp, hidden: [9, 8, 7]}\nmesh: {pp: 4}\n" DATA_LINE,
    };
    (void)state;
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        char text[500];
        snprintf(text, sizeof text, NAME_LINE "%s" TRAIN_LINE, each[i]);
        expect_errors(text, "");
    }
    expect_errors(
        NAME_LINE "model: {program: vae}\nmesh: {pp: 5}\n"
                  "data: {train: {images: i}, batch: 4}\n" TRAIN_LINE,
        "job.yaml:3:7: mesh: pp: 5 stages are more than the model's 4 layers: at most pp: "
        "4\n");
}

// The layers of a line of the loss, which sampling leaves out, lie before those of the logits.
#define SKIPPING                                                                                \
    "name: t\nmodel: {program: ./two.model, text: \"sizes\\n  seq = 8\\n  vocab = 256\\nlet "   \
    "f(x)\\n  repeat 2\\n    x = x\\n  return x\\nmodel\\n  x = embed(tokens, t[vocab, e = 4])" \
    "\\n  loss = cross_entropy(f(x) @ t[vocab, e], targets)\\n  logits = f(x) @ t[vocab, "      \
    "e]\\n\"}\n"                                                                                \
    "data: {format: tokens, train: {tokens: t}, eval: {tokens: t}, batch: 4}\n" TRAIN_LINE

static void test_sampling_and_stages_agree_on_the_layers(void **state)
{
    (void)state;
    expect_errors(SKIPPING "eval: {sample: {prompt: a}}\nmesh: {pp: 2}\n",
                  "job.yaml:5:25: eval.sample.prompt: sampling leaves out line 10 of the model, a "
                  "loss's or a report's, and with 2 stages the layers behind it would lie "
                  "elsewhere: bind its value in a line of its own, or leave the axis out\n");
    expect_errors(SKIPPING "eval: {sample: {prompt: a}}\n", "");
    expect_errors(SKIPPING "mesh: {pp: 2}\n", "");
}

static void test_a_new_job_has_the_layers_of_its_functions(void **state)
{
    static const char head[] = "name: t\nmodel: {program: ./tests/unit/both.model}\n"
                               "data: {train: {images: i}, batch: 12}\n"
                               "train: {steps: 2, microbatches: 4}\n";
    char text[500];
    (void)state;
    snprintf(text, sizeof text, "%smesh: {pp: 2}\npipeline: {stages: [1, 1]}\n", head);
    expect_errors(text, "job.yaml:6:20: pipeline.stages: the stages have 2 layers together, the "
                        "model has 5: try [3, 2]\n");
    snprintf(text, sizeof text, "%spipeline: {stages: [2]}\n", head);
    expect_errors(text, "job.yaml:5:20: pipeline.stages: the stages have 2 layers together, the "
                        "model has 5: try [5]\n");
}

// What training alone has is a layer too.
static void test_stages_hold_the_layers_of_training(void **state)
{
    static const char helped[] =
        "name: t\nmodel: {program: ./tests/unit/programs/helped.model}\n"
        "data: {format: tokens, train: {tokens: t}, batch: 12}\n" TRAIN_LINE;
    char text[500];
    (void)state;
    snprintf(text, sizeof text, "%smesh: {pp: 4}\n", helped);
    expect_errors(text, "");
    snprintf(text, sizeof text, "%spipeline: {stages: [2]}\n", helped);
    expect_errors(text, "job.yaml:5:20: pipeline.stages: the stages have 2 layers together, the "
                        "model has 4: try [4]\n");
}

// A job file's own number is not asked, a resolved job's is: its model is not built again.
static void test_layers_are_counted_where_a_file_is_read(void **state)
{
    static const char text[] = VALID "mesh: {pp: 2}\npipeline: {layers: 3}\n";
    struct job_case c;
    struct job job;
    struct job_errors errs;
    (void)state;
    case_valid(&c, text);
    assert_int_equal(c.job.pipeline.layers, 2);
    assert_int_equal(
        job_parse(&c.arena, &weft_schema, NULL, NULL, text, strlen(text), NULL, 0, &job, &errs), 0);
    assert_int_equal(job.pipeline.layers, 3);
    case_clear(&c);
}

static void test_labels_act_where_the_model_reads_them(void **state)
{
    (void)state;
    expect_errors("name: t\nmodel: {program: vae, inputs: 9, hidden: [8], latent: 2, classes: 3}\n"
                  "data: {train: {images: i, labels: l}, batch: 4}\n" TRAIN_LINE,
                  "job.yaml:2:58: model.classes: unknown key: model has program, inputs, "
                  "hidden, latent, activation, init, text\n"
                  "job.yaml:3:35: data.train.labels: acts only where the model reads labels: "
                  "program vae does not\n");
}

static void test_a_share_that_is_dropped_is_below_one(void **state)
{
    (void)state;
    expect_errors(
        "name: t\nmodel: {program: gpt2, dropout: 1, dropout_residual: -0.1}\n"
        "data: {format: tokens, train: {tokens: t}, batch: 4}\n" TRAIN_LINE,
        "job.yaml:2:33: model.dropout: 1 is too large: it must be less than 1\n"
        "job.yaml:2:54: model.dropout_residual: -0.1 is too small: it must be at least 0\n");
}

static void test_everything_wrong_is_reported_in_the_order_of_the_file(void **state)
{
    (void)state;
    expect_errors(
        "model: {program: mlp, inputs: 0, hidden: [8], classes: 1}\n"
        "name: Tiny\n"
        "trian: {steps: 1}\n"
        "train: {steps: -1}\n"
        "data: {train: {images: x, labels: y}, batch: 7}\n"
        "mesh: {dp: 2}\n",
        "job.yaml:1:31: model.inputs: 0 is too small: it must be at least 1\n"
        "job.yaml:1:56: model.classes: 1 is too small: it must be at least 2\n"
        "job.yaml:2:7: name: 'Tiny' will not do: a name has 1 to 63 of a-z 0-9 . _ - and "
        "starts with a letter or digit\n"
        "job.yaml:3:1: trian: unknown key: did you mean train?\n"
        "job.yaml:4:16: train.steps: -1 is too small: it must be at least 0\n"
        "job.yaml:5:46: data.batch: 7 is not a multiple of 2 (2 data-parallel devices x 1 "
        "microbatches): try 6 or 8\n");
}

#define A_DECODER                                                                       \
    "name: t\nmesh: {dp: 1}\nschedule: {kind: constant, value: 1}\ntrain: {steps: 1}\n" \
    "data: {format: tokens, train: {tokens: t}, batch: 4}\n"

static void test_tokens_are_for_decoders_and_images_for_classifiers(void **state)
{
    (void)state;
    static const char *const texts[] = {
        A_DECODER "model: {program: mlp, inputs: 2, hidden: [2], classes: 2}\n",
        "name: t\nmesh: {dp: 1}\nschedule: {kind: constant, value: 1}\ntrain: {steps: 1}\n"
        "data: {format: npy, train: {images: i, labels: l}, batch: 4}\nmodel: {program: gpt2}\n"};
    static const char *const says[] = {"data.format: must be idx or npy: program mlp reads images",
                                       "data.format: must be tokens: program gpt2 reads them"};
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

// What a job lacks is asked for in the form that its model reads.
static void test_the_format_of_the_data_follows_from_the_model(void **state)
{
    (void)state;
    struct job_case c;
    case_valid(&c, NAME_LINE TRAIN_LINE
               "model: {program: gpt2}\ndata: {train: {tokens: t}, batch: 4}\n");
    assert_int_equal(c.job.data.format, JOB_DATA_TOKENS);
    case_clear(&c);
    expect_errors(
        NAME_LINE TRAIN_LINE "model: {program: gpt2}\n",
        "job.yaml:1:1: data.train.tokens: is missing: file of training tokens, or files by a "
        "pattern (train-*.bin); relative to the job file, for weft submit to the workers' "
        "--data-root\n"
        "job.yaml:1:1: data.batch: is missing: of a step, over all devices and microbatches\n");
}

static void test_stages_hold_the_models_layers(void **state)
{
    (void)state;
    struct job_case c;
    case_valid(&c, NAME_LINE
               "model: {program: mlp, inputs: 4, hidden: [8, 8, 8, 8], classes: 3}\n" DATA_LINE
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
        "2: try [1, 1]\n");
    expect_errors(VALID "mesh: {pp: 2}\npipeline: {stages: [1, 1, 1]}\n",
                  "job.yaml:6:20: pipeline.stages: names 3 stages, the mesh has 2 (pp): try [1, 1]"
                  "\n");
    expect_errors(VALID "mesh: {dp: 2}\npipeline: {stages: [1, 1]}\n",
                  "job.yaml:6:20: pipeline.stages: names 2 stages, the mesh has none: give it an "
                  "axis pp: 2\n");
    expect_errors(VALID "mesh: {a: 2, b: 2}\nsharding: {rules: {layers: [a, b]}}\n",
                  "job.yaml:6:19: sharding.rules: layers: the stages of a pipeline lie along one "
                  "axis, these are 2\n");
}

static void test_axes_are_known_by_what_they_are_for(void **state)
{
    static const char *const names[] = {"pp", "tp", "cp", "ep"};
    struct job_case c;
    (void)state;
    case_valid(&c, NAME_LINE "model: {program: mlp, inputs: 4, hidden: [8], classes: 3}\n" DATA_LINE
                             "train: {steps: 10}\n"
                             "mesh: {pipeline: 2, tensor: 2, sequence: 2, expert: 2}\n");
    for (int i = 0; i < 4; i++)
        assert_int_equal(job_axis_find(&c.job.mesh, names[i]), i);
    assert_int_equal(job_pipeline_axis(&c.job), 0);
    case_clear(&c);
}

// Twelve layers, a batch of 24.
#define DEEP(mesh, pipeline, microbatches)                                                   \
    NAME_LINE "model: {program: mlp, inputs: 4, hidden: [8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8], " \
              "classes: 3}\n"                                                                \
              "data: {train: {images: x, labels: y}, batch: 24}\n"                           \
              "train: {steps: 10, microbatches: " microbatches "}\n"                         \
              "mesh: {" mesh "}\n"                                                           \
              "pipeline: {" pipeline "}\n"

static void test_chunks_of_stages_divide_the_layers(void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {DEEP("pp: 4", "chunks: 2", "4"), "job.yaml:6:20: pipeline.chunks: a stage has one chunk "
                                          "under 1f1b: try schedule: interleaved\n"},
        {DEEP("pp: 4", "schedule: interleaved", "4"),
         "job.yaml:6:11: pipeline.chunks: interleaved passes the stages once for each chunk, and "
         "there is one: "
         "try chunks: 3\n"},
        {DEEP("pp: 4", "schedule: circular, chunks: 4", "4"),
         "job.yaml:6:40: pipeline.chunks: 4 stages of 4 chunks are more than the model's 12 "
         "layers: "
         "try chunks: 3\n"},
        {DEEP("pp: 4", "schedule: circular, chunks: 2", "4"),
         "job.yaml:6:40: pipeline.chunks: the model's 12 layers do not divide into 4 stages of 2 "
         "chunks: try chunks: 3\n"},
        {DEEP("pp: 5", "schedule: circular, chunks: 2", "6"),
         "job.yaml:6:40: pipeline.chunks: the model's 12 layers do not divide into 5 stages of 2 "
         "chunks: try stages: [2, 2, 1, 1, 1, 1, 1, 1, 1, 1]\n"},
        {DEEP("pp: 4", "schedule: interleaved, chunks: 3", "6"),
         "job.yaml:4:34: train.microbatches: 6: interleaved stages pass as many at a time as they "
         "are, 4: try 4 or 8\n"},
        {DEEP("pp: 4", "schedule: circular, chunks: 3", "2"),
         "job.yaml:4:34: train.microbatches: 2: a circular pipeline of 4 stages has as many under "
         "way: try at least 4\n"},
        {DEEP("pp: 2", "schedule: circular, chunks: 2, stages: [3, 9]", "4"),
         "job.yaml:6:51: pipeline.stages: names 2 stages, the mesh has 2 of 2 chunks (pp): "
         "try [3, 3, 3, 3]\n"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_errors(cases[i].text, cases[i].says);
}

static void test_chunks_lie_round_the_ring_of_stages(void **state)
{
    static const int64_t layers[] = {3, 2, 3, 4};
    struct job_case c;
    (void)state;
    case_valid(&c,
               DEEP("pipeline: 2", "schedule: interleaved, chunks: 2, stages: [3, 2, 3, 4]", "4"));
    assert_int_equal(job_stages(&c.job), 2);
    assert_int_equal(job_chunks(&c.job), 2);
    for (int place = 0; place < 4; place++)
        assert_int_equal(job_stage_layers(&c.job, place), layers[place]);
    case_clear(&c);
    // without stages there is nothing that has chunks
    case_valid(&c, DEEP("dp: 2", "schedule: interleaved, chunks: 5", "4"));
    assert_int_equal(job_chunks(&c.job), 1);
    case_clear(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_mesh_follows_the_devices),
        cmocka_unit_test(test_the_devices_follow_the_mesh),
        cmocka_unit_test(test_threads_are_open_where_the_job_names_none),
        cmocka_unit_test(test_minus_one_is_what_is_left_of_the_devices),
        cmocka_unit_test(test_mesh_and_devices_must_agree),
        cmocka_unit_test(test_the_batch_is_cut_evenly_or_refused_with_what_fits),
        cmocka_unit_test(test_the_largest_mesh_times_the_most_microbatches_does_not_overflow),
        cmocka_unit_test(test_evaluation_keys_need_evaluation_data),
        cmocka_unit_test(test_images_and_labels_come_together),
        cmocka_unit_test(test_required_keys_are_asked_for_where_they_would_stand),
        cmocka_unit_test(test_keys_of_another_kind_are_refused_with_the_kind_they_need),
        cmocka_unit_test(test_a_wrong_kind_is_one_error_not_one_for_each_of_its_keys),
        cmocka_unit_test(test_the_warm_up_ends_before_the_decay),
        cmocka_unit_test(test_a_schedule_takes_the_jobs_steps_and_learns_something),
        cmocka_unit_test(test_a_batch_per_device_is_that_times_the_devices_that_share_it),
        cmocka_unit_test(test_two_sizes_of_one_batch_are_refused),
        cmocka_unit_test(test_weights_are_born_as_the_job_says),
        cmocka_unit_test(test_kept_steps_must_be_checkpoint_steps),
        cmocka_unit_test(test_the_first_wait_is_not_longer_than_the_longest),
        cmocka_unit_test(test_at_least_one_checkpoint_stays),
        cmocka_unit_test(test_the_best_checkpoint_is_one_that_was_evaluated),
        cmocka_unit_test(test_another_schema_version_is_refused),
        cmocka_unit_test(test_tokens_are_for_decoders_and_images_for_classifiers),
        cmocka_unit_test(test_a_model_without_layers_has_no_stages),
        cmocka_unit_test(test_a_model_without_layers_has_no_insides_to_remake),
        cmocka_unit_test(test_every_program_has_stages),
        cmocka_unit_test(test_sampling_and_stages_agree_on_the_layers),
        cmocka_unit_test(test_a_new_job_has_the_layers_of_its_functions),
        cmocka_unit_test(test_stages_hold_the_layers_of_training),
        cmocka_unit_test(test_layers_are_counted_where_a_file_is_read),
        cmocka_unit_test(test_labels_act_where_the_model_reads_them),
        cmocka_unit_test(test_a_share_that_is_dropped_is_below_one),
        cmocka_unit_test(test_the_format_of_the_data_follows_from_the_model),
        cmocka_unit_test(test_stages_hold_the_models_layers),
        cmocka_unit_test(test_axes_are_known_by_what_they_are_for),
        cmocka_unit_test(test_chunks_of_stages_divide_the_layers),
        cmocka_unit_test(test_chunks_lie_round_the_ring_of_stages),
        cmocka_unit_test(test_everything_wrong_is_reported_in_the_order_of_the_file),
    };
    return cmocka_run_group_tests_name("job_check", tests, NULL, NULL);
}
