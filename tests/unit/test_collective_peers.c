// SPDX-License-Identifier: Apache-2.0
// Collectives never hang: peers that die, stop, leave, abort, disagree, lack the key or talk
// nonsense end the operation with an error that names them, within a host and between hosts.

#include <arpa/inet.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "common/base/host_address.h"
#include "tests/support/collective_run.h"
#include "tests/unit/collective_ranks.h"
#include "tests/unit/unit.h"

enum { WINDOW = 8 << 20, COUNT = WINDOW / sizeof(float) };
// That of cases which wait for one to pass: whoever is well is heard within it on any machine.
#define DEADLINE (4 * CLOCK_S)

static const char *const one_host = NULL;

static void all_end_well(int but)
{
    int wrong = 0;
    for (int i = 0; i < test.ranks; i++)
        if (i != but)
            wrong += test_end(i) != 0;
    if (but >= 0)
        kill(test.pid[but], SIGKILL);
    if (but >= 0)
        test_end(but);
    test_clear();
    assert_int_equal(wrong, 0);
}

// Sums without end until an error comes; marks the tenth.
static void sum_until(struct communicator *all, float *buf, int64_t count, struct err *e)
{
    char mark[16];
    struct collective_args a = {.op = COLLECTIVE_ALL_REDUCE,
                                .dtype = DT_F32,
                                .buf = buf,
                                .count = count,
                                .root = 0,
                                .name = "grad/layers/0/weight"};
    snprintf(mark, sizeof mark, "tenth%d", test_rank);
    for (int i = 0; !collective_run(all, &a, e); i++)
        if (i == 9)
            test_mark(mark);
}

// ---- death ----
static void rank_of_death(void)
{
    struct world *w;
    struct communicator *all;
    struct err e, again;
    float *buf = test_join(&w, &all);
    sum_until(all, buf, COUNT, &e);
    expect(&e, ERR_PEER, "rank 2 died");
    struct collective_args a = {.op = COLLECTIVE_BARRIER, .name = "after"};
    CHECK(collective_run(all, &a, &again) == ERR_PEER); // broken for good
    test_leave(w, all);
}

static void kill_one(const char *hosts)
{
    test_begin(4, hosts, WINDOW);
    test_start(rank_of_death);
    test_await("tenth2");
    clock_sleep_ms(5);
    kill(test.pid[2], SIGKILL);
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
    struct communicator *all;
    struct err e;
    test_join(&w, &all);
    struct collective_args a = {.op = COLLECTIVE_BARRIER, .name = "attempt"};
    if (test_rank == 1) {
        test_mark("joined");
        for (;;)
            pause();
    }
    CHECK(collective_run(all, &a, &e));
    expect(&e, ERR_PEER, "rank 1 died");
    test_leave(w, all);
}

static void a_death_wakes_those_asleep(void **state)
{
    static const char *const hosts[] = {NULL, "abc"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        test_begin(3, hosts[i], 0);
        test.deadline_ns = 0; // only the death can end the wait
        test_start(rank_of_blocked);
        test_await("joined");
        clock_sleep_ms(20); // the others nap by now, most likely
        kill(test.pid[1], SIGKILL);
        all_end_well(1);
    }
}

// ---- stopping ----
static void rank_of_stop(void)
{
    struct world *w;
    struct communicator *all;
    struct err e;
    float *buf = test_join(&w, &all);
    sum_until(all, buf, 5000, &e);
    expect(&e, ERR_TIMEOUT, "rank 1 has not");
    expect(&e, ERR_TIMEOUT, "it last entered #");
    expect(&e, ERR_TIMEOUT, "(grad/layers/0/weight)");
    CHECK(!strstr(e.text, "rank 3 has not"));
    test_leave(w, all);
}

static void a_stopped_rank_is_named_at_the_deadline(void **state)
{
    (void)state;
    test_begin(3, one_host, WINDOW);
    test.deadline_ns = DEADLINE;
    test_start(rank_of_stop);
    test_await("tenth1");
    kill(test.pid[1], SIGSTOP);
    all_end_well(1);
}

static void a_stopped_rank_of_another_host_is_named_too(void **state)
{
    (void)state;
    test_begin(2, "ab", WINDOW);
    test.deadline_ns = DEADLINE;
    test_start(rank_of_stop);
    test_await("tenth1");
    kill(test.pid[1], SIGSTOP);
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
    struct communicator *all;
    struct err e;
    pthread_t thread;
    test_join(&w, &all);
    struct collective_args a = {.op = COLLECTIVE_BARRIER, .name = "attempt"};
    if (test_rank == 2) // never comes, but stays to the end
        test_await("aborted");
    else if (test_rank == 0) {
        CHECK(!pthread_create(&thread, NULL, abort_soon, w));
        CHECK(collective_run(all, &a, &e));
        expect(&e, ERR_ABORTED, "asked to stop");
        pthread_join(thread, NULL);
        CHECK(collective_run(all, &a, &e) == ERR_ABORTED);
        test_await("told");
        test_mark("aborted");
    } else {
        CHECK(collective_run(all, &a, &e));
        expect(&e, ERR_PEER, "rank 0 gave up: asked to stop");
        test_mark("told");
    }
    test_leave(w, all);
}

static void abort_from_a_thread_ends_the_wait(void **state)
{
    (void)state;
    test_begin(3, one_host, 0);
    test_start(rank_of_abort);
    all_end_well(-1);
    test_begin(3, "abc", 0);
    test_start(rank_of_abort);
    all_end_well(-1);
}

static void rank_of_leaving(void)
{
    struct world *w;
    struct communicator *all;
    struct err e;
    test_join(&w, &all);
    struct collective_args a = {.op = COLLECTIVE_BARRIER, .name = "last"};
    DO(collective_run(all, &a, &e));
    if (test_rank == 0) {
        CHECK(collective_run(all, &a, &e));
        expect(&e, ERR_PEER, "rank 1 has left");
    }
    test_leave(w, all);
}

static void a_rank_that_left_is_not_waited_for(void **state)
{
    (void)state;
    test_begin(2, one_host, 0);
    test_start(rank_of_leaving);
    all_end_well(-1);
    test_begin(2, "ab", 0);
    test_start(rank_of_leaving);
    all_end_well(-1);
}

// ---- disagreeing ----
static void rank_of_disagreement(void)
{
    struct world *w;
    struct communicator *all;
    struct err e;
    float *buf = test_join(&w, &all);
    struct collective_args sum = {.op = COLLECTIVE_ALL_REDUCE,
                                  .dtype = DT_F32,
                                  .buf = buf,
                                  .count = 5000,
                                  .root = 0,
                                  .name = "grad/a"};
    struct collective_args other = {.op = COLLECTIVE_ALL_REDUCE,
                                    .dtype = DT_F32,
                                    .buf = buf,
                                    .count = 5000,
                                    .root = 0,
                                    .name = "grad/b"};
    buf[0] = 1;
    CHECK(collective_run(all, test_rank ? &other : &sum, &e));
    CHECK(strstr(e.text, "grad/a") || strstr(e.text, "grad/b"));
    CHECK(strstr(e.text, "ranks disagree in communicator 'all'"));
    CHECK(buf[0] == 1); // nothing was touched
    test_leave(w, all);
}

static void different_tensors_are_never_added(void **state)
{
    (void)state;
    test_begin(2, one_host, WINDOW);
    test_start(rank_of_disagreement);
    all_end_well(-1);
    test_begin(2, "ab", WINDOW);
    test_start(rank_of_disagreement);
    all_end_well(-1);
}

// ---- no place to listen ----
static void rank_without_a_port(void)
{
    struct world *w;
    struct err e = {0};
    CHECK(test_open(&w, &e) == ERR_IO);
    expect(&e, ERR_IO,
           "peers of other hosts could not call this rank: cannot listen on 127.0.0.1:");
    CHECK(e.of_host); // so that it counts against the host, and another one is taken
}

static void a_rank_that_cannot_listen_says_that_its_host_is_to_blame(void **state)
{
    char taken[HOST_PORT_MAX];
    int fd;
    (void)state;
    assert_int_equal(host_address_listen("127.0.0.1:0", 1, &fd, taken, NULL), 0);
    test_begin(2, "ab", 0);
    test.listen = taken;
    test_start(rank_without_a_port);
    all_end_well(-1);
    close(fd);
}

// ---- strangers ----
static void rank_with_key(void)
{
    struct world *w;
    struct err e;
    CHECK(test_open(&w, &e));
    CHECK(!w);
    if (test_rank == 1)
        expect(&e, ERR_PEER, "the process that answers for rank 0 does not have the attempt's key");
    else
        expect(&e, ERR_TIMEOUT, "rank 1 has not come (1 callers were refused)");
}

static void another_key_is_refused(void **state)
{
    static const char *const hosts[] = {NULL, "ab"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        test_begin(2, hosts[i], 0);
        test.odd_key = 1;
        test.connect_ns = DEADLINE;
        test_start(rank_with_key);
        all_end_well(-1);
    }
}

static void rank_among_strangers(void)
{
    struct world *w;
    struct communicator *all;
    struct err e;
    float *buf = test_join(&w, &all);
    struct collective_args a = {.op = COLLECTIVE_ALL_REDUCE,
                                .dtype = DT_F32,
                                .buf = buf,
                                .count = 5000,
                                .root = 0,
                                .name = "sum"};
    for (int i = 0; i < 5000; i++)
        buf[i] = (float)test_rank + 1;
    DO(collective_run(all, &a, &e));
    for (int i = 0; i < 5000; i++)
        CHECK(buf[i] == 3);
    if (test_rank == 0)
        test_mark("done");
    test_leave(w, all);
}

static int knock(void)
{
    char value[256], host[65], addr[64];
    int port;
    test_await("coll.0");
    assert_int_equal(test_get(NULL, "coll.0", value, sizeof value, 0, NULL), 0);
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
    unsigned char hello[64] = {0}, answer[64], proof[32] = {0};
    uint32_t magic = PROGRESS_MAGIC, version = 2;
    uint64_t attempt = 7;
    int32_t from = 1;
    memcpy(hello, &magic, 4);
    memcpy(hello + 4, &version, 4);
    memcpy(hello + 8, &attempt, 8);
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
    test_begin(2, "ab", WINDOW);
    test.held = 1; // they come first
    test_start(rank_among_strangers);
    memset(noise, 0x5a, sizeof noise);
    int loud = knock();
    assert_int_equal(send(loud, noise, sizeof noise, MSG_NOSIGNAL), sizeof noise);
    pose_as_rank_1(knock());
    for (int i = 0; i < 100; i++) // more than there are places, all silent
        fds[i] = knock();
    test_mark("strangers");
    test_await("done");
    for (int i = 0; i < 100; i++)
        close(fds[i]);
    close(loud);
    all_end_well(-1);
}

// Rank 0 before anybody else is there, and callers who say nothing.
struct crowd {
    int fds[66]; // more than there are places, fewer than may wait to be heard
    char own[200];
    int looks, shut_out; // shut_out: how many, at the second look
};

static int publish_own(void *ctx, const char *key, const char *value, struct err *e)
{
    struct crowd *c = ctx;
    (void)key, (void)e;
    snprintf(c->own, sizeof c->own, "%s", value);
    return 0;
}

static int find_rank_1_and_call(void *ctx, const char *key, char *value, size_t size,
                                int64_t deadline_ns, struct err *e)
{
    struct crowd *c = ctx;
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    (void)key, (void)deadline_ns, (void)e;
    snprintf(value, size, "%s", c->own); // on the same host
    snprintf(to.sun_path, sizeof to.sun_path, "%s/c0.7", test.dir);
    for (size_t i = 0; i < sizeof c->fds / sizeof *c->fds; i++) {
        c->fds[i] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        assert_int_equal(connect(c->fds[i], (struct sockaddr *)&to, sizeof to), 0);
    }
    return 0;
}

static bool is_second_look(void *ctx)
{
    struct crowd *c = ctx;
    char byte;
    if (++c->looks < 2)
        return false;
    for (size_t i = 0; i < sizeof c->fds / sizeof *c->fds; i++)
        c->shut_out += recv(c->fds[i], &byte, 1, 0) == 0;
    return true;
}

static void between_callers_who_never_pause_time_is_looked_at(void **state)
{
    struct crowd c = {.looks = 0};
    struct world *w;
    struct err e = {0};
    (void)state;
    test_begin(2, one_host, WINDOW);
    struct world_options o = {.ranks = 2,
                              .host = "a",
                              .attempt = 7,
                              .connect_ns = 60 * CLOCK_S,
                              .socket_dir = test.dir,
                              .put = publish_own,
                              .get = find_rank_1_and_call,
                              .lost = is_second_look,
                              .ctx = &c};
    assert_int_equal(world_open(&o, &w, &e), ERR_PEER);
    assert_non_null(strstr(e.text, "the attempt is over"));
    assert_int_equal(c.looks, 2);
    assert_int_equal(c.shut_out, 0); // as nobody is before all places are taken
    for (size_t i = 0; i < sizeof c.fds / sizeof *c.fds; i++)
        close(c.fds[i]);
    test_clear();
}

// ---- a network that drops packets ----
// A listener whose queue is full: the kernel drops further calls, as a firewall would.
struct deaf {
    int listener, callers[8];
    char at[HOST_PORT_MAX];
    int64_t until; // of all of world_open
    int unreached; // 1 + the rank
};

static void open_deaf(struct deaf *d)
{
    struct sockaddr_in to = {.sin_family = AF_INET};
    socklen_t len = sizeof to;
    assert_int_equal(host_address_listen("127.0.0.1:0", 0, &d->listener, d->at, NULL), 0);
    assert_int_equal(getsockname(d->listener, (struct sockaddr *)&to, &len), 0);
    for (size_t i = 0; i < sizeof d->callers / sizeof *d->callers; i++) {
        d->callers[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)connect(d->callers[i], (struct sockaddr *)&to, len);
    }
}

static void close_deaf(struct deaf *d)
{
    for (size_t i = 0; i < sizeof d->callers / sizeof *d->callers; i++)
        close(d->callers[i]);
    close(d->listener);
}

static int put_nothing(void *ctx, const char *key, const char *value, struct err *e)
{
    (void)ctx, (void)key, (void)value, (void)e;
    return 0;
}

static int find_deaf_rank(void *ctx, const char *key, char *value, size_t size, int64_t deadline_ns,
                          struct err *e)
{
    struct deaf *d = ctx;
    (void)key, (void)e;
    d->until = deadline_ns;
    snprintf(value, size, "1 another-host %s", d->at);
    return 0;
}

static void note_unreached(void *ctx, int rank)
{
    ((struct deaf *)ctx)->unreached = 1 + rank;
}

static void a_call_that_no_machine_answers_is_given_up_long_before_the_others_are(void **state)
{
    struct deaf d = {.until = 0};
    struct world *w;
    struct err e = {0};
    (void)state;
    test_begin(2, one_host, WINDOW);
    open_deaf(&d);
    struct world_options o = {.rank = 1,
                              .ranks = 2,
                              .host = "a",
                              .listen = "127.0.0.1:0",
                              .attempt = 7,
                              .connect_ns = 24 * CLOCK_S,
                              .socket_dir = test.dir,
                              .put = put_nothing,
                              .get = find_deaf_rank,
                              .unreached = note_unreached,
                              .ctx = &d};
    assert_int_equal(world_open(&o, &w, &e), ERR_TIMEOUT);
    assert_non_null(strstr(e.text, "rank 0 does not answer at 127.0.0.1:"));
    assert_int_equal(d.unreached, 1);
    assert_true(clock_mono_ns() < d.until); // what is left is most of it
    close_deaf(&d);
    test_clear();
}

// ---- what stays ----
static void rank_of_traces(void)
{
    char path[96];
    struct world *w;
    struct communicator *all;
    struct err e;
    test_join(&w, &all);
    struct collective_args a = {.op = COLLECTIVE_BARRIER, .name = "met"};
    DO(collective_run(all, &a, &e));
    for (int i = 0; i < test.ranks; i++) {
        snprintf(path, sizeof path, "%s/c%d.7", test.dir, i);
        CHECK(access(path, F_OK) < 0);
    }
    test_leave(w, all);
}

static void no_socket_stays_once_all_have_met(void **state)
{
    (void)state;
    test_begin(3, one_host, WINDOW);
    test_start(rank_of_traces);
    all_end_well(-1);
}

static const char *const there[] = {"zero", "one", "two"};

static void rank_of_a_gathering(void)
{
    struct world *w;
    struct err e;
    char all[RANKS][GATHER_TEXT];
    DO(test_open(&w, &e));
    test_mark(there[test_rank]);
    while (test_rank == 2)
        pause();
    CHECK(world_gather(w, "graphs of train", "", all, &e) == ERR_PEER);
    expect(&e, ERR_PEER, "rank 2 died");
    expect(&e, ERR_PEER, "(graphs of train)");
    world_close(w);
}

static void who_gathers_texts_notices_a_death(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        test_begin(3, k ? "aba" : one_host, WINDOW);
        test_start(rank_of_a_gathering);
        for (int r = 0; r < 3; r++)
            test_await(there[r]);
        kill(test.pid[2], SIGKILL);
        all_end_well(2);
    }
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
        cmocka_unit_test(a_rank_that_cannot_listen_says_that_its_host_is_to_blame),
        cmocka_unit_test(another_key_is_refused),
        cmocka_unit_test(strangers_are_refused_and_do_no_harm),
        cmocka_unit_test(between_callers_who_never_pause_time_is_looked_at),
        cmocka_unit_test(a_call_that_no_machine_answers_is_given_up_long_before_the_others_are),
        cmocka_unit_test(no_socket_stays_once_all_have_met),
        cmocka_unit_test(who_gathers_texts_notices_a_death),
    };
    return RUN_BOTH(tests);
}
