// SPDX-License-Identifier: Apache-2.0
// Many facts in one step: what follows from them is drawn once, at its end.
#include "tests/unit/coord_world.h"

#include <string.h>

static struct world_attempt *attempt_on(struct world *w, int host, const char *job)
{
    struct world_attempt *at = world_at(w, host, job);
    assert_non_null(at);
    return at;
}

static void test_all_ends_of_one_registration_are_one_failure(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 2, CALM);
    struct world_attempt *at = attempt_on(w, 0, job);
    world_step(w, job, 3);
    world_detach(w, 0);
    for (int r = 0; r < 2; r++) { // both die while nobody hears it
        at->ranks[r].alive = false;
        at->ranks[r].ended = true;
        at->ranks[r].code = 70;
    }
    at->reaped = true;
    world_attach(w, 0);
    assert_state(w, job, RUNNING);
    assert_int_equal(world_job(w, job)->attempt, 2);
    assert_int_equal(world_job(w, job)->restarts, 1);
    assert_int_equal(world_job(w, job)->nfailures, 1);
    assert_int_equal(world_events(w, job, "failed"), 1);
    assert_int_equal(world_events(w, job, "lost"), 0);
}

static void test_a_lost_host_ends_all_its_attempts_in_one_step(void **state)
{
    struct world *w = *state;
    const char *jobs[3];
    world_host(w, 0, 3);
    jobs[0] = world_submit(w, "one", 1, CALM);
    jobs[1] = world_submit(w, "two", 1, CALM);
    jobs[2] = world_submit(w, "three", 1, CALM);
    w->hosts[0].stopped = true;
    world_pass(w, 12000);
    for (int i = 0; i < 3; i++) {
        assert_state(w, jobs[i], QUEUED);
        assert_int_equal(world_events(w, jobs[i], "lost"), 1);
        assert_int_equal(world_job(w, jobs[i])->nplaced, 0);
    }
    world_host(w, 1, 3);
    for (int i = 0; i < 3; i++)
        assert_state(w, jobs[i], RUNNING);
}

static void test_who_has_not_begun_is_preempted_and_replaced_in_one_step(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 2);
    world_pass(w, 11000); // the grace is over
    w->no_storage = true;
    const char *one = world_submit(w, "one", 1, CALM);
    const char *two = world_submit(w, "two", 1, CALM);
    assert_state(w, one, STARTING);
    assert_state(w, two, STARTING);
    const char *high = world_submit(w, "high", 2, CALM "resources: {priority: 9}\n");
    assert_state(w, one, QUEUED);
    assert_state(w, two, QUEUED);
    assert_state(w, high, STARTING);
    assert_int_equal(world_events(w, one, "preempted"), 1);
    assert_int_equal(world_events(w, one, "placed"), 1); // and was not placed again
}

static void test_a_last_save_and_the_ends_after_it_are_success(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 2, CALM);
    w->no_leave = true;
    world_finish(w, job);
    assert_state(w, job, DRAINING);
    struct world_attempt *at = attempt_on(w, 0, job);
    world_detach(w, 0);
    for (int r = 0; r < 2; r++) {
        at->ranks[r].alive = false;
        at->ranks[r].ended = true;
    }
    at->reaped = true;
    world_attach(w, 0);
    assert_state(w, job, SUCCEEDED);
    assert_int_equal(world_events(w, job, "lost"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_all_ends_of_one_registration_are_one_failure),
        CASE(test_a_lost_host_ends_all_its_attempts_in_one_step),
        CASE(test_who_has_not_begun_is_preempted_and_replaced_in_one_step),
        CASE(test_a_last_save_and_the_ends_after_it_are_success),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
