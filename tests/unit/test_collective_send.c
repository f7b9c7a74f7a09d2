// SPDX-License-Identifier: Apache-2.0
// Sends and receives between the stages of a pipeline: a communicator a direction of each boundary,
// within a host and between hosts, small and large, many at once and waited for in another order
// than started. A peer that dies, stops or does something else ends them with an error.

#include "tests/support/collective_run.h"
#include "tests/unit/collective_ranks.h"
#include "tests/unit/unit.h"

enum { WINDOW = 24 << 20, BIG = 2500 * 1000 + 7, DOWN = 0, UP = 1 };

static const char *const placements[] = {NULL, "ab", "aabb", "abab", "abcd"};

static unsigned char byte_of(int sender, int message, int64_t k)
{
    return (unsigned char)(k * 7 + k / 251 + sender * 101 + message * 13);
}

static void write_message(unsigned char *b, int sender, int message, int64_t count)
{
    for (int64_t k = 0; k < count; k++)
        b[k] = byte_of(sender, message, k);
}

static void check_message(const unsigned char *b, int sender, int message, int64_t count)
{
    for (int64_t k = 0; k < count; k++)
        CHECK(b[k] == byte_of(sender, message, k));
}

// A rank of a chain: what it shares with the stage below and the one above, a communicator each
// way.
struct stage {
    struct world *w;
    struct communicator *all, *below[2], *above[2];
    unsigned char *mem;
};

static void stage_open(struct stage *s)
{
    struct err e;
    *s = (struct stage){0};
    s->mem = (unsigned char *)test_join(&s->w, &s->all);
    int below[] = {test_rank - 1, test_rank}, above[] = {test_rank, test_rank + 1};
    for (int way = DOWN; way <= UP; way++) {
        const char *name = way == UP ? "up" : "down";
        if (test_rank > 0)
            DO(communicator_new(s->w, name, below, 2, &s->below[way], &e));
        if (test_rank + 1 < test.ranks)
            DO(communicator_new(s->w, name, above, 2, &s->above[way], &e));
    }
}

static void stage_close(struct stage *s)
{
    for (int way = DOWN; way <= UP; way++) {
        communicator_free(s->below[way]);
        communicator_free(s->above[way]);
    }
    communicator_free(s->all);
    world_close(s->w);
}

static struct collective_args args_of(enum collective_op op, void *buf, int64_t count,
                                      const char *name)
{
    return (struct collective_args){
        .op = op, .dtype = DT_U8, .buf = buf, .count = count, .name = name};
}

static void run_all(int ranks, const char *hosts, void (*rank)(void))
{
    test_run(ranks, hosts, WINDOW, rank);
}

static void run_everywhere(void (*rank)(void))
{
    for (size_t i = 0; i < sizeof placements / sizeof *placements; i++)
        run_all(placements[i] ? (int)strlen(placements[i]) : 3, placements[i], rank);
}

// ---- there and back ----
static void pass(struct communicator *c, enum collective_op op, unsigned char *buf, int64_t count)
{
    struct err e;
    struct collective_args a = args_of(op, buf, count, "x");
    if (c)
        DO(collective_run(c, &a, &e));
}

// Every message goes up the chain and comes back, each hop on a communicator of its own.
static void rank_of_chain(void)
{
    static const int64_t counts[] = {0, 1, 3, 4095, 4096, 4097, 262144, 262145, BIG, 5};
    struct stage s;
    stage_open(&s);
    unsigned char *b = s.mem + 1; // not on a line
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        int64_t n = counts[i];
        memset(b, 0, (size_t)n + 1);
        b[n] = 42;
        if (test_rank == 0)
            write_message(b, 0, (int)i, n);
        pass(s.below[UP], COLLECTIVE_RECV, b, n);
        check_message(b, 0, (int)i, n);
        pass(s.above[UP], COLLECTIVE_SEND, b, n);
        check_message(b, 0, (int)i, n); // a sender keeps what it sent
        if (test_rank == test.ranks - 1)
            write_message(b, 9, (int)i, n);
        pass(s.above[DOWN], COLLECTIVE_RECV, b, n);
        check_message(b, 9, (int)i, n);
        pass(s.below[DOWN], COLLECTIVE_SEND, b, n);
        CHECK(b[n] == 42);
    }
    stage_close(&s);
}

static void a_message_goes_up_the_stages_and_back(void **state)
{
    (void)state;
    run_everywhere(rank_of_chain);
}

// ---- many at once ----
enum { MESSAGES = 12 };
static int64_t size_of(int m)
{
    return m % 3 == 0 ? 100 + m : m % 3 == 1 ? 70001 + m : 900001;
}

// Two ranks send each other messages at once, both ways open; the even rank waits for what comes
// before what goes, the odd one the other way round, and a sum of all runs among them.
static void rank_of_crossing(void)
{
    struct stage s;
    struct err e;
    struct collective_ticket out[MESSAGES], in[MESSAGES], sum;
    stage_open(&s);
    bool low = test_rank % 2 == 0;
    struct communicator **pair = low ? s.above : s.below;
    struct communicator *to = pair[low ? UP : DOWN], *from = pair[low ? DOWN : UP];
    unsigned char *sends = s.mem, *gets = s.mem + WINDOW / 2;
    for (int m = 0; m < MESSAGES; m++) {
        struct collective_args a =
            args_of(COLLECTIVE_SEND, sends + (size_t)m * 900100, size_of(m), "out");
        struct collective_args b =
            args_of(COLLECTIVE_RECV, gets + (size_t)m * 900100, size_of(m), "out");
        write_message(a.buf, test_rank, m, size_of(m));
        DO(collective_start(low ? to : from, low ? &a : &b, low ? &out[m] : &in[m], &e));
        DO(collective_start(low ? from : to, low ? &b : &a, low ? &in[m] : &out[m], &e));
    }
    float *f = (float *)(void *)(s.mem + WINDOW - 8192);
    *f = 1;
    struct collective_args one = {
        .op = COLLECTIVE_ALL_REDUCE, .dtype = DT_F32, .buf = f, .count = 1, .name = "sum"};
    DO(collective_start(s.all, &one, &sum, &e));
    for (int m = 0; m < MESSAGES; m++) {
        DO(collective_wait(low ? from : to, low ? &in[m] : &out[m], &e));
        DO(collective_wait(low ? to : from, low ? &out[m] : &in[m], &e));
        check_message(gets + (size_t)m * 900100, test_rank ^ 1, m, size_of(m));
    }
    DO(collective_wait(s.all, &sum, &e));
    CHECK(*f == (float)test.ranks);
    stage_close(&s);
}

static void both_directions_are_open_at_once(void **state)
{
    static const char *const hosts[] = {NULL, "ab", "abba"};
    (void)state;
    for (int i = 0; i < 3; i++)
        run_all(hosts[i] ? (int)strlen(hosts[i]) : 4, hosts[i], rank_of_crossing);
}

// What a receiver has it may use, whatever the sender does: it waits for nobody's answer.
static void rank_of_a_busy_sender(void)
{
    struct stage s;
    struct err e;
    struct collective_ticket t;
    char value[8];
    stage_open(&s);
    if (test_rank == 0) {
        struct collective_args a = args_of(COLLECTIVE_SEND, s.mem, BIG, "x");
        write_message(s.mem, 0, 0, BIG);
        DO(collective_start(s.above[UP], &a, &t, &e));
        DO(test_get(NULL, "got", value, sizeof value, clock_mono_ns() + 60 * CLOCK_S, &e));
        DO(collective_wait(s.above[UP], &t, &e));
    } else {
        pass(s.below[UP], COLLECTIVE_RECV, s.mem, BIG);
        check_message(s.mem, 0, 0, BIG);
        test_mark("got");
    }
    stage_close(&s);
}

static void a_receiver_does_not_wait_for_a_busy_sender(void **state)
{
    (void)state;
    run_all(2, NULL, rank_of_a_busy_sender);
}

// ---- faults ----
// Messages without end until an error comes; marks the tenth.
static void rank_of_death(void)
{
    struct stage s;
    struct err e;
    stage_open(&s);
    struct collective_args up =
        args_of(test_rank ? COLLECTIVE_RECV : COLLECTIVE_SEND, s.mem, BIG, "act");
    struct collective_args down =
        args_of(test_rank ? COLLECTIVE_SEND : COLLECTIVE_RECV, s.mem, 100, "grad");
    struct communicator **pair = test_rank ? s.below : s.above;
    for (int i = 0; !collective_run(pair[UP], &up, &e) && !collective_run(pair[DOWN], &down, &e);
         i++)
        if (i == 9)
            test_mark(test_rank ? "tenth1" : "tenth0");
    expect(&e, ERR_PEER, test_rank ? "rank 0 died" : "rank 1 died");
    stage_close(&s);
}

static void a_dead_stage_is_named(void **state)
{
    (void)state;
    for (int dead = 0; dead < 2; dead++)
        for (int hosts = 0; hosts < 2; hosts++) {
            test_begin(2, hosts ? "ab" : NULL, WINDOW);
            test_start(rank_of_death);
            test_await(dead ? "tenth1" : "tenth0");
            kill(test.pid[dead], SIGKILL);
            assert_int_equal(test_end(!dead), 0);
            test_end(dead);
            test_clear();
        }
}

static void rank_of_silence(void)
{
    struct stage s;
    struct err e;
    stage_open(&s);
    if (test_rank == 1) {
        test_mark("silent");
        for (;;)
            pause();
    }
    struct collective_args a = args_of(COLLECTIVE_RECV, s.mem, 8, "grad/layers/3");
    CHECK(collective_run(s.above[DOWN], &a, &e));
    expect(&e, ERR_TIMEOUT, "recv #1 (grad/layers/3) in 'down'");
    expect(&e, ERR_TIMEOUT, "rank 1 has not entered it");
    stage_close(&s);
}

static void a_message_that_does_not_come_has_a_deadline(void **state)
{
    (void)state;
    for (int hosts = 0; hosts < 2; hosts++) {
        test_begin(2, hosts ? "ab" : NULL, WINDOW);
        test.deadline_ns = CLOCK_S / 10;
        test_start(rank_of_silence);
        test_await("silent");
        assert_int_equal(test_end(0), 0);
        kill(test.pid[1], SIGKILL);
        test_end(1);
        test_clear();
    }
}

// What the two sides of a communicator do instead of matching.
static const struct mismatch {
    enum collective_op op[2];
    int64_t count[2];
    const char *name[2];
} mismatches[] = {
    {{COLLECTIVE_SEND, COLLECTIVE_SEND}, {10, 10}, {"x", "x"}},
    {{COLLECTIVE_RECV, COLLECTIVE_RECV}, {10, 10}, {"x", "x"}},
    {{COLLECTIVE_SEND, COLLECTIVE_RECV}, {10, 11}, {"x", "x"}},
    {{COLLECTIVE_SEND, COLLECTIVE_RECV}, {BIG, BIG}, {"microbatch 0", "microbatch 1"}},
    {{COLLECTIVE_SEND, COLLECTIVE_BROADCAST}, {10, 10}, {"x", "x"}},
};
static const struct mismatch *mismatch;

static void rank_of_mismatch(void)
{
    struct stage s;
    struct err e;
    stage_open(&s);
    struct collective_args a = args_of(mismatch->op[test_rank], s.mem, mismatch->count[test_rank],
                                       mismatch->name[test_rank]);
    memset(s.mem, 7, BIG);
    CHECK(collective_run(test_rank ? s.below[UP] : s.above[UP], &a, &e));
    CHECK(strstr(e.text, "ranks disagree in communicator 'up'"));
    CHECK(s.mem[0] == 7 && s.mem[9] == 7);
    stage_close(&s);
}

static void what_does_not_match_is_never_moved(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof mismatches / sizeof *mismatches; i++)
        for (int hosts = 0; hosts < 2; hosts++) {
            mismatch = &mismatches[i];
            run_all(2, hosts ? "ab" : NULL, rank_of_mismatch);
        }
}

// ---- bf16 ----
// 256 + 1 + 1 + …: added in bf16 one by one it would stay 256, the f32 sum rounded once does not
// (257 and 259 are ties, to even).
static void rank_of_halves(void)
{
    static const uint16_t sums[] = {0,      0x4380, 0x4380,
                                    0x4381, 0x4382, 0x4382}; // 256 256 258 260 260
    static const int64_t counts[] = {1, 1999, 2049, 600000};
    struct stage s;
    struct err e;
    stage_open(&s);
    uint16_t *b = (uint16_t *)(void *)s.mem;
    for (int i = 0; i < 8; i++) {
        int64_t n = counts[i % 4] * (i < 4 ? 1 : test.ranks);
        enum collective_op op = i < 4 ? COLLECTIVE_ALL_REDUCE : COLLECTIVE_REDUCE_SCATTER;
        struct collective_args a = {
            .op = op, .dtype = DT_BF16, .buf = b, .count = n, .name = "half"};
        for (int64_t k = 0; k < n; k++)
            b[k] = test_rank ? 0x3f80 : 0x4380;
        DO(collective_run(s.all, &a, &e));
        int64_t from = i < 4 ? 0 : test_rank * counts[i % 4];
        for (int64_t k = from; k < from + counts[i % 4]; k++)
            CHECK(b[k] == sums[test.ranks]);
    }
    stage_close(&s);
}

static void bf16_sums_are_rounded_once_wherever_the_ranks_are(void **state)
{
    static const char *const hosts[] = {"ab", "aab", "abcd", "abbaa"};
    (void)state;
    for (int n = 1; n <= 5; n++)
        run_all(n, NULL, rank_of_halves);
    for (int i = 0; i < 4; i++)
        run_all((int)strlen(hosts[i]), hosts[i], rank_of_halves);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_goes_up_the_stages_and_back),
        cmocka_unit_test(both_directions_are_open_at_once),
        cmocka_unit_test(a_receiver_does_not_wait_for_a_busy_sender),
        cmocka_unit_test(a_dead_stage_is_named),
        cmocka_unit_test(a_message_that_does_not_come_has_a_deadline),
        cmocka_unit_test(what_does_not_match_is_never_moved),
        cmocka_unit_test(bf16_sums_are_rounded_once_wherever_the_ranks_are),
    };
    return RUN_BOTH(tests);
}
