// SPDX-License-Identifier: Apache-2.0
// The transport of devices (worker/collective/transport.h), a process a rank, over the tests' own CUDA
// and NCCL: sums, and how an attempt ends while communicators are opened, launched and run. What the
// backend's calls do by themselves is test_collectives's to show. Beside the thread that drives the
// device there are the watcher, the progress thread and those that abort: `make tsan` runs this.
#include <pthread.h>

#include "tests/ops/rig.h"
#include "tests/unit/collective_ranks.h"
#include "worker/collective/transport.h"
#include "worker/collective/world.h"

enum { PAIR = 2, COUNT = 5000, GROUPS = 2, CALLS = 2, FIRST = 1000, WARM = GROUPS, TURNS = 20 };

// One rank's. Two communicators share both ranks, so all start their calls in one order. What the second
// starts is a group of two calls.
struct side {
    struct world *world;
    const struct backend *b;
    const struct transport *t;
    struct device *d;
    struct stream_q *q;
    struct fabric *f;
    struct collective_args args[GROUPS][CALLS];
    struct collective *sum[GROUPS];
    float *region; // the device's: COUNT elements a group
    float host[GROUPS * COUNT];
};

static struct side side;
static struct progress_page page;

static void abort_fabric(void *ctx, const char *why)
{
    struct side *s = ctx;
    s->t->abort(s->f, why);
}

// Up to what all ranks then settle together. The scene is rank 0's, and the other that of all others.
static void open_side(const char *scene, const char *others)
{
    struct side *s = &side;
    static const char *const names[GROUPS] = {"dp", "fsdp"};
    static const int ranks[PAIR] = {0, 1};
    char set[100];
    struct err e;
    snprintf(set, sizeof set, "devices:%d,%s", PAIR, test_rank ? others : scene);
    setenv("WEFT_FAKE_CUDA", set, 1);
    s->t = &device_transport;
    test.progress = &page;
    DO(backend_load("cuda", &s->b, &e));
    DO(s->b->device.open(&(struct device_options){.ordinal = test_rank, .threads = 1}, &s->d, &e));
    DO(s->b->stream.create(s->d, STREAM_USUAL, &s->q, &e));
    DO(test_open(&s->world, &e));
    DO(s->t->open(&(struct fabric_options){s->world, s->b, s->d}, &s->f, &e));
    world_on_abort(s->world, abort_fabric, s);
    DO(s->t->memory(s->f, sizeof s->host, (void **)&s->region, &e));
    DO(s->b->stream.fill_zero(s->q, s->region, sizeof s->host, &e));
    for (int k = 0; k < GROUPS; k++) {
        int number = -1, calls = 1 + k;
        s->args[k][0] = (struct collective_args){.op = COLLECTIVE_ALL_REDUCE,
                                                 .dtype = DT_F32,
                                                 .buf = s->region + k * COUNT,
                                                 .count = calls == 1 ? COUNT : FIRST,
                                                 .name = names[k]};
        s->args[k][1] = s->args[k][0];
        s->args[k][1].buf = s->region + k * COUNT + FIRST;
        s->args[k][1].count = COUNT - FIRST;
        DO(s->t->communicator(s->f, names[k], ranks, PAIR, &number, &e));
        CHECK(number == k);
        DO(s->t->prepare(s->f, k, s->args[k], calls, &s->sum[k], &e));
    }
}

static void open_and_settle(const char *scene, const char *others)
{
    struct err e;
    open_side(scene, others);
    DO(side.t->settle(side.f, NULL, &e));
}

static void close_side(void)
{
    struct side *s = &side;
    world_on_abort(s->world, NULL, NULL);
    s->t->close(s->f);
    world_close(s->world);
}

// Both groups' sums, and what the device has then.
static int add_up(struct err *e)
{
    struct side *s = &side;
    int rc = s->b->stream.copy(s->q, s->region, s->host, sizeof s->host, e);
    for (int k = 0; k < GROUPS && !rc; k++)
        rc = s->t->start(s->sum[k], s->q, e);
    for (int k = 0; k < GROUPS && !rc; k++)
        rc = s->t->wait(s->sum[k], s->q, e);
    rc = rc ? rc : s->b->stream.copy(s->q, s->host, s->region, sizeof s->host, e);
    rc = rc ? rc : s->b->stream.sync(s->q, e);
    return rc ? rc : s->t->try(s->f, e);
}

static void fill(int turn)
{
    for (int i = 0; i < GROUPS * COUNT; i++)
        side.host[i] = (float)((test_rank + 1) * (turn + i % 89));
}

// Sums until something is wrong; that it is at work is known after the first.
static int add_up_until_lost(struct err *e)
{
    char mark[16];
    int rc = 0;
    snprintf(mark, sizeof mark, "sums%d", test_rank);
    for (int turn = 0; !rc; turn++) {
        fill(turn);
        rc = add_up(e);
        if (!turn && !rc)
            test_mark(mark);
    }
    return rc;
}

// ---- sums --------------------------------------------------------------------------------------

// In every turn the ranks also ask each other through their hosts, beside the watcher.
static void rank_of_sums(void)
{
    struct err e;
    char all[PAIR][GATHER_TEXT];
    open_and_settle("", "");
    for (int turn = 0; turn < TURNS; turn++) {
        fill(turn);
        DO(add_up(&e));
        for (int i = 0; i < GROUPS * COUNT; i++)
            CHECK(side.host[i] == (float)(3 * (turn + i % 89)));
        DO(world_gather(side.world, "turn", test_rank ? "one" : "zero", all, &e));
        CHECK(!strcmp(all[0], "zero") && !strcmp(all[1], "one"));
    }
    uint64_t before = page.collective_left;
    close_side(); // reads the last marks
    CHECK(page.collective_entered == page.collective_left && page.collective_left >= before);
    CHECK(page.collective_left == GROUPS + WARM + GROUPS * TURNS + TURNS); // first the identities
    side.b->device.close(side.d);
}

static void sums_are_those_of_all_ranks_and_the_page_counts_them(void **state)
{
    (void)state;
    test_run(PAIR, NULL, 0, rank_of_sums);
}

// ---- ends --------------------------------------------------------------------------------------

// Rank 1 is killed once this is marked; rank 0 ends well by itself.
static void kill_when(const char *mark, void (*rank)(void))
{
    test_begin(PAIR, NULL, 0);
    test_start(rank);
    test_await(mark);
    kill(test.pid[1], SIGKILL);
    int ended[PAIR] = {test_end(0), test_end(1)};
    test_clear();
    assert_int_equal(ended[0], 0);
    assert_int_equal(ended[1], -SIGKILL);
}

static void rank_of_death(void)
{
    struct err e;
    open_and_settle("", "");
    CHECK(add_up_until_lost(&e));
    expect(&e, ERR_PEER, "rank 1 died");
    CHECK(side.t->try(side.f, &e) == ERR_PEER); // it stays lost
    close_side();
}

static void a_rank_that_dies_ends_what_waits_for_it_on_the_device(void **state)
{
    (void)state;
    kill_when("sums1", rank_of_death);
}

static void rank_of_opening(void)
{
    struct err e;
    open_side("nccl_init", "nccl_init");
    if (test_rank == 1)
        test_mark("opening");
    CHECK(side.t->settle(side.f, NULL, &e));
    expect(&e, ERR_PEER, "rank 1 died");
    close_side();
}

static void a_rank_that_dies_while_communicators_are_opened_is_named(void **state)
{
    (void)state;
    kill_when("opening", rank_of_opening);
}

static void rank_of_launch(void)
{
    struct err e;
    open_and_settle("nccl_launch:3", ""); // the first two are those of settle
    if (test_rank == 1)
        for (;;)
            pause();
    fill(0);
    DO(side.b->stream.copy(side.q, side.region, side.host, sizeof side.host, &e));
    test_mark("launches");
    CHECK(side.t->start(side.sum[0], side.q, &e));
    expect(&e, ERR_PEER, "rank 1 died");
    close_side();
}

static void a_rank_that_dies_ends_a_launch_that_is_in_progress(void **state)
{
    (void)state;
    kill_when("launches", rank_of_launch);
}

// Rank 0's communicators never get ready; rank 1's do, and it waits in its first call.
static void rank_of_lateness(void)
{
    struct err e;
    open_side("nccl_init", "");
    CHECK(side.t->settle(side.f, NULL, &e));
    expect(&e, test_rank ? ERR_PEER : ERR_IO,
           test_rank ? "rank 0 gave up: not all ranks of communicator dp joined it within 4 s"
                     : "rank 0 cannot open its communicators: not all ranks of communicator dp "
                       "joined it within 4 s");
    close_side();
}

static void a_communicator_that_is_not_ready_in_time_is_named(void **state)
{
    (void)state;
    test_begin(PAIR, NULL, 0);
    test.deadline_ns = 4 * CLOCK_S; // whoever is well is heard within it on any machine
    test_start(rank_of_lateness);
    int wrong = (test_end(0) != 0) + (test_end(1) != 0);
    test_clear();
    assert_int_equal(wrong, 0);
}

static void rank_of_remote_error(void)
{
    struct err e;
    open_and_settle("nccl_remote:5", "");
    CHECK(add_up_until_lost(&e));
    expect(&e, ERR_PEER, "remote process exited or there was a network error");
    if (test_rank == 1)
        expect(&e, ERR_PEER, "rank 0");
    close_side();
}

static void an_error_that_nccl_reports_to_one_rank_ends_all(void **state)
{
    (void)state;
    test_run(PAIR, NULL, 0, rank_of_remote_error);
}

static bool is_in_group(void)
{
    world_lock(side.world);
    bool is = page.collective_entered > page.collective_left &&
              !strcmp(page.collective_text, "fsdp and 1 more");
    world_unlock(side.world);
    return is;
}

// Aborts once the page says where the device is.
static void *abort_soon(void *arg)
{
    (void)arg;
    test_await("sums0");
    while (!is_in_group())
        usleep(1000);
    world_abort(side.world, "the job was stopped");
    return NULL;
}

// Rank 1 never comes out of a group, so rank 0 waits on the device when the abort comes.
static void rank_of_abort(void)
{
    struct err e;
    pthread_t thread;
    open_and_settle("", "nccl_hang:8");
    if (test_rank == 0)
        CHECK(!pthread_create(&thread, NULL, abort_soon, NULL));
    CHECK(add_up_until_lost(&e));
    expect(&e, test_rank ? ERR_PEER : ERR_ABORTED, "the job was stopped");
    if (test_rank == 0)
        pthread_join(thread, NULL);
    close_side();
}

static void an_abort_from_another_thread_ends_a_hang_on_all_ranks(void **state)
{
    (void)state;
    test_run(PAIR, NULL, 0, rank_of_abort);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_those_of_all_ranks_and_the_page_counts_them),
        cmocka_unit_test(a_rank_that_dies_ends_what_waits_for_it_on_the_device),
        cmocka_unit_test(a_rank_that_dies_while_communicators_are_opened_is_named),
        cmocka_unit_test(a_rank_that_dies_ends_a_launch_that_is_in_progress),
        cmocka_unit_test(an_error_that_nccl_reports_to_one_rank_ends_all),
        cmocka_unit_test(an_abort_from_another_thread_ends_a_hang_on_all_ranks),
    };
    const struct CMUnitTest slow[] = {
        cmocka_unit_test(a_communicator_that_is_not_ready_in_time_is_named),
    };
    rig_find_backend();
    return RUN_BOTH(tests) + cmocka_run_group_tests(slow, NULL, NULL);
}
