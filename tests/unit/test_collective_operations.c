// SPDX-License-Identifier: Apache-2.0
// Collectives give the right bits: every operation on every placement of 1 to 5 ranks over hosts,
// small and large, many at once, on several communicators. The expected sums are those of the
// tree's definition over operands that every rank can compute.

#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "common/attempt/life.h"
#include "tests/support/collective_run.h"
#include "tests/unit/collective_ranks.h"
#include "tests/unit/unit.h"

enum { WINDOW = 12 << 20, BIG = 1500 * 1000 };

// Element k of rank r's operand: magnitudes differ, so another order gives other bits.
static float operand(int r, int64_t k)
{
    uint64_t x = ((uint64_t)r << 32 ^ (uint64_t)k) * 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    float mantissa = (float)(int32_t)(x >> 33) / 1024;
    return mantissa * (float)(1 << (x & 15));
}

static float tree_of(const int *ranks, int lo, int size, int n, int64_t k)
{
    if (size == 1)
        return operand(ranks[lo], k);
    float left = tree_of(ranks, lo, size / 2, n, k);
    return lo + size / 2 < n ? left + tree_of(ranks, lo + size / 2, size / 2, n, k) : left;
}

static float sum_of(const int *ranks, int n, int64_t k)
{
    int size = 1;
    while (size < n)
        size *= 2;
    return tree_of(ranks, 0, size, n, k);
}

static void fill(float *buf, int r, int64_t count)
{
    for (int64_t k = 0; k < count; k++)
        buf[k] = operand(r, k);
}

static void check_bits(const float *got, const int *ranks, int n, int64_t from, int64_t to)
{
    for (int64_t k = from; k < to; k++) {
        float want = sum_of(ranks, n, k);
        CHECK(!memcmp(&got[k], &want, sizeof want));
    }
}

struct group {
    struct communicator *c;
    int ranks[RANKS], n, me;
};

static void all_reduce(const struct group *g, float *buf, int64_t count)
{
    struct err e;
    struct collective_args a = {.op = COLLECTIVE_ALL_REDUCE,
                                .dtype = DT_F32,
                                .buf = buf,
                                .count = count,
                                .root = 0,
                                .name = "sum"};
    fill(buf, g->ranks[g->me], count);
    buf[count] = 42;
    DO(collective_run(g->c, &a, &e));
    check_bits(buf, g->ranks, g->n, 0, count);
    CHECK(buf[count] == 42);
}

static void reduce_scatter(const struct group *g, float *buf, int64_t count)
{
    struct err e;
    struct collective_args a = {.op = COLLECTIVE_REDUCE_SCATTER,
                                .dtype = DT_F32,
                                .buf = buf,
                                .count = count * g->n,
                                .root = 0,
                                .name = "scatter"};
    fill(buf, g->ranks[g->me], count * g->n);
    DO(collective_run(g->c, &a, &e));
    check_bits(buf, g->ranks, g->n, g->me * count, (g->me + 1) * count);
}

// Bytes, so that slices end anywhere.
static unsigned char byte_of(int r, int64_t k)
{
    return (unsigned char)(k * 7 + k / 251 + r * 101);
}

static void all_gather(const struct group *g, float *buf, int64_t count)
{
    struct err e;
    unsigned char *b = (unsigned char *)buf;
    struct collective_args a = {.op = COLLECTIVE_ALL_GATHER,
                                .dtype = DT_U8,
                                .buf = buf,
                                .count = count * g->n,
                                .root = 0,
                                .name = "gather"};
    memset(b, 0, (size_t)(count * g->n));
    for (int64_t k = 0; k < count; k++)
        b[g->me * count + k] = byte_of(g->me, k);
    DO(collective_run(g->c, &a, &e));
    for (int i = 0; i < g->n; i++)
        for (int64_t k = 0; k < count; k++)
            CHECK(b[i * count + k] == byte_of(i, k));
}

static void broadcast(const struct group *g, float *buf, int64_t count)
{
    struct err e;
    unsigned char *b = (unsigned char *)buf;
    for (int root = 0; root < g->n; root++) {
        struct collective_args a = {.op = COLLECTIVE_BROADCAST,
                                    .dtype = DT_U8,
                                    .buf = buf,
                                    .count = count,
                                    .root = root,
                                    .name = "broadcast"};
        for (int64_t k = 0; k < count; k++)
            b[k] = byte_of(g->me, k);
        DO(collective_run(g->c, &a, &e));
        for (int64_t k = 0; k < count; k++)
            CHECK(b[k] == byte_of(root, k));
    }
}

static void all_to_all(const struct group *g, float *buf, int64_t count)
{
    struct err e;
    unsigned char *from = (unsigned char *)buf, *to = from + WINDOW / 2;
    struct collective_args a = {.op = COLLECTIVE_ALL_TO_ALL,
                                .dtype = DT_U8,
                                .from = from,
                                .buf = to,
                                .count = count * g->n,
                                .name = "exchange"};
    memset(to, 0, (size_t)(count * g->n));
    for (int64_t k = 0; k < count * g->n; k++)
        from[k] = byte_of(g->me, k);
    DO(collective_run(g->c, &a, &e));
    for (int i = 0; i < g->n; i++)
        for (int64_t k = 0; k < count; k++) {
            CHECK(to[i * count + k] == byte_of(i, g->me * count + k));
            CHECK(from[i * count + k] == byte_of(g->me, i * count + k));
        }
}

static void largest(const struct group *g, float *buf, int64_t count)
{
    struct err e;
    struct collective_args a = {.op = COLLECTIVE_ALL_REDUCE,
                                .reduce = COLLECTIVE_MAX,
                                .dtype = DT_F32,
                                .buf = buf,
                                .count = count,
                                .name = "max"};
    fill(buf, g->ranks[g->me], count);
    DO(collective_run(g->c, &a, &e));
    for (int64_t k = 0; k < count; k++) {
        float want = operand(g->ranks[0], k);
        for (int i = 1; i < g->n; i++)
            want = operand(g->ranks[i], k) > want ? operand(g->ranks[i], k) : want;
        CHECK(buf[k] == want);
    }
}

static void run_all_ops(const struct group *g, float *buf)
{
    static const int64_t counts[] = {0, 1, 3, 1023, 1024, 1025, 5000, 100003, 4};
    struct err e;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        all_reduce(g, buf, counts[i]);
        reduce_scatter(g, buf, counts[i]);
        all_gather(g, buf, counts[i]);
        broadcast(g, buf, counts[i]);
        all_to_all(g, buf, counts[i]);
        largest(g, buf, counts[i]);
        DO(collective_run(
            g->c, &(struct collective_args){.op = COLLECTIVE_BARRIER, .name = "barrier"}, &e));
    }
    all_reduce(g, buf, BIG);
    reduce_scatter(g, buf, BIG / g->n);
    all_gather(g, buf, BIG);
    broadcast(g, buf, BIG);
    all_to_all(g, buf, BIG / 2);
    largest(g, buf, BIG);
}

static struct group group_all(struct communicator *all)
{
    struct group g = {.c = all, .n = test.ranks, .me = test_rank};
    for (int i = 0; i < g.n; i++)
        g.ranks[i] = i;
    return g;
}

static void rank_of_all_ops(void)
{
    struct world *w;
    struct communicator *all;
    float *buf = test_join(&w, &all);
    struct group g = group_all(all);
    run_all_ops(&g, buf + 1); // not on a line
    test_leave(w, all);
}

static void run(int ranks, const char *hosts, void (*rank)(void))
{
    test_run(ranks, hosts, WINDOW, rank);
}

static void every_operation_on_one_host(void **state)
{
    (void)state;
    for (int n = 1; n <= 5; n++)
        run(n, NULL, rank_of_all_ops);
}

static void every_operation_between_hosts(void **state)
{
    static const char *const hosts[] = {"ab", "abc", "abcd"};
    (void)state;
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++)
        run((int)strlen(hosts[i]), hosts[i], rank_of_all_ops);
}

static void every_operation_over_a_trusted_network(void **state)
{
    (void)state;
    trusted_network = true;
    run(2, "ab", rank_of_all_ops);
    run(5, "abbca", rank_of_all_ops);
    trusted_network = false;
}

static void every_operation_on_mixed_hosts(void **state)
{
    static const char *const hosts[] = {"aabb", "abab", "aaab", "baaa", "abbca"};
    (void)state;
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++)
        run((int)strlen(hosts[i]), hosts[i], rank_of_all_ops);
}

// ---- many at once ----
static void rank_of_many_open(void)
{
    struct world *w;
    struct communicator *all;
    struct err e;
    struct collective_ticket t[COLLECTIVES_OPEN];
    float *buf = test_join(&w, &all), *at[COLLECTIVES_OPEN];
    struct group g = group_all(all);
    for (int round = 0; round < 5; round++) {
        float *next = buf;
        for (int i = 0; i < COLLECTIVES_OPEN; i++, next += (i * 613) % 9000) {
            struct collective_args a = {.op = COLLECTIVE_ALL_REDUCE,
                                        .dtype = DT_F32,
                                        .buf = next,
                                        .count = (i * 613 + 613) % 9000,
                                        .root = 0,
                                        .name = "x"};
            at[i] = next;
            fill(next, test_rank, a.count);
            DO(collective_start(all, &a, &t[i], &e));
            CHECK(t[i].number == (uint64_t)(round * COLLECTIVES_OPEN + i + 1));
        }
        if (test_rank == 1 && round == 0) // waiting for a later one completes those before it
            DO(collective_wait(all, &t[COLLECTIVES_OPEN - 1], &e));
        for (int i = 0; i < COLLECTIVES_OPEN; i++) {
            DO(collective_wait(all, &t[i], &e));
            check_bits(at[i], g.ranks, g.n, 0, (i * 613 + 613) % 9000);
        }
    }
    test_leave(w, all);
}

static void sixty_four_may_be_open(void **state)
{
    (void)state;
    run(2, NULL, rank_of_many_open);
    run(3, "aab", rank_of_many_open);
}

static void rank_of_one_too_many(void)
{
    struct world *w;
    struct communicator *all;
    struct err e;
    struct collective_ticket t[COLLECTIVES_OPEN], extra;
    float *buf = test_join(&w, &all);
    struct collective_args a = {.op = COLLECTIVE_ALL_REDUCE,
                                .dtype = DT_F32,
                                .buf = buf,
                                .count = 0,
                                .root = 0,
                                .name = "x"};
    if (test_rank == 1)
        test_await("full"); // nothing can complete before we start ours
    for (int i = 0; i < COLLECTIVES_OPEN; i++) {
        a.buf = buf + i;
        a.count = 1;
        DO(collective_start(all, &a, &t[i], &e));
    }
    if (test_rank == 0) {
        CHECK(collective_start(all, &a, &extra, &e) == ERR_LIMIT);
        test_mark("full");
    }
    for (int i = 0; i < COLLECTIVES_OPEN; i++)
        DO(collective_wait(all, &t[i], &e));
    test_leave(w, all);
}

static void a_sixty_fifth_is_refused_and_harms_nothing(void **state)
{
    (void)state;
    run(2, NULL, rank_of_one_too_many);
}

// ---- several communicators ----
static void rank_of_pairs(void)
{
    struct world *w;
    struct communicator *all;
    struct err e;
    float *buf = test_join(&w, &all);
    int first = test_rank & ~1, far = test_rank ^ 2;
    struct group g = group_all(all);
    struct group near = {.ranks = {first + 1, first}, .n = 2, .me = !(test_rank & 1)};
    struct group across = {.ranks = {test_rank & 1, (test_rank & 1) + 2}, .n = 2};
    across.me = far < test_rank;
    DO(communicator_new(w, "near", near.ranks, 2, &near.c, &e));
    DO(communicator_new(w, "across", across.ranks, 2, &across.c, &e));
    CHECK(communicator_size(near.c) == 2 && communicator_coordinate(near.c) == near.me);
    for (int round = 0; round < 3; round++) {
        all_reduce(&near, buf, 30011);
        all_reduce(&g, buf, 700);
        all_reduce(&across, buf, 90001);
        reduce_scatter(&g, buf, 20000);
        all_gather(&near, buf, 77777);
    }
    communicator_free(near.c);
    communicator_free(across.c);
    test_leave(w, all);
}

static void pairs_and_all_take_turns(void **state)
{
    (void)state;
    run(4, NULL, rank_of_pairs);
    run(4, "abba", rank_of_pairs);
}

static void rank_of_crossed_waits(void)
{
    struct world *w;
    struct communicator *all, *other;
    struct err e;
    struct collective_ticket t[2];
    float *buf = test_join(&w, &all);
    struct group g = group_all(all);
    DO(communicator_new(w, "all", g.ranks, g.n, &other, &e)); // alike, and yet another one
    struct communicator *comms[2] = {all, other};
    float *at[2] = {buf, buf + BIG};
    for (int i = 0; i < 2; i++) {
        struct collective_args a = {.op = COLLECTIVE_ALL_REDUCE,
                                    .dtype = DT_F32,
                                    .buf = at[i],
                                    .count = BIG,
                                    .root = 0,
                                    .name = i ? "b" : "a"};
        fill(at[i], test_rank, BIG);
        DO(collective_start(comms[i], &a, &t[i], &e));
    }
    for (int i = 0; i < 2; i++) {
        int which = i ^ (test_rank & 1);
        DO(collective_wait(comms[which], &t[which], &e));
    }
    check_bits(at[0], g.ranks, g.n, 0, BIG);
    check_bits(at[1], g.ranks, g.n, 0, BIG);
    communicator_free(other);
    test_leave(w, all);
}

static void a_world_has_no_more_ranks_than_an_attempt(void **state)
{
    (void)state;
    struct world_options o = {.rank = 0, .ranks = RANK_MAX + 1};
    struct world *w;
    struct err e = {0};
    assert_int_equal(world_open(&o, &w, &e), ERR_INVALID);
    assert_null(w);
}

static void ranks_may_wait_in_different_orders(void **state)
{
    (void)state;
    run(2, NULL, rank_of_crossed_waits);
    run(3, "aba", rank_of_crossed_waits);
}

// ---- the progress page ----
static void rank_of_progress(void)
{
    struct progress_page page = {.magic = PROGRESS_MAGIC};
    struct world *w;
    struct communicator *all;
    struct err e;
    struct collective_ticket t;
    test.progress = &page;
    float *mem = test_join(&w, &all);
    struct collective_args a = {.op = COLLECTIVE_ALL_REDUCE,
                                .dtype = DT_F32,
                                .buf = mem,
                                .count = 3,
                                .root = 0,
                                .name = "grad/layers/0/weight"};
    CHECK(page.collective_entered == 0);
    if (test_rank == 1) // a progress thread might bring both to its end at once
        test_await("looked");
    DO(collective_start(all, &a, &t, &e));
    CHECK(page.collective_entered == 1 && page.heartbeat_ns > 0);
    CHECK(test_rank == 1 || page.collective_left == 0);
    CHECK(!strcmp(page.collective_text, "grad/layers/0/weight"));
    if (test_rank == 0)
        test_mark("looked");
    DO(collective_wait(all, &t, &e));
    CHECK(page.collective_entered == 1 && page.collective_left == 1);
    test_leave(w, all);
}

static void the_progress_page_follows(void **state)
{
    (void)state;
    run(2, NULL, rank_of_progress);
}

// Ranks of three hosts with their progress pages in memory that all of them see.
static struct progress_page *pages;

static void rank_of_waiting(void)
{
    struct world *w;
    struct communicator *all;
    struct err e;
    test.progress = &pages[test_rank];
    float *mem = test_join(&w, &all);
    struct collective_args a = {.op = COLLECTIVE_ALL_REDUCE,
                                .reduce = COLLECTIVE_SUM,
                                .dtype = DT_F32,
                                .buf = mem,
                                .count = BIG,
                                .name = "x"};
    DO(collective_run(all, &a, &e));
    // Rank 2 comes late: not before both others say that they wait for it, which entered #1 last.
    const uint64_t for_2 = (uint64_t)(2 + 1) << 48 | 1;
    for (int r = 0; r < 2 && test_rank == 2; r++)
        while (atomic_load(&pages[r].awaited) != for_2)
            clock_sleep_ms(1); // test_start's alarm is the watchdog
    DO(collective_run(all, &a, &e));
    CHECK(atomic_load(&pages[test_rank].awaited) == 0);
    test_leave(w, all);
}

static void the_progress_page_shows_whom_a_rank_waits_for(void **state)
{
    (void)state;
    pages =
        mmap(NULL, 3 * sizeof *pages, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED);
    run(3, "abc", rank_of_waiting);
    munmap(pages, 3 * sizeof *pages);
}

// ---- while the rank computes ----
// Two ranks start a collective and make no further call for a while.
static bool moves_by_itself(int threads, int64_t for_ns)
{
    struct progress_page page = {.magic = PROGRESS_MAGIC};
    struct world *w;
    struct communicator *all;
    struct err e;
    struct collective_ticket t;
    int ranks[] = {0, 1};
    test.progress = &page;
    test.threads = threads;
    float *mem = test_join(&w, &all);
    fill(mem, test_rank, BIG);
    struct collective_args a = {
        .op = COLLECTIVE_ALL_REDUCE, .dtype = DT_F32, .buf = mem, .count = BIG, .name = "x"};
    DO(collective_start(all, &a, &t, &e));
    int64_t until = clock_mono_ns() + for_ns;
    while (!atomic_load(&page.collective_left) && clock_mono_ns() < until)
        clock_sleep_ms(1);
    bool moved = atomic_load(&page.collective_left) == 1;
    DO(collective_wait(all, &t, &e));
    check_bits(mem, ranks, 2, 0, BIG);
    test_leave(w, all);
    return moved;
}

static void rank_that_computes(void)
{
    CHECK(moves_by_itself(0, 60 * CLOCK_S));
}

static void what_was_started_moves_while_its_rank_computes(void **state)
{
    (void)state;
    run(2, NULL, rank_that_computes);
    run(2, "ab", rank_that_computes);
}

// Without a window, and where a plan has taken all communicators that it may have.
static void rank_that_gathers(void)
{
    struct world *w;
    struct communicator *plan[COMMUNICATORS];
    struct err e;
    char all[RANKS][GATHER_TEXT], own[2 * GATHER_TEXT], want[2 * GATHER_TEXT];
    DO(test_open(&w, &e));
    for (int i = 0; i < COMMUNICATORS; i++)
        DO(communicator_new(w, "plan", &test_rank, 1, &plan[i], &e));
    for (int round = 0; round < 2 * RANKS; round++) {
        snprintf(own, sizeof own, "%d.%*d", test_rank, 30 * round, round);
        DO(world_gather(w, "round", own, all, &e));
        for (int r = 0; r < test.ranks; r++) {
            snprintf(want, GATHER_TEXT, "%d.%*d", r, 30 * round, round);
            CHECK(!strcmp(all[r], want));
        }
    }
    world_close(w);
}

static void texts_of_all_ranks_reach_all(void **state)
{
    (void)state;
    run(1, NULL, rank_that_gathers);
    run(4, NULL, rank_that_gathers);
    run(3, "abc", rank_that_gathers);
    run(5, "aabba", rank_that_gathers);
}

static void rank_without_a_core_to_spare(void)
{
    cpu_set_t all, few;
    CPU_ZERO(&few);
    CHECK(!sched_getaffinity(0, sizeof all, &all));
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&few) < 3; i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &few);
    CHECK(!sched_setaffinity(0, sizeof few, &few));
    CHECK(!moves_by_itself(1, CLOCK_S / 20));
}

// Two ranks that compute on a core each, three cores at most.
static void without_a_core_to_spare_no_thread_takes_one(void **state)
{
    (void)state;
    unsetenv("WEFT_PROGRESS");
    run(2, NULL, rank_without_a_core_to_spare);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_on_one_host),
        cmocka_unit_test(every_operation_between_hosts),
        cmocka_unit_test(every_operation_over_a_trusted_network),
        cmocka_unit_test(every_operation_on_mixed_hosts),
        cmocka_unit_test(sixty_four_may_be_open),
        cmocka_unit_test(a_sixty_fifth_is_refused_and_harms_nothing),
        cmocka_unit_test(pairs_and_all_take_turns),
        cmocka_unit_test(ranks_may_wait_in_different_orders),
        cmocka_unit_test(texts_of_all_ranks_reach_all),
        cmocka_unit_test(a_world_has_no_more_ranks_than_an_attempt),
        cmocka_unit_test(the_progress_page_follows),
        cmocka_unit_test(the_progress_page_shows_whom_a_rank_waits_for),
    };
    const struct CMUnitTest threads[] = {
        cmocka_unit_test(what_was_started_moves_while_its_rank_computes),
        cmocka_unit_test(without_a_core_to_spare_no_thread_takes_one),
    };
    int failed = RUN_BOTH(tests);
    return failed + cmocka_run_group_tests(threads, NULL, NULL);
}
