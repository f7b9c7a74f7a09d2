// SPDX-License-Identifier: Apache-2.0
// The decider of commits: single checkpoints. Random schedules are in test_ckpt_schedules.
#include <math.h>

#include "tests/unit/commit_case.h"

static void all_shards_then_the_order_then_committed(void **state)
{
    (void)state;
    struct commit_case s;
    begin_case(&s, 2, 0, 0);
    shard(&s, 10, 1, 0);
    assert_int_equal(s.acts.n, 0);
    shard(&s, 10, 1, 0);
    assert_int_equal(s.acts.n, 0);
    shard(&s, 10, 0, 0);
    assert_int_equal(s.acts.n, 1);
    expect(&s, 0, COMMIT_DO_ORDER, 10, 0);
    done(&s, 10, true);
    assert_int_equal(s.acts.n, 1);
    expect(&s, 0, COMMIT_DO_COMMITTED, 10, -1);
    assert_int_equal(commit_newest(&s.c)->id.step, 10);
    end_case(&s);
}

// The decider is made again from its records, as they lie in rows.
static void forget(struct commit_case *s)
{
    struct commit_record *kept = arena_dup(&s->a, s->c.records, sizeof *kept * (size_t)s->c.n);
    struct commit_config config = s->c.config;
    int64_t attempt = s->c.attempt;
    int n = s->c.n;
    commit_clear(&s->c);
    commit_init(&s->c, &config);
    commit_restore(&s->c, attempt, kept, n, s->now);
}

static void a_restored_order_goes_out_when_all_reports_have_come_again(void **state)
{
    (void)state;
    struct commit_case s;
    begin_case(&s, 2, 0, 0);
    save(&s, 10);
    shard(&s, 20, 0, 0);
    shard(&s, 20, 1, 0);
    forget(&s);
    assert_int_equal(commit_newest(&s.c)->id.step, 10);
    shard(&s, 20, 0, 0);
    assert_int_equal(s.acts.n, 0); // nothing to send the writer yet
    shard(&s, 20, 1, 0);
    expect(&s, 0, COMMIT_DO_ORDER, 20, 0);
    shard(&s, 20, 1, 0);
    assert_int_equal(s.acts.n, 0);
    done(&s, 20, true);
    expect(&s, 0, COMMIT_DO_COMMITTED, 20, -1);
    end_case(&s);
}

static void a_restored_save_has_its_deadline_again(void **state)
{
    (void)state;
    struct commit_case s;
    begin_case(&s, 2, 0, 0);
    shard(&s, 20, 0, 0);
    s.now = 90;
    forget(&s);
    assert_int_equal(commit_deadline(&s.c), 190);
    shard(&s, 20, 0, 0);
    shard(&s, 20, 1, 0);
    expect(&s, 0, COMMIT_DO_ORDER, 20, 0);
    end_case(&s);
}

static void a_repeated_report_gets_the_answer_that_was_given(void **state)
{
    (void)state;
    struct commit_case s;
    begin_case(&s, 2, 0, 0);
    save(&s, 10);
    shard(&s, 10, 1, 0);
    expect(&s, 0, COMMIT_DO_COMMITTED, 10, 1);
    done(&s, 10, false); // a second answer changes nothing
    assert_int_equal(s.acts.n, 0);
    shard(&s, 20, 1, 5);
    expect(&s, 0, COMMIT_DO_ABORTED, 20, -1);
    assert_non_null(strstr(s.acts.v[0].text, "rank 1: no space"));
    shard(&s, 20, 0, 0);
    expect(&s, 0, COMMIT_DO_ABORTED, 20, 0);
    assert_non_null(strstr(s.acts.v[0].text, "rank 1: no space"));
    end_case(&s);
}

// The rank that made the folder again says so once, in a report that may come too late for its save.
static void a_removed_folder_is_found_by_a_report_that_comes_too_late(void **state)
{
    (void)state;
    struct commit_case s;
    begin_case(&s, 2, 0, 0);
    save(&s, 10);
    shard(&s, 20, 0, 0);
    s.now += 1000;
    feed(&s, (struct commit_event){.kind = COMMIT_EV_TICK});
    expect(&s, 0, COMMIT_DO_ABORTED, 20, -1);
    struct shard_report late = {.rank = 1, .step = 20, .removed = true};
    feed(&s, (struct commit_event){
                 .kind = COMMIT_EV_SHARD, .id = id(s.c.attempt, 20), .report = &late});
    expect(&s, 0, COMMIT_DO_LOST, 20, -1);
    expect(&s, 1, COMMIT_DO_ABORTED, 20, 1);
    assert_null(commit_newest(&s.c));
    end_case(&s);
}

static void a_deadline_aborts_only_before_the_order(void **state)
{
    (void)state;
    struct commit_case s;
    begin_case(&s, 2, 0, 0);
    s.now = 1000;
    shard(&s, 10, 0, 0);
    assert_int_equal(commit_deadline(&s.c), 1100);
    s.now = 1099;
    feed(&s, (struct commit_event){.kind = COMMIT_EV_TICK});
    assert_int_equal(s.acts.n, 0);
    s.now = 1100;
    feed(&s, (struct commit_event){.kind = COMMIT_EV_TICK});
    expect(&s, 0, COMMIT_DO_ABORTED, 10, -1);
    assert_non_null(strstr(s.acts.v[0].text, "rank 1"));
    shard(&s, 20, 0, 0);
    shard(&s, 20, 1, 0);
    s.now = 1 << 20;
    feed(&s, (struct commit_event){.kind = COMMIT_EV_TICK});
    assert_int_equal(s.acts.n, 0);
    feed(&s, (struct commit_event){.kind = COMMIT_EV_ATTEMPT_END});
    assert_int_equal(s.acts.n, 0);
    done(&s, 20, true);
    expect(&s, 0, COMMIT_DO_COMMITTED, 20, -1);
    end_case(&s);
}

static void the_end_of_the_attempt_aborts_what_is_preparing(void **state)
{
    (void)state;
    struct commit_case s;
    begin_case(&s, 2, 0, 0);
    shard(&s, 10, 0, 0);
    feed(&s, (struct commit_event){.kind = COMMIT_EV_ATTEMPT_END});
    expect(&s, 0, COMMIT_DO_ABORTED, 10, -1);
    shard(&s, 10, 1, 0);
    expect(&s, 0, COMMIT_DO_ABORTED, 10, 1);
    end_case(&s);
}

static void what_was_ordered_is_decided_by_the_next_fence(void **state)
{
    (void)state;
    for (int there = 0; there < 2; there++) {
        struct commit_case s;
        struct store_entry scan[] = {id(1, 10)};
        begin_case(&s, 1, 0, 0);
        shard(&s, 10, 0, 0);
        commit_fence(&s.c, 2, scan, there);
        const struct commit_record *r = commit_find(&s.c, id(1, 10));
        assert_true(there ? r && r->state == COMMIT_COMMITTED : !r);
        feed(&s, (struct commit_event){.kind = COMMIT_EV_DONE, .id = id(1, 10), .ok = !there});
        assert_int_equal(s.acts.n, 0); // the old writer's answer comes too late
        end_case(&s);
    }
}

static void a_writer_that_repeats_itself_gets_the_order_again(void **state)
{
    (void)state;
    struct commit_case s;
    begin_case(&s, 2, 0, 0);
    shard(&s, 10, 0, 0);
    shard(&s, 10, 1, 0);
    shard(&s, 10, 1, 0);
    assert_int_equal(s.acts.n, 0);
    shard(&s, 10, 0, 0);
    expect(&s, 0, COMMIT_DO_ORDER, 10, 0);
    end_case(&s);
}

static void a_second_save_while_one_is_open_is_aborted(void **state)
{
    (void)state;
    struct commit_case s;
    begin_case(&s, 2, 0, 0);
    shard(&s, 10, 0, 0);
    shard(&s, 20, 0, 0);
    assert_int_equal(s.acts.n, 1);
    expect(&s, 0, COMMIT_DO_ABORTED, 20, -1);
    assert_non_null(strstr(s.acts.v[0].text, "step 10"));
    shard(&s, 10, 1, 0);
    expect(&s, 0, COMMIT_DO_ORDER, 10, 0);
    end_case(&s);
}

static void begin_last_save(struct commit_case *s, int64_t patience)
{
    begin_case(s, 2, 0, 0);
    s->c.config.steps = 20;
    s->c.config.patience_ns = patience;
    s->now = 1000;
}

static void the_last_save_is_tried_again_while_there_is_patience(void **state)
{
    (void)state;
    struct commit_case s;
    begin_last_save(&s, 50);
    shard(&s, 10, 0, ERR_IO); // it is not the last, but the time counts from here
    assert_false(s.acts.v[0].again || s.acts.v[0].late);
    shard(&s, 20, 0, ERR_IO);
    assert_true(s.acts.v[0].again && !s.acts.v[0].late);
    s.now += 49;
    shard_again(&s, 20, 0, 1, 0);
    shard_again(&s, 20, 1, 1, ERR_IO);
    expect(&s, 0, COMMIT_DO_ABORTED, 20, -1);
    assert_true(s.acts.v[0].again);
    assert_int_equal(s.acts.v[0].tries, 1);
    s.now++;
    shard_again(&s, 20, 1, 2, ERR_IO);
    assert_true(!s.acts.v[0].again && s.acts.v[0].late);
    end_case(&s);
}

static void a_save_that_is_tried_again_commits_with_the_shards_of_that_try(void **state)
{
    (void)state;
    struct commit_case s;
    begin_last_save(&s, 50);
    shard(&s, 20, 0, 0);
    shard(&s, 20, 1, ERR_IO);
    shard_again(&s, 20, 1, 1, 0);
    shard(&s, 20, 0, 0); // this rank has not heard of the abort: its shard is of the older try
    assert_int_equal(s.acts.n, 1);
    expect(&s, 0, COMMIT_DO_ABORTED, 20, 0);
    assert_true(s.acts.v[0].tries == 0 && s.acts.v[0].again);
    shard_again(&s, 20, 0, 1, 0);
    expect(&s, 0, COMMIT_DO_ORDER, 20, 0);
    done(&s, 20, false); // and the writer fails too
    assert_true(s.acts.v[0].again && s.acts.v[0].tries == 1);
    shard_again(&s, 20, 0, 2, 0);
    shard_again(&s, 20, 1, 2, 0);
    done(&s, 20, true);
    expect(&s, 0, COMMIT_DO_COMMITTED, 20, -1);
    assert_int_equal(commit_newest(&s.c)->id.step, 20);
    end_case(&s);
}

static void patience_begins_again_with_each_save_that_succeeds(void **state)
{
    (void)state;
    struct commit_case s;
    begin_last_save(&s, 50);
    shard(&s, 4, 0, ERR_IO);
    s.now += 49;
    save(&s, 6);
    s.now += 49;
    shard(&s, 8, 0, ERR_IO);
    assert_false(s.acts.v[0].late);
    s.now += 50;
    shard(&s, 10, 0, ERR_IO);
    assert_true(s.acts.v[0].late && !s.acts.v[0].again);
    end_case(&s);
}

static void the_newest_stay_and_multiples_stay_and_the_rest_goes(void **state)
{
    (void)state;
    struct commit_case s;
    begin_case(&s, 1, 2, 30);
    static const int64_t goes[] = {0, 0, 10, 20, 0, 40}; // after the save of (i + 1) · 10
    for (int i = 0; i < 6; i++) {
        save(&s, (i + 1) * 10);
        assert_int_equal(s.acts.n, goes[i] ? 2 : 1);
        if (goes[i])
            expect(&s, 1, COMMIT_DO_DELETE, goes[i], 0);
    }
    assert_int_equal(commit_find(&s.c, id(1, 30))->state, COMMIT_COMMITTED);
    end_case(&s);
}

static void of_one_that_is_kept_a_damaged_one_does_not_count(void **state)
{
    (void)state;
    struct commit_case s;
    begin_case(&s, 1, 1, 0);
    save(&s, 10);
    shard(&s, 20, 0, 0);
    assert_int_equal(s.acts.n, 1); // while 20 is being written 10 stays
    expect(&s, 0, COMMIT_DO_ORDER, 20, 0);
    done(&s, 20, true);
    assert_int_equal(s.acts.n, 2);
    expect(&s, 1, COMMIT_DO_DELETE, 10, 0);
    feed(&s, (struct commit_event){.kind = COMMIT_EV_BAD, .id = id(1, 20)});
    assert_null(commit_newest(&s.c));
    shard(&s, 30, 0, 0);
    done(&s, 30, false);
    assert_int_equal(s.acts.n, 1); // an aborted save deletes nothing
    save(&s, 40);
    assert_int_equal(s.acts.n, 2);
    expect(&s, 1, COMMIT_DO_DELETE, 20, 0);
    end_case(&s);
}

static bool is_deleted(const struct commit_case *s, int64_t step)
{
    return commit_find(&s->c, id(1, step))->state == COMMIT_DELETING;
}

// The losses of steps 1 to 6 are 7, 3, 10, 6, 2, 9.
static void the_best_stays_until_a_better_one_is_committed(void **state)
{
    (void)state;
    struct commit_case s;
    begin_case(&s, 2, 1, 0);
    s.c.config.keep_best = true;
    save(&s, 1);
    save(&s, 2);
    assert_true(is_deleted(&s, 1));
    save(&s, 3);
    save(&s, 4);
    assert_true(is_deleted(&s, 3));
    assert_int_equal(commit_best(&s.c)->id.step, 2);
    shard(&s, 5, 0, 0);
    shard(&s, 5, 1, 0); // ordered, and not yet there
    assert_int_equal(commit_best(&s.c)->id.step, 2);
    assert_false(is_deleted(&s, 2));
    done(&s, 5, true);
    assert_true(is_deleted(&s, 2) && is_deleted(&s, 4));
    save(&s, 6);
    assert_false(is_deleted(&s, 5));
    feed(&s, (struct commit_event){.kind = COMMIT_EV_BAD, .id = id(1, 5)});
    assert_int_equal(commit_best(&s.c)->id.step, 6); // a damaged one is none
    end_case(&s);
}

static void the_oldest_of_the_least_losses_is_the_best(void **state)
{
    static const struct {
        bool good, evaluated;
        double loss;
    } rows[] = {{false, true, 1}, {true, false, 0}, {true, true, 4}, {true, true, 3},
                {true, true, 3},  {false, true, 2}, {true, true, 5}};
    struct commit_best best = {0};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        commit_best_offer(&best, &rows[i], rows[i].good, rows[i].evaluated, rows[i].loss);
    assert_ptr_equal(best.which, &rows[3]);
}

static void a_loss_that_is_no_number_is_never_the_best(void **state)
{
    (void)state;
    struct commit_case s;
    const double no_number[] = {NAN, INFINITY, -INFINITY};
    begin_case(&s, 1, 1, 0);
    s.c.config.keep_best = true;
    for (int i = 0; i < 3; i++) {
        struct shard_report r = {.step = 10 + i, .evaluated = true, .eval_loss = no_number[i]};
        feed(&s, (struct commit_event){.kind = COMMIT_EV_SHARD, .id = id(1, 10 + i), .report = &r});
        done(&s, 10 + i, true);
        assert_null(commit_best(&s.c));
    }
    struct shard_report r = {.step = 20, .eval_loss = -5}; // not evaluated
    feed(&s, (struct commit_event){.kind = COMMIT_EV_SHARD, .id = id(1, 20), .report = &r});
    done(&s, 20, true);
    assert_null(commit_best(&s.c));
    end_case(&s);
}

// After a restart the rows hold the losses; where they were lost the fence lists those of manifests.
static void the_best_is_known_after_a_restart_and_a_lost_database(void **state)
{
    (void)state;
    struct commit_case s;
    struct store_entry scan[] = {id(1, 2), id(1, 4)};
    begin_case(&s, 1, 1, 0);
    s.c.config.keep_best = true;
    save(&s, 2);
    save(&s, 4);
    commit_fence(&s.c, 2, scan, 2);
    assert_int_equal(commit_best(&s.c)->id.step, 2);
    end_case(&s);
    begin_case(&s, 1, 1, 0);
    s.c.config.keep_best = true;
    commit_fence(&s.c, 2, scan, 2);
    assert_null(commit_best(&s.c));
    for (int i = 0; i < 2; i++)
        feed(&s, (struct commit_event){
                     .kind = COMMIT_EV_SCORE, .id = scan[i], .loss = loss_of(scan[i].step)});
    assert_int_equal(commit_best(&s.c)->id.step, 2);
    save(&s, 6);
    assert_false(is_deleted(&s, 2));
    assert_true(is_deleted(&s, 4));
    end_case(&s);
}

static void a_deletion_that_failed_goes_out_again_and_is_never_restored_from(void **state)
{
    (void)state;
    struct commit_case s;
    struct store_entry scan[] = {id(1, 10), id(1, 20), id(1, 30)};
    begin_case(&s, 1, 2, 0);
    save(&s, 10);
    save(&s, 20);
    save(&s, 30);
    expect(&s, 1, COMMIT_DO_DELETE, 10, 0);
    feed(&s, (struct commit_event){.kind = COMMIT_EV_DELETED, .id = id(1, 10), .ok = false});
    assert_int_equal(commit_find(&s.c, id(1, 10))->state, COMMIT_DELETING);
    commit_fence(&s.c, 2, scan, 3);
    assert_int_equal(commit_find(&s.c, id(1, 10))->state, COMMIT_DELETING);
    save(&s, 40);
    assert_int_equal(s.acts.n, 3);
    expect(&s, 1, COMMIT_DO_DELETE, 20, 0);
    expect(&s, 2, COMMIT_DO_DELETE, 10, 0);
    feed(&s, (struct commit_event){.kind = COMMIT_EV_DELETED, .id = id(1, 10), .ok = true});
    assert_int_equal(commit_find(&s.c, id(1, 10))->state, COMMIT_GONE);
    end_case(&s);
}

// Who lies reports shards of any steps; a run of a million saves must not carry them all either.
static void of_saves_that_came_to_nothing_the_newest_are_known(void **state)
{
    (void)state;
    struct commit_case s;
    begin_case(&s, 1, 2, 0);
    save(&s, 5);
    for (int64_t step = 5000; step < 10000; step++)
        shard(&s, step, 0, 1);
    save(&s, 10000);
    assert_int_equal(s.c.n, 1002);
    assert_null(commit_find(&s.c, id(1, 8000)));
    assert_int_equal(commit_find(&s.c, id(1, 9999))->state, COMMIT_ABORTED);
    assert_int_equal(commit_find(&s.c, id(1, 5))->state, COMMIT_COMMITTED);
    assert_int_equal(commit_newest(&s.c)->id.step, 10000);
    end_case(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_shards_then_the_order_then_committed),
        cmocka_unit_test(a_restored_order_goes_out_when_all_reports_have_come_again),
        cmocka_unit_test(a_restored_save_has_its_deadline_again),
        cmocka_unit_test(a_repeated_report_gets_the_answer_that_was_given),
        cmocka_unit_test(a_removed_folder_is_found_by_a_report_that_comes_too_late),
        cmocka_unit_test(a_deadline_aborts_only_before_the_order),
        cmocka_unit_test(the_end_of_the_attempt_aborts_what_is_preparing),
        cmocka_unit_test(what_was_ordered_is_decided_by_the_next_fence),
        cmocka_unit_test(a_writer_that_repeats_itself_gets_the_order_again),
        cmocka_unit_test(a_second_save_while_one_is_open_is_aborted),
        cmocka_unit_test(the_last_save_is_tried_again_while_there_is_patience),
        cmocka_unit_test(a_save_that_is_tried_again_commits_with_the_shards_of_that_try),
        cmocka_unit_test(patience_begins_again_with_each_save_that_succeeds),
        cmocka_unit_test(the_newest_stay_and_multiples_stay_and_the_rest_goes),
        cmocka_unit_test(of_one_that_is_kept_a_damaged_one_does_not_count),
        cmocka_unit_test(the_best_stays_until_a_better_one_is_committed),
        cmocka_unit_test(the_oldest_of_the_least_losses_is_the_best),
        cmocka_unit_test(a_loss_that_is_no_number_is_never_the_best),
        cmocka_unit_test(the_best_is_known_after_a_restart_and_a_lost_database),
        cmocka_unit_test(a_deletion_that_failed_goes_out_again_and_is_never_restored_from),
        cmocka_unit_test(of_saves_that_came_to_nothing_the_newest_are_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
