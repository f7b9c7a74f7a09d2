// SPDX-License-Identifier: Apache-2.0
// Marks: where they lie in a program, and that the progress page follows the device through what
// was queued at once, marks again at every replay, and stays still where a device stops. The device
// goes a command further at each look at an event: the one that keeps its time to itself
// (tests/support/late.c) and, with WEFT_RIG=cuda, the CUDA backend's emulated twin.
#include <unistd.h>

#include "common/attempt/watch.h"
#include "common/base/clock.h"
#include "common/compile/graph/node_work.h"
#include "tests/ops/rig.h"
#include "tests/unit/decoder_case.h"
#include "worker/rank/exec/exec.h"
#include "worker/rank/exec/marks.h"

#define MLP(sizes, batch, more)                                                          \
    "name: t\nmodel: {program: mlp, " sizes ", classes: 4, activation: gelu}\n"          \
    "data: {train: {images: i, labels: l}, batch: " batch "}\nschedule: {value: 0.01}\n" \
    "resources: {kind: cuda}\nmesh: {dp: 1}\ncheckpoint: {dir: ckpt}\n" more
static const char small[] =
    MLP("inputs: 7, hidden: [6, 5]", "12", "train: {steps: 9, microbatches: 3}\n");

// ---- where they lie ----------------------------------------------------------------------------

static int *plan_of(const struct program *p)
{
    int *begins = calloc((size_t)p->ninstrs, sizeof *begins), all = 0;
    marks_plan(p, begins);
    for (int i = 0; i < p->ninstrs; i++)
        all += begins[i];
    assert_int_equal(all, p->ninstrs);
    return begins;
}

static void a_small_step_is_marked_where_phases_begin(void **state)
{
    struct fixture f;
    (void)state;
    compile_text(&f, small, 0);
    const struct program *p = f.c.program[PROGRAM_TRAIN];
    int *begins = plan_of(p);
    for (int i = 0; i < p->ninstrs; i++)
        assert_int_equal(begins[i] > 0, p->instrs[i].kind == INSTR_MARK);
    free(begins);
    fixture_clear(&f);
}

// Products of 2 · 2¹⁵ · 2¹⁵ · 2¹⁵ = 2⁴⁶ FLOP: a minute's work on a slow device, each.
static void behind_every_large_product_lies_a_mark(void **state)
{
    struct fixture f;
    int large = 0;
    (void)state;
    compile_text(&f, MLP("inputs: 32768, hidden: [32768, 32768]", "32768", "train: {steps: 9}\n"),
                 0);
    const struct program *p = f.c.program[PROGRAM_TRAIN];
    int *begins = plan_of(p);
    for (int i = 0; i + 1 < p->ninstrs; i++) {
        const struct instr *in = &p->instrs[i];
        if (in->kind != INSTR_OP || !op_is(in->op, OP_IS_PRODUCT) ||
            node_flops(p->graph, NULL, &p->graph->nodes[in->node]) < 0x1p46)
            continue;
        large++;
        assert_true(begins[i + 1] > 0);
    }
    assert_true(large >= 5); // two forward, two weights' gradients, one input's
    free(begins);
    fixture_clear(&f);
}

// Their instructions are thousands, each of which is nothing.
static void compile_200_layers(struct fixture *f, const char *mesh)
{
    char text[2000], *layers;
    snprintf(text, sizeof text, "%s", decoder_text(models[0], mesh, 1, ""));
    layers = strstr(text, "layers: ");
    assert_non_null(layers);
    memmove(layers + 11, layers + 9, strlen(layers + 9) + 1);
    memcpy(layers, "layers: 200", 11);
    compile_text(f, text, 0);
}

static void no_more_than_1024_instructions_go_unmarked(void **state)
{
    struct fixture f;
    (void)state;
    compile_200_layers(&f, "dp: 1");
    const struct program *p = f.c.program[PROGRAM_TRAIN];
    int *begins = plan_of(p), at = 0, most = 0;
    for (int i = 0; i < p->ninstrs; i += 1 + p->instrs[i].with) { // a row runs in one call
        at = begins[i] ? i : at;
        most = i - at > most ? i - at : most;
    }
    assert_int_equal(most, 1023);
    free(begins);
    fixture_clear(&f);
}

// How long a collective takes, no work foretells.
static void no_more_than_128_collectives_go_unmarked(void **state)
{
    struct fixture f;
    (void)state;
    compile_200_layers(&f, "fsdp: 2");
    const struct program *p = f.c.program[PROGRAM_TRAIN];
    int *begins = plan_of(p), since = 0, most = 0, all = 0;
    for (int i = 0; i < p->ninstrs; i++) {
        const struct instr *in = &p->instrs[i];
        // Those of a bucket come at once.
        bool other = in->kind != INSTR_OP && in->kind != INSTR_MARK && !program_goes_with(p, in);
        since = (begins[i] ? 0 : since) + other;
        all += other;
        most = since > most ? since : most;
    }
    assert_true(all > 1000);
    assert_true(most <= 128);
    free(begins);
    fixture_clear(&f);
}

// ---- a device that is watched ------------------------------------------------------------------

struct mark_place {
    int phase, microbatch;
};
enum { PLACES = 64 };

static struct scene {
    struct fixture f;
    struct exec_options o;
    struct exec *x;
    struct event *end;
    struct progress_page *page;
    const struct program *p;
    char path[64];
} s;
static struct err e;
#define MUST(call)                             \
    do {                                       \
        if (call)                              \
            fail_msg("%s: %s", #call, e.text); \
    } while (0)

static int open_scene(void **state)
{
    char late[4100];
    (void)state;
    memset(&s, 0, sizeof s);
    e = (struct err){0};
    rig_find_backend();
    const char *folder = getenv("WEFT_BACKEND_DIR");
    if (folder && !rig_is_cuda() && !strstr(folder, "/tests/late")) {
        snprintf(late, sizeof late, "%s/tests/late", folder);
        setenv("WEFT_BACKEND_DIR", late, 1);
    }
    compile_text(&s.f, small, 0);
    s.p = s.f.c.program[PROGRAM_TRAIN];
    snprintf(s.path, sizeof s.path, "/tmp/weft-page-%d", (int)getpid());
    (void)unlink(s.path);
    MUST(page_create(s.path, 0, &s.page, &e));
    s.o = (struct exec_options){.compiled = &s.f.c, .page = s.page};
    MUST(backend_load("cuda", &s.o.backend, &e));
    const struct device_options o = {.threads = 1, .deterministic = true};
    MUST(s.o.backend->device.open(&o, &s.o.device, &e));
    MUST(exec_open(&s.o, &s.x, &e));
    MUST(s.o.backend->event.create(s.o.device, &s.end, &e));
    return 0;
}

static int close_scene(void **state)
{
    (void)state;
    exec_close(s.x);
    s.o.backend->event.destroy(s.end);
    s.o.backend->device.close(s.o.device);
    page_close(s.page);
    (void)unlink(s.path);
    fixture_clear(&s.f);
    return 0;
}

static struct page_view page_now(void)
{
    struct page_view v;
    exec_show(s.x);
    page_read(s.page, &v);
    return v;
}

static void queue(int64_t step)
{
    MUST(exec_step(s.x, step, &e));
    MUST(exec_run(s.x, PROGRAM_TRAIN, &e));
    MUST(s.o.backend->event.record(exec_stream(s.x), s.end, &e));
}

// The first two run op by op, of which the second is captured; all others are replayed.
static void train(int64_t steps)
{
    for (int64_t step = 1; step <= steps; step++) {
        queue(step);
        MUST(s.o.backend->event.sync(s.end, &e));
    }
}

// The device goes a command further; false when it has come to the end.
static bool look(void)
{
    bool done = false;
    MUST(s.o.backend->event.query(s.end, &done, &e));
    return !done;
}

// Where the program's own marks are, in its order: what a page must go through.
static int places_of(const struct program *p, struct mark_place out[PLACES])
{
    int n = 0;
    for (int i = 0; i < p->ninstrs; i++)
        if (p->instrs[i].kind == INSTR_MARK)
            out[n++] = (struct mark_place){(int)p->instrs[i].phase, p->instrs[i].microbatch};
    return n;
}

static void the_page_follows_the_device_through_what_was_queued_at_once(void **state)
{
    struct mark_place want[PLACES], got[PLACES];
    uint64_t all = (uint64_t)s.p->ninstrs;
    int n = places_of(s.p, want), seen = 0;
    (void)state;
    assert_int_equal(n, 7); // three times forward and backward, and the update
    train(3);
    struct page_view before = page_now(), at;
    assert_int_equal(before.step, 3);
    assert_int_equal(before.ops, 3 * all);
    assert_int_equal(before.phase, PHASE_UPDATE);
    queue(4);
    at = page_now(); // the host is through, the device has done nothing
    assert_true(at.step == 3 && at.phase == before.phase && at.ops == before.ops);
    while (look()) {
        struct page_view v = page_now();
        assert_true(v.ops >= at.ops);
        if (v.ops != at.ops) {
            assert_int_equal(v.step, 4);
            got[seen++ % PLACES] = (struct mark_place){v.phase, v.microbatch};
        }
        at = v;
    }
    assert_int_equal(seen, n);
    assert_memory_equal(got, want, sizeof *want * (size_t)n);
    assert_int_equal(page_now().ops, 4 * all);
}

static void every_replay_marks_again_where_it_was_before(void **state)
{
    uint64_t all = (uint64_t)s.p->ninstrs;
    (void)state;
    for (int64_t step = 1; step <= 5; step++) {
        struct page_view before = page_now(), after;
        queue(step);
        MUST(s.o.backend->event.sync(s.end, &e));
        after = page_now();
        assert_int_equal(after.ops - before.ops, all);
        assert_int_equal(after.step, step);
        assert_int_equal(after.phase, PHASE_UPDATE);
        assert_true(step == 1 || after.microbatch == before.microbatch);
    }
}

// A command takes 100 ms of the watch's time: the step is far longer than hang_after, and the first
// that the watch sees.
static void a_step_longer_than_hang_after_is_no_hang_while_the_device_moves(void **state)
{
    struct watch w;
    struct watch_verdict v;
    int64_t now = CLOCK_S, begun;
    (void)state;
    watch_init(&w, 1, 3 * CLOCK_S);
    page_state(s.page, RANK_RUNNING);
    train(2);
    queue(3);
    begun = now;
    for (bool more = true; more; now += CLOCK_S / 10) {
        struct page_view at = page_now();
        watch_see(&w, 0, &at, now);
        assert_false(watch_hung(&w, now, &v));
        more = look();
    }
    assert_true(now - begun > 6 * CLOCK_S);
    watch_clear(&w);
}

static void a_device_that_stops_leaves_the_page_still_and_where_it_stopped(void **state)
{
    struct watch w;
    struct watch_verdict v;
    struct page_view at, later;
    char text[300];
    (void)state;
    page_state(s.page, RANK_RUNNING);
    train(3);
    queue(4);
    do {
        assert_true(look());
        at = page_now();
    } while (at.step != 4 || at.phase != PHASE_BACKWARD || at.microbatch != 1);
    watch_init(&w, 1, 3 * CLOCK_S);
    watch_see(&w, 0, &at, CLOCK_S);
    usleep(300000); // whoever would beat the page has had the time
    later = page_now();
    assert_true(page_view_same(&at, &later));
    for (int64_t now = CLOCK_S; now <= 4 * CLOCK_S; now += CLOCK_S) {
        watch_see(&w, 0, &later, now);
        assert_false(watch_hung(&w, now, &v));
    }
    assert_true(watch_hung(&w, 4 * CLOCK_S + CLOCK_S / 10, &v));
    page_view_text(&later, text, sizeof text);
    assert_string_equal(text, "running, step 4, backward of microbatch 1");
    MUST(s.o.backend->event.sync(s.end, &e)); // and goes on
    assert_int_equal(page_now().phase, PHASE_UPDATE);
    watch_clear(&w);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, open_scene, close_scene)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_small_step_is_marked_where_phases_begin),
        cmocka_unit_test(behind_every_large_product_lies_a_mark),
        cmocka_unit_test(no_more_than_1024_instructions_go_unmarked),
        cmocka_unit_test(no_more_than_128_collectives_go_unmarked),
        CASE(the_page_follows_the_device_through_what_was_queued_at_once),
        CASE(every_replay_marks_again_where_it_was_before),
        CASE(a_step_longer_than_hang_after_is_no_hang_while_the_device_moves),
        CASE(a_device_that_stops_leaves_the_page_still_and_where_it_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
