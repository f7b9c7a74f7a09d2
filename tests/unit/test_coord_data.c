// SPDX-License-Identifier: Apache-2.0
// Hosts whose workers cannot open a job's data: left out, told of, asked again while the job waits.
#include "common/attempt/frame.h"
#include "common/attempt/life.h"
#include "tests/unit/coord_world.h"

#include <stdio.h>
#include <string.h>

#define ABSENT "data.train.images: x cannot be opened there"

static void test_a_host_whose_worker_cannot_open_the_data_is_left_out(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    world_host(w, 1, 2);
    w->lacking = 1 << 0;
    const char *one = world_submit(w, "one", 1, CALM);
    const char *two = world_submit(w, "two", 1, CALM);
    const char *three = world_submit(w, "three", 1, CALM);
    assert_int_equal(world_host_of(w, one, 0), 1); // though host 0 would be the closer fit
    assert_int_equal(world_host_of(w, two, 0), 1);
    assert_string_equal(world_next(w, three),
                        "first in line: waits for 1 cpu device that others hold");
    w->lacking = 0;
    const char *four = world_submit(w, "four", 1, CALM);
    assert_int_equal(world_host_of(w, four, 0), 0); // of no use to the first in line
    world_finish(w, one);
    assert_int_equal(world_host_of(w, three, 0), 1);
}

// The job "one" of two devices, whose data host 0 cannot open; host 1, which could, is away.
static const char *wait_for_data(struct world *w, const char *more)
{
    world_host(w, 0, 2);
    world_host(w, 1, 2);
    world_detach(w, 1);
    world_pass(w, 11000); // it is given up
    w->lacking = 1 << 0;
    const char *job = world_submit(w, "one", 2, more);
    assert_state(w, job, QUEUED);
    return job;
}

#define LACKED                                                                                  \
    "it needs 2 cpu devices, hosts that take work have 0; others have 2 on host0 (cannot open " \
    "its data), 2 on host1 (fenced). "

static void test_a_job_that_only_hosts_without_its_data_could_take_waits_and_says_so(void **state)
{
    struct world *w = *state;
    const char *job = wait_for_data(w, CALM);
    assert_string_equal(world_next(w, job),
                        LACKED ABSENT ". That host is asked again every 30 s: once it is there the "
                                      "job goes on");
    w->lacking = 0;
    const char *other = world_submit(w, "other", 2, CALM); // it waits behind nobody
    assert_int_equal(world_host_of(w, other, 0), 0);
    world_finish(w, other);
    assert_state(w, job, QUEUED);
    assert_true(world_act(w, WEFT__V1__VERB__HOLD, job));
    assert_true(world_act(w, WEFT__V1__VERB__RESUME, job)); // a person knows better
    assert_int_equal(world_host_of(w, job, 0), 0);
    assert_int_equal(w->looks, 0);
}

static void test_data_that_comes_later_is_found_without_a_person(void **state)
{
    struct world *w = *state;
    const char *job = wait_for_data(w, CALM);
    world_pass(w, 29000);
    assert_int_equal(w->looks, 0);
    world_pass(w, 2000);
    assert_int_equal(w->looks, 1);
    assert_state(w, job, QUEUED);
    assert_string_equal(
        world_next(w, job),
        LACKED "data.train.images: x cannot be opened on host0 (it is not there). That host is "
               "asked again every 30 s: once it is there the job goes on");
    w->lacking = 0;
    world_pass(w, 28000);
    assert_state(w, job, QUEUED);
    world_pass(w, 2000);
    assert_int_equal(w->looks, 2);
    assert_int_equal(world_host_of(w, job, 0), 0);
    assert_string_equal(world_told(w, job, "queued"), "host host0 can open its data now");
    world_pass(w, 60000);
    assert_int_equal(w->looks, 2); // who runs needs nothing
}

static void test_data_of_a_job_that_waits_for_devices_is_looked_for_as_well(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    world_host(w, 1, 1);
    w->lacking = 1 << 0;
    const char *one = world_submit(w, "one", 1, CALM), *two = world_submit(w, "two", 1, CALM);
    assert_int_equal(world_host_of(w, one, 0), 1);
    assert_string_equal(world_next(w, two),
                        "first in line: waits for 1 cpu device that others hold");
    w->lacking = 0;
    world_pass(w, 31000);
    assert_int_equal(world_host_of(w, two, 0), 0);
}

static void test_a_rank_that_found_no_data_is_not_the_last_word_either(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    const char *job = world_submit(w, "one", 1, CALM);
    world_host(w, 1, 1);
    world_act(w, WEFT__V1__VERB__CORDON, "host1");
    w->lacking = 1 << 0;
    world_die_saying(w, job, 0, RANK_EXIT_ABSENT, "cannot open x: No such file");
    assert_state(w, job, QUEUED); // host 1 may have it, one day
    world_pass(w, 31000);
    assert_state(w, job, QUEUED);
    w->lacking = 0;
    world_pass(w, 30000);
    assert_int_equal(world_host_of(w, job, 0), 0);
}

static void test_a_worker_that_attaches_again_is_asked_at_once(void **state)
{
    struct world *w = *state;
    const char *job = wait_for_data(w, CALM);
    w->lacking = 0;
    world_detach(w, 0);
    world_attach(w, 0); // the same life
    assert_state(w, job, QUEUED);
    world_pass(w, 200);
    assert_int_equal(w->looks, 1);
    assert_int_equal(world_host_of(w, job, 0), 0);
}

static void test_a_host_that_does_not_say_whether_data_is_there_is_left_alone(void **state)
{
    struct world *w = *state;
    const char *job = wait_for_data(w, CALM), *next = world_submit(w, "next", 1, CALM);
    w->no_looks = true; // its file system hangs
    world_pass(w, 60000);
    assert_int_equal(w->looks, 2); // one a job, and then none for half a minute
    assert_state(w, job, QUEUED);
    w->no_looks = false;
    w->lacking = 0;
    world_pass(w, 40000);
    assert_int_equal(world_host_of(w, job, 0), 0);
    assert_state(w, next, QUEUED);
}

static void test_of_several_hosts_without_data_the_first_is_told_whoever_answers_first(void **state)
{
    struct world *w = *state;
    char question[sizeof w->question];
    NEW(Storage, storage, s);
    for (int i = 0; i < 3; i++)
        world_host(w, i, 1);
    w->lacking = 1 << 0 | 1 << 1;
    const char *job = world_submit(w, "one", 3, CALM); // host 2 alone is too small
    w->no_looks = true;
    world_pass(w, 31000);
    assert_int_equal(w->looks, 2);
    w->no_looks = false;
    s.op = WEFT__V1__STORAGE_OP__STORAGE_LOOK;
    s.job = strcpy(question, w->question);
    world_answer_look(w, 1, &s);
    assert_non_null(strstr(world_next(w, job), ABSENT));
    world_answer_look(w, 0, &s);
    assert_non_null(strstr(world_next(w, job), "cannot be opened on host0 (it is not there)"));
    w->lacking = 1 << 1;
    world_pass(w, 31000);
    assert_non_null(strstr(world_next(w, job), "cannot be opened on host1 (it is not there)"));
}

static void test_a_worker_that_attaches_again_owes_no_answer(void **state)
{
    struct world *w = *state;
    const char *job = wait_for_data(w, CALM);
    w->no_looks = true;
    world_pass(w, 31000);
    assert_int_equal(w->looks, 1);
    w->no_looks = false;
    world_detach(w, 0);
    world_attach(w, 0);
    world_pass(w, 15000); // the first question is given up
    assert_int_equal(w->looks, 2);
    w->lacking = 0;
    world_pass(w, 16000);
    assert_int_equal(w->looks, 3);
    assert_int_equal(world_host_of(w, job, 0), 0);
}

static void test_all_workers_that_give_one_incarnation_are_asked(void **state)
{
    struct world *w = *state;
    const char *job = wait_for_data(w, CALM);
    for (int i = 2; i < 5; i++) {
        world_host(w, i, 1);
        world_detach(w, i);
        memcpy(w->hosts[i].incarnation, w->hosts[0].incarnation, sizeof w->hosts[i].incarnation);
        world_attach(w, i);
    }
    w->lacking = ~0u;
    world_pass(w, 1000);
    int before = w->looks;
    world_pass(w, 30000);
    assert_int_equal(w->looks - before, 4);
    assert_state(w, job, QUEUED);
    assert_int_equal(world_events(w, job, "queued"), 0);
}

static void test_an_answer_about_data_counts_once_and_from_who_was_asked(void **state)
{
    struct world *w = *state;
    const char *job = wait_for_data(w, CALM);
    world_host(w, 2, 1); // too small for it
    NEW(StorageDone, storage_done, d);
    d.op = WEFT__V1__STORAGE_OP__STORAGE_LOOK;
    d.ok = true;
    d.job = frame_text(job); // a question has an id of its own
    UP(up, STORAGE, storage, &d);
    world_up(w, 0, &up);
    world_up(w, 2, &up);
    w->no_looks = true;
    world_pass(w, 31000);
    assert_int_equal(w->looks, 1);
    world_up(w, 0, &up);
    world_up(w, 2, &up);
    d.job = w->question;
    world_up(w, 2, &up); // whom nobody asked
    assert_state(w, job, QUEUED);
    world_up(w, 0, &up);
    assert_int_equal(world_host_of(w, job, 0), 0);
}

static void test_many_jobs_without_data_do_not_flood_their_host(void **state)
{
    enum { JOBS = 200 };
    struct world *w = *state;
    world_host(w, 0, 2);
    w->lacking = 1 << 0;
    char first[33];
    snprintf(first, sizeof first, "%s", world_submit(w, "one", 2, CALM));
    for (int i = 1; i < JOBS; i++)
        world_submit(w, "more", 2, CALM);
    world_pass(w, 29900);
    assert_int_equal(w->looks, 0);
    for (int tick = 0; tick < JOBS / 8 + 2; tick++) {
        int before = w->looks;
        world_pass(w, 100);
        assert_true(w->looks - before <= 8);
    }
    assert_int_equal(w->looks, JOBS); // each of them once
    w->no_looks = true;
    world_pass(w, 20000);
    assert_true(w->looks <= JOBS + 8);
    w->no_looks = false;
    w->lacking = 0;
    world_pass(w, 60000);
    assert_int_equal(world_host_of(w, first, 0), 0);
}

static void test_a_worker_that_starts_again_may_have_the_data(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    w->lacking = 1 << 0;
    const char *job = world_submit(w, "one", 1, CALM);
    assert_state(w, job, QUEUED);
    world_detach(w, 0);
    world_attach(w, 0); // the same life
    assert_state(w, job, QUEUED);
    world_reborn(w, 0);
    assert_state(w, job, RUNNING);
}

static void test_nobody_is_preempted_on_a_host_without_the_data(void **state)
{
    struct world *w = *state;
    world_host(w, 1, 1);
    const char *there = world_submit(w, "there", 1, CALM);
    world_pass(w, 11000); // the grace of a coordinator that has just begun
    world_host(w, 0, 1);
    const char *here = world_submit(w, "here", 1, CALM); // it would lose less
    w->lacking = 1 << 0;
    const char *high = world_submit(w, "high", 1, PRIORITY(5));
    world_pass(w, 1000);
    assert_state(w, here, RUNNING);
    assert_state(w, there, QUEUED);
    assert_int_equal(world_host_of(w, high, 0), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        STORY(test_a_host_whose_worker_cannot_open_the_data_is_left_out),
        STORY(test_a_job_that_only_hosts_without_its_data_could_take_waits_and_says_so),
        STORY(test_data_that_comes_later_is_found_without_a_person),
        STORY(test_data_of_a_job_that_waits_for_devices_is_looked_for_as_well),
        STORY(test_a_rank_that_found_no_data_is_not_the_last_word_either),
        STORY(test_a_worker_that_attaches_again_is_asked_at_once),
        STORY(test_a_host_that_does_not_say_whether_data_is_there_is_left_alone),
        STORY(test_of_several_hosts_without_data_the_first_is_told_whoever_answers_first),
        STORY(test_a_worker_that_attaches_again_owes_no_answer),
        STORY(test_all_workers_that_give_one_incarnation_are_asked),
        STORY(test_an_answer_about_data_counts_once_and_from_who_was_asked),
        STORY(test_many_jobs_without_data_do_not_flood_their_host),
        STORY(test_a_worker_that_starts_again_may_have_the_data),
        STORY(test_nobody_is_preempted_on_a_host_without_the_data),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
