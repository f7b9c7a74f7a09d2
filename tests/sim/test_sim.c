// SPDX-License-Identifier: Apache-2.0
// The simulator's tests: random schedules keep every invariant, and with any one rule of the
// protocol taken away some schedule does not.
//
//   test_sim                      500 schedules of each kind, and each rule's recorded schedule
//   WEFT_LONG=1 test_sim          100,000
//   test_sim --seed N [--without RULE]   one schedule with its trace
//   test_sim --from N --count M [--without RULE]   which of them fail, and how fast they ran
//   test_sim --hunt N [--without RULE] [--mix M]   for each rule the first schedule below N that
//                                 misses it (of the mix: fault.c)
//
// Schedules from BLAME_SEEDS (1000000000) on are about whom the leader blames: only ranks and the
// coordinator fail there. --hunt 1000002000 looks among these.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/sim/mutate.h"
#include "tests/sim/sim_world.h"
#include "tests/support/how_many.h"
#include "tests/unit/unit.h"

unsigned long long weft_rules_off;

static const char *const rules[RULE_COUNT] = {
#define X(name) #name,
#include "common/base/protocol_rules.def"
#undef X
};

// A schedule that misses each rule, found by --hunt.
static const uint64_t teeth[RULE_COUNT] = {
    [RULE_fence_rename] = 2058,
    [RULE_fence_fsync] = 106,
    [RULE_fence_marker] = 16,
    [RULE_fsync_shard] = 22,
    [RULE_fsync_directory] = 32,
    [RULE_fsync_parent] = 42,
    [RULE_trash_fsync] = 42,
    [RULE_commit_all_in] = 0,
    [RULE_reply_after_commit] = 0,
    [RULE_request_ids] = 1,
    [RULE_reaped_frees] = 5,
    [RULE_incarnation] = 13,
    [RULE_refuse_reaped] = 776,
    [RULE_no_save] = 1,
    [RULE_last_save_waits] = 1,
    [RULE_ordered_durable] = 0,
    [RULE_fence_durable] = 0,
    [RULE_first_answer] = 4667,
    [RULE_nonce] = 514,
    [RULE_grace] = 0,
    [RULE_shard_repeated] = 0,
    [RULE_barrier_brought] = 111,
    [RULE_lost_peer_waits] = BLAME_SEEDS + 40,
    [RULE_stopped_saver] = BLAME_SEEDS + 50,
    [RULE_leader_gap] = BLAME_SEEDS + 990,
};

static bool run_fails(uint64_t seed, struct sim_result *r)
{
    world_run(seed, false, r);
    return r->failed;
}

// The trace, the invariant that broke, and how to see it again.
static int replay(uint64_t seed)
{
    struct sim_result r;
    printf("%10s  %-16s  %s\n", "second", "who", "what, and why");
    world_run(seed, true, &r);
    printf("schedule %" PRIu64 ": %s\nplay it again: build/tests/sim/test_sim --seed %" PRIu64,
           seed, r.failed ? r.why : "every invariant held", seed);
    for (int i = 0; i < RULE_COUNT; i++)
        if (weft_rules_off >> i & 1)
            printf(" --without %s", rules[i]);
    printf("\n");
    return r.failed;
}

// ---- random schedules ----
struct share { // of the schedules, a process a core
    uint64_t ran, events, seed;
    bool failed;
};

static struct share run_share(uint64_t first, uint64_t step, uint64_t count)
{
    struct share s = {0};
    for (s.seed = first; s.seed < count && !s.failed; s.seed += step) {
        struct sim_result r;
        s.failed = run_fails(s.seed, &r);
        s.events += r.events;
        s.ran++;
        if (s.failed)
            break;
    }
    return s;
}

// Gives the share's result back through a pipe.
static int fork_share(uint64_t first, uint64_t step, uint64_t count)
{
    int fd[2];
    assert_int_equal(pipe(fd), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct share s = run_share(first, step, count);
        _exit(write(fd[1], &s, sizeof s) == (ssize_t)sizeof s ? 0 : 1);
    }
    close(fd[1]);
    return fd[0];
}

static void run_all(uint64_t first, uint64_t count)
{
    enum { CORES_MAX = 64 };
    uint64_t ran = 0, events = 0;
    long cores = getenv("WEFT_LONG") ? sysconf(_SC_NPROCESSORS_ONLN) : 1;
    int64_t begun = clock_mono_ns();
    int fd[CORES_MAX];
    cores = cores < 1 ? 1 : cores > CORES_MAX ? CORES_MAX : cores;
    for (int i = 0; i < cores; i++)
        fd[i] = fork_share(first + (uint64_t)i, (uint64_t)cores, first + count);
    for (int i = 0; i < cores; i++) {
        struct share s;
        assert_int_equal(read(fd[i], &s, sizeof s), sizeof s);
        close(fd[i]);
        assert_true(wait(NULL) > 0);
        ran += s.ran;
        events += s.events;
        if (s.failed) {
            replay(s.seed);
            fail();
        }
    }
    double s = (double)(clock_mono_ns() - begun) / (double)S;
    assert_int_equal(ran, count);
    print_message("%" PRIu64 " schedules, %" PRIu64 " events, %.0f schedules/s on %ld cores\n", ran,
                  events, (double)ran / s, cores);
}

static void every_schedule_keeps_every_invariant(void **state)
{
    (void)state;
    run_all(0, (uint64_t)how_many(500, 100000));
}

static void every_blame_falls_on_who_failed(void **state)
{
    (void)state;
    run_all(BLAME_SEEDS, (uint64_t)how_many(500, 100000));
}

static void the_same_seed_is_the_same_schedule(void **state)
{
    static const uint64_t seeds[] = {7, BLAME_SEEDS + 7};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct sim_result a, b;
        world_run(seeds[i], false, &a);
        world_run(seeds[i], false, &b);
        assert_int_equal(a.events, b.events);
    }
}

// The recorded schedule; when it goes well (what the deciders do has changed), others of its mix.
enum { MIXES = 10, SEARCH = 1500 };
static bool is_missed(int rule, struct sim_result *without)
{
    struct sim_result with;
    uint64_t seed = teeth[rule];
    for (int i = 0; i < SEARCH; i++) {
        weft_rules_off = 1ULL << rule;
        bool missed = run_fails(seed, without);
        weft_rules_off = 0;
        if (missed) {
            print_message("without %s, schedule %" PRIu64 ": %s\n", rules[rule], seed,
                          without->why);
            return !run_fails(seed, &with);
        }
        seed = teeth[rule] >= BLAME_SEEDS ? BLAME_SEEDS + (uint64_t)i
                                          : teeth[rule] % MIXES + MIXES * (uint64_t)i;
    }
    return false;
}

static void without_any_one_rule_a_schedule_fails(void **state)
{
    (void)state;
    for (int rule = 0; rule < RULE_COUNT; rule++) {
        struct sim_result without;
        if (!is_missed(rule, &without))
            fail_msg("%s: no schedule misses it", rules[rule]);
    }
}

// ---- by hand ----
static int rule_named(const char *name)
{
    for (int i = 0; i < RULE_COUNT; i++)
        if (!strcmp(rules[i], name))
            return i;
    fprintf(stderr, "no rule is called %s\n", name);
    exit(2);
}

static int sweep(uint64_t from, uint64_t count)
{
    int failed = 0;
    int64_t begun = clock_mono_ns();
    for (uint64_t seed = from; seed < from + count; seed++) {
        struct sim_result r;
        if (!run_fails(seed, &r))
            continue;
        failed++;
        printf("%" PRIu64 ": %s\n", seed, r.why);
    }
    printf("%d of %" PRIu64 " schedules fail, %.0f schedules/s\n", failed, count,
           (double)count * (double)S / (double)(clock_mono_ns() - begun));
    return failed != 0;
}

static int hunt(uint64_t below, unsigned long long only, uint64_t first, uint64_t stride)
{
    for (int rule = 0; rule < RULE_COUNT; rule++) {
        if (only && !(only >> rule & 1))
            continue;
        struct sim_result r = {0};
        uint64_t seed = below > BLAME_SEEDS ? BLAME_SEEDS : first;
        weft_rules_off = 1ULL << rule;
        for (; seed < below && !run_fails(seed, &r); seed += below > BLAME_SEEDS ? 1 : stride)
            ;
        weft_rules_off = 0;
        printf("    [RULE_%s] = %" PRIu64 ", // %s\n", rules[rule], seed,
               seed < below ? r.why : "NOT FOUND");
        fflush(stdout);
    }
    return 0;
}

static int by_hand(int argc, char **argv)
{
    uint64_t from = 0, count = 0, mix = MIXES;
    const char *what = argv[1];
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--without"))
            weft_rules_off |= 1ULL << rule_named(argv[i + 1]);
        else if (!strcmp(argv[i], "--mix"))
            mix = strtoull(argv[i + 1], NULL, 10) % MIXES;
        else if (!strcmp(argv[i], "--count"))
            count = strtoull(argv[i + 1], NULL, 10);
        else
            from = strtoull(argv[i + 1], NULL, 10);
    }
    int rc = !strcmp(what, "--seed") ? replay(from)
             : !strcmp(what, "--hunt")
                 ? hunt(from, weft_rules_off, mix % MIXES, mix == MIXES ? 1 : MIXES)
                 : sweep(from, count);
    world_free_all();
    return rc;
}

static int teardown(void **state)
{
    (void)state;
    world_free_all();
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_seed_is_the_same_schedule),
        cmocka_unit_test(every_schedule_keeps_every_invariant),
        cmocka_unit_test(every_blame_falls_on_who_failed),
        cmocka_unit_test(without_any_one_rule_a_schedule_fails),
    };
    if (argc > 2)
        return by_hand(argc, argv);
    return cmocka_run_group_tests(tests, NULL, teardown);
}
