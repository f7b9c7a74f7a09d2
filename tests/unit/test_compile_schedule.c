// SPDX-License-Identifier: Apache-2.0
// Schedules: stages take turns that come to an end. Tables are written out and times, bubbles and
// stashes worked out by hand, in forwards of one layer: a backward takes two, in two parts one each.
#include "common/compile/program/schedule.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/unit.h"

enum { STAGES = 8, PLACES = 32, SLOTS = 64 };
struct table {
    struct arena a;
    struct schedule_of of;
    struct schedule stage[STAGES];
    struct schedule_cost cost;
    struct err e;
};

static const int64_t ones[PLACES] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                     1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

static void table_init(struct table *t, enum job_pipeline_schedule kind, int stages, int chunks,
                       int micro)
{
    *t = (struct table){.of = {.program = PROGRAM_TRAIN,
                               .kind = kind,
                               .microbatches = micro,
                               .stages = stages,
                               .chunks = chunks,
                               .layers = ones}};
}

static int table_check(struct table *t)
{
    int rc = 0;
    for (int s = 0; s < t->of.stages && !rc; s++)
        rc = schedule_verify(&t->stage[s], &t->of, &t->e);
    return rc ? rc : schedule_simulate(t->stage, &t->of, &t->cost, &t->e);
}

// Builds, checks and simulates.
static void table_run(struct table *t)
{
    if (schedule_build(t->stage, &t->a, &t->of, &t->e) || table_check(t))
        fail_msg("kind %d, %d stages of %d chunks, %d microbatches: %s", t->of.kind, t->of.stages,
                 t->of.chunks, t->of.microbatches, t->e.text);
}

// "F0 B0 F1 B1"; W for weights; "F0b": in the second chunk. The update stands behind it.
static void stage_write(struct table *t, int stage, const char *text)
{
    static const enum phase phases[] = {
        ['F'] = PHASE_FORWARD, ['B'] = PHASE_BACKWARD, ['W'] = PHASE_WEIGHTS};
    struct schedule *s = &t->stage[stage];
    *s = (struct schedule){.microbatches = t->of.microbatches,
                           .chunks = t->of.chunks,
                           .slots = arena_array(&t->a, struct slot, SLOTS)};
    for (; *text; text += strcspn(text, " "), text += strspn(text, " "))
        s->slots[s->n++] = (struct slot){
            .phase = phases[(int)*text], .microbatch = text[1] - '0', .chunk = text[2] == 'b'};
    s->slots[s->n++] = (struct slot){.phase = PHASE_UPDATE, .microbatch = t->of.microbatches - 1};
    for (int i = 0; i < s->n; i++)
        s->slots[i].receive = i - 1;
}

static void expect_turns(const struct table *t, int stage, const char *want)
{
    const struct schedule *s = &t->stage[stage];
    char text[8 * SLOTS] = "";
    for (int i = 0; i < s->n - 1; i++)
        sprintf(text + strlen(text), "%s%c%d%s", i ? " " : "", "FBW"[s->slots[i].phase],
                s -> slots[i].microbatch, s->slots[i].chunk ? "b" : "");
    assert_string_equal(text, want);
    assert_int_equal(s->slots[s->n - 1].phase, PHASE_UPDATE);
}

static void one_forward_one_backward_fills_the_stages_behind_first(void **state)
{
    struct table t;
    (void)state;
    table_init(&t, JOB_1F1B, 3, 1, 4);
    table_run(&t);
    expect_turns(&t, 0, "F0 F1 F2 B0 F3 B1 B2 B3");
    expect_turns(&t, 1, "F0 F1 B0 F2 B1 F3 B2 B3");
    expect_turns(&t, 2, "F0 B0 F1 B1 F2 B2 F3 B3");
    arena_clear(&t.a);
    table_init(&t, JOB_1F1B, 3, 1, 1);
    table_run(&t);
    expect_turns(&t, 0, "F0 B0");
    arena_clear(&t.a);
}

static void gpipe_runs_all_forwards_first(void **state)
{
    struct table t;
    (void)state;
    table_init(&t, JOB_GPIPE, 2, 1, 3);
    table_run(&t);
    expect_turns(&t, 0, "F0 F1 F2 B0 B1 B2");
    expect_turns(&t, 1, "F0 F1 F2 B0 B1 B2");
    arena_clear(&t.a);
}

// As Megatron orders it: two microbatches at a time go round the ring of two stages.
static void interleaved_stages_pass_a_group_of_microbatches_through_every_chunk(void **state)
{
    struct table t;
    (void)state;
    table_init(&t, JOB_INTERLEAVED, 2, 2, 4);
    table_run(&t);
    expect_turns(&t, 0, "F0 F1 F0b F1b F2 B0b F3 B1b F2b B0 F3b B1 B2b B3b B2 B3");
    expect_turns(&t, 1, "F0 F1 F0b B0b F1b B1b F2 B0 F3 B1 F2b B2b F3b B3b B2 B3");
    arena_clear(&t.a);
}

// As in JAX's pipelines, where one loop runs over microbatches and one over rounds.
static void a_circular_pipeline_passes_all_microbatches_before_the_next_round(void **state)
{
    struct table t;
    (void)state;
    table_init(&t, JOB_CIRCULAR, 2, 2, 3);
    table_run(&t);
    for (int s = 0; s < 2; s++)
        expect_turns(&t, s, "F0 F1 F2 F0b F1b F2b B0b B1b B2b B0 B1 B2");
    // The last stage sends F0 at 2 and F2 at 4, what the first will read in F0b and F2b. There it is
    // received before the first sends anything later, so that no send waits for the end of the round;
    // and behind what the first sends at that very time, as it has the lower number.
    assert_int_equal(t.stage[0].slots[3].receive, 2);
    assert_int_equal(t.stage[0].slots[5].receive, 4);
    arena_clear(&t.a);
}

// ZB-H1 of three stages and five microbatches: stage s makes the gradients of weights s late.
static void zero_bubble_puts_the_gradients_of_weights_where_a_stage_would_wait(void **state)
{
    struct table t;
    (void)state;
    table_init(&t, JOB_ZERO_BUBBLE, 3, 1, 5);
    table_run(&t);
    expect_turns(&t, 0, "F0 F1 F2 B0 W0 F3 B1 W1 F4 B2 W2 B3 W3 B4 W4");
    expect_turns(&t, 1, "F0 F1 B0 F2 B1 W0 F3 B2 W1 F4 B3 W2 B4 W3 W4");
    expect_turns(&t, 2, "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 F4 B4 W2 W3 W4");
    arena_clear(&t.a);
}

static void an_evaluation_has_forwards_alone(void **state)
{
    struct table t;
    (void)state;
    for (int kind = JOB_1F1B; kind <= JOB_CIRCULAR; kind++) {
        int chunks = kind == JOB_INTERLEAVED || kind == JOB_CIRCULAR ? 2 : 1;
        table_init(&t, (enum job_pipeline_schedule)kind, 2, chunks, 1);
        t.of.program = PROGRAM_SAMPLE;
        table_run(&t);
        expect_turns(&t, 1, chunks == 2 ? "F0 F0b" : "F0");
        arena_clear(&t.a);
    }
}

// p stages of the same number of layers, m microbatches, v chunks, in units of a stage's forward
// (F = 1, B = 2, or B = W = 1). Each stage works 3m. It waits for what the first microbatch takes to
// come through to the last stage and back:
//
//   1f1b, gpipe             (p−1)(F+B)     = 3(p−1)
//   interleaved, circular   (p−1)(F+B)/v   = 3(p−1)/v    a round is over after a v-th of the layers
//   zero_bubble (H1)        (p−1)(F+B−W)   = p−1         W is done meanwhile
//
// Under way are, of p, v and m that fill the pipeline: with 1f1b and zero_bubble p microbatches on
// the first stage, with gpipe and circular all, interleaved a chunk each of 2(p−1) + (v−1)p + 1.
static const struct known {
    enum job_pipeline_schedule kind;
    int stages, chunks, micro;
    double waits;
    int stash;
} known[] = {
    {JOB_1F1B, 4, 1, 8, 9, 4},
    {JOB_1F1B, 4, 1, 16, 9, 4},
    {JOB_1F1B, 8, 1, 8, 21, 8},
    {JOB_1F1B, 8, 1, 16, 21, 8},
    {JOB_GPIPE, 4, 1, 8, 9, 8},
    {JOB_GPIPE, 8, 1, 16, 21, 16},
    {JOB_INTERLEAVED, 4, 2, 8, 4.5, 11},
    {JOB_INTERLEAVED, 4, 4, 8, 2.25, 19},
    {JOB_INTERLEAVED, 8, 2, 16, 10.5, 23},
    {JOB_INTERLEAVED, 8, 4, 16, 5.25, 39},
    {JOB_INTERLEAVED, 4, 2, 4, 4.5, 8},
    {JOB_CIRCULAR, 4, 2, 8, 4.5, 16},
    {JOB_CIRCULAR, 4, 4, 4, 2.25, 16},
    {JOB_CIRCULAR, 8, 2, 16, 10.5, 32},
    {JOB_CIRCULAR, 8, 4, 11, 5.25, 44},
    {JOB_ZERO_BUBBLE, 4, 1, 8, 3, 4},
    {JOB_ZERO_BUBBLE, 4, 1, 16, 3, 4},
    {JOB_ZERO_BUBBLE, 8, 1, 8, 7, 8},
    {JOB_ZERO_BUBBLE, 8, 1, 16, 7, 8},
    {JOB_1F1B, 4, 1, 2, 9, 2},
    {JOB_GPIPE, 4, 1, 2, 9, 2},
    {JOB_1F1B, 2, 1, 1, 3, 1},
    {JOB_1F1B, 1, 1, 3, 0, 1},
    {JOB_ZERO_BUBBLE, 1, 1, 3, 0, 1},
};

static void equal_stages_idle_for_what_the_first_microbatch_takes_to_come_through(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof known / sizeof *known; c++) {
        const struct known *k = &known[c];
        struct table t;
        table_init(&t, k->kind, k->stages, k->chunks, k->micro);
        table_run(&t);
        double works = 3.0 * k->micro, took = t.cost.makespan / k->chunks; // a chunk is a v-th
        if (fabs(took - works - k->waits) > 1e-9 || t.cost.peak_stash != k->stash ||
            fabs(t.cost.bubble - k->waits / (works + k->waits)) > 1e-12)
            fail_msg("case %zu: %g instead of %g, bubble %g, stash %d", c, took, works + k->waits,
                     t.cost.bubble, t.cost.peak_stash);
        arena_clear(&t.a);
    }
}

// In bytes: a chunk keeps a v-th of what a stage keeps. Against 1f1b's p, interleaved keeps
// (2(p−1) + (v−1)p + 1) / v: more, but less than twice as much; zero_bubble as much.
static void no_schedule_but_gpipe_and_circular_keeps_more_with_more_microbatches(void **state)
{
    static const enum job_pipeline_schedule kinds[] = {JOB_1F1B, JOB_INTERLEAVED, JOB_ZERO_BUBBLE};
    (void)state;
    for (int p = 4; p <= 8; p += 4)
        for (int k = 0; k < 3; k++) {
            struct table few, many;
            int chunks = kinds[k] == JOB_INTERLEAVED ? 2 : 1;
            table_init(&few, kinds[k], p, chunks, 2 * p);
            table_init(&many, kinds[k], p, chunks, 6 * p);
            table_run(&few);
            table_run(&many);
            assert_int_equal(few.cost.peak_stash, many.cost.peak_stash);
            assert_true(many.cost.bubble < few.cost.bubble);
            assert_true(many.cost.peak_stash < 2 * p * chunks);
            arena_clear(&few.a);
            arena_clear(&many.a);
        }
}

// Layers 1 and 3, two microbatches: the second stage works from 1 to 19 without a break, the first
// ends its last backward at 21. 24 of 42 are work.
static void a_slow_stage_makes_the_other_wait(void **state)
{
    static const int64_t layers[] = {1, 3};
    (void)state;
    for (int how = JOB_1F1B; how <= JOB_GPIPE; how++) {
        struct table t;
        table_init(&t, (enum job_pipeline_schedule)how, 2, 1, 2);
        t.of.layers = layers;
        table_run(&t);
        assert_true(t.cost.makespan == 21);
        assert_true(fabs(t.cost.bubble - 3.0 / 7) < 1e-12);
        assert_true(t.stage[1].slots[0].start == 1 && t.stage[1].slots[3].end == 19);
        arena_clear(&t.a);
    }
}

static void bad_tables_are_refused(void **state)
{
    static const struct {
        const char *first, *second, *says;
        enum job_pipeline_schedule kind;
        int chunks, micro;
    } cases[] = {
        {"F0 F1 B0", "F0 B0 F1 B1", "1 backward slots of chunk 0 for 2", JOB_1F1B, 1, 2},
        {"F0 F1 B0 B1", "F0 B0", "1 forward slots of chunk 0 for 2", JOB_1F1B, 1, 2},
        {"F1 F0 B0 B1", "F0 B0 F1 B1", "forward of microbatch 1 out of order", JOB_1F1B, 1, 2},
        {"F0 F1 B1 B0", "F0 F1 B1 B0", "backward of microbatch 1 out of order", JOB_1F1B, 1, 2},
        {"F0 B0 B1 F1", "F0 B0 F1 B1", "backward of microbatch 1 before its forward", JOB_1F1B, 1,
         2},
        {"F0 W0 B0", "F0 B0 W0", "weights of microbatch 0 before its backward", JOB_ZERO_BUBBLE, 1,
         1},
        {"F0 B0", "F0 B0 W0", "0 weights slots of chunk 0 for 1", JOB_ZERO_BUBBLE, 1, 1},
        {"F0 B0 W0", "F0 B0", "1 weights slots of chunk 0 for 0", JOB_1F1B, 1, 1},
        {"F0 F0b B0b B0", "F0 B0 F0 B0", "forward of microbatch 0 out of order", JOB_CIRCULAR, 2,
         1},
        // each alone is fine: the first wants what the second makes after what it wants
        {"F0 B0 F1 B1", "F0 F1 B0 B1", "deadlock: stage 0 waits for what it needs", JOB_1F1B, 1, 2},
        // the second round would begin before the first stage has run it
        {"F0b F0 B0b B0", "F0 F0b B0b B0", "in another order than stage 0 sends", JOB_CIRCULAR, 2,
         1},
        {"F0b F0 B0b B0", "F0b F0 B0b B0", "deadlock: stage 0 waits for what it needs",
         JOB_CIRCULAR, 2, 1},
        // runs only where messages pile up: two lie on their way while both stages send
        {"F0 F1 F2 F3 B0 B1 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3", "deadlock: stage 0 waits to send",
         JOB_1F1B, 1, 4},
        // the first stage sends two chunks in another order than the second takes them
        {"F0 F1 F0b F1b B0b B1b B0 B1", "F0 F0b F1 F1b B0b B1b B0 B1", "in another order than",
         JOB_CIRCULAR, 2, 2},
    };
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct table t;
        table_init(&t, cases[c].kind, 2, cases[c].chunks, cases[c].micro);
        stage_write(&t, 0, cases[c].first);
        stage_write(&t, 1, cases[c].second);
        if (table_check(&t) != ERR_INTERNAL || !strstr(t.e.text, cases[c].says))
            fail_msg("case %zu: %s", c, t.e.text);
        arena_clear(&t.a);
    }
    struct table t; // without the check of each: a microbatch that nobody receives
    table_init(&t, JOB_1F1B, 2, 1, 2);
    stage_write(&t, 0, "F0 F1 B0 B1");
    stage_write(&t, 1, "F0 B0");
    assert_int_equal(schedule_simulate(t.stage, &t.of, &t.cost, &t.e), ERR_INTERNAL);
    arena_clear(&t.a);
}

static void a_table_with_two_slots_exchanged_or_without_its_end_is_refused(void **state)
{
    (void)state;
    for (int kind = JOB_1F1B; kind <= JOB_CIRCULAR; kind++) {
        int chunks = kind == JOB_INTERLEAVED || kind == JOB_CIRCULAR ? 2 : 1;
        struct table t;
        table_init(&t, (enum job_pipeline_schedule)kind, 2, chunks, 4);
        table_run(&t);
        struct slot *slots = t.stage[1].slots, keep = slots[0];
        slots[0] = slots[1];
        slots[1] = keep;
        assert_int_equal(table_check(&t), ERR_INTERNAL);
        slots[1] = slots[0];
        slots[0] = keep;
        assert_int_equal(table_check(&t), 0);
        int receive = slots[2].receive;
        slots[2].receive = 3; // of a slot that has begun
        assert_int_equal(table_check(&t), ERR_INTERNAL);
        slots[2].receive = receive;
        t.stage[1].n--; // no update
        assert_int_equal(table_check(&t), ERR_INTERNAL);
        arena_clear(&t.a);
    }
}

// Whatever the stages, chunks and microbatches: no table that is built deadlocks.
static void every_table_that_is_built_comes_to_its_end(void **state)
{
    static const int64_t uneven[PLACES] = {3, 1, 1, 5, 1, 2, 1, 1, 4, 1, 1, 1, 1, 1, 7, 1};
    (void)state;
    for (int kind = JOB_1F1B; kind <= JOB_CIRCULAR; kind++)
        for (int stages = 1; stages <= 5; stages++)
            for (int chunks = 1; chunks <= 3; chunks++)
                for (int micro = 1; micro <= 11; micro++) {
                    struct table t;
                    bool has_chunks = kind == JOB_INTERLEAVED || kind == JOB_CIRCULAR;
                    if (((!has_chunks || stages == 1) && chunks > 1) ||
                        (kind == JOB_INTERLEAVED && micro % stages)) // which no job may ask for
                        continue;
                    table_init(&t, (enum job_pipeline_schedule)kind, stages, chunks, micro);
                    table_run(&t);
                    t.of.layers = uneven;
                    table_run(&t);
                    arena_clear(&t.a);
                }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_forward_one_backward_fills_the_stages_behind_first),
        cmocka_unit_test(gpipe_runs_all_forwards_first),
        cmocka_unit_test(interleaved_stages_pass_a_group_of_microbatches_through_every_chunk),
        cmocka_unit_test(a_circular_pipeline_passes_all_microbatches_before_the_next_round),
        cmocka_unit_test(zero_bubble_puts_the_gradients_of_weights_where_a_stage_would_wait),
        cmocka_unit_test(an_evaluation_has_forwards_alone),
        cmocka_unit_test(equal_stages_idle_for_what_the_first_microbatch_takes_to_come_through),
        cmocka_unit_test(no_schedule_but_gpipe_and_circular_keeps_more_with_more_microbatches),
        cmocka_unit_test(a_slow_stage_makes_the_other_wait),
        cmocka_unit_test(bad_tables_are_refused),
        cmocka_unit_test(a_table_with_two_slots_exchanged_or_without_its_end_is_refused),
        cmocka_unit_test(every_table_that_is_built_comes_to_its_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
