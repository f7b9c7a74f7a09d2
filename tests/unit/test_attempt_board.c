// SPDX-License-Identifier: Apache-2.0
// The board: one answer for all, also from a leader that has forgotten and heard it again.

#include <stdio.h>
#include <string.h>

#include "common/attempt/board.h"
#include "common/attempt/frame.h"
#include "common/base/clock.h"
#include "tests/unit/unit.h"

enum { RANKS = 3 };
struct heard { // of one rank
    int values, puts, refused, dones, failed, readies, off;
    char text[400];
};
struct table {
    struct board b;
    struct arena arena;
    struct leader_out out; // what was said last
    struct heard rank[RANKS];
};

static void hear(struct heard *h, const Weft__Rank__Frame *f)
{
    if (f->body_case == WEFT__RANK__FRAME__BODY_KV_VALUE) {
        *(f->kv_value->put ? &h->puts : &h->values) += 1;
        h->refused += f->kv_value->failed[0] != 0;
        snprintf(h->text, sizeof h->text, "%s", f->kv_value->value);
    } else if (f->body_case == WEFT__RANK__FRAME__BODY_BARRIER_DONE) {
        *(f->barrier_done->failed[0] ? &h->failed : &h->dones) += 1;
        snprintf(h->text, sizeof h->text, "%s", f->barrier_done->failed);
    } else {
        h->readies++;
        h->off += f->ready_done->called_off;
        snprintf(h->text, sizeof h->text, "%s", f->ready_done->failed);
    }
}

// What the board said reaches its ranks.
static void deliver(struct table *t)
{
    for (int i = 0; i < t->out.n; i++)
        hear(&t->rank[t->out.v[i].rank], t->out.v[i].frame);
    t->out.n = 0;
}

static void forget_said(struct table *t)
{
    arena_clear(&t->arena);
    t->out = (struct leader_out){.arena = &t->arena};
}

static void where(const void *ctx, int rank, char *out, size_t size)
{
    (void)ctx;
    snprintf(out, size, "rank %d", rank);
}

static void begin(struct table *t)
{
    memset(t, 0, sizeof *t);
    arena_init(&t->arena);
    t->out.arena = &t->arena;
    board_init(&t->b, RANKS, where, t);
}

static void end(struct table *t)
{
    board_clear(&t->b);
    arena_clear(&t->arena);
}

static void put(struct table *t, int rank, const char *key, const char *value)
{
    FRAME_BODY(f, KvPut, kv_put);
    f.key = frame_text(key);
    f.value = frame_text(value);
    board_put(&t->b, rank, &f, &t->out);
    deliver(t);
}

static void get(struct table *t, int rank, const char *key)
{
    board_get(&t->b, rank, key, &t->out);
    deliver(t);
}

static void come(struct table *t, int rank, int64_t now, int64_t timeout)
{
    FRAME_BODY(f, Barrier, barrier);
    f.name = frame_text("mesh");
    f.timeout_ns = timeout;
    board_barrier(&t->b, rank, &f, now, &t->out);
    deliver(t);
}

static void recall_barrier(struct table *t, const char *failed)
{
    FRAME_BODY(done, BarrierDone, barrier_done);
    done.name = frame_text("mesh");
    done.failed = frame_text(failed);
    FRAME(f, BARRIER_DONE, barrier_done, &done);
    board_recall(&t->b, &f, &t->out);
    deliver(t);
}

static void recall_value(struct table *t, const char *key, const char *value)
{
    FRAME_BODY(body, KvValue, kv_value);
    body.key = frame_text(key);
    body.value = frame_text(value);
    FRAME(f, KV_VALUE, kv_value, &body);
    board_recall(&t->b, &f, &t->out);
    deliver(t);
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
    end(&t);
}

static void test_a_value_brought_reaches_whoever_waits_and_its_writer_may_repeat_it(void **state)
{
    (void)state;
    struct table t;
    begin(&t);
    get(&t, 1, "addr");
    recall_value(&t, "addr", "tcp:7");
    assert_int_equal(t.rank[1].values, 1);
    assert_string_equal(t.rank[1].text, "tcp:7");
    put(&t, 0, "addr", "tcp:7");
    assert_int_equal(t.rank[0].puts, 1);
    assert_int_equal(t.rank[0].refused, 0);
    put(&t, 2, "addr", "tcp:7"); // the key has one writer
    assert_int_equal(t.rank[2].refused, 1);
    end(&t);
}

static void test_another_value_than_the_one_brought_is_refused(void **state)
{
    (void)state;
    struct table t;
    begin(&t);
    recall_value(&t, "addr", "tcp:7");
    put(&t, 0, "addr", "tcp:8");
    assert_int_equal(t.rank[0].refused, 1);
    get(&t, 2, "addr");
    assert_string_equal(t.rank[2].text, "tcp:7");
    end(&t);
}

static void test_an_agreement_brought_answers_those_that_still_ask(void **state)
{
    (void)state;
    struct table t;
    begin(&t);
    FRAME_BODY(done, ReadyDone, ready_done);
    FRAME(f, READY_DONE, ready_done, &done);
    board_recall(&t.b, &f, &t.out);
    board_ready(&t.b, 2, "plan", &t.out);
    deliver(&t);
    assert_int_equal(t.rank[2].readies, 1);
    assert_int_equal(t.rank[0].readies, 0); // it was answered before
    end(&t);
}

static void test_what_is_called_off_before_all_are_ready_stays_so(void **state)
{
    (void)state;
    struct table t;
    begin(&t);
    board_ready(&t.b, 0, "plan", &t.out);
    board_call_off(&t.b, &t.out);
    deliver(&t);
    assert_true(t.rank[0].readies == 1 && t.rank[0].off == 1);
    assert_int_equal(t.rank[1].readies, 0); // it has not asked
    for (int r = 0; r < RANKS; r++)
        board_ready(&t.b, r, "plan", &t.out);
    deliver(&t);
    for (int r = 0; r < RANKS; r++)
        assert_true(t.rank[r].off == t.rank[r].readies && t.rank[r].off > 0);
    end(&t);
}

static void test_what_has_begun_is_not_called_off(void **state)
{
    (void)state;
    struct table t;
    begin(&t);
    for (int r = 0; r < RANKS; r++)
        board_ready(&t.b, r, "plan", &t.out);
    board_call_off(&t.b, &t.out);
    board_ready(&t.b, 1, "plan", &t.out);
    deliver(&t);
    assert_int_equal(t.rank[1].readies, 2);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(t.rank[r].off, 0);
    end(&t);
}

static void test_that_it_was_called_off_is_brought_back_too(void **state)
{
    (void)state;
    struct table t;
    begin(&t);
    FRAME_BODY(done, ReadyDone, ready_done);
    done.called_off = true;
    FRAME(f, READY_DONE, ready_done, &done);
    board_recall(&t.b, &f, &t.out);
    for (int r = 0; r < RANKS; r++)
        board_ready(&t.b, r, "plan", &t.out);
    deliver(&t);
    for (int r = 0; r < RANKS; r++)
        assert_true(t.rank[r].readies == 1 && t.rank[r].off == 1);
    end(&t);
}

static void test_open_deadlines_are_extended(void **state)
{
    (void)state;
    struct table t;
    begin(&t);
    come(&t, 0, 0, CLOCK_S);
    board_extend(&t.b, 5 * CLOCK_S);
    board_tick(&t.b, 5 * CLOCK_S, &t.out);
    deliver(&t);
    assert_int_equal(t.rank[0].failed, 0);
    board_tick(&t.b, 6 * CLOCK_S, &t.out);
    deliver(&t);
    assert_int_equal(t.rank[0].failed, 1);
    assert_non_null(strstr(t.rank[0].text, "rank 1"));
    end(&t);
}

// A rank's worker may lie: what it puts, asks for and brings back is kept within bounds.
static void test_keys_and_values_take_a_bounded_room(void **state)
{
    (void)state;
    struct table t;
    static char value[BOARD_VALUE_MAX], huge[1 << 20];
    begin(&t);
    memset(value, 'v', sizeof value - 1);
    memset(huge, 'h', sizeof huge - 1);
    put(&t, 0, "first", "kept");
    for (int i = 0; !t.rank[1].refused; i++) {
        char key[40];
        snprintf(key, sizeof key, "key %d", i);
        assert_true(i < BOARD_BYTES_MAX / BOARD_VALUE_MAX);
        put(&t, 1, key, value);
        forget_said(&t);
    }
    for (int i = 0; !t.rank[2].refused; i++) {
        char key[40];
        snprintf(key, sizeof key, "nobody puts %d", i);
        assert_true(i < 100);
        get(&t, 2, key);
        forget_said(&t);
    }
    get(&t, 0, "first");
    assert_string_equal(t.rank[0].text, "kept");
    FRAME_BODY(ready, ReadyDone, ready_done);
    ready.failed = huge;
    FRAME(f, READY_DONE, ready_done, &ready);
    board_recall(&t.b, &f, &t.out);
    assert_int_equal(strlen(t.b.agreed), BOARD_VALUE_MAX);
    end(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_barrier_answer_brought_is_the_answer),
        cmocka_unit_test(test_a_value_brought_reaches_whoever_waits_and_its_writer_may_repeat_it),
        cmocka_unit_test(test_another_value_than_the_one_brought_is_refused),
        cmocka_unit_test(test_an_agreement_brought_answers_those_that_still_ask),
        cmocka_unit_test(test_what_is_called_off_before_all_are_ready_stays_so),
        cmocka_unit_test(test_what_has_begun_is_not_called_off),
        cmocka_unit_test(test_that_it_was_called_off_is_brought_back_too),
        cmocka_unit_test(test_open_deadlines_are_extended),
        cmocka_unit_test(test_keys_and_values_take_a_bounded_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
