// SPDX-License-Identifier: Apache-2.0
// Device models: the table, and models described by a user. Jobs that no device could hold.
#include "common/explain/device_models.h"

#include <stdio.h>

#include "tests/unit/compile_case.h"

static void a_users_model_takes_what_it_does_not_say_from_the_table(void **state)
{
    struct arena a = {0};
    (void)state;
    struct device_model h100 = read_model(&a, "h100", NULL);
    struct device_model d = read_model(&a, "h100:memory=40GB", NULL);
    assert_true(d.memory == 40000000000u && d.flops == 989e12 && d.libraries == h100.libraries);
    d = read_model(&a, "mi300x:memory=192GiB,libraries=2GiB,flops=1307e12", NULL);
    assert_string_equal(d.name, "mi300x");
    assert_true(d.memory == (uint64_t)192 << 30 && d.libraries == (uint64_t)2 << 30);
    assert_true(d.flops == 1307e12);
    assert_true(read_model(&a, "cpu", NULL).memory == 0);
    assert_true(read_model(&a, "cpu:memory=8GiB", NULL).memory == (uint64_t)8 << 30);
    arena_clear(&a);
}

static void
a_file_of_models_comes_before_the_table_and_its_later_lines_before_its_earlier(void **state)
{
    static const char file[] = "# ours\n\n  small: memory=1GB  # a note\n"
                               "h200:memory=141GB\nsmall:flops=1e12\n";
    struct arena a = {0};
    (void)state;
    // A blank behind the colon is none of a text's own.
    struct device_model d;
    struct err e = {0};
    assert_int_equal(device_model_read(&a, "small", file, "devices", &d, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "devices:3: small: "));
    d = read_model(&a, "h200", "h200:memory=141GB # more\nsmall:memory=1GB\nsmall:flops=1e12");
    assert_true(d.memory == 141000000000u && d.flops == 989e12);
    d = read_model(&a, "small", "small:memory=1GB\n\nsmall:flops=1e12");
    assert_true(d.memory == 1000000000 && d.flops == 1e12);
    arena_clear(&a);
}

static void what_is_no_model_is_reported_with_a_suggestion(void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"b200", "no device model 'b200': there are h200, h100, a100-80g, a100-40g, cpu; another "
                 "is described as b200:memory=80GB"},
        {"", "no device model ''"},
        {"b200:flops=1e15", "b200 is no known model: say its memory"},
        {"b200:memory", "'memory' must be KEY=SIZE, as in memory=80GB"},
        {"b200:memory=many", "memory is 'many': try a size such as 80GB or 80GiB"},
        {"b200:memory=-1", "memory is '-1'"},
        {"b200:memory=0GB", "memory is '0GB'"},
        {"b200:memory=80", "memory is '80': try a size such as 80GB or 80GiB"},
        {"b200:memory=80 GB", "memory is '80 GB'"},
        {"b200:memory=1e30", "memory is '1e30'"},
        {"b200:memory=inf", "memory is 'inf'"},
        {"b200:memory=80GB,flops=2GB", "flops is '2GB': try FLOPs a second such as 989e12"},
        {"h100:flops=80", "flops is '80', and no device has less than 1e9"},
        {"h100:memory=80KB", "memory is '80KB', and no device has less than 1MB"},
        {"h100:", "'' must be KEY=SIZE, as in memory=80GB"},
        {"h100:memory=80GB,", "'' must be KEY=SIZE"},
        {"b200:ram=80GB", "a device has memory, libraries, flops, bandwidth and link, not 'ram'"},
        {":memory=1GB", "no device model ''"},
    };
    struct arena a = {0};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct device_model d;
        struct err e = {0};
        assert_int_equal(device_model_read(&a, cases[i].text, NULL, NULL, &d, &e), ERR_INVALID);
        if (!strstr(e.text, cases[i].says))
            fail_msg("%s: %s", cases[i].text, e.text);
    }
    arena_clear(&a);
}

// ---- what no plan is made of -------------------------------------------------------------------

static void a_step_of_too_many_operations_is_refused_with_the_microbatches_that_fit(void **state)
{
    struct fixture f;
    (void)state;
    assert_int_equal(compile_any(&f, "name: t\n"
                                     "model: {program: gpt2, layers: 512, embed: 8, "
                                     "heads: 2, seq: 4, vocab: 16}\n"
                                     "data: {format: tokens, train: {tokens: t}, batch: 1024}\n"
                                     "train: {steps: 1, microbatches: 1024}\n"),
                     ERR_LIMIT);
    const char *most = strstr(f.e.text, "at most ");
    assert_non_null(strstr(f.e.text, "train.microbatches: 1024, each of "));
    assert_non_null(most);
    // 512 layers of a few tens of operations: tens of microbatches make a million.
    assert_in_range(atoi(most + strlen("at most ")), 20, 100);
    fixture_clear(&f);
}

// Interleaved stages take as many microbatches as they are, or a multiple; circular ones at least so
// many. 1024 layers: tens of microbatches make a million operations.
static void the_microbatches_that_are_suggested_are_some_that_the_schedule_takes(void **state)
{
    static const struct {
        const char *schedule;
        int stages;
        bool fits; // some are few enough
    } cases[] = {{"interleaved", 16, true}, {"interleaved", 64, false}, {"circular", 64, false}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fixture f;
        char job[400];
        snprintf(job, sizeof job,
                 "name: t\n"
                 "model: {program: gpt2, layers: 1024, embed: 8, heads: 2, seq: 4, vocab: 16}\n"
                 "data: {format: tokens, train: {tokens: t}, batch: 1024}\n"
                 "mesh: {pp: %d}\n"
                 "pipeline: {schedule: %s, chunks: 2}\n"
                 "train: {steps: 1, microbatches: 256}\n",
                 cases[i].stages, cases[i].schedule);
        assert_int_equal(compile_any(&f, job), ERR_LIMIT);
        const char *most = strstr(f.e.text, "at most ");
        if (!most != !cases[i].fits)
            fail_msg("%s over %d: %s", cases[i].schedule, cases[i].stages, f.e.text);
        if (most)
            assert_int_equal(atoi(most + strlen("at most ")) % cases[i].stages, 0);
        else
            assert_non_null(strstr(f.e.text, "or another pipeline.schedule"));
        fixture_clear(&f);
    }
}

// 2^24 samples of 2^17 tokens, 2^10 layers: the residual alone is 2^24 · 2^17 · 2^17 floats a
// layer.
static void tensors_beyond_all_counting_are_refused(void **state)
{
    struct fixture f;
    (void)state;
    assert_int_equal(compile_any(&f,
                                 "name: t\n"
                                 "model: {program: gpt2, layers: 1024, embed: 131072, heads: "
                                 "128, head_dim: 1024, mlp: 262144, seq: 131072, vocab: 524288}\n"
                                 "data: {format: tokens, train: {tokens: t}, batch: 16777216}\n"
                                 "train: {steps: 1}\n"),
                     ERR_LIMIT);
    assert_non_null(strstr(f.e.text, "over 1 EiB"));
    fixture_clear(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_users_model_takes_what_it_does_not_say_from_the_table),
        cmocka_unit_test(
            a_file_of_models_comes_before_the_table_and_its_later_lines_before_its_earlier),
        cmocka_unit_test(what_is_no_model_is_reported_with_a_suggestion),
        cmocka_unit_test(a_step_of_too_many_operations_is_refused_with_the_microbatches_that_fit),
        cmocka_unit_test(the_microbatches_that_are_suggested_are_some_that_the_schedule_takes),
        cmocka_unit_test(tensors_beyond_all_counting_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
