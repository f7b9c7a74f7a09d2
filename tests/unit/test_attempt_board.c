// SPDX-License-Identifier: Apache-2.0
// The board: one answer for all, also from a leader that has forgotten and was told again.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "common/attempt/board.h"
#include "common/attempt/frame.h"
#include "common/base/clock.h"

enum { RANKS = 3 };
struct heard { // of one rank
    int values, puts, refused, dones, failed, readies;
    char text[400];
};
struct table {
    struct board b;
    struct heard rank[RANKS];
};

static void send(void *ctx, int rank, const Weft__Rank__Frame *f)
{
    struct heard *h = &((struct table *)ctx)->rank[rank];
    if (f->body_case == WEFT__RANK__FRAME__BODY_KV_VALUE) {
        *(f->kv_value->put ? &h->puts : &h->values) += 1;
        h->refused += f->kv_value->failed[0] != 0;
        snprintf(h->text, sizeof h->text, "%s", f->kv_value->value);
    } else if (f->body_case == WEFT__RANK__FRAME__BODY_BARRIER_DONE) {
        *(f->barrier_done->failed[0] ? &h->failed : &h->dones) += 1;
        snprintf(h->text, sizeof h->text, "%s", f->barrier_done->failed);
    } else {
        h->readies++;
        snprintf(h->text, sizeof h->text, "%s", f->ready_done->failed);
    }
}

static void where(void *ctx, int rank, char *out, size_t size)
{
    (void)ctx;
    snprintf(out, size, "rank %d", rank);
}

static void begin(struct table *t)
{
    memset(t, 0, sizeof *t);
    struct board_ops ops = {t, send, where};
    board_init(&t->b, RANKS, &ops);
}

static void come(struct table *t, int rank, int64_t now, int64_t timeout)
{
    FRAME_BODY(f, Barrier, barrier);
    f.name = frame_text("mesh");
    f.timeout_ns = timeout;
    board_barrier(&t->b, rank, &f, now);
}

static void recall_barrier(struct table *t, const char *failed)
{
    FRAME_BODY(done, BarrierDone, barrier_done);
    done.name = frame_text("mesh");
    done.failed = frame_text(failed);
    FRAME(f, BARRIER_DONE, barrier_done, &done);
    board_recall(&t->b, &f);
}

static void recall_value(struct table *t, const char *key, const char *value)
{
    FRAME_BODY(body, KvValue, kv_value);
    body.key = frame_text(key);
    body.value = frame_text(value);
    FRAME(f, KV_VALUE, kv_value, &body);
    board_recall(&t->b, &f);
}

static void test_a_barrier_answer_brought_is_the_answer(void **state)
{
    (void)state;
    struct table t;
    begin(&t);
    come(&t, 0, 0, CLOCK_S); // asked before the answer is brought
    recall_barrier(&t, "rank 2 is missing");
    assert_int_equal(t.rank[0].failed, 1);
    come(&t, 1, 0, CLOCK_S);
    come(&t, 2, 0, CLOCK_S); // all are here, and the answer stands
    assert_int_equal(t.rank[2].failed, 1);
    assert_int_equal(t.rank[0].dones + t.rank[1].dones + t.rank[2].dones, 0);
    recall_barrier(&t, "");
    come(&t, 1, 0, CLOCK_S);
    assert_int_equal(t.rank[1].failed, 2);
    board_clear(&t.b);
}

static void test_a_value_brought_reaches_whoever_waits_and_its_writer_may_repeat_it(void **state)
{
    (void)state;
    struct table t;
    begin(&t);
    board_get(&t.b, 1, "addr");
    recall_value(&t, "addr", "tcp:7");
    assert_int_equal(t.rank[1].values, 1);
    assert_string_equal(t.rank[1].text, "tcp:7");
    board_put(&t.b, 0, "addr", "tcp:7");
    assert_int_equal(t.rank[0].puts, 1);
    assert_int_equal(t.rank[0].refused, 0);
    board_put(&t.b, 2, "addr", "tcp:7"); // the key has one writer
    assert_int_equal(t.rank[2].refused, 1);
    board_clear(&t.b);
}

static void test_another_value_than_the_one_brought_is_refused(void **state)
{
    (void)state;
    struct table t;
    begin(&t);
    recall_value(&t, "addr", "tcp:7");
    board_put(&t.b, 0, "addr", "tcp:8");
    assert_int_equal(t.rank[0].refused, 1);
    board_get(&t.b, 2, "addr");
    assert_string_equal(t.rank[2].text, "tcp:7");
    board_clear(&t.b);
}

static void test_an_agreement_brought_answers_those_that_still_ask(void **state)
{
    (void)state;
    struct table t;
    begin(&t);
    FRAME_BODY(done, ReadyDone, ready_done);
    FRAME(f, READY_DONE, ready_done, &done);
    board_recall(&t.b, &f);
    board_ready(&t.b, 2, "plan");
    assert_int_equal(t.rank[2].readies, 1);
    assert_int_equal(t.rank[0].readies, 0); // it was answered before
    board_clear(&t.b);
}

static void test_open_deadlines_are_extended(void **state)
{
    (void)state;
    struct table t;
    begin(&t);
    come(&t, 0, 0, CLOCK_S);
    board_extend(&t.b, 5 * CLOCK_S);
    board_tick(&t.b, 5 * CLOCK_S);
    assert_int_equal(t.rank[0].failed, 0);
    board_tick(&t.b, 6 * CLOCK_S);
    assert_int_equal(t.rank[0].failed, 1);
    assert_non_null(strstr(t.rank[0].text, "rank 1"));
    board_clear(&t.b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_barrier_answer_brought_is_the_answer),
        cmocka_unit_test(test_a_value_brought_reaches_whoever_waits_and_its_writer_may_repeat_it),
        cmocka_unit_test(test_another_value_than_the_one_brought_is_refused),
        cmocka_unit_test(test_an_agreement_brought_answers_those_that_still_ask),
        cmocka_unit_test(test_open_deadlines_are_extended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
