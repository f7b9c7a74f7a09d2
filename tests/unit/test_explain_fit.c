// SPDX-License-Identifier: Apache-2.0
// Plans held against devices: whether they fit, and what would help.
#include "common/base/folder.h"
#include "common/explain/fit.h"
#include "common/explain/plan_report.h"
#include "common/op/collective_args.h"
#include "common/plan/nccl_memory.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/compile_case.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

// ---- plans on devices --------------------------------------------------------------------------

#define GPT3                                                                \
    "name: t\nmodel: {program: gpt2, layers: 96, embed: 12288, heads: 96, " \
    "seq: 2048}\n"                                                          \
    "data: {format: tokens, train: {tokens: t}, batch: 64}\n"               \
    "train: {steps: 1, microbatches: 8, remat: block}\nmesh: {data: 8, model: 8}\n"

static void gpt3_does_not_fit_eight_by_eight_and_cutting_its_weights_on_data_does(void **state)
{
    struct fixture f;
    struct device_model d;
    struct report r;
    (void)state;
    compile_text(&f, GPT3, 0);
    d = read_model(&f.a, "a100-80g", NULL);
    assert_int_equal(f.found.n, 0);
    // A layer: qkv 3·12288², out 12288², mlp 2·4·12288², cut by 8, and their biases and norms; the
    // tokens (50257 rounded up to 128: 50304 rows) are cut by 8 too, positions and norms are not.
    uint64_t embed = 12288,
             layer = 12 * embed * embed / 8 + 3 * embed / 8 + 4 * embed / 8 + 2 * embed + 4 * embed;
    uint64_t count = 96 * layer + 50304 * embed / 8 + 2048 * embed + 2 * embed;
    assert_int_equal(f.c.memory.params, 4 * count);
    assert_int_equal(f.c.memory.grads, 4 * count);
    assert_int_equal(f.c.memory.optimizer, 8 * count);
    plan_fit(&f.job, &d, &f.c, &f.found, &f.a);
    const struct finding *one = find_finding(&f, FINDING_DOES_NOT_FIT, NULL);
    assert_non_null(one);
    assert_string_equal(one->fix, "sharding.rules.embed=[fsdp, data] and "
                                  "sharding.gather=[fsdp, data]");
    assert_int_equal(one->waste, f.c.memory.arena + d.libraries - d.memory);
    // 16 bytes a parameter alone are 4 times the device.
    assert_true(one->waste > 16 * count - d.memory);
    assert_non_null(strstr(one->message, "params 81.4 GiB, grads 81.4 GiB, optimizer 162.8 GiB"));
    // 50304 · 12288 / 8 · 4 bytes: a little more than a layer's mlp/in, 4 · 12288² / 8 · 4.
    assert_string_equal(one->tensor, "embed/tokens");
    assert_non_null(
        strstr(one->message,
               "the most is optimizer; the largest parameter, embed/tokens, takes 294.8 MiB"));
    report_make(&r, &f.job, &f.c, &f.found, &d, &f.a);
    assert_false(r.fits);
    fixture_clear(&f);
    const char *const set[] = {"sharding.rules.embed=[fsdp, data]", "sharding.gather=[fsdp, data]"};
    assert_int_equal(compile_with(&f, GPT3, set, 2), 0);
    d = read_model(&f.a, "a100-80g", NULL);
    assert_true(fit_fits(&f.c, &d));
    plan_fit(&f.job, &d, &f.c, &f.found, &f.a);
    assert_int_equal(f.found.n, 0);
    fixture_clear(&f);
}

// A gradient, two moments and the parameter: 16 bytes each. Over eight devices the moments cut are
// 9 bytes, the gradients too 5.5, and two layers' gradients on their way, 4 MiB each, 2.6 more;
// everything 2.
#define DEEP                                                                                  \
    "name: t\nmodel: {program: mlp, inputs: 1024, hidden: [1024, 1024, 1024], classes: 64}\n" \
    "data: {train: {images: i, labels: l}, batch: 8}\ntrain: {steps: 1}\nmesh: {dp: 8}\n"

static void state_and_gradients_are_cut_as_far_as_it_takes(void **state)
{
    // 3·(1024² + 1024) + 1024·64 + 64 parameters; activations of a sample are a few KB.
    enum { PARAMS = 3 * (1024 * 1024 + 1024) + 1024 * 64 + 64 };
    static const struct {
        double bytes; // a parameter that the device has room for
        const char *fix;
    } cases[] = {{10, "sharding.optimizer=[dp]"},
                 {8.5, "sharding.optimizer=[dp] and sharding.grads=[dp]"}};
    struct fixture f;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        compile_text(&f, DEEP, 0);
        assert_int_equal(f.c.memory.params + f.c.memory.grads + f.c.memory.optimizer,
                         (uint64_t)16 * PARAMS);
        struct device_model d = {.name = "small",
                                 .memory = (uint64_t)(cases[i].bytes * PARAMS) + (1 << 20)};
        plan_fit(&f.job, &d, &f.c, &f.found, &f.a);
        const struct finding *one = find_finding(&f, FINDING_DOES_NOT_FIT, NULL);
        assert_non_null(one);
        assert_non_null(one->fix);
        assert_string_equal(one->fix, cases[i].fix);
        fixture_clear(&f);
    }
}

// Activations of eight microbatches are an eighth of one's; the parameters are small.
#define WIDE                                                                             \
    "name: t\nmodel: {program: mlp, inputs: 64, hidden: [64, 64, 64, 64], classes: 8}\n" \
    "data: {train: {images: i, labels: l}, batch: 65536}\ntrain: {steps: 1}\nmesh: {dp: 2}\n"

static void too_many_activations_want_more_microbatches(void **state)
{
    struct fixture f;
    (void)state;
    compile_text(&f, WIDE, 0);
    // 32768 rows of 64 floats are 8 MiB; the forward keeps one a layer.
    assert_true(f.c.memory.stash >= 4 * ((uint64_t)8 << 20));
    struct device_model d = read_model(&f.a, "tiny:memory=24MiB,libraries=1MiB", NULL);
    plan_fit(&f.job, &d, &f.c, &f.found, &f.a);
    const struct finding *one = find_finding(&f, FINDING_DOES_NOT_FIT, NULL);
    assert_non_null(one);
    assert_non_null(one->fix);
    assert_non_null(strstr(one->fix, "train.microbatches="));
    // No parameter is named, though those alone have names: what the forward keeps is larger.
    assert_non_null(strstr(one->message, "; the most is stash; the largest tensor of it, "));
    assert_non_null(strstr(one->message, ", takes 8.0 MiB"));
    assert_null(strstr(one->tensor, "weight"));
    assert_null(strstr(one->fix, "sharding.rules"));
    fixture_clear(&f);
}

// ---- what helps beyond the settings that keep mesh, dtype and batch ------------------------------

static struct device_model device_of(uint64_t bytes)
{
    return (struct device_model){.name = "small", .memory = bytes};
}

// What the job needs with the settings of a fix, "A and B and C".
static uint64_t need_with_fix(const char *text, const char *fix)
{
    char copy[400], *rest = copy;
    const char *set[8];
    int n = 0;
    struct fixture f;
    snprintf(copy, sizeof copy, "%s", fix);
    while (rest) {
        char *and = strstr(rest, " and ");
        set[n++] = rest;
        rest = and? and+strlen(" and ") : NULL;
        if (and)
            *and = 0;
    }
    if (compile_with(&f, text, set, n))
        fail_msg("%s: %s", fix, f.e.text);
    uint64_t bytes = f.c.memory.arena;
    fixture_clear(&f);
    return bytes;
}

// The job does not fit the device; what is said of that is left in the fixture.
static const struct finding *advise(struct fixture *f, const char *text, uint64_t memory)
{
    struct device_model d = device_of(memory);
    compile_text(f, text, 0);
    fit_check(&f->job, plan_build_job, &d, &f->c, &f->found, &f->a, FIT_WORK);
    const struct finding *one = find_finding(f, FINDING_DOES_NOT_FIT, NULL);
    assert_non_null(one);
    return one;
}

// One sample a device leaves nothing to be divided: its scores over a large vocabulary are whole.
#define WHOLE_VOCABULARY                                                            \
    "name: t\nmodel: {program: gpt2, layers: 1, embed: 16, heads: 4, seq: 64, "     \
    "vocab: 8192, mlp: 64}\ndata: {format: tokens, train: {tokens: t}, batch: 4}\n" \
    "train: {steps: 1}\nmesh: {%s}\n"

// The fix is this setting of the mesh with others, and with it the job fits.
static void expect_mesh(const char *mesh, const char *others, const char *fix)
{
    char text[400], all[200];
    struct fixture f;
    snprintf(text, sizeof text, WHOLE_VOCABULARY, mesh);
    snprintf(all, sizeof all, "%s and %s", fix, others);
    const struct finding *one = advise(&f, text, need_with_fix(text, all));
    assert_non_null(one->fix);
    assert_string_equal(one->fix, all);
    assert_null(strstr(one->message, "more of them"));
    fixture_clear(&f);
}

static void another_mesh_of_the_same_devices_comes_before_more_of_them(void **state)
{
    (void)state;
    expect_mesh("fsdp: 4", "train.remat=block and train.microbatches=2", "mesh={fsdp: 2, tp: 2}");
    expect_mesh("fsdp: 4", "train.remat=block and train.microbatches=4", "mesh={tp: 4}");
    // By the name that the user's axis for heads has.
    expect_mesh("data: 4, model: 1", "train.remat=block and train.microbatches=4",
                "mesh={model: 4}");
}

#define SAMPLES(batch)                                                                        \
    "name: t\nmodel: {program: gpt2, layers: 1, embed: 16, heads: 4, seq: 64, vocab: 8192}\n" \
    "data: {format: tokens, train: {tokens: t}, batch: " batch "}\nresources: {kind: cuda}\n" \
    "train: {steps: 1, remat: full}\n"
#define ONE_SAMPLE   SAMPLES("1")
#define FOUR_SAMPLES SAMPLES("4")

static void bf16_comes_where_no_setting_of_f32_is_enough(void **state)
{
    static const char one_sample[] = "train.remat=block and precision.compute=bf16";
    static const char four[] = "train.remat=block and train.microbatches=4 and "
                               "precision.compute=bf16";
    struct fixture f;
    (void)state;
    uint64_t room = need_with_fix(ONE_SAMPLE, one_sample);
    const struct finding *one = advise(&f, ONE_SAMPLE, room);
    assert_string_equal(one->fix, one_sample);
    fixture_clear(&f);
    one = advise(&f, ONE_SAMPLE, room - 1);
    assert_null(one->fix);
    assert_non_null(strstr(one->message, "; no setting that was tried is enough: use more devices, "
                                         "or larger ones; with train.remat=block and "
                                         "precision.compute=bf16 a device would still need "));
    fixture_clear(&f);
    one = advise(&f, FOUR_SAMPLES, need_with_fix(FOUR_SAMPLES, four)); // a sample at a time
    assert_string_equal(one->fix, four);
    fixture_clear(&f);
}

// Microbatches spare nothing of 30,000 samples of 64 floats that a step is given.
static void a_smaller_batch_comes_last(void **state)
{
    static const char text[] =
        "name: t\nmodel: {program: mlp, inputs: 64, hidden: [64, 64, 64, 64], classes: 8}\n"
        "data: {train: {images: i, labels: l}, batch: 30000}\ntrain: {steps: 1}\n";
    static const char fix[] = "train.remat=block and train.microbatches=75 and "
                              "precision.compute=bf16 and data.batch=7500";
    struct fixture f;
    (void)state;
    const struct finding *one = advise(&f, text, need_with_fix(text, fix));
    assert_non_null(one->fix);
    assert_string_equal(one->fix, fix);
    fixture_clear(&f);
}

// 16 bytes a parameter over eight devices are 2.
static void more_devices_are_wanted_where_state_fills_these(void **state)
{
    enum { PARAMS = 3 * (1024 * 1024 + 1024) + 1024 * 64 + 64 };
    struct fixture f;
    (void)state;
    const struct finding *one = advise(&f, DEEP, (uint64_t)PARAMS * 16 / 10);
    assert_null(one->fix);
    assert_non_null(strstr(one->message, "parameters, gradients and optimiser state alone fill 10 "
                                         "such devices: use more of them, or larger ones"));
    fixture_clear(&f);
}

// On a device that has just what a candidate needs it is found; on one byte less it is not.
static void a_setting_that_just_fits_is_found(void **state)
{
    static const char text[] =
        "name: t\nmodel: {program: gpt2, layers: 16, embed: 64, heads: 2, seq: 32, vocab: 256, "
        "mlp: 256}\ndata: {format: tokens, train: {tokens: t}, batch: 64}\ntrain: {steps: 1}\n"
        "mesh: {dp: 4}\n";
    static const char *const fixes[] = {"sharding.optimizer=[dp]", "train.microbatches=2",
                                        "train.microbatches=8", "train.microbatches=16",
                                        "train.remat=block and train.microbatches=16"};
    (void)state;
    for (size_t i = 0; i < 2 * sizeof fixes / sizeof *fixes; i++) {
        struct fixture f;
        const struct finding *one = advise(&f, text, need_with_fix(text, fixes[i / 2]) - i % 2);
        assert_non_null(one->fix);
        if ((strcmp(one->fix, fixes[i / 2]) == 0) == (i % 2 != 0))
            fail_msg("%s, %d bytes less: %s", fixes[i / 2], (int)(i % 2), one->fix);
        fixture_clear(&f);
    }
}

// Logits over 8192 ids are all that counts, and a microbatch's share of them is enough.
static void microbatches_are_of_a_number_that_divides_the_batch(void **state)
{
    static const struct {
        int batch;
        const char *fix;
    } cases[] = {{45, "train.microbatches=9"}, {64, "train.microbatches=64"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[400];
        struct fixture f;
        snprintf(text, sizeof text,
                 "name: t\nmodel: {program: gpt2, layers: 1, embed: 8, heads: 1, seq: 32, "
                 "vocab: 8192}\ndata: {format: tokens, train: {tokens: t}, batch: %d}\n"
                 "train: {steps: 1}\n",
                 cases[i].batch);
        const struct finding *one = advise(&f, text, need_with_fix(text, cases[i].fix));
        assert_non_null(one->fix);
        assert_string_equal(one->fix, cases[i].fix);
        fixture_clear(&f);
    }
}

static int built; // train programs

static int build_counted(struct graph *g, const struct job *job, enum program_kind kind,
                         int64_t batch, int64_t step_batch)
{
    built += kind == PROGRAM_TRAIN;
    return plan_build_job(g, job, kind, batch, step_batch);
}

static void the_search_ends_where_a_job_takes_long_to_compile(void **state)
{
    struct fixture f;
    (void)state;
    compile_text(&f, DEEP, 0);
    struct device_model d = device_of(f.c.memory.arena / 3);
    built = 0;
    fit_check(&f.job, build_counted, &d, &f.c, &f.found, &f.a, 1);
    const struct finding *one = find_finding(&f, FINDING_DOES_NOT_FIT, NULL);
    assert_non_null(one);
    assert_null(one->fix);
    assert_int_equal(built, 1); // the first candidate's, which passed the bound
    assert_non_null(strstr(one->message, "; not all settings were tried, since this job takes long "
                                         "to compile; with sharding.optimizer=[dp] a device would "
                                         "still need "));
    fixture_clear(&f);
}

#define TWO(more)                                                                \
    "name: t\nmodel: {program: gpt2, layers: 2, embed: 64, heads: 2, seq: 64}\n" \
    "data: {format: tokens, train: {tokens: t}, batch: 8}\ntrain: {steps: 1}\n"  \
    "mesh: {dp: 2}\nresources: {kind: cuda" more "}\n"

static void what_nccl_takes_counts_where_devices_may_carry_collectives(void **state)
{
    struct fixture f;
    (void)state;
    compile_text(&f, TWO(", collectives: host"), 0);
    const struct memory by_hosts = f.c.memory;
    fixture_clear(&f);
    compile_text(&f, TWO(""), 0);
    const struct memory *m = &f.c.memory;
    struct device_model d = read_model(&f.a, "h200", NULL);
    assert_int_equal(by_hosts.communicators, 0);
    assert_int_equal(m->communicators, 1);
    assert_int_equal(m->region[REGION_SHARED] % COLLECTIVE_PIECE, 0);
    assert_in_range(m->arena - by_hosts.arena, 1, COLLECTIVE_PIECE - 1);
    assert_int_equal(m->arena, m->region[REGION_SHARED] + m->region[REGION_PRIVATE]);
    assert_int_equal(fit_need(&by_hosts, &d), by_hosts.arena + d.libraries);
    d.communicator = 1000;
    d.memory = m->arena + d.libraries + 1000;
    assert_true(fit_fits(&f.c, &d));
    d.memory--;
    assert_false(fit_fits(&f.c, &d));
    plan_fit(&f.job, &d, &f.c, &f.found, &f.a);
    const struct finding *one = find_finding(&f, FINDING_DOES_NOT_FIT, NULL);
    assert_non_null(one);
    assert_int_equal(one->waste, 1);
    assert_non_null(strstr(one->message, "NCCL 1000 B"));
    fixture_clear(&f);
}

#define FOUR_STAGES                                                              \
    "name: t\nmodel: {program: gpt2, layers: 4, embed: 64, heads: 2, seq: 64}\n" \
    "data: {format: tokens, train: {tokens: t}, batch: 8}\n"                     \
    "train: {steps: 1, microbatches: 4}\nmesh: {pp: 4}\nresources: {kind: cuda}\n"

// The last stage has the logits; the second, which has two neighbours, more communicators.
static void the_fullest_stage_is_that_of_arena_and_nccl(void **state)
{
    struct fixture f;
    struct report r;
    (void)state;
    compile_text(&f, FOUR_STAGES, 0);
    const struct memory *stage = f.c.by_stage;
    struct device_model d = device_of(0);
    assert_true(stage[1].communicators > stage[3].communicators);
    assert_true(stage[1].arena < stage[3].arena);
    d.communicator = 0;
    assert_ptr_equal(fit_fullest(&f.c, &d), &f.c.memory);
    d.communicator = (uint64_t)1 << 40;
    assert_ptr_equal(fit_fullest(&f.c, &d), &stage[1]);
    d.memory = fit_need(&stage[1], &d);
    assert_true(fit_fits(&f.c, &d));
    d.memory--;
    assert_false(fit_fits(&f.c, &d));
    report_make(&r, &f.job, &f.c, &f.found, &d, &f.a);
    assert_int_equal(r.fullest, 1);
    fixture_clear(&f);
}

static void put_text(const char *path, const char *text)
{
    FILE *to = fopen(path, "w");
    assert_non_null(to);
    assert_true(fputs(text, to) >= 0);
    assert_int_equal(fclose(to), 0);
}

static void what_a_run_measured_of_nccl_is_found_and_nonsense_is_not(void **state)
{
    static const char *const nonsense[] = {"",
                                           "3145728",
                                           "3145728 ",
                                           "0 NVIDIA H200",
                                           "-1 NVIDIA H200",
                                           "NVIDIA H200",
                                           "99999999999999999999 NVIDIA H200",
                                           "4294967297 NVIDIA H200"};
    char model[NCCL_MODEL] = "", path[300], other[300], was[100] = "";
    char folder[TEMP_FOLDER_MAX];
    struct err e = {0};
    uint64_t bytes = 0;
    (void)state;
    assert_int_equal(temp_folder_make(folder, "nccl"), 0);
    setenv("XDG_CACHE_HOME", folder, 1);
    assert_false(nccl_memory_find(model, &bytes));
    assert_int_equal(nccl_memory_keep("NVIDIA H200", 3 << 20, &e), 0);
    assert_true(nccl_memory_find(model, &bytes) && bytes == 3 << 20);
    assert_string_equal(model, "NVIDIA H200");
    snprintf(path, sizeof path, "%s/weft/nccl-memory", folder);
    snprintf(other, sizeof other, "%s/other", folder);
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        put_text(path, nonsense[i]);
        assert_false(nccl_memory_find(model, &bytes));
    }
    put_text(other, "of another");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink(other, path), 0); // it is replaced, and what it names stays
    assert_int_equal(nccl_memory_keep("NVIDIA H200", 4 << 20, &e), 0);
    assert_true(nccl_memory_find(model, &bytes) && bytes == 4 << 20);
    assert_int_equal(folder_read(folder, "other", was, sizeof was, &e), 0);
    assert_string_equal(was, "of another");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    assert_int_equal(nccl_memory_keep("NVIDIA H200", 3 << 20, &e), ERR_NOTFOUND);
    assert_false(nccl_memory_find(model, &bytes));
    assert_int_equal(temp_folder_remove(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_nccl_takes_counts_where_devices_may_carry_collectives),
        cmocka_unit_test(gpt3_does_not_fit_eight_by_eight_and_cutting_its_weights_on_data_does),
        cmocka_unit_test(state_and_gradients_are_cut_as_far_as_it_takes),
        cmocka_unit_test(too_many_activations_want_more_microbatches),
        cmocka_unit_test(another_mesh_of_the_same_devices_comes_before_more_of_them),
        cmocka_unit_test(bf16_comes_where_no_setting_of_f32_is_enough),
        cmocka_unit_test(a_smaller_batch_comes_last),
        cmocka_unit_test(more_devices_are_wanted_where_state_fills_these),
        cmocka_unit_test(a_setting_that_just_fits_is_found),
        cmocka_unit_test(microbatches_are_of_a_number_that_divides_the_batch),
        cmocka_unit_test(the_search_ends_where_a_job_takes_long_to_compile),
        cmocka_unit_test(the_fullest_stage_is_that_of_arena_and_nccl),
        cmocka_unit_test(what_a_run_measured_of_nccl_is_found_and_nonsense_is_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
