// SPDX-License-Identifier: Apache-2.0
// The seam between the executor and what carries collectives, on devices that keep their memory and
// their time to themselves (tests/support/late.c): a transport of the devices takes their pointers,
// completes by their events and is captured in their graphs. That results are right is
// test_compile_meshes's to show.
#include "tests/ops/rig.h"
#include "tests/support/late_transport.h"
#include "tests/support/rank_threads.h"
#include "tests/unit/compile_case.h"

enum { STEPS = 5, RANKS = 2 };

static const char *const text =
    "name: t\n"
    "model: {program: mlp, inputs: 24, hidden: [48, 24, 48], classes: 6, activation: gelu}\n"
    "data: {format: npy, dtype: u8, train: {images: i, labels: l}, eval: {images: i, labels: l}, "
    "batch: 48}\n"
    "optimizer: {kind: momentum, clip_norm: 0.5}\n"
    "schedule: {kind: constant, value: 0.01}\n"
    "train: {steps: 3, microbatches: 2, seed: 5}\n"
    "mesh: {dp: 2}\n";

// A bucket's are one.
static int count_starts(const struct program *p)
{
    int n = 0;
    for (int i = 0; i < p->ninstrs; i++)
        if (p->instrs[i].kind == INSTR_START) {
            n++;
            i += p->instrs[i].with;
        }
    return n;
}

struct run {
    struct late_transport_counts counts;
    int trained, evaluated; // collectives of one step, and of one evaluation, of all ranks
    int rc;
    struct err e;
};

static struct run run_on(const struct transport *transport)
{
    static const double one = 1, hyper[HYPER_SLOTS] = {0.01, 10, 1000}, control[CONTROL_SLOTS];
    struct run run = {0};
    struct fixture f;
    struct interp start;
    if (compile_any(&f, text))
        fail_msg("%s", f.e.text);
    make_batch(&f);
    interp_init(&start, f.c.global[PROGRAM_TRAIN], NULL, 1);
    set_params(&start);
    const struct whole_tensor data[] = {{"images", f.images}, {"labels", f.labels}, {"one", &one},
                                        {"hyper", hyper},     {"control", control}, {NULL, NULL}};
    struct rank_threads ranks = {.compiled = &f.c,
                                 .start = &start,
                                 .data = data,
                                 .steps = STEPS,
                                 .late = true,
                                 .transport = transport};
    (void)late_transport_counts();
    run.rc = rank_threads_run(&ranks, &run.e);
    run.counts = late_transport_counts();
    run.trained = RANKS * count_starts(f.c.program[PROGRAM_TRAIN]);
    run.evaluated = RANKS * count_starts(f.c.program[PROGRAM_EVAL]);
    rank_threads_clear(&ranks);
    interp_clear(&start);
    fixture_clear(&f);
    return run;
}

static void collectives_take_place_where_the_device_comes_to_them(void **state)
{
    (void)state;
    struct run run = run_on(&event_transport);
    if (run.rc)
        fail_msg("%s", run.e.text);
    assert_true(run.trained > 0);
    assert_int_equal(run.counts.starts, STEPS * run.trained + run.evaluated);
    assert_int_equal(run.counts.done, run.counts.starts);
}

// The first step is started op by op, the second captured and then run op by op; from then on the
// graphs hold them.
static void a_graph_holds_the_collectives_between_its_ops(void **state)
{
    (void)state;
    struct run run = run_on(&inline_transport);
    if (run.rc)
        fail_msg("%s", run.e.text);
    assert_int_equal(run.counts.starts, 3 * run.trained + run.evaluated);
    assert_int_equal(run.counts.done, STEPS * run.trained + run.evaluated);
}

static void what_cannot_be_captured_is_started_each_time(void **state)
{
    (void)state;
    setenv("WEFT_LATE_FAIL", "capture", 1);
    struct run run = run_on(&inline_transport);
    unsetenv("WEFT_LATE_FAIL");
    if (run.rc)
        fail_msg("%s", run.e.text);
    assert_int_equal(run.counts.done, STEPS * run.trained + run.evaluated);
}

// Whichever rank that is: the other could capture everything, and starts each collective in each step.
static void what_one_rank_cannot_capture_no_rank_replays(void **state)
{
    (void)state;
    setenv("WEFT_LATE_FAIL", "capture 1", 1);
    struct run run = run_on(&inline_transport);
    unsetenv("WEFT_LATE_FAIL");
    if (run.rc)
        fail_msg("%s", run.e.text);
    assert_true(run.counts.starts > STEPS * run.trained + run.evaluated);
    assert_int_equal(run.counts.done, STEPS * run.trained + run.evaluated);
}

static void a_transport_hears_when_its_world_is_aborted(void **state)
{
    (void)state;
    setenv("WEFT_LATE_FAIL", "op 60", 1);
    struct run run = run_on(&event_transport);
    unsetenv("WEFT_LATE_FAIL");
    assert_int_equal(run.rc, ERR_DEVICE);
    assert_int_equal(run.counts.aborts, RANKS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_take_place_where_the_device_comes_to_them),
        cmocka_unit_test(a_graph_holds_the_collectives_between_its_ops),
        cmocka_unit_test(what_cannot_be_captured_is_started_each_time),
        cmocka_unit_test(what_one_rank_cannot_capture_no_rank_replays),
        cmocka_unit_test(a_transport_hears_when_its_world_is_aborted),
    };
    return cmocka_run_group_tests(tests, rig_set_up, NULL);
}
