// SPDX-License-Identifier: Apache-2.0
// The curve of a job that writes rows, reports steps and begins attempts while it is read in pieces: in
// the end it holds each step of the file once, whatever came when.
#include <math.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/rand.h"
#include "coordinator/cli/job_curve.h"
#include "tests/unit/unit.h"

// ---- a coordinator that has the file ----

static struct buf file;
static size_t written; // of the file, so far
static size_t seen;    // the same when the question under way was asked
static bool asked;
static size_t piece_max;
static uint64_t looks;
static Weft__V1__RowsReply reply;

int cli_link_dial(struct cli_link *l, const struct verb *v, const char *address, const char *tls,
                  struct err *e)
{
    (void)v, (void)address, (void)tls, (void)e;
    arena_init(&l->arena);
    l->rpc = (struct rpc *)(void *)&file;
    return 0;
}

void cli_link_close(struct cli_link *l)
{
    if (l->rpc)
        arena_clear(&l->arena);
    *l = (struct cli_link){0};
}

void cli_link_free(void *m)
{
    assert_ptr_equal(m, &reply);
}

enum cli_link_said cli_link_stream_next(struct cli_link_stream *s, const ProtobufCMessage *request,
                                        bool patient, int64_t timeout_ns, ProtobufCMessage **m,
                                        enum rpc_code *code, char text[RPC_TEXT_MAX])
{
    const Weft__V1__RowsRequest *q = (const Weft__V1__RowsRequest *)(const void *)request;
    (void)s, (void)patient, (void)timeout_ns, (void)code, (void)text;
    seen = asked ? seen : written;
    asked = ++looks % 3; // else it is answered
    if (asked)
        return LINK_NOTHING;
    size_t from = (size_t)q->from, left = seen - from;
    assert_true(from <= seen);
    weft__v1__rows_reply__init(&reply);
    reply.text.data = (uint8_t *)file.data + from;
    reply.text.len = left < piece_max ? left : piece_max;
    *m = &reply.base;
    return LINK_MESSAGE;
}

// ---- a job ----

enum { STEPS = 120 };
static uint64_t drawn;

static int64_t draw(uint64_t seed, int64_t below)
{
    const struct rand_site site = {seed, 1, 0};
    return (int64_t)(rand_word(&site, drawn++) % (uint64_t)below);
}

static double loss_of(uint64_t attempt, int64_t step)
{
    return (double)attempt * 1000 + (double)step;
}

static void report(struct job_curve *c, uint64_t attempt, int64_t step)
{
    Weft__Rank__StepReport r;
    weft__rank__step_report__init(&r);
    r.step = step;
    r.steps = STEPS;
    r.loss = loss_of(attempt, step);
    job_curve_report(c, attempt, &r);
}

static void write_row(uint64_t attempt, int64_t step)
{
    buf_printf(&file, "{\"step\":%lld,\"attempt\":%llu,\"loss\":%.1f}\n", (long long)step,
               (unsigned long long)attempt, loss_of(attempt, step));
}

static void read_some(struct job_curve *c, int64_t for_ns)
{
    const struct cli_link of = {0};
    job_curve_read(c, &of, "job", "", for_ns);
}

static void whatever_came_when_each_step_is_there_once(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++) {
        static double x[BOUNDED_POINTS], y[BOUNDED_POINTS];
        struct job_curve c;
        uint64_t attempt = 1, of[STEPS + 1];
        int64_t first = 1; // step of the attempt
        drawn = 0;
        buf_reset(&file);
        written = seen = 0;
        asked = false;
        piece_max = (size_t)draw(seed, 400) + 1;
        job_curve_init(&c);
        for (int64_t step = 1; step <= STEPS; step++) {
            write_row(attempt, step);
            of[step] = attempt;
            if (draw(seed, 4) == 0) // rows are seen late, and may be seen in part
                written += (size_t)draw(seed, (int64_t)(file.len - written) + 1);
            if (draw(seed, 3) == 0) // reports come late too, and some never
                report(&c, attempt, step - draw(seed, step - first < 9 ? step - first + 1 : 9));
            if (draw(seed, 3) == 0)
                job_curve_again(&c);
            if (draw(seed, 3) == 0)
                read_some(&c, draw(seed, 4) * 300);
            if (step > 20 && draw(seed, 60) == 0) {
                step -= draw(seed, 20);
                attempt++;
                first = step + 1;
                report(&c, attempt, first);
            }
        }
        written = file.len;
        job_curve_again(&c);
        while (!c.whole)
            read_some(&c, CLOCK_S);
        size_t n = bounded_curve_points(&c.loss, x, y);
        assert_int_equal(n, STEPS);
        for (size_t i = 0; i < n; i++) {
            assert_true(x[i] == (double)(i + 1));
            assert_true(y[i] == loss_of(of[i + 1], (int64_t)i + 1));
        }
        job_curve_clear(&c);
    }
    buf_clear(&file);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_came_when_each_step_is_there_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
