// SPDX-License-Identifier: Apache-2.0
// Who hangs, in virtual time: pages are given, verdicts are asked for.
#include "common/attempt/watch.h"
#include "common/base/clock.h"
#include "tests/unit/unit.h"

#define MS CLOCK_MS
enum { N = 4 };

static struct page_view at(int64_t step, uint64_t entered, uint64_t left)
{
    return (struct page_view){.state = RANK_RUNNING,
                              .step = step,
                              .collective_entered = entered,
                              .collective_left = left};
}

static void see_all(struct watch *w, struct page_view v, int64_t now)
{
    for (int r = 0; r < N; r++)
        watch_see(w, r, &v, now);
}

// Its process is stopped, or runs on: nothing else of its page changes.
static void stop(struct watch *w, int rank, bool stopped)
{
    struct page_view v = w->entries[rank].view;
    v.stopped = stopped;
    watch_see(w, rank, &v, w->entries[rank].changed_ns + CLOCK_S);
}

static void ranks_that_move_do_not_hang(void **state)
{
    (void)state;
    struct watch w;
    struct watch_verdict v;
    watch_init(&w, N, 500 * MS);
    for (int64_t step = 1; step < 50; step++) {
        see_all(&w, at(step, (uint64_t)step, (uint64_t)step), step * 200 * MS);
        assert_false(watch_hung(&w, step * 200 * MS, &v));
    }
    watch_clear(&w);
}

static void a_long_step_is_waited_for_as_long_as_the_longest_seen(void **state)
{
    (void)state;
    struct watch w;
    struct watch_verdict v;
    watch_init(&w, N, 500 * MS);
    see_all(&w, at(1, 1, 1), 1000 * MS);
    see_all(&w, at(2, 2, 2), 2500 * MS);
    see_all(&w, at(3, 3, 3), 4000 * MS); // steps of 1.5 s
    assert_int_equal(w.longest_step_ns, 1500 * MS);
    for (int64_t t = 4000; t <= 6000; t += 200)
        assert_false(watch_hung(&w, t * MS, &v));
    assert_true(watch_hung(&w, 6001 * MS, &v));
    watch_clear(&w);
}

static void the_culprit_has_the_lowest_entered_collective(void **state)
{
    (void)state;
    struct watch w;
    struct watch_verdict v;
    watch_init(&w, N, 500 * MS);
    see_all(&w, at(5, 31, 30), 1000 * MS);
    struct page_view late = at(5, 29, 29);
    watch_see(&w, 3, &late, 1001 * MS); // it even moved last
    stop(&w, 2, true);
    assert_true(watch_hung(&w, 1502 * MS, &v));
    assert_int_equal(v.rank, 3);
    assert_int_equal(v.still_ns, 501 * MS);
    watch_clear(&w);
}

static void among_equals_it_is_the_stopped_one(void **state)
{
    (void)state;
    struct watch w;
    struct watch_verdict v;
    watch_init(&w, N, 500 * MS);
    see_all(&w, at(5, 31, 30), 1000 * MS);
    struct page_view behind = at(5, 31, 29);
    watch_see(&w, 1, &behind, 1000 * MS);
    stop(&w, 2, true);
    assert_true(watch_hung(&w, 1501 * MS, &v));
    assert_int_equal(v.rank, 2);
    stop(&w, 2, false);
    assert_true(watch_hung(&w, 1502 * MS, &v)); // nobody is stopped: who left fewer
    assert_int_equal(v.rank, 1);
    watch_clear(&w);
}

// A pipeline of two stages with two ranks each: 0, 1 and 2, 3. The later stage counts fewer
// collectives than the earlier, wherever it stands.
static struct page_view waits(uint64_t entered, int peer, uint64_t seen)
{
    struct page_view v = at(5, entered, entered - 1);
    v.awaits = peer + 1;
    v.awaits_entered = seen;
    return v;
}

static void see_stages(struct watch *w, const struct page_view views[N])
{
    for (int r = 0; r < N; r++)
        watch_see(w, r, &views[r], 1000 * MS);
}

static void the_culprit_is_whom_all_wait_for_in_the_end(void **state)
{
    (void)state;
    struct watch w;
    struct watch_verdict v;
    watch_init(&w, N, 500 * MS);
    // 1 computes for ever; its peer waits for it in a sum, the other stage for their messages.
    see_stages(&w, (struct page_view[]){waits(31, 1, 30), at(5, 30, 30), waits(20, 0, 31),
                                        waits(20, 1, 30)});
    assert_true(watch_hung(&w, 1501 * MS, &v));
    assert_int_equal(v.rank, 1);
    stop(&w, 2, true); // an innocent one may be stopped too
    assert_true(watch_hung(&w, 1502 * MS, &v));
    assert_int_equal(v.rank, 1);
    watch_clear(&w);
}

static void in_a_circle_it_is_the_stopped_one_or_whose_word_is_old(void **state)
{
    (void)state;
    struct watch w;
    struct watch_verdict v;
    const struct page_view views[N] = {waits(31, 2, 20), waits(31, 3, 20), waits(20, 0, 30),
                                       waits(20, 2, 20)};
    watch_init(&w, N, 500 * MS);
    // 2 was stopped as it waited for 0's message, which has come: 0 has entered 31 since.
    see_stages(&w, views);
    assert_true(watch_hung(&w, 1501 * MS, &v));
    assert_int_equal(v.rank, 2);
    stop(&w, 2, true);
    assert_true(watch_hung(&w, 1502 * MS, &v));
    assert_int_equal(v.rank, 2);
    stop(&w, 2, false);
    // Whom it waits for is reported later than where it stands, and is no progress.
    struct page_view fresh = waits(20, 0, 31);
    watch_see(&w, 2, &fresh, 1503 * MS);
    struct page_view old = waits(31, 2, 19);
    watch_see(&w, 0, &old, 1503 * MS);
    assert_true(watch_hung(&w, 1504 * MS, &v));
    assert_int_equal(v.rank, 0);
    assert_int_equal(v.still_ns, 504 * MS);
    watch_clear(&w);
}

static void who_waits_for_one_that_moves_does_not_hang(void **state)
{
    (void)state;
    struct watch w;
    struct watch_verdict v;
    struct page_view busy = at(5, 30, 30);
    watch_init(&w, N, 500 * MS);
    see_stages(&w,
               (struct page_view[]){waits(31, 1, 30), busy, waits(20, 0, 31), waits(20, 1, 30)});
    // 1's device works for six seconds on what the others wait for.
    for (int64_t t = 1000; t <= 7000; t += 250) {
        busy.ops++;
        watch_see(&w, 1, &busy, t * MS);
        assert_false(watch_hung(&w, t * MS, &v));
    }
    assert_false(watch_hung(&w, 7500 * MS, &v));
    assert_true(watch_hung(&w, 7501 * MS, &v));
    assert_int_equal(v.rank, 1);
    assert_int_equal(v.still_ns, 501 * MS);
    watch_clear(&w);
}

static void ended_ranks_and_other_states_are_not_hurried(void **state)
{
    (void)state;
    struct watch w;
    struct watch_verdict v;
    watch_init(&w, N, 500 * MS);
    w.limit_ns[RANK_STARTING] = 60 * CLOCK_S;
    struct page_view starting = {.state = RANK_STARTING};
    see_all(&w, starting, 1000 * MS);
    for (int64_t t = 2; t < 61; t++)
        assert_false(watch_hung(&w, t * CLOCK_S, &v));
    see_all(&w, at(1, 1, 1), 61 * CLOCK_S);
    for (int r = 0; r < N; r++)
        watch_gone(&w, r);
    for (int64_t t = 61; t < 70; t++)
        assert_false(watch_hung(&w, t * CLOCK_S, &v));
    watch_clear(&w);
}

static void a_watcher_that_was_stopped_itself_leaves_that_time_out(void **state)
{
    (void)state;
    struct watch w;
    struct watch_verdict v;
    watch_init(&w, N, 500 * MS);
    see_all(&w, at(1, 1, 1), 1000 * MS);
    assert_false(watch_hung(&w, 1200 * MS, &v));
    watch_postpone(&w, 7800 * MS, 9000 * MS);
    assert_false(watch_hung(&w, 9000 * MS, &v));
    assert_false(watch_hung(&w, 9300 * MS, &v));
    assert_true(watch_hung(&w, 9301 * MS, &v));
    watch_clear(&w);
}

static void time_that_was_not_heard_does_not_count(void **state)
{
    (void)state;
    struct watch w;
    struct watch_verdict v;
    watch_init(&w, N, 500 * MS);
    see_all(&w, at(1, 1, 1), 1000 * MS);
    watch_postpone(&w, 300 * MS, 1400 * MS);
    assert_false(watch_hung(&w, 1800 * MS, &v));
    assert_true(watch_hung(&w, 1801 * MS, &v));
    watch_postpone(&w, 9000 * MS, 2000 * MS); // never into the future
    assert_true(watch_hung(&w, 2501 * MS, &v));
    watch_clear(&w);
}

// All four save from second 1 on; asked every 200 ms from `from` up to `to`, who hangs first?
static int64_t first_hung(struct watch *w, int64_t from, int64_t to, bool stopped,
                          struct watch_verdict *v)
{
    stop(w, 2, stopped);
    for (int64_t t = from; t <= to; t += 200)
        if (watch_hung(w, t * MS, v))
            return t;
    return -1;
}

static void a_stopped_rank_that_saves_is_given_no_more_time_than_a_running_one(void **state)
{
    (void)state;
    struct watch w;
    struct watch_verdict v;
    struct page_view saving = {
        .state = RANK_SAVING, .step = 5, .collective_entered = 9, .collective_left = 9};
    watch_init(&w, N, 500 * MS);
    w.limit_ns[RANK_SAVING] = 600 * CLOCK_S;
    see_all(&w, saving, 1000 * MS);
    // Alive and writing: the limit is its own.
    assert_int_equal(first_hung(&w, 1000, 30000, false, &v), -1);
    // A short stop late in a long save is none; the time runs from when it was first seen stopped.
    assert_int_equal(first_hung(&w, 30200, 30600, true, &v), -1);
    assert_int_equal(first_hung(&w, 30800, 30800, false, &v), -1);
    assert_int_equal(first_hung(&w, 31000, 31400, true, &v), -1);
    assert_int_equal(first_hung(&w, 31600, 32000, true, &v), 31600);
    assert_int_equal(v.rank, 2);
    watch_clear(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_move_do_not_hang),
        cmocka_unit_test(a_long_step_is_waited_for_as_long_as_the_longest_seen),
        cmocka_unit_test(the_culprit_has_the_lowest_entered_collective),
        cmocka_unit_test(among_equals_it_is_the_stopped_one),
        cmocka_unit_test(the_culprit_is_whom_all_wait_for_in_the_end),
        cmocka_unit_test(in_a_circle_it_is_the_stopped_one_or_whose_word_is_old),
        cmocka_unit_test(who_waits_for_one_that_moves_does_not_hang),
        cmocka_unit_test(ended_ranks_and_other_states_are_not_hurried),
        cmocka_unit_test(a_stopped_rank_that_saves_is_given_no_more_time_than_a_running_one),
        cmocka_unit_test(a_watcher_that_was_stopped_itself_leaves_that_time_out),
        cmocka_unit_test(time_that_was_not_heard_does_not_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
