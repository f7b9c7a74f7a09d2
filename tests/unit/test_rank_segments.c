// SPDX-License-Identifier: Apache-2.0
// The bookkeeping of captures on a device that is nothing but counters: where a program is cut,
// what is captured when, and that a capture that fails, here or on another rank, leaves the step as it was.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/compile_case.h"
#include "worker/rank/exec/segments.h"

// What the device was told, as words: "issue 0-3", "begin", "end", "launch 1", "free 1".
static char told[2000];
static bool capturing, another_fails;
static int graphs, fail_begin, fail_end, fail_issue_in_capture, fail_launch;

__attribute__((format(printf, 1, 2))) static void tell(const char *fmt, ...)
{
    size_t n = strlen(told);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(told + n, sizeof told - n, fmt, ap);
    va_end(ap);
    strncat(told, "; ", sizeof told - strlen(told) - 1);
}

static int begin(struct stream_q *q, struct err *e)
{
    (void)q;
    tell("begin");
    capturing = !fail_begin;
    return fail_begin ? err_set(e, ERR_DEVICE, "no capture begins") : 0;
}

static int end(struct stream_q *q, void **graph, struct err *e)
{
    (void)q;
    assert_true(capturing);
    tell("end");
    capturing = false;
    if (fail_end)
        return err_set(e, ERR_DEVICE, "no graph of that");
    *graph = (char *)told + ++graphs; // some address, its number
    return 0;
}

static int launch(struct stream_q *q, void *graph, struct err *e)
{
    (void)q;
    assert_false(capturing);
    tell("launch %d", (int)((char *)graph - told));
    return fail_launch ? err_set(e, ERR_DEVICE, "the graph faults") : 0;
}

static void drop(void *graph)
{
    tell("free %d", (int)((char *)graph - told));
}

static const struct backend_graph graph_table = {
    .begin = begin, .end = end, .launch = launch, .destroy = drop};
static const struct backend able = {.graph = &graph_table};
static const struct backend unable = {.name = "plain"};

static int issue(void *ctx, int first, int last, struct err *e)
{
    (void)ctx;
    tell("issue %d-%d", first, last);
    return capturing && fail_issue_in_capture ? err_set(e, ERR_DEVICE, "not while captured") : 0;
}

struct rig {
    struct arena arena;
    struct segments s;
};

// 'o' an op, 'H' what needs the host, '-' what does nothing, '|' before what it stands: a cut.
static void cut(struct rig *r, const struct backend *b, const char *program)
{
    enum segment_part parts[64];
    bool cuts[65] = {false};
    int n = 0;
    for (; *program; program++)
        if (*program == '|')
            cuts[n] = true;
        else
            parts[n++] = *program == 'o' ? PART_OP : *program == '-' ? PART_NONE : PART_HOST;
    segments_init(&r->s, b, NULL, &r->arena, parts, cuts, n);
}

static int run(struct rig *r, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < r->s.n && !rc; i++)
        if (r->s.segment[i].queued)
            rc = segment_run(&r->s, &r->s.segment[i], issue, NULL, e);
        else
            tell("host %d", r->s.segment[i].first);
    if (!rc && segments_ran(&r->s)) {
        tell("agree");
        segments_decide(&r->s, !r->s.failed.code && !another_fails);
    }
    return rc;
}

static const char *said(void)
{
    static char last[sizeof told];
    strcpy(last, told);
    told[0] = 0;
    return last;
}

static int make(void **state)
{
    struct rig *r = calloc(1, sizeof *r);
    told[0] = 0;
    graphs = fail_begin = fail_end = fail_issue_in_capture = fail_launch = 0;
    capturing = another_fails = false;
    *state = r;
    return 0;
}

static int forget(void **state)
{
    struct rig *r = *state;
    segments_clear(&r->s);
    arena_clear(&r->arena);
    free(r);
    return 0;
}

static void a_program_is_cut_where_the_host_acts_and_where_it_is_asked_to(void **state)
{
    struct rig *r = *state;
    static const struct {
        int first, end;
        bool queued, worth;
    } want[] = {{0, 3, true, true},
                {3, 4, false, false},
                {4, 5, false, false},
                {5, 7, true, true},
                {7, 11, true, false}};
    cut(r, &able, "oooHHoo|-o--");
    assert_int_equal(r->s.n, 5);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(r->s.segment[i].first, want[i].first);
        assert_int_equal(r->s.segment[i].end, want[i].end);
        assert_int_equal(r->s.segment[i].queued, want[i].queued);
        assert_int_equal(r->s.segment[i].worth, want[i].worth);
    }
}

static void the_first_run_is_op_by_op_the_second_is_captured_the_rest_replayed(void **state)
{
    struct rig *r = *state;
    cut(r, &able, "oooHoo");
    assert_int_equal(run(r, NULL), 0);
    assert_string_equal(said(), "issue 0-3; host 3; issue 4-6; ");
    assert_int_equal(run(r, NULL), 0);
    assert_string_equal(said(), "begin; issue 0-3; end; issue 0-3; host 3; "
                                "begin; issue 4-6; end; issue 4-6; agree; ");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(run(r, NULL), 0);
        assert_string_equal(said(), "launch 1; host 3; launch 2; ");
    }
    segments_clear(&r->s);
    assert_string_equal(said(), "free 1; free 2; ");
}

static void one_op_alone_is_no_graph(void **state)
{
    struct rig *r = *state;
    cut(r, &able, "-oHoo");
    for (int i = 0; i < 3; i++)
        assert_int_equal(run(r, NULL), 0);
    assert_string_equal(said(), "issue 0-2; host 2; issue 3-5; "
                                "issue 0-2; host 2; begin; issue 3-5; end; issue 3-5; agree; "
                                "issue 0-2; host 2; launch 1; ");
}

// A stage of a pipeline may be so, and the others still ask it.
static void a_program_without_anything_to_capture_agrees_too(void **state)
{
    struct rig *r = *state;
    cut(r, &able, "oHo");
    for (int i = 0; i < 3; i++)
        assert_int_equal(run(r, NULL), 0);
    assert_string_equal(said(), "issue 0-1; host 1; issue 2-3; "
                                "issue 0-1; host 1; issue 2-3; agree; "
                                "issue 0-1; host 1; issue 2-3; ");
}

static void a_backend_without_capture_runs_op_by_op(void **state)
{
    struct rig *r = *state;
    cut(r, &unable, "ooHoo");
    for (int i = 0; i < 3; i++) {
        assert_int_equal(run(r, NULL), 0);
        assert_string_equal(said(), "issue 0-2; host 2; issue 3-5; ");
    }
}

// Whichever of its parts fails, a capture is ended if it began, the step runs on op by op, and
// nothing else is tried.
static void a_capture_that_fails_is_the_last_one(void **state)
{
    struct rig *r = *state;
    static const struct {
        int *fails;
        const char *second, *why;
    } cases[] = {
        {&fail_begin, "begin; issue 0-2; host 2; issue 3-5; agree; ", "no capture begins"},
        {&fail_issue_in_capture,
         "begin; issue 0-2; end; free 1; issue 0-2; host 2; issue 3-5; agree; ",
         "not while captured"},
        {&fail_end, "begin; issue 0-2; end; issue 0-2; host 2; issue 3-5; agree; ",
         "no graph of that"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        graphs = 0;
        *cases[i].fails = 1;
        cut(r, &able, "ooHoo");
        assert_int_equal(run(r, NULL), 0);
        said();
        assert_int_equal(run(r, NULL), 0);
        assert_string_equal(said(), cases[i].second);
        assert_non_null(strstr(r->s.failed.text, "instructions 0 to 1 cannot be captured: "));
        assert_non_null(strstr(r->s.failed.text, cases[i].why));
        *cases[i].fails = 0;
        assert_int_equal(run(r, NULL), 0);
        assert_string_equal(said(), "issue 0-2; host 2; issue 3-5; ");
    }
}

static void graphs_of_before_a_failed_capture_are_given_up(void **state)
{
    struct rig *r = *state;
    cut(r, &able, "ooHoo");
    assert_int_equal(run(r, NULL), 0);
    assert_int_equal(segment_run(&r->s, &r->s.segment[0], issue, NULL, NULL), 0);
    fail_end = 1;
    assert_int_equal(segment_run(&r->s, &r->s.segment[2], issue, NULL, NULL), 0);
    said();
    assert_true(segments_ran(&r->s));
    segments_decide(&r->s, false);
    assert_string_equal(said(), "free 1; ");
    assert_int_equal(run(r, NULL), 0);
    assert_string_equal(said(), "issue 0-2; host 2; issue 3-5; ");
}

static void where_another_rank_cannot_capture_nothing_is_replayed(void **state)
{
    struct rig *r = *state;
    another_fails = true;
    cut(r, &able, "ooHoo");
    assert_int_equal(run(r, NULL), 0);
    said();
    assert_int_equal(run(r, NULL), 0);
    assert_string_equal(said(), "begin; issue 0-2; end; issue 0-2; host 2; "
                                "begin; issue 3-5; end; issue 3-5; agree; free 1; free 2; ");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(run(r, NULL), 0);
        assert_string_equal(said(), "issue 0-2; host 2; issue 3-5; ");
    }
}

static void a_fault_of_a_graph_is_the_callers(void **state)
{
    struct rig *r = *state;
    struct err e = {0};
    cut(r, &able, "oo");
    assert_int_equal(run(r, &e), 0);
    assert_int_equal(run(r, &e), 0);
    fail_launch = 1;
    assert_int_equal(run(r, &e), ERR_DEVICE);
    assert_string_equal(e.text, "the graph faults");
}

// ---- of programs -------------------------------------------------------------------------------

static void compile_gpt2(struct fixture *f, const char *mesh)
{
    static char text[600];
    snprintf(text, sizeof text,
             "name: t\n"
             "model: {program: gpt2, layers: 2, embed: 24, heads: 4, mlp: 24, seq: 8, vocab: 21, "
             "vocab_multiple: 24}\n"
             "mesh: {%s}\n"
             "data: {format: tokens, train: {tokens: t}, batch: 8}\n"
             "optimizer: {kind: adamw, clip_norm: 0.5}\n"
             "schedule: {kind: constant, value: 0.01}\n"
             "train: {steps: 3, microbatches: 2}\n",
             mesh);
    if (compile_any(f, text))
        fail_msg("%s: %s", mesh, f->e.text);
}

// How many graphs it has; the host is asked once a collective, and once where one is waited for.
static int check_segments(const struct program *p)
{
    struct arena a = {0};
    struct segments s;
    int graphs_of = 0, asks = 0, cuts = 0;
    segments_of_program(&s, &able, NULL, &a, p, false);
    for (int k = 0; k < s.n; k++) {
        const struct segment *g = &s.segment[k];
        int ops = 0;
        for (int i = g->first; i < g->end; i++) {
            bool asked = p->instrs[i].kind != INSTR_OP && p->instrs[i].kind != INSTR_MARK &&
                         !program_goes_with(p, &p->instrs[i]);
            assert_int_equal(asked, !g->queued);
            ops += p->instrs[i].kind == INSTR_OP;
        }
        assert_int_equal(g->worth, ops > 1);
        asks += !g->queued;
        graphs_of += g->worth;
        cuts += k > 0 && g->queued && g[-1].queued;
        if (k > 0 && g->queued && g[-1].queued)
            assert_true(g->first == s.inputs_read || g->first == s.state_writes);
    }
    assert_true(cuts <= 2 && graphs_of > 0 && graphs_of <= asks + 3);
    segments_clear(&s);
    arena_clear(&a);
    return graphs_of;
}

static int count_kinds(const struct program *p, enum instr_kind kind)
{
    int n = 0;
    for (int i = 0; i < p->ninstrs; i++)
        n += p->instrs[i].kind == kind;
    return n;
}

static void a_decoder_is_cut_at_collectives_and_nowhere_else(void **state)
{
    static const char *const meshes[] = {"dp: 2", "fsdp: 2", "tp: 2", "pp: 2"};
    (void)state;
    for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++) {
        struct fixture f;
        compile_gpt2(&f, meshes[m]);
        for (int stage = 0; stage < f.c.nstages; stage++)
            check_segments(compiled_program(&f.c, PROGRAM_TRAIN, stage));
        fixture_clear(&f);
    }
}

// What travels in one bucket starts once and is waited for once.
static void a_bucket_cuts_a_program_twice(void **state)
{
    struct fixture f;
    (void)state;
    compile_gpt2(&f, "dp: 2");
    const struct program *p = compiled_program(&f.c, PROGRAM_TRAIN, 0);
    assert_true(count_kinds(p, INSTR_START) > 20);
    assert_true(check_segments(p) < 10);
    fixture_clear(&f);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, make, forget)
    const struct CMUnitTest tests[] = {
        CASE(a_program_is_cut_where_the_host_acts_and_where_it_is_asked_to),
        CASE(the_first_run_is_op_by_op_the_second_is_captured_the_rest_replayed),
        CASE(one_op_alone_is_no_graph),
        CASE(a_program_without_anything_to_capture_agrees_too),
        CASE(a_backend_without_capture_runs_op_by_op),
        CASE(a_capture_that_fails_is_the_last_one),
        CASE(graphs_of_before_a_failed_capture_are_given_up),
        CASE(where_another_rank_cannot_capture_nothing_is_replayed),
        CASE(a_fault_of_a_graph_is_the_callers),
        cmocka_unit_test(a_decoder_is_cut_at_collectives_and_nowhere_else),
        cmocka_unit_test(a_bucket_cuts_a_program_twice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
