// SPDX-License-Identifier: Apache-2.0
// The bookkeeping of captures on a device that is nothing but counters: where a program is cut,
// what is captured when, and that a capture that fails leaves the step as it was.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/unit.h"
#include "worker/rank/exec/segments.h"

// What the device was told, as words: "issue 0-3", "begin", "end", "launch 1", "free 1".
static char told[2000];
static bool capturing;
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

// 'o' an op, 'H' what needs the host, '|' before what it stands: a cut.
static void cut(struct rig *r, const struct backend *b, const char *program)
{
    bool queued[64] = {false}, cuts[65] = {false};
    int n = 0;
    for (; *program; program++)
        if (*program == '|')
            cuts[n] = true;
        else
            queued[n++] = *program == 'o';
    segments_init(&r->s, b, NULL, &r->arena, queued, cuts, n);
}

static int run(struct rig *r, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < r->s.n && !rc; i++)
        if (r->s.segment[i].queued)
            rc = segment_run(&r->s, &r->s.segment[i], issue, NULL, e);
        else
            tell("host %d", r->s.segment[i].first);
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
    capturing = false;
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
        bool queued;
    } want[] = {{0, 3, true}, {3, 4, false}, {4, 5, false}, {5, 7, true}, {7, 9, true}};
    cut(r, &able, "oooHHoo|oo");
    assert_int_equal(r->s.n, 5);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(r->s.segment[i].first, want[i].first);
        assert_int_equal(r->s.segment[i].end, want[i].end);
        assert_int_equal(r->s.segment[i].queued, want[i].queued);
    }
}

static void the_first_run_is_op_by_op_the_second_is_captured_the_rest_replayed(void **state)
{
    struct rig *r = *state;
    cut(r, &able, "oooHoo");
    assert_int_equal(run(r, NULL), 0);
    assert_string_equal(said(), "issue 0-3; host 3; issue 4-6; ");
    assert_int_equal(run(r, NULL), 0);
    assert_string_equal(said(), "begin; issue 0-3; end; launch 1; host 3; "
                                "begin; issue 4-6; end; launch 2; ");
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
    cut(r, &able, "oHoo");
    for (int i = 0; i < 3; i++)
        assert_int_equal(run(r, NULL), 0);
    assert_string_equal(said(), "issue 0-1; host 1; issue 2-4; "
                                "issue 0-1; host 1; begin; issue 2-4; end; launch 1; "
                                "issue 0-1; host 1; launch 1; ");
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
        const char *second;
    } cases[] = {
        {&fail_begin, "begin; issue 0-2; host 2; issue 3-5; "},
        {&fail_issue_in_capture, "begin; issue 0-2; end; free 1; issue 0-2; host 2; issue 3-5; "},
        {&fail_end, "begin; issue 0-2; end; issue 0-2; host 2; issue 3-5; "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        graphs = 0;
        *cases[i].fails = 1;
        cut(r, &able, "ooHoo");
        assert_int_equal(run(r, NULL), 0);
        said();
        assert_int_equal(run(r, NULL), 0);
        assert_string_equal(said(), cases[i].second);
        *cases[i].fails = 0;
        assert_int_equal(run(r, NULL), 0);
        assert_string_equal(said(), "issue 0-2; host 2; issue 3-5; ");
    }
}

static void a_graph_made_before_another_capture_failed_is_kept(void **state)
{
    struct rig *r = *state;
    cut(r, &able, "ooHoo");
    assert_int_equal(run(r, NULL), 0);
    assert_int_equal(segment_run(&r->s, &r->s.segment[0], issue, NULL, NULL), 0);
    fail_end = 1;
    assert_int_equal(segment_run(&r->s, &r->s.segment[2], issue, NULL, NULL), 0);
    said();
    assert_int_equal(run(r, NULL), 0);
    assert_string_equal(said(), "launch 1; host 2; issue 3-5; ");
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

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, make, forget)
    const struct CMUnitTest tests[] = {
        CASE(a_program_is_cut_where_the_host_acts_and_where_it_is_asked_to),
        CASE(the_first_run_is_op_by_op_the_second_is_captured_the_rest_replayed),
        CASE(one_op_alone_is_no_graph),
        CASE(a_backend_without_capture_runs_op_by_op),
        CASE(a_capture_that_fails_is_the_last_one),
        CASE(a_graph_made_before_another_capture_failed_is_kept),
        CASE(a_fault_of_a_graph_is_the_callers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
