// SPDX-License-Identifier: Apache-2.0
// Hosts where a rank could not open its job's data (exit 66): that job alone avoids them, for a
// minute at first, and tries again without costing itself or others anything. Bad data (65).
#include <stdio.h>
#include <string.h>

#include "common/attempt/life.h"
#include "tests/unit/coord_world.h"

#define ABSENT "cannot open x: No such file"

static void fail_for_data(struct world *w, const char *job)
{
    world_die_saying(w, job, 0, RANK_EXIT_ABSENT, ABSENT);
}

// A job of one rank has failed on host 0; host 1, which may have its data, is cordoned.
static const char *wait_for_data(struct world *w)
{
    world_host(w, 0, 1);
    const char *job = world_submit(w, "one", 1, CALM);
    assert_int_equal(world_host_of(w, job, 0), 0);
    world_host(w, 1, 1);
    world_act(w, WEFT__V1__VERB__CORDON, "host1");
    fail_for_data(w, job);
    assert_state(w, job, QUEUED);
    return job;
}

static void test_a_job_that_waits_for_data_says_when_it_tries_again(void **state)
{
    struct world *w = *state;
    const char *job = wait_for_data(w);
    assert_non_null(strstr(world_event_text(w, job, "failed"),
                           ABSENT ". It counts against host host0, which "
                                  "this job avoids for 60 s"));
    const char *next = world_next(w, job);
    assert_non_null(strstr(next,
                           "it needs 1 cpu device, hosts that take work have 0; others have 1 "
                           "on host0 (could not open its data), 1 on host1 (cordoned). "));
    assert_non_null(strstr(next, ABSENT ". It tries there again in 60 s"));
    world_pass(w, 30000);
    assert_non_null(strstr(world_next(w, job), "It tries there again in 3"));
}

static void test_data_that_comes_later_is_found_without_a_person(void **state)
{
    struct world *w = *state;
    const char *job = wait_for_data(w);
    world_pass(w, 59000);
    assert_state(w, job, QUEUED);
    world_pass(w, 2000);
    assert_int_equal(world_host_of(w, job, 0), 0);
    assert_int_equal(world_job(w, job)->nfailures, 0);
}

static void test_a_wait_is_twice_as_long_each_time_and_an_hour_at_most(void **state)
{
    struct world *w = *state;
    const char *job = wait_for_data(w);
    w->no_ready = true; // it does not come to run
    static const int64_t waits_s[] = {60, 120, 240, 480, 960, 1920, 3600, 3600};
    for (size_t i = 0; i < sizeof waits_s / sizeof *waits_s; i++) {
        world_pass(w, waits_s[i] * 1000 - 1000);
        assert_state(w, job, QUEUED);
        world_pass(w, 2000);
        assert_int_equal(world_host_of(w, job, 0), 0);
        fail_for_data(w, job);
    }
}

static void test_a_host_on_which_the_job_has_run_since_counts_as_new(void **state)
{
    struct world *w = *state;
    const char *job = wait_for_data(w);
    world_pass(w, 61000);
    assert_state(w, job, RUNNING);
    fail_for_data(w, job);
    assert_non_null(strstr(world_event_text(w, job, "failed"), "avoids for 60 s"));
}

static void test_another_host_is_taken_first(void **state)
{
    struct world *w = *state;
    const char *job = wait_for_data(w);
    world_pass(w, 61000);
    world_act(w, WEFT__V1__VERB__HOLD, job);
    world_pass(w, 60000);
    assert_state(w, job, HELD);
    world_act(w, WEFT__V1__VERB__RESUME, job);
    fail_for_data(w, job);
    assert_state(w, job, QUEUED);
    world_pass(w, 30000);
    world_act(w, WEFT__V1__VERB__UNCORDON, "host1");
    assert_int_equal(world_host_of(w, job, 0), 1);
}

static void test_a_person_who_resumes_the_job_knows_better(void **state)
{
    struct world *w = *state;
    const char *job = wait_for_data(w);
    assert_true(world_act(w, WEFT__V1__VERB__HOLD, job));
    assert_true(world_act(w, WEFT__V1__VERB__RESUME, job));
    assert_int_equal(world_host_of(w, job, 0), 0);
}

static void test_a_worker_that_starts_again_may_have_the_data(void **state)
{
    struct world *w = *state;
    const char *job = wait_for_data(w);
    world_detach(w, 0);
    world_attach(w, 0); // the same life
    assert_state(w, job, QUEUED);
    world_reborn(w, 0);
    assert_int_equal(world_host_of(w, job, 0), 0);
}

static void test_nobody_is_preempted_nor_kept_out_where_the_data_was_missing(void **state)
{
    struct world *w = *state;
    const char *job;
    world_host(w, 0, 1);
    world_pass(w, 11000); // the grace of a coordinator that has just begun
    job = world_submit(w, "high", 1, PRIORITY(5));
    world_host(w, 1, 1);
    world_act(w, WEFT__V1__VERB__CORDON, "host1");
    fail_for_data(w, job);
    const char *low = world_submit(w, "low", 1, CALM);
    assert_int_equal(world_host_of(w, low, 0), 0);
    world_pass(w, 61000); // its minute is over, and the host is taken
    assert_state(w, low, RUNNING);
    assert_non_null(
        strstr(world_next(w, job), "It tries there again when enough devices are free"));
    const char *next = world_submit(w, "next", 1, CALM);
    world_finish(w, low);
    assert_int_equal(world_host_of(w, job, 0), 0);
    assert_state(w, next, QUEUED);
}

// A job of a rank that has saved steps 2, 4 and so on, and begins again: it is to restore the last of them.
static const char *restore_job(struct world *w, int saved)
{
    const char *job = world_job_alone(w, 1, CALM);
    for (int step = 2; step <= 2 * saved; step += 2) {
        world_step(w, job, step);
        world_save(w, job, step);
    }
    w->no_ready = true;
    world_die(w, job, 0, 70, 0);
    assert_int_equal(world_job(w, job)->restore_step, 2 * saved);
    w->no_ready = false;
    return job;
}

// A wrong file of data is no reason to give up what was trained.
static void test_bad_data_before_the_first_step_blames_no_checkpoint(void **state)
{
    struct world *w = *state;
    const char *job = restore_job(w, 2);
    world_die_saying(w, job, 0, RANK_EXIT_DATA, "made by another tokenizer");
    assert_state(w, job, FAILED);
    assert_int_equal(world_job(w, job)->failure, RANK_EXIT_DATA);
    assert_true(world_act(w, WEFT__V1__VERB__RESUME, job));
    assert_int_equal(world_job(w, job)->restore_step, 4);
}

static void test_in_place_of_a_bad_checkpoint_the_one_before_is_used(void **state)
{
    struct world *w = *state;
    const char *job = restore_job(w, 2);
    world_die_saying(w, job, 0, RANK_EXIT_DAMAGED, "digest differs");
    assert_state(w, job, RUNNING);
    assert_int_equal(world_job(w, job)->restore_step, 2);
}

// Until a person resumes it: perhaps its bytes have been put back from a copy, and ranks find out.
static void test_when_no_checkpoint_is_good_the_job_fails(void **state)
{
    struct world *w = *state;
    const char *job = restore_job(w, 1);
    world_die_saying(w, job, 0, RANK_EXIT_DAMAGED, "digest differs");
    assert_state(w, job, FAILED);
    assert_int_equal(world_job(w, job)->failure, RANK_EXIT_DATA);
    assert_true(world_act(w, WEFT__V1__VERB__RESUME, job));
    assert_state(w, job, RUNNING);
    assert_int_equal(world_job(w, job)->restore_step, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_a_job_that_waits_for_data_says_when_it_tries_again),
        CASE(test_data_that_comes_later_is_found_without_a_person),
        CASE(test_a_wait_is_twice_as_long_each_time_and_an_hour_at_most),
        CASE(test_a_host_on_which_the_job_has_run_since_counts_as_new),
        CASE(test_another_host_is_taken_first),
        CASE(test_a_person_who_resumes_the_job_knows_better),
        CASE(test_a_worker_that_starts_again_may_have_the_data),
        CASE(test_bad_data_before_the_first_step_blames_no_checkpoint),
        CASE(test_in_place_of_a_bad_checkpoint_the_one_before_is_used),
        CASE(test_when_no_checkpoint_is_good_the_job_fails),
        CASE(test_nobody_is_preempted_nor_kept_out_where_the_data_was_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
