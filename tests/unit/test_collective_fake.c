// SPDX-License-Identifier: Apache-2.0
// The fake world: threads as ranks. Programs that keep the order get their sums; those that do
// not are told at once who waits in what, without a deadline.
#include <string.h>

#include <pthread.h>

#include "tests/support/collective_run.h"
#include "tests/support/fake_world.h"
#include "tests/unit/unit.h"

enum { MOST = 4, COUNT = 20000 };

struct actor {
    struct fake *fake;
    int rank, ranks;
    void (*play)(struct actor *a);
    struct world *w;
    struct communicator *all, *pair, *other; // pair, other: ranks 0 and 1
    float *buf;
    int rc;
    struct err e;
};

static void *act(void *arg)
{
    struct actor *a = arg;
    int ranks[MOST] = {0, 1, 2, 3};
    void *mem = NULL;
    a->w = fake_world(a->fake, a->rank);
    a->rc = world_window(a->w, COUNT * sizeof(float), &mem, &a->e);
    a->buf = mem;
    if (!a->rc)
        a->rc = communicator_new(a->w, "all", ranks, a->ranks, &a->all, &a->e);
    if (!a->rc && a->rank < 2)
        a->rc = communicator_new(a->w, "pair", ranks, 2, &a->pair, &a->e);
    if (!a->rc && a->rank < 2)
        a->rc = communicator_new(a->w, "other", ranks, 2, &a->other, &a->e);
    if (!a->rc)
        a->play(a);
    communicator_free(a->all);
    communicator_free(a->pair);
    communicator_free(a->other);
    world_close(a->w);
    return NULL;
}

static void perform(struct actor *actors, int n, void (*const *play)(struct actor *a))
{
    pthread_t threads[MOST];
    struct fake *f = fake_new(n);
    assert_non_null(f);
    for (int i = 0; i < n; i++) {
        actors[i] = (struct actor){.fake = f, .rank = i, .ranks = n, .play = play[i]};
        assert_int_equal(pthread_create(&threads[i], NULL, act, &actors[i]), 0);
    }
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    fake_free(f);
}

static void run(struct actor *a, struct communicator *c, enum collective_op op, int64_t count,
                const char *name)
{
    struct collective_args args = {
        .op = op, .dtype = DT_F32, .buf = a->buf, .count = count, .name = name};
    if (!a->rc)
        a->rc = collective_run(c, &args, &a->e);
}

static void sum_all_sizes(struct actor *a)
{
    static const int64_t counts[] = {1, 1000, 1025, COUNT};
    for (int round = 0; round < 20; round++)
        for (int i = 0; i < 4; i++) {
            for (int64_t k = 0; k < counts[i]; k++)
                a->buf[k] = (float)(k % 100 * (a->rank + 1));
            run(a, a->all, COLLECTIVE_ALL_REDUCE, counts[i], "sum");
            for (int64_t k = 0; k < counts[i]; k++)
                a->rc |= a->buf[k] != (float)(k % 100 * 10);
        }
}

static void ranks_in_order_get_their_sums(void **state)
{
    struct actor a[4];
    (void)state;
    perform(a, 4,
            (void (*const[])(struct actor *)){sum_all_sizes, sum_all_sizes, sum_all_sizes,
                                              sum_all_sizes});
    for (int i = 0; i < 4; i++)
        assert_int_equal(a[i].rc, 0);
}

static void enter_reduce(struct actor *a)
{
    run(a, a->all, COLLECTIVE_ALL_REDUCE, 100, "grad");
}
static void enter_broadcast(struct actor *a)
{
    run(a, a->all, COLLECTIVE_BROADCAST, 100, "init");
}

static void different_operations_are_named(void **state)
{
    struct actor a[2];
    int told = 0;
    (void)state;
    perform(a, 2, (void (*const[])(struct actor *)){enter_reduce, enter_broadcast});
    for (int i = 0; i < 2; i++) {
        assert_int_not_equal(a[i].rc, 0);
        told += strstr(a[i].e.text, "entered all_reduce #1 (grad)") &&
                strstr(a[i].e.text, "entered broadcast #1 (init)");
    }
    assert_true(told > 0);
}

static void all_then_pair(struct actor *a)
{
    run(a, a->all, COLLECTIVE_ALL_REDUCE, COUNT, "everyone");
    run(a, a->pair, COLLECTIVE_ALL_REDUCE, COUNT, "we two");
}
static void pair_then_all(struct actor *a)
{
    run(a, a->pair, COLLECTIVE_ALL_REDUCE, COUNT, "we two");
    run(a, a->all, COLLECTIVE_ALL_REDUCE, COUNT, "everyone");
}

static void crossed_communicators_are_a_deadlock_and_said_at_once(void **state)
{
    struct actor a[2];
    (void)state;
    perform(a, 2, (void (*const[])(struct actor *)){all_then_pair, pair_then_all});
    int told = 0;
    for (int i = 0; i < 2; i++) {
        assert_int_not_equal(a[i].rc, 0);
        told +=
            strstr(a[i].e.text, "deadlock: every rank waits: rank 0 after entering #1 (everyone)"
                                ", rank 1 after entering #1 (we two)") != NULL;
    }
    assert_true(told > 0);
}

// Two stages that both send before they receive. Small messages would fit into any buffer; a send
// is not over before its receive all the same, so the table that allows this is found out.
static void send_first(struct actor *a)
{
    run(a, a->pair, COLLECTIVE_SEND, 4, "act");
    run(a, a->other, COLLECTIVE_RECV, 4, "grad");
}
static void send_first_below(struct actor *a)
{
    run(a, a->other, COLLECTIVE_SEND, 4, "grad");
    run(a, a->pair, COLLECTIVE_RECV, 4, "act");
}

static void two_sends_that_face_each_other_are_a_deadlock(void **state)
{
    struct actor a[2];
    int told = 0;
    (void)state;
    perform(a, 2, (void (*const[])(struct actor *)){send_first, send_first_below});
    for (int i = 0; i < 2; i++) {
        assert_int_not_equal(a[i].rc, 0);
        told += strstr(a[i].e.text, "deadlock: every rank waits: rank 0 after entering #1 (act)"
                                    ", rank 1 after entering #1 (grad)") != NULL;
    }
    assert_true(told > 0);
}

// The same two, started before either is waited for, pass.
static void start_both(struct actor *a)
{
    struct collective_ticket t[2] = {{0}};
    for (int i = 0; i < 2 && !a->rc; i++) {
        struct collective_args args = {.op = i == a->rank ? COLLECTIVE_SEND : COLLECTIVE_RECV,
                                       .dtype = DT_F32,
                                       .buf = a->buf + i * COUNT / 2,
                                       .count = COUNT / 2,
                                       .name = i ? "grad" : "act"};
        a->buf[i * COUNT / 2] = (float)(10 + a->rank);
        a->rc = collective_start(i ? a->other : a->pair, &args, &t[i], &a->e);
    }
    for (int i = 0; i < 2 && !a->rc; i++)
        a->rc = collective_wait(i == a->rank ? a->pair : a->other, &t[i == a->rank ? 0 : 1], &a->e);
    a->rc |= a->buf[0] != 10 || a->buf[COUNT / 2] != 11;
}

static void sends_that_are_started_together_pass(void **state)
{
    struct actor a[2];
    (void)state;
    perform(a, 2, (void (*const[])(struct actor *)){start_both, start_both});
    assert_int_equal(a[0].rc, 0);
    assert_int_equal(a[1].rc, 0);
}

static void send_two(struct actor *a)
{
    run(a, a->pair, COLLECTIVE_SEND, 8, "act of microbatch 0");
    run(a, a->pair, COLLECTIVE_SEND, 8, "act of microbatch 1");
}
static void receive_two_turned(struct actor *a)
{
    run(a, a->pair, COLLECTIVE_RECV, 8, "act of microbatch 1");
    run(a, a->pair, COLLECTIVE_RECV, 8, "act of microbatch 0");
}

static void messages_in_another_order_are_named(void **state)
{
    struct actor a[2];
    int told = 0;
    (void)state;
    perform(a, 2, (void (*const[])(struct actor *)){send_two, receive_two_turned});
    for (int i = 0; i < 2; i++) {
        assert_int_not_equal(a[i].rc, 0);
        told += strstr(a[i].e.text, "send #1 (act of microbatch 0)") &&
                strstr(a[i].e.text, "recv #1 (act of microbatch 1)");
    }
    assert_true(told > 0);
}

static void leave(struct actor *a)
{
    (void)a;
}

static void a_rank_that_left_is_named(void **state)
{
    struct actor a[2];
    (void)state;
    perform(a, 2, (void (*const[])(struct actor *)){enter_reduce, leave});
    assert_int_equal(a[0].rc, ERR_PEER);
    assert_non_null(strstr(a[0].e.text, "rank 1 has left"));
    assert_int_equal(a[1].rc, 0);
}

static void refuse_bad_arguments(struct actor *a)
{
    struct collective_ticket t;
    struct collective_args outside = {.op = COLLECTIVE_ALL_REDUCE,
                                      .dtype = DT_F32,
                                      .buf = a->buf + 1,
                                      .count = COUNT,
                                      .root = 0,
                                      .name = "x"};
    struct collective_args uneven = {.op = COLLECTIVE_ALL_GATHER,
                                     .dtype = DT_F32,
                                     .buf = a->buf,
                                     .count = 3,
                                     .root = 0,
                                     .name = "x"};
    struct collective_args integers = {.op = COLLECTIVE_ALL_REDUCE,
                                       .dtype = DT_I32,
                                       .buf = a->buf,
                                       .count = 4,
                                       .root = 0,
                                       .name = "x"};
    struct collective_args root = {.op = COLLECTIVE_BROADCAST,
                                   .dtype = DT_F32,
                                   .buf = a->buf,
                                   .count = 4,
                                   .root = 2,
                                   .name = "x"};
    int twice[] = {0, 0}, absent[] = {1 - a->rank};
    struct communicator *c;
    a->rc = collective_start(a->all, &outside, &t, &a->e) != ERR_INVALID ||
            collective_start(a->all, &uneven, &t, &a->e) != ERR_INVALID ||
            collective_start(a->all, &integers, &t, &a->e) != ERR_UNSUPPORTED ||
            collective_start(a->all, &root, &t, &a->e) != ERR_INVALID ||
            communicator_new(a->w, "c", twice, 2, &c, &a->e) != ERR_INVALID ||
            communicator_new(a->w, "c", absent, 1, &c, &a->e) != ERR_INVALID;
    run(a, a->all, COLLECTIVE_ALL_REDUCE, COUNT, "still whole");
}

static void send_among_three(struct actor *a)
{
    struct collective_ticket t;
    struct collective_args args = {
        .op = COLLECTIVE_SEND, .dtype = DT_F32, .buf = a->buf, .count = 1};
    a->rc = collective_start(a->all, &args, &t, &a->e) != ERR_INVALID ||
            !strstr(a->e.text, "it goes between two ranks, 'all' has 3");
    run(a, a->all, COLLECTIVE_ALL_REDUCE, COUNT, "still whole");
}

static void a_send_goes_between_two(void **state)
{
    struct actor a[3];
    (void)state;
    perform(
        a, 3,
        (void (*const[])(struct actor *)){send_among_three, send_among_three, send_among_three});
    for (int i = 0; i < 3; i++)
        assert_int_equal(a[i].rc, 0);
}

static void bad_arguments_are_refused_and_break_nothing(void **state)
{
    struct actor a[2];
    (void)state;
    perform(a, 2, (void (*const[])(struct actor *)){refuse_bad_arguments, refuse_bad_arguments});
    assert_int_equal(a[0].rc, 0);
    assert_int_equal(a[1].rc, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_in_order_get_their_sums),
        cmocka_unit_test(different_operations_are_named),
        cmocka_unit_test(crossed_communicators_are_a_deadlock_and_said_at_once),
        cmocka_unit_test(two_sends_that_face_each_other_are_a_deadlock),
        cmocka_unit_test(sends_that_are_started_together_pass),
        cmocka_unit_test(messages_in_another_order_are_named),
        cmocka_unit_test(a_rank_that_left_is_named),
        cmocka_unit_test(a_send_goes_between_two),
        cmocka_unit_test(bad_arguments_are_refused_and_break_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
