// SPDX-License-Identifier: Apache-2.0
// Keys and values of a job file: what each type takes, what is refused and in which words;
// overrides.
#include "common/language/model_program.h"
#include "tests/unit/job_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void test_a_short_job_gets_every_default(void **state)
{
    (void)state;
    struct job_case c;
    case_valid(&c, VALID);
    const struct job *j = &c.job;
    assert_string_equal(j->name, "tiny");
    assert_string_equal(j->model.program, "mlp");
    assert_string_equal(j->model.text, model_text_find("mlp")->text);
    assert_int_equal(j->mesh.n, 1);
    assert_string_equal(j->mesh.axis[0].name, "dp");
    assert_int_equal(j->mesh.axis[0].size, 1);
    assert_int_equal(j->data.format, JOB_DATA_IDX);
    assert_int_equal(j->data.dtype, JOB_DATA_U8);
    assert_null(j->data.eval.images);
    assert_int_equal(j->optimizer.kind, JOB_ADAMW);
    assert_true(j->optimizer.beta1 == 0.9 && j->optimizer.beta2 == 0.999);
    assert_true(j->optimizer.eps == 1e-8 && j->optimizer.weight_decay == 0.01);
    assert_true(j->schedule.value == 1e-3);
    assert_int_equal(j->train.microbatches, 1);
    assert_int_equal(j->checkpoint.keep, 3);
    assert_true(j->checkpoint.async);
    assert_int_equal(j->resources.devices, 1);
    assert_int_equal(j->restart.hang_after, 5000000000);
    case_clear(&c);
}

static void test_given_values_arrive(void **state)
{
    (void)state;
    struct job_case c;
    case_valid(&c, VALID
               "optimizer: {kind: momentum, momentum: 0.5, nesterov: true, clip_norm: 2}\n"
               "schedule: {kind: warmup_cosine, init: 1e-5, peak: 6.5E-4, warmup: 3, end: .5}\n"
               "mesh: {data: 2}\n"
               "restart: {hang_after: 1500ms, per: 1.5h, backoff: [1.001001s, 2s]}\n"
               "metrics: {jsonl: false}\n");
    const struct job *j = &c.job;
    assert_int_equal(j->optimizer.kind, JOB_MOMENTUM);
    assert_true(j->optimizer.momentum == 0.5 && j->optimizer.nesterov);
    assert_true(j->optimizer.clip_norm == 2);
    assert_int_equal(j->schedule.kind, JOB_WARMUP_COSINE);
    assert_true(j->schedule.init == 1e-5 && j->schedule.peak == 6.5e-4 && j->schedule.end == 0.5);
    assert_int_equal(j->schedule.warmup, 3);
    assert_string_equal(j->mesh.axis[0].name, "data");
    assert_int_equal(j->resources.devices, 2);
    assert_int_equal(j->restart.hang_after, 1500000000);
    assert_int_equal(j->restart.per, 5400000000000);
    assert_int_equal(j->restart.backoff[0], 1001001000);
    assert_false(j->metrics.jsonl);
    case_clear(&c);
}

static void test_fields_of_another_kind_are_zero(void **state)
{
    (void)state;
    struct job_case c;
    case_valid(&c, VALID "optimizer: {kind: adam}\n");
    assert_true(c.job.optimizer.beta1 == 0.9);
    assert_true(c.job.optimizer.weight_decay == 0 && c.job.optimizer.momentum == 0);
    assert_true(c.job.schedule.peak == 0);
    assert_int_equal(c.job.schedule.decay, 0);
    case_clear(&c);
}

static void test_an_empty_section_is_as_good_as_none(void **state)
{
    (void)state;
    struct job_case c;
    case_valid(&c, VALID "optimizer:\nmetrics: {}\n");
    case_clear(&c);
}

static void test_an_unknown_key_names_the_nearest(void **state)
{
    (void)state;
    expect_errors(VALID "optimiser: {kind: sgd}\n",
                  "job.yaml:5:1: optimiser: unknown key: did you mean optimizer?\n");
    expect_errors(VALID "optimizer:\n  weigth_decay: 1\n",
                  "job.yaml:6:3: optimizer.weigth_decay: unknown key: did you mean "
                  "optimizer.weight_decay?\n");
    expect_errors(VALID "steps: 3\n",
                  "job.yaml:5:1: steps: unknown key: did you mean train.steps?\n");
    expect_errors(VALID "learning_rate: 1\noptimizer: {lr: 1}\n",
                  "job.yaml:5:1: learning_rate: unknown key: weft has schedule.value, or "
                  "schedule.peak where schedule.kind has one\n"
                  "job.yaml:6:13: optimizer.lr: unknown key: weft has schedule.value, or "
                  "schedule.peak where schedule.kind has one\n");
    expect_errors(VALID "storage: {patience: 1h}\n",
                  "job.yaml:5:11: storage.patience: unknown key: "
                  "did you mean checkpoint.patience?\n");
    expect_errors(VALID "solver: {colour: 1, lr: 2}\n",
                  "job.yaml:5:21: solver.lr: unknown key: weft has schedule.value, or "
                  "schedule.peak where schedule.kind has one\n");
    expect_errors(VALID "dtype: bf16\nprecision: {dtype: bf16}\nmetrics: {every: 10}\n",
                  "job.yaml:5:1: dtype: unknown key: weft has precision.compute, and data.dtype "
                  "for that of images\n"
                  "job.yaml:6:13: precision.dtype: unknown key: weft has precision.compute, and "
                  "data.dtype for that of images\n"
                  "job.yaml:7:11: metrics.every: unknown key: weft has train.log_every, "
                  "eval.every and checkpoint.every\n");
    // A slip of the fingers has the word's first letter; another accelerator is another word.
    expect_errors(VALID "resources: {kind: tpu}\n",
                  "job.yaml:5:19: resources.kind: 'tpu' is not one of cpu or cuda\n");
    expect_errors(VALID "resources: {kind: cpi}\n",
                  "job.yaml:5:19: resources.kind: 'cpi' is not one of cpu or cuda: did you mean "
                  "cpu?\n");
    expect_errors(VALID "checkpoint: {dir: \"hdfs:/run\"}\n",
                  "job.yaml:5:19: checkpoint.dir: 'hdfs:/run' is a URL, and weft works on files "
                  "and folders alone: mount what it names\n");
    expect_errors(VALID "metrics: {colour: 1}\n",
                  "job.yaml:5:11: metrics.colour: unknown key: metrics has jsonl, detail, sinks\n");
    expect_errors(
        VALID "? \"\"\n: 1\n",
        "job.yaml:5:3: unknown key: a job has schema, name, tags, notify, model, mesh, sharding, "
        "pipeline, precision, data, optimizer, schedule, train, eval, checkpoint, metrics, "
        "resources, restart\n");
}

static void test_keys_that_are_not_built_yet_are_unknown(void **state)
{
    (void)state;
    expect_errors(VALID "metrics: {tensorboard: true}\n",
                  "job.yaml:5:11: metrics.tensorboard: unknown key: weft has metrics.sinks, as "
                  "[tensorboard]\n");
    expect_errors(VALID "resources: {min_dp: 1}\n",
                  "job.yaml:5:13: resources.min_dp: unknown key: resources has devices, kind, "
                  "threads, hosts, priority, scratch, bucket, network, collectives\n");
}

static void test_restart_waits_are_two_durations(void **state)
{
    (void)state;
    struct job_case c;
    case_valid(&c, VALID "restart: {budget: 2, per: 10m, backoff: [500ms, 1m]}\n");
    assert_int_equal(c.job.restart.budget, 2);
    assert_int_equal(c.job.restart.per, 600000000000);
    assert_int_equal(c.job.restart.backoff[0], 500000000);
    assert_int_equal(c.job.restart.backoff[1], 60000000000);
    case_clear(&c);
    expect_errors(VALID "restart: {backoff: [1s]}\n",
                  "job.yaml:5:20: restart.backoff: has 1 item: it must have 2\n");
    expect_errors(VALID "restart: {backoff: [1, 100000s]}\n",
                  "job.yaml:5:21: restart.backoff[0]: 1 has no unit: ns, us, ms, s, m or h, as in "
                  "1s\n"
                  "job.yaml:5:24: restart.backoff[1]: 100000s is too large: it must be at most "
                  "86400s\n");
}

static void test_priorities_may_be_negative(void **state)
{
    (void)state;
    struct job_case c;
    case_valid(&c, VALID "resources: {hosts: 3, priority: -7}\n");
    assert_int_equal(c.job.resources.hosts, 3);
    assert_int_equal(c.job.resources.priority, -7);
    case_clear(&c);
}

static void test_a_long_key_is_cut_not_copied(void **state)
{
    (void)state;
    struct buf text = {0};
    buf_puts(&text, VALID);
    for (int i = 0; i < 500; i++)
        buf_putc(&text, 'k');
    buf_puts(&text, ": 1\n");
    struct job_case c;
    case_read(&c, text.data, text.len, NULL, 0);
    assert_int_equal(c.errors.n, 1);
    assert_int_equal(strlen(c.errors.items[0].path), 100);
    case_clear(&c);
    buf_clear(&text);
}

static void test_a_section_must_be_a_map(void **state)
{
    (void)state;
    expect_errors(VALID "optimizer: adamw\nresources: [1]\n",
                  "job.yaml:5:12: optimizer: must be a map of keys, not a single value\n"
                  "job.yaml:6:12: resources: must be a map of keys, not a list\n");
}

static void test_whole_numbers_follow_one_grammar(void **state)
{
    (void)state;
    static const struct {
        const char *value, *error;
    } cases[] = {
        {"1.5", "must be a whole number, not '1.5'"},
        {"1e3", "must be a whole number, not '1e3'"},
        {"10k", "must be a whole number, not '10k'"},
        {"0x10", "must be a whole number, not '0x10'"},
        {"1_000", "must be a whole number, not '1_000'"},
        {"007", "must be a whole number, not '007'"},
        {"-", "must be a whole number, not '-'"},
        {"true", "must be a whole number, not 'true'"},
        {"\"5\"", "must be a whole number: take the quotes away"},
        {"[5]", "must be a whole number, not a list"},
        {"{a: 5}", "must be a whole number, not a map"},
        {"~", "must be a whole number, not empty"},
        {"", "must be a whole number, not empty"},
        {"9223372036854775808", "9223372036854775808 does not fit 64 bits"},
        {"-1", "-1 is too small: it must be at least 0"},
        {"9000000000000000001", NULL}, // bounds are doubles: the nearest is 9e18
        {"9100000000000000000", "9100000000000000000 is too large: it must be at most 9e+18"},
        {"+7", NULL},
        {"-0", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[300], error[200] = "";
        snprintf(text, sizeof text, NAME_LINE MODEL_LINE DATA_LINE "train: {steps: 1, seed: %s}\n",
                 cases[i].value);
        if (cases[i].error)
            snprintf(error, sizeof error, "job.yaml:4:25: train.seed: %s\n", cases[i].error);
        expect_errors(text, error);
    }
}

static void test_numbers_follow_one_grammar(void **state)
{
    (void)state;
    static const struct {
        const char *value, *error;
    } cases[] = {
        {"1,5", "must be a number, not '1,5'"},
        {".", "must be a number, not '.'"},
        {"1e", "must be a number, not '1e'"},
        {"01.5", "must be a number, not '01.5'"},
        {".inf", "must be a number, not '.inf'"},
        {"nan", "must be a number, not 'nan'"},
        {"0x1p3", "must be a number, not '0x1p3'"},
        {"'1'", "must be a number: take the quotes away"},
        {"1e400", "1e400 is beyond the range of double"},
        {"-0.5", "-0.5 is too small: it must be at least 0"},
        {"1e31", "1e31 is too large: it must be at most 1e+30"},
        {"1.", NULL},
        {".5e+1", NULL},
        {"-0.0", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[300], error[200] = "";
        snprintf(text, sizeof text, VALID "optimizer:\n  clip_norm: %s\n", cases[i].value);
        if (cases[i].error)
            snprintf(error, sizeof error, "job.yaml:6:14: optimizer.clip_norm: %s\n",
                     cases[i].error);
        expect_errors(text, error);
    }
}

static void test_open_bounds_say_so(void **state)
{
    (void)state;
    expect_errors(VALID "optimizer: {eps: 0, betas: [0.9, 1]}\n",
                  "job.yaml:5:18: optimizer.eps: 0 is too small: it must be at least "
                  "1e-37\n"
                  "job.yaml:5:34: optimizer.betas[1]: 1 is too large: it must be less than 1\n");
}

static void test_durations_need_a_unit(void **state)
{
    (void)state;
    static const struct {
        const char *value, *error;
    } cases[] = {
        {"5", "5 has no unit: ns, us, ms, s, m or h, as in 5s"},
        {"5 s", "' s' is not a unit of time: ns, us, ms, s, m or h"},
        {"5sec", "'sec' is not a unit of time: ns, us, ms, s, m or h"},
        {"1.s", "'.s' is not a unit of time: ns, us, ms, s, m or h"},
        {".5s", "must be a duration such as 5s, not '.5s'"},
        {"1.5", "1.5 has no unit: ns, us, ms, s, m or h, as in 1.5s"},
        {"0.09s", "0.09s is too small: it must be at least 0.1s"},
        {"100000000.5ns", "100000000.5ns is finer than a nanosecond"},
        {"1.0000000001s", "1.0000000001s is finer than a nanosecond"},
        {"1.0000000000000000s", "1.0000000000000000s is finer than a nanosecond"},
        {"2562047.99h", "2562047.99h is longer than 292 years"},
        {"soon", "must be a duration such as 5s, not 'soon'"},
        {"[5s]", "must be a duration such as 5s, not a list"},
        {"99ms", "99ms is too small: it must be at least 0.1s"},
        {"25h", "25h is too large: it must be at most 86400s"},
        {"9999999999h", "9999999999h is longer than 292 years"},
        {"99999999999999999999ns", "99999999999999999999ns is longer than 292 years"},
        {"100000000ns", NULL},
        {"24h", NULL},
        {"0.1s", NULL},
        {"0.5h", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[300], error[200] = "";
        snprintf(text, sizeof text, VALID "restart: {hang_after: %s}\n", cases[i].value);
        if (cases[i].error)
            snprintf(error, sizeof error, "job.yaml:5:23: restart.hang_after: %s\n",
                     cases[i].error);
        expect_errors(text, error);
    }
}

static void test_only_true_and_false_are_truth_values(void **state)
{
    (void)state;
    expect_errors(VALID "metrics: {jsonl: yes}\ncheckpoint: {async: \"true\"}\n",
                  "job.yaml:5:18: metrics.jsonl: must be true or false, not 'yes'\n"
                  "job.yaml:6:21: checkpoint.async: must be true or false: take the quotes away\n");
    expect_errors(VALID "metrics: {jsonl: [true]}\n",
                  "job.yaml:5:18: metrics.jsonl: must be true or false, not a list\n");
}

static void test_a_job_is_deterministic_unless_it_says_otherwise(void **state)
{
    (void)state;
    struct job_case c;
    case_valid(&c, VALID);
    assert_true(c.job.precision.deterministic);
    case_clear(&c);
    case_valid(&c, VALID "precision: {deterministic: false}\n");
    assert_false(c.job.precision.deterministic);
    case_clear(&c);
    expect_errors(VALID "precision:\n  deterministic: mostly\n",
                  "job.yaml:6:18: precision.deterministic: must be true or false, not 'mostly'\n");
}

static void test_words_are_chosen_from_a_list(void **state)
{
    (void)state;
    expect_errors(VALID
                  "schedule: {kind: steps}\noptimizer: {kind: adanw}\nresources: {kind: [cpu]}\n",
                  "job.yaml:5:18: schedule.kind: 'steps' is not one of constant, linear, cosine or "
                  "warmup_cosine\n"
                  "job.yaml:6:19: optimizer.kind: 'adanw' is not one of sgd, momentum, adam or "
                  "adamw: did you mean adamw?\n"
                  "job.yaml:7:19: resources.kind: must be a word, not a list\n");
    expect_errors(VALID "resources: {kind: abacus}\n",
                  "job.yaml:5:19: resources.kind: 'abacus' is not one of cpu or cuda\n");
}

static void test_names_are_plain(void **state)
{
    (void)state;
    static const char *const good[] = {"a", "7", "gpt-2.v1_b", "\"quoted\""};
    static const char *const bad[] = {"-a", "A", "a/b", "\xc3\xa4", ".a", "a b"};
    char text[600], error[300], longest[65];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        snprintf(text, sizeof text, "name: %s\n" MODEL_LINE DATA_LINE TRAIN_LINE, good[i]);
        expect_errors(text, "");
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(text, sizeof text, "name: %s\n" MODEL_LINE DATA_LINE TRAIN_LINE, bad[i]);
        snprintf(error, sizeof error,
                 "job.yaml:1:7: name: '%s' will not do: a name has 1 to 63 of a-z 0-9 . _ - and "
                 "starts with a letter or digit\n",
                 bad[i]);
        expect_errors(text, error);
    }
    memset(longest, 'x', 64);
    for (int n = 63; n <= 64; n++) {
        longest[n] = 0;
        snprintf(text, sizeof text, "name: %s\n" MODEL_LINE DATA_LINE TRAIN_LINE, longest);
        struct job_case c;
        assert_int_equal(case_read(&c, text, strlen(text), NULL, 0), n == 63 ? 0 : ERR_INVALID);
        case_clear(&c);
        longest[n] = 'x';
    }
}

static void test_text_is_neither_empty_nor_endless(void **state)
{
    (void)state;
    expect_errors(VALID "checkpoint: {dir: \"\"}\n", "job.yaml:5:19: checkpoint.dir: is empty\n");
    expect_errors(VALID "checkpoint: {dir: [a]}\n",
                  "job.yaml:5:19: checkpoint.dir: must be text, not a list\n");
    struct buf text = {0};
    buf_puts(&text, VALID "checkpoint:\n  dir: ");
    for (int i = 0; i < 4097; i++)
        buf_putc(&text, 'd');
    expect_errors(buf_str(&text), "job.yaml:6:8: checkpoint.dir: is longer than 4096 bytes\n");
    buf_clear(&text);
}

static void test_lists_say_how_many_and_which_item(void **state)
{
    (void)state;
    static const struct {
        const char *hidden, *error;
    } cases[] = {
        {"8", "2:43: model.hidden: must be a list such as [256, 128], not a single value"},
        {"[]", "2:43: model.hidden: has 0 items: it must have 1 to 64"},
        {"[8, x]", "2:47: model.hidden[1]: must be a whole number, not 'x'"},
        {"[8, 0]", "2:47: model.hidden[1]: 0 is too small: it must be at least 1"},
        {"[[8]]", "2:44: model.hidden[0]: must be a whole number, not a list"},
        {"&a [8]",
         "2:43: model.hidden: anchors (&) are not part of job files: write the value out"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[300], error[200];
        snprintf(text, sizeof text,
                 NAME_LINE
                 "model: {program: mlp, inputs: 4, hidden:  %s, classes: 3}\n" DATA_LINE TRAIN_LINE,
                 cases[i].hidden);
        snprintf(error, sizeof error, "job.yaml:%s\n", cases[i].error);
        expect_errors(text, error);
    }
    expect_errors(VALID "optimizer: {betas: [0.9]}\n",
                  "job.yaml:5:20: optimizer.betas: has 1 item: it must have 2\n");
}

static void test_axes_have_names_of_their_own(void **state)
{
    (void)state;
    expect_errors(VALID "mesh: {rows: 1, 2d: 1}\n",
                  "job.yaml:5:17: mesh.2d: an axis has a name of 1 to 31 letters, digits and _\n");
    expect_errors(VALID "mesh: {dp: 2, data: 2}\n",
                  "job.yaml:5:15: mesh.data: another name of the axis dp: give one\n");
    expect_errors(VALID "mesh: {model: 2, tensor: 2}\n",
                  "job.yaml:5:18: mesh.tensor: another name of the axis model: give one\n");
    expect_errors(VALID "mesh: {heads: 2}\n",
                  "job.yaml:5:8: mesh.heads: heads is a dimension of tensors, which the rules cut "
                  "on axes: take another name\n");
    expect_errors(VALID "mesh: {x: -1, y: -1}\nresources: {devices: 4}\n",
                  "job.yaml:5:18: mesh.y: -1 is what is left: only one axis may be that\n");
}

static void test_mesh_sizes_are_counts(void **state)
{
    (void)state;
    static const struct {
        const char *mesh, *error;
    } cases[] = {
        {"{dp: 0}",
         "5:12: mesh.dp: 0 will not do: an axis has 1 to 65536 devices, or -1 for what is "
         "left"},
        {"{dp: -2}",
         "5:12: mesh.dp: -2 will not do: an axis has 1 to 65536 devices, or -1 for what "
         "is left"},
        {"{dp: 65537}",
         "5:12: mesh.dp: 65537 will not do: an axis has 1 to 65536 devices, or -1 for "
         "what is left"},
        {"{dp: two}", "5:12: mesh.dp: must be a whole number, not 'two'"},
        {"{}", "5:7: mesh: must be a map such as {dp: 2}, not empty"},
        {"[2]", "5:7: mesh: must be a map such as {dp: 2}, not a list"},
        {"2", "5:7: mesh: must be a map such as {dp: 2}, not a single value"},
        {"*m", "5:7: mesh: aliases (*m) are not part of job files: write the value out"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[300], error[200];
        snprintf(text, sizeof text, VALID "mesh: %s\n", cases[i].mesh);
        snprintf(error, sizeof error, "job.yaml:%s\n", cases[i].error);
        expect_errors(text, error);
    }
}

static void test_groups_say_which_parameters_and_what_changes(void **state)
{
    (void)state;
    struct job_case c;
    case_valid(&c, VALID "optimizer:\n  weight_decay: 0.5\n  groups:\n"
                         "    - {match: \"*/bias\", weight_decay: 0}\n"
                         "    - {match: \"layers/0/*\", lr_scale: 0.1}\n"
                         "    - {match: \"layers/2/*\", freeze: true}\n");
    const struct job_optimizer *o = &c.job.optimizer;
    assert_int_equal(o->n_groups, 3);
    assert_true(o->groups[2].freeze && o->groups[2].line == 10 && !o->groups[1].freeze);
    assert_true(o->groups[0].weight_decay == 0 && o->groups[0].lr_scale == 1);
    assert_true(o->groups[1].weight_decay == 0.5 && o->groups[1].lr_scale == 0.1);
    assert_ptr_equal(job_group_of(o, "layers/0/bias"), &o->groups[0]); // the first match wins
    assert_ptr_equal(job_group_of(o, "layers/0/weight"), &o->groups[1]);
    assert_null(job_group_of(o, "layers/1/weight"));
    case_clear(&c);
}

static void test_groups_report_each_member(void **state)
{
    (void)state;
    expect_errors(
        VALID "optimizer:\n  groups:\n"
              "    - {lr_scale: -1, match: a}\n"
              "    - {lr_scal: 1, match: a}\n"
              "    - {momentum: 1, match: a}\n"
              "    - {lr_scale: 1}\n"
              "    - 5\n"
              "    - *x\n",
        "job.yaml:7:18: optimizer.groups[0].lr_scale: -1 is too small: it must be at least "
        "0\n"
        "job.yaml:8:8: optimizer.groups[1].lr_scal: unknown key: did you mean lr_scale?\n"
        "job.yaml:9:8: optimizer.groups[2].momentum: unknown key: a group has match, "
        "weight_decay, lr_scale, freeze\n"
        "job.yaml:10:7: optimizer.groups[3]: has no match: say which parameters, as in "
        "match: \"*/bias\"\n"
        "job.yaml:11:7: optimizer.groups[4]: must be a map such as {match: \"*/bias\", "
        "weight_decay: 0}, not a single value\n"
        "job.yaml:12:7: optimizer.groups: aliases (*x) are not part of job files: write "
        "the value out\n");
    expect_errors(VALID "optimizer: {groups: [{match: a, freeze: true, lr_scale: 1}, {match: b, "
                        "weight_decay: 0, freeze: true}, {match: c, freeze: 1}]}\n",
                  "job.yaml:5:22: optimizer.groups[0]: freeze leaves weight_decay and lr_scale "
                  "nothing to act on\n"
                  "job.yaml:5:61: optimizer.groups[1]: freeze leaves weight_decay and lr_scale "
                  "nothing to act on\n"
                  "job.yaml:5:123: optimizer.groups[2].freeze: must be true or false, not '1'\n");
    expect_errors(VALID "optimizer: {groups: all}\n",
                  "job.yaml:5:21: optimizer.groups: must be a list of at most 100 groups\n");
}

static void test_a_hundred_errors_are_reported_and_the_rest_counted(void **state)
{
    (void)state;
    struct buf text = {0};
    buf_puts(&text, VALID);
    for (int i = 0; i < 130; i++)
        buf_printf(&text, "zzz%d: 1\n", i);
    struct job_case c;
    case_read(&c, text.data, text.len, NULL, 0);
    assert_int_equal(c.errors.n, 100);
    assert_int_equal(c.errors.more, 30);
    assert_int_equal(c.errors.items[99].line, 104); // the first hundred by position
    assert_non_null(strstr(buf_str(&c.text), "\n… and 30 more\n"));
    struct err e;
    assert_int_equal(job_errors_err(&c.errors, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "job.yaml:5:1: zzz0: unknown key"));
    assert_non_null(strstr(e.text, " (and 129 more)"));
    case_clear(&c);
    buf_clear(&text);
}

// ---- overrides ---------------------------------------------------------------------------------
static void test_overrides_replace_add_and_apply_in_order(void **state)
{
    (void)state;
    static const char *const over[] = {"train.steps=20",      "train.steps=30",
                                       "mesh={dp: 4}",        "optimizer.kind=sgd",
                                       "metrics.jsonl=false", "checkpoint.dir=a=b"};
    struct job_case c;
    assert_int_equal(case_read(&c, VALID "metrics:\n", strlen(VALID "metrics:\n"), over, 6), 0);
    assert_int_equal(c.job.train.steps, 30);
    assert_int_equal(c.job.mesh.axis[0].size, 4);
    assert_int_equal(c.job.resources.devices, 4);
    assert_int_equal(c.job.optimizer.kind, JOB_SGD);
    assert_false(c.job.metrics.jsonl);
    assert_string_equal(c.job.checkpoint.dir, "a=b");
    case_clear(&c);
}

static void test_an_override_may_mend_the_file(void **state)
{
    (void)state;
    static const char *const over[] = {"train={steps: 5}"};
    struct job_case c;
    const char *text = NAME_LINE MODEL_LINE DATA_LINE "train: 7\n";
    assert_int_equal(case_read(&c, text, strlen(text), over, 1), 0);
    assert_int_equal(c.job.train.steps, 5);
    case_clear(&c);
}

static void test_wrong_overrides_are_named_after_the_file(void **state)
{
    (void)state;
    static const char *const over[] = {
        "train.steps=x",
        "train.step=1",
        "steps",
        "=1",
        "train..seed=1",
        ".a=1",
        "a.=1",
        "a b=1",
        "name.first=x",
        "mesh.dp.deep=1",
        "eval={",
        "data.batch=",
        "a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q=1",
    };
    static const char expected[] =
        "job.yaml:5:1: colour: unknown key: a job has schema, name, tags, notify, model, mesh, "
        "sharding, pipeline, precision, data, optimizer, schedule, train, eval, checkpoint, "
        "metrics, resources, restart\n"
        "-s train.steps=x: train.steps: must be a whole number of steps, not 'x'\n"
        "-s train.step=1: train.step: unknown key: did you mean train.steps?\n"
        "-s steps: must be key=value, as in train.steps=200\n"
        "-s =1: must be key=value, as in train.steps=200\n"
        "-s train..seed=1: must be key=value, as in train.steps=200\n"
        "-s .a=1: must be key=value, as in train.steps=200\n"
        "-s a.=1: must be key=value, as in train.steps=200\n"
        "-s a b=1: must be key=value, as in train.steps=200\n"
        "-s name.first=x: name.first: name is not a map\n"
        "-s mesh.dp.deep=1: mesh.dp.deep: mesh.dp is not a map\n"
        "-s eval={: not YAML: did not find expected node content while parsing a flow node\n"
        "-s data.batch=: data.batch: must be a whole number, not empty\n"
        "-s a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q=1: must be key=value, as in train.steps=200\n";
    struct job_case c;
    const char *text = VALID "colour: red\nmesh: {dp: 1}\n";
    case_read(&c, text, strlen(text), over, sizeof over / sizeof *over);
    assert_string_equal(buf_str(&c.text), expected);
    case_clear(&c);
}

static void test_overrides_of_something_that_is_no_map_say_only_that(void **state)
{
    (void)state;
    static const char *const over[] = {"train.steps=1"};
    struct job_case c;
    case_read(&c, "- 1\n", 4, over, 1);
    assert_string_equal(buf_str(&c.text), "job.yaml:1:1: a job is a map of keys, not a list\n");
    case_clear(&c);
}

// ---- files -------------------------------------------------------------------------------------
static void test_a_file_is_read_and_its_paths_start_at_its_folder(void **state)
{
    (void)state;
    char dir[] = "/tmp/test_job_XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/j.yaml", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(VALID, f);
    fclose(f);
    struct job_case c = {0};
    assert_int_equal(job_load(&c.arena, &weft_schema, path, NULL, 0, &c.job, &c.errors), 0);
    assert_string_equal(c.job.base_dir, dir);
    snprintf(path, sizeof path, "%s/x", dir);
    assert_string_equal(job_path(&c.job, &c.arena, c.job.data.train.images), path);
    assert_string_equal(job_path(&c.job, &c.arena, "/abs"), "/abs");
    c.job.base_dir = "/";
    assert_string_equal(job_path(&c.job, &c.arena, "x"), "/x");
    c.job.base_dir = ".";
    assert_string_equal(job_path(&c.job, &c.arena, "x"), "x");
    case_clear(&c);
    snprintf(path, sizeof path, "%s/j.yaml", dir);
    unlink(path);
    rmdir(dir);
}

static void test_files_that_cannot_be_read_say_why(void **state)
{
    (void)state;
    static const struct {
        const char *path, *error;
        int code;
    } cases[] = {
        {"/nonexistent/j.yaml", "/nonexistent/j.yaml: No such file or directory\n", ERR_IO},
        {"/tmp", "/tmp: Is a directory\n", ERR_IO},
        {"/dev/zero", "/dev/zero: larger than the 1 MiB a job may be\n", ERR_INVALID},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct job_case c = {0};
        int rc = job_load(&c.arena, &weft_schema, cases[i].path, NULL, 0, &c.job, &c.errors);
        assert_int_equal(rc, cases[i].code);
        job_errors_print(&c.errors, &c.text);
        assert_string_equal(buf_str(&c.text), cases[i].error);
        case_clear(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_short_job_gets_every_default),
        cmocka_unit_test(test_given_values_arrive),
        cmocka_unit_test(test_fields_of_another_kind_are_zero),
        cmocka_unit_test(test_an_empty_section_is_as_good_as_none),
        cmocka_unit_test(test_an_unknown_key_names_the_nearest),
        cmocka_unit_test(test_keys_that_are_not_built_yet_are_unknown),
        cmocka_unit_test(test_restart_waits_are_two_durations),
        cmocka_unit_test(test_priorities_may_be_negative),
        cmocka_unit_test(test_a_long_key_is_cut_not_copied),
        cmocka_unit_test(test_a_section_must_be_a_map),
        cmocka_unit_test(test_whole_numbers_follow_one_grammar),
        cmocka_unit_test(test_numbers_follow_one_grammar),
        cmocka_unit_test(test_open_bounds_say_so),
        cmocka_unit_test(test_durations_need_a_unit),
        cmocka_unit_test(test_only_true_and_false_are_truth_values),
        cmocka_unit_test(test_a_job_is_deterministic_unless_it_says_otherwise),
        cmocka_unit_test(test_words_are_chosen_from_a_list),
        cmocka_unit_test(test_names_are_plain),
        cmocka_unit_test(test_text_is_neither_empty_nor_endless),
        cmocka_unit_test(test_lists_say_how_many_and_which_item),
        cmocka_unit_test(test_axes_have_names_of_their_own),
        cmocka_unit_test(test_mesh_sizes_are_counts),
        cmocka_unit_test(test_groups_say_which_parameters_and_what_changes),
        cmocka_unit_test(test_groups_report_each_member),
        cmocka_unit_test(test_a_hundred_errors_are_reported_and_the_rest_counted),
        cmocka_unit_test(test_overrides_replace_add_and_apply_in_order),
        cmocka_unit_test(test_an_override_may_mend_the_file),
        cmocka_unit_test(test_wrong_overrides_are_named_after_the_file),
        cmocka_unit_test(test_overrides_of_something_that_is_no_map_say_only_that),
        cmocka_unit_test(test_a_file_is_read_and_its_paths_start_at_its_folder),
        cmocka_unit_test(test_files_that_cannot_be_read_say_why),
    };
    return cmocka_run_group_tests_name("job_parse", tests, NULL, NULL);
}
