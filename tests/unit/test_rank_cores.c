// SPDX-License-Identifier: Apache-2.0
// The threads of a solo run's devices, by the cores of its ranks: hosts of several sizes, ranks that
// are bound to cores of their own, and what a process finds of itself.
#include <sched.h>
#include <string.h>

#include "common/base/cores.h"
#include "common/job/threads.h"
#include "tests/unit/unit.h"
#include "worker/rank/lead/rank_cores.h"

// A rank that may run on `cores` of its host's, the first of them `first`.
static struct rank_cores on(const char *host, int first, int cores)
{
    struct rank_cores r = {.cores = cores};
    strcpy(r.host, host);
    for (int i = first; i < first + cores; i++)
        r.cpus[i / 8] |= (unsigned char)(1 << i % 8);
    return r;
}

static void expect_share(const struct rank_cores *ranks, int n, int64_t share, const char *why)
{
    char text[200];
    assert_int_equal(rank_cores_share(ranks, n, text, sizeof text), share);
    assert_string_equal(text, why);
}

static void ranks_share_the_cores_of_their_own_host_only(void **state)
{
    (void)state;
    expect_share((struct rank_cores[]){on("a", 0, 8), on("b", 0, 8)}, 2, 8,
                 "8 cores of host a, divided by 1 rank");
    expect_share((struct rank_cores[]){on("a", 0, 8), on("a", 0, 8)}, 2, 4,
                 "8 cores of host a, divided by 2 ranks");
    expect_share((struct rank_cores[]){on("a", 1200, 8), on("a", 1204, 8)}, 2, 4,
                 "8 cores of host a, divided by 2 ranks"); // a large machine's
}

static void the_poorest_rank_decides_for_all(void **state)
{
    (void)state;
    expect_share((struct rank_cores[]){on("a", 0, 16), on("b", 0, 6), on("b", 0, 6)}, 3, 3,
                 "6 cores of host b, divided by 2 ranks");
    expect_share((struct rank_cores[]){on("a", 0, 16), on("b", 0, 1), on("b", 0, 1)}, 3, 1,
                 "1 core of host b, divided by 2 ranks");
}

static void ranks_bound_to_cores_of_their_own_share_none(void **state)
{
    (void)state;
    expect_share((struct rank_cores[]){on("a", 0, 4), on("a", 4, 4)}, 2, 4,
                 "4 cores of host a, divided by 1 rank");
    expect_share((struct rank_cores[]){on("a", 0, 4), on("a", 3, 4)}, 2, 2, // core 3 is of both
                 "4 cores of host a, divided by 2 ranks");
    expect_share((struct rank_cores[]){on("a", 1016, 8), on("a", 1016, 8)}, 2, 4, // the last ones
                 "8 cores of host a, divided by 2 ranks");
}

static void a_rank_that_tells_nothing_or_nonsense_leaves_one(void **state)
{
    (void)state;
    struct rank_cores silent = {.host = "a"}, absurd = on("a", 0, 2);
    char why[200];
    absurd.cores = INT32_MIN;
    assert_int_equal(rank_cores_share(&silent, 1, why, sizeof why), 1);
    assert_int_equal(rank_cores_share(&absurd, 1, why, sizeof why), 1);
    absurd.cores = INT32_MAX;
    assert_int_equal(rank_cores_share(&absurd, 1, why, sizeof why), JOB_MAX_THREADS);
}

static void a_process_reads_its_own_cores(void **state)
{
    (void)state;
    struct rank_cores r;
    cpu_set_t all, one;
    int last = -1;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    for (int i = 0; i < CPU_SETSIZE; i++)
        last = CPU_ISSET(i, &all) ? i : last;
    CPU_ZERO(&one);
    CPU_SET(last, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    rank_cores_read("here", &r);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    struct rank_cores want = on("here", last, 1);
    assert_memory_equal(r.cpus, want.cpus, sizeof r.cpus);
    assert_int_equal(r.cores, 1);
    assert_string_equal(r.host, "here");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_share_the_cores_of_their_own_host_only),
        cmocka_unit_test(the_poorest_rank_decides_for_all),
        cmocka_unit_test(ranks_bound_to_cores_of_their_own_share_none),
        cmocka_unit_test(a_rank_that_tells_nothing_or_nonsense_leaves_one),
        cmocka_unit_test(a_process_reads_its_own_cores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
