// SPDX-License-Identifier: Apache-2.0
// Collectives never hang: peers that die, stop, leave, abort, disagree, lack the key or talk
// nonsense end the operation with an error that names them, within a host and between hosts.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <arpa/inet.h>
#include <pthread.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "tests/unit/collective_ranks.h"

enum { WINDOW = 8 << 20, COUNT = WINDOW / sizeof(float) };

static const char *const one_host = NULL;

static void expect(const struct err *e, int code, const char *text)
{
    if (e->code == code && strstr(e->text, text))
        return;
    fprintf(stderr, "rank %d: wanted %s with '%s', got %s: %s\n", crew_rank, err_code_text(code),
            text, err_code_text(e->code), e->text);
    _exit(1);
}

static void all_end_well(int but)
{
    int wrong = 0;
    for (int i = 0; i < crew.ranks; i++)
        if (i != but)
            wrong += crew_end(i) != 0;
    if (but >= 0)
        kill(crew.pid[but], SIGKILL);
    if (but >= 0)
        crew_end(but);
    crew_clear();
    assert_int_equal(wrong, 0);
}

// Sums without end until an error comes; marks the tenth.
static void sum_until(struct comm *all, float *buf, int64_t count, struct err *e)
{
    char mark[16];
    struct coll_args a = {.op = COLL_ALL_REDUCE,
                          .dtype = DT_F32,
                          .buf = buf,
                          .count = count,
                          .root = 0,
                          .name = "grad/layers/0/weight"};
    snprintf(mark, sizeof mark, "tenth%d", crew_rank);
    for (int i = 0; !coll_run(all, &a, e); i++)
        if (i == 9)
            crew_mark(mark);
}

// ---- death ----
static void rank_of_death(void)
{
    struct world *w;
    struct comm *all;
    struct err e, again;
    float *buf = crew_join(&w, &all);
    sum_until(all, buf, COUNT, &e);
    expect(&e, ERR_PEER, "rank 2 died");
    struct coll_args a = {.op = COLL_BARRIER, .name = "after"};
    CHECK(coll_run(all, &a, &again) == ERR_PEER); // broken for good
    comm_free(all);
    world_close(w);
}

static void kill_one(const char *hosts)
{
    crew_begin(4, hosts, WINDOW);
    crew_start(rank_of_death);
    crew_await("tenth2");
    clock_sleep_ms(5);
    kill(crew.pid[2], SIGKILL);
    all_end_well(2);
}

static void a_killed_rank_is_named_on_one_host(void **state)
{
    (void)state;
    kill_one(one_host);
}

static void a_killed_rank_is_named_between_hosts(void **state)
{
    (void)state;
    kill_one("abcd");
    kill_one("aabb");
}

static void rank_of_blocked(void)
{
    struct world *w;
    struct comm *all;
    struct err e;
    crew_join(&w, &all);
    struct coll_args a = {.op = COLL_BARRIER, .name = "epoch"};
    if (crew_rank == 1) {
        crew_mark("joined");
        for (;;)
            pause();
    }
    CHECK(coll_run(all, &a, &e));
    expect(&e, ERR_PEER, "rank 1 died");
    comm_free(all);
    world_close(w);
}

static void a_death_wakes_those_asleep(void **state)
{
    static const char *const hosts[] = {NULL, "abc"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        crew_begin(3, hosts[i], 0);
        crew.deadline_ns = 0; // only the death can end the wait
        crew_start(rank_of_blocked);
        crew_await("joined");
        clock_sleep_ms(20); // the others nap by now, most likely
        kill(crew.pid[1], SIGKILL);
        all_end_well(1);
    }
}

// ---- stopping ----
static void rank_of_stop(void)
{
    struct world *w;
    struct comm *all;
    struct err e;
    float *buf = crew_join(&w, &all);
    sum_until(all, buf, 5000, &e);
    expect(&e, ERR_TIMEOUT, "rank 1 has not");
    expect(&e, ERR_TIMEOUT, "it last entered #");
    expect(&e, ERR_TIMEOUT, "(grad/layers/0/weight)");
    CHECK(!strstr(e.text, "rank 3 has not"));
    comm_free(all);
    world_close(w);
}

static void a_stopped_rank_is_named_at_the_deadline(void **state)
{
    (void)state;
    crew_begin(3, one_host, WINDOW);
    crew.deadline_ns = CLOCK_S;
    crew_start(rank_of_stop);
    crew_await("tenth1");
    kill(crew.pid[1], SIGSTOP);
    all_end_well(1);
}

static void a_stopped_rank_of_another_host_is_named_too(void **state)
{
    (void)state;
    crew_begin(2, "ab", WINDOW);
    crew.deadline_ns = CLOCK_S;
    crew_start(rank_of_stop);
    crew_await("tenth1");
    kill(crew.pid[1], SIGSTOP);
    all_end_well(1);
}

// ---- aborting and leaving ----
static void *abort_soon(void *world)
{
    clock_sleep_ms(30);
    world_abort(world, "asked to stop");
    return NULL;
}

static void rank_of_abort(void)
{
    struct world *w;
    struct comm *all;
    struct err e;
    pthread_t thread;
    crew_join(&w, &all);
    struct coll_args a = {.op = COLL_BARRIER, .name = "epoch"};
    if (crew_rank == 2) // never comes, but stays to the end
        crew_await("aborted");
    else if (crew_rank == 0) {
        CHECK(!pthread_create(&thread, NULL, abort_soon, w));
        CHECK(coll_run(all, &a, &e));
        expect(&e, ERR_ABORTED, "asked to stop");
        pthread_join(thread, NULL);
        CHECK(coll_run(all, &a, &e) == ERR_ABORTED);
        crew_await("told");
        crew_mark("aborted");
    } else {
        CHECK(coll_run(all, &a, &e));
        expect(&e, ERR_PEER, "rank 0 gave up: asked to stop");
        crew_mark("told");
    }
    comm_free(all);
    world_close(w);
}

static void abort_from_a_thread_ends_the_wait(void **state)
{
    (void)state;
    crew_begin(3, one_host, 0);
    crew_start(rank_of_abort);
    all_end_well(-1);
    crew_begin(3, "abc", 0);
    crew_start(rank_of_abort);
    all_end_well(-1);
}

static void rank_of_leaving(void)
{
    struct world *w;
    struct comm *all;
    struct err e;
    crew_join(&w, &all);
    struct coll_args a = {.op = COLL_BARRIER, .name = "last"};
    DO(coll_run(all, &a, &e));
    if (crew_rank == 0) {
        CHECK(coll_run(all, &a, &e));
        expect(&e, ERR_PEER, "rank 1 has left");
    }
    comm_free(all);
    world_close(w);
}

static void a_rank_that_left_is_not_waited_for(void **state)
{
    (void)state;
    crew_begin(2, one_host, 0);
    crew_start(rank_of_leaving);
    all_end_well(-1);
    crew_begin(2, "ab", 0);
    crew_start(rank_of_leaving);
    all_end_well(-1);
}

// ---- disagreeing ----
static void rank_of_disagreement(void)
{
    struct world *w;
    struct comm *all;
    struct err e;
    float *buf = crew_join(&w, &all);
    struct coll_args sum = {.op = COLL_ALL_REDUCE,
                            .dtype = DT_F32,
                            .buf = buf,
                            .count = 5000,
                            .root = 0,
                            .name = "grad/a"};
    struct coll_args other = {.op = COLL_ALL_REDUCE,
                              .dtype = DT_F32,
                              .buf = buf,
                              .count = 5000,
                              .root = 0,
                              .name = "grad/b"};
    buf[0] = 1;
    CHECK(coll_run(all, crew_rank ? &other : &sum, &e));
    CHECK(strstr(e.text, "grad/a") || strstr(e.text, "grad/b"));
    CHECK(strstr(e.text, "ranks disagree in communicator 'all'"));
    CHECK(buf[0] == 1); // nothing was touched
    comm_free(all);
    world_close(w);
}

static void different_tensors_are_never_added(void **state)
{
    (void)state;
    crew_begin(2, one_host, WINDOW);
    crew_start(rank_of_disagreement);
    all_end_well(-1);
    crew_begin(2, "ab", WINDOW);
    crew_start(rank_of_disagreement);
    all_end_well(-1);
}

// ---- strangers ----
static void rank_with_key(void)
{
    struct world *w;
    struct err e;
    CHECK(crew_open(&w, &e));
    CHECK(!w);
    if (crew_rank == 1)
        expect(&e, ERR_PEER, "whoever answers for rank 0 has not the attempt's key");
    else
        expect(&e, ERR_TIMEOUT, "rank 1 has not come (1 callers were refused)");
}

static void another_key_is_refused(void **state)
{
    static const char *const hosts[] = {NULL, "ab"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        crew_begin(2, hosts[i], 0);
        crew.odd_key = 1;
        crew.connect_ns = CLOCK_S;
        crew_start(rank_with_key);
        all_end_well(-1);
    }
}

static void rank_among_strangers(void)
{
    struct world *w;
    struct comm *all;
    struct err e;
    float *buf = crew_join(&w, &all);
    struct coll_args a = {.op = COLL_ALL_REDUCE,
                          .dtype = DT_F32,
                          .buf = buf,
                          .count = 5000,
                          .root = 0,
                          .name = "sum"};
    for (int i = 0; i < 5000; i++)
        buf[i] = (float)crew_rank + 1;
    DO(coll_run(all, &a, &e));
    for (int i = 0; i < 5000; i++)
        CHECK(buf[i] == 3);
    if (crew_rank == 0)
        crew_mark("done");
    comm_free(all);
    world_close(w);
}

static int knock(void)
{
    char value[256], host[65], addr[64];
    int port;
    crew_await("coll.0");
    assert_int_equal(crew_get(NULL, "coll.0", value, sizeof value, 0, NULL), 0);
    assert_int_equal(sscanf(value, "1 %64s %63[0-9.]:%d", host, addr, &port), 3);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, addr, &to.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

// The hello of rank 1, written from the drawing in greet.c, with a proof made of zeroes.
static void pose_as_rank_1(int fd)
{
    unsigned char hello[56] = {0}, answer[64], proof[32] = {0};
    uint32_t magic = PROGRESS_MAGIC, version = 1;
    uint64_t epoch = 7;
    int32_t from = 1;
    memcpy(hello, &magic, 4);
    memcpy(hello + 4, &version, 4);
    memcpy(hello + 8, &epoch, 8);
    memcpy(hello + 16, &from, 4);
    assert_int_equal(send(fd, hello, sizeof hello, 0), sizeof hello);
    assert_int_equal(recv(fd, answer, sizeof answer, MSG_WAITALL), sizeof answer);
    assert_int_equal(send(fd, proof, sizeof proof, 0), sizeof proof);
    assert_true(recv(fd, answer, 1, 0) <= 0); // shown the door
}

static void strangers_are_refused_and_do_no_harm(void **state)
{
    char noise[4096];
    int fds[100];
    (void)state;
    crew_begin(2, "ab", WINDOW);
    crew.held = 1; // they come first
    crew_start(rank_among_strangers);
    memset(noise, 0x5a, sizeof noise);
    int loud = knock();
    assert_int_equal(send(loud, noise, sizeof noise, MSG_NOSIGNAL), sizeof noise);
    pose_as_rank_1(knock());
    for (int i = 0; i < 100; i++) // more than there are places, all silent
        fds[i] = knock();
    crew_mark("strangers");
    crew_await("done");
    for (int i = 0; i < 100; i++)
        close(fds[i]);
    close(loud);
    all_end_well(-1);
}

// ---- what stays ----
static void rank_of_traces(void)
{
    char path[96];
    struct world *w;
    struct comm *all;
    struct err e;
    crew_join(&w, &all);
    struct coll_args a = {.op = COLL_BARRIER, .name = "met"};
    DO(coll_run(all, &a, &e));
    for (int i = 0; i < crew.ranks; i++) {
        snprintf(path, sizeof path, "%s/c%d.7", crew.dir, i);
        CHECK(access(path, F_OK) < 0);
    }
    comm_free(all);
    world_close(w);
}

static void no_socket_stays_once_all_have_met(void **state)
{
    (void)state;
    crew_begin(3, one_host, WINDOW);
    crew_start(rank_of_traces);
    all_end_well(-1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_rank_is_named_on_one_host),
        cmocka_unit_test(a_killed_rank_is_named_between_hosts),
        cmocka_unit_test(a_death_wakes_those_asleep),
        cmocka_unit_test(a_stopped_rank_is_named_at_the_deadline),
        cmocka_unit_test(a_stopped_rank_of_another_host_is_named_too),
        cmocka_unit_test(abort_from_a_thread_ends_the_wait),
        cmocka_unit_test(a_rank_that_left_is_not_waited_for),
        cmocka_unit_test(different_tensors_are_never_added),
        cmocka_unit_test(another_key_is_refused),
        cmocka_unit_test(strangers_are_refused_and_do_no_harm),
        cmocka_unit_test(no_socket_stays_once_all_have_met),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
