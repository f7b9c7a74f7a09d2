// SPDX-License-Identifier: Apache-2.0
// Who is placed, who waits for whom, who is preempted.
#include "common/attempt/frame.h"
#include "common/attempt/life.h"
#include "common/job/threads.h"
#include "tests/support/text_facts.h"
#include "tests/unit/coord_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void test_jobs_of_a_priority_go_in_order_of_submission(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    const char *one = world_submit(w, "one", 1, CALM);
    const char *two = world_submit(w, "two", 1, CALM);
    const char *three = world_submit(w, "three", 1, CALM);
    assert_state(w, one, RUNNING);
    assert_non_null(strstr(world_next(w, three), "waits behind two"));
    world_finish(w, one);
    assert_state(w, two, RUNNING);
    assert_state(w, three, QUEUED);
}

static void test_who_joins_a_full_queue_gets_its_turn_when_those_before_it_leave(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    const char *one = world_submit(w, "one", 1, CALM);
    const char *two = world_submit(w, "two", 1, CALM);
    const char *three = world_submit(w, "three", 1, CALM);
    const char *four = world_submit(w, "four", 1, CALM);
    assert_non_null(strstr(world_next(w, four), "waits behind two"));
    assert_true(world_act(w, WEFT__V1__VERB__CANCEL, two));
    assert_non_null(strstr(world_next(w, four), "waits behind three"));
    world_finish(w, one);
    assert_state(w, three, RUNNING);
    world_host(w, 1, 1);
    assert_state(w, four, RUNNING);
}

static void test_who_joins_a_full_queue_with_a_greater_priority_is_first(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    const char *one = world_submit(w, "one", 1, PRIORITY(5));
    const char *two = world_submit(w, "two", 1, CALM);
    const char *three = world_submit(w, "three", 1, PRIORITY(5));
    assert_non_null(strstr(world_next(w, two), "waits behind three"));
    world_finish(w, one);
    assert_state(w, three, RUNNING);
    assert_state(w, two, QUEUED);
}

static void test_small_jobs_do_not_starve_a_big_one(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 4);
    const char *a = world_submit(w, "small-a", 1, CALM);
    const char *b = world_submit(w, "small-b", 1, CALM);
    const char *big = world_submit(w, "big", 4, CALM);
    const char *late = world_submit(w, "late", 1, CALM);
    assert_state(w, late, QUEUED); // two devices are idle: they are kept for the first in line
    assert_non_null(strstr(world_next(w, big), "first in line"));
    world_finish(w, a);
    assert_state(w, late, QUEUED);
    world_finish(w, b);
    assert_state(w, big, RUNNING);
    world_finish(w, big);
    assert_state(w, late, RUNNING);
}

static void test_what_the_first_in_line_cannot_use_serves_others(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 4);
    world_host(w, 1, 2);
    const char *a = world_submit(w, "one", 3, CALM "resources: {hosts: 1}\n");
    const char *big = world_submit(w, "big", 4, CALM "resources: {hosts: 1}\n");
    const char *late = world_submit(w, "late", 2, CALM);
    assert_state(w, a, RUNNING);
    assert_state(w, big, QUEUED);
    assert_state(w, late, RUNNING); // on the host that is too small for the big one
    assert_int_equal(world_host_of(w, late, 0), 1);
}

static void test_a_job_that_no_known_host_could_take_says_so_and_blocks_nobody(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 2);
    const char *huge = world_submit(w, "huge", 16, CALM);
    const char *small = world_submit(w, "small", 2, CALM);
    assert_state(w, huge, QUEUED);
    assert_string_equal(world_next(w, huge), "it needs 16 cpu devices, the known host has 2: start "
                                             "weft-worker on more hosts");
    assert_state(w, small, RUNNING);
}

static void test_more_hosts_are_not_asked_for_by_a_job_that_may_not_have_them(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    world_host(w, 1, 2);
    const char *job = world_submit(w, "job", 4, CALM "resources: {hosts: 1}\n");
    assert_string_equal(world_next(w, job),
                        "it needs 4 cpu devices on at most 1 host, and all known hosts together "
                        "have 3: start weft-worker on a host with more devices");
    world_host(w, 2, 4);
    assert_state(w, job, RUNNING);
}

static void
test_why_hosts_have_none_of_the_devices_is_said_of_three_and_the_others_counted(void **state)
{
    struct world *w = *state;
    const char *job = NULL;
    for (int i = 0; i < 5; i++) {
        w->hosts[i].no_gpu = "no driver";
        world_host(w, i, 1);
        if (i == 2)
            job = world_submit(w, "tiny", 1, CALM "resources: {kind: cuda}\n");
        if (i == 2)
            assert_non_null(strstr(world_next(w, job), "host2: no driver)"));
        if (i == 3)
            assert_non_null(strstr(world_next(w, job), "no driver; and 1 more host)"));
    }
    assert_non_null(strstr(world_next(w, job), "no driver; and 2 more hosts)"));
}

static void test_a_job_that_a_host_that_is_away_could_have_taken_names_it(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 2);
    world_host(w, 1, 4);
    world_detach(w, 1);
    const char *big = world_submit(w, "big", 6, CALM);
    assert_string_equal(world_next(w, big), "it needs 6 cpu devices, hosts that take work have 2; "
                                            "others have 4 on host1 (away)");
    world_attach(w, 1);
    assert_state(w, big, RUNNING);
}

static void test_a_job_that_drained_hosts_could_take_names_them(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 2);
    world_host(w, 1, 2);
    world_act(w, WEFT__V1__VERB__DRAIN, "host0");
    world_act(w, WEFT__V1__VERB__CORDON, "host1");
    const char *job = world_submit(w, "job", 2, CALM);
    assert_string_equal(world_next(w, job),
                        "it needs 2 cpu devices, hosts that take work have 0; "
                        "others have 2 on host0 (drained), 2 on host1 (cordoned)");
    world_act(w, WEFT__V1__VERB__UNCORDON, "host1");
    assert_state(w, job, RUNNING);
}

static void test_a_job_on_hosts_that_do_not_reach_each_other_names_who_is_not_reached(void **state)
{
    struct world *w = *state;
    world_host_without_address(w, 0, 2);
    world_host(w, 1, 2);
    const char *job = world_submit(w, "job", 4, CALM);
    assert_string_equal(world_next(w, job),
                        "it needs 4 cpu devices on hosts that reach each other: others cannot "
                        "reach host0, whose worker knows no address of its own (start it with "
                        "--address)");
    world_host(w, 2, 2);
    assert_state(w, job, RUNNING); // on the two that have one
}

static void test_a_job_that_may_not_be_spread_so_far_says_how_much_it_could_have(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 2);
    world_host(w, 1, 3);
    const char *job = world_submit(w, "job", 4, CALM "resources: {hosts: 1}\n");
    assert_string_equal(world_next(w, job),
                        "it needs 4 cpu devices on at most 1 host, the largest that "
                        "take work have 3");
}

static void test_the_second_that_no_known_host_could_take_is_placed_when_one_comes(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 2);
    const char *big = world_submit(w, "big", 4, CALM);
    const char *same = world_submit(w, "same", 4, CALM);
    assert_non_null(strstr(world_next(w, same), "the known host has 2"));
    world_host(w, 1, 4);
    world_host(w, 2, 4);
    assert_state(w, big, RUNNING);
    assert_state(w, same, RUNNING);
}

static void test_who_is_preempted_goes_back_to_its_place_in_line(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    const char *first = world_submit(w, "first", 1, CALM);
    const char *second = world_submit(w, "second", 1, CALM);
    const char *third = world_submit(w, "third", 1, CALM);
    const char *urgent = world_submit(w, "urgent", 1, PRIORITY(5));
    world_pass(w, 11000); // hosts may still be coming back after the start
    assert_state(w, urgent, RUNNING);
    world_finish(w, urgent);
    assert_state(w, first, RUNNING);
    world_finish(w, first);
    assert_state(w, second, RUNNING);
    assert_state(w, third, QUEUED);
}

static void test_a_greater_priority_preempts_the_smaller(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 2);
    const char *low = world_submit(w, "low", 2, PRIORITY(1));
    world_step(w, low, 3);
    const char *high = world_submit(w, "high", 1, PRIORITY(5));
    assert_state(w, high, QUEUED); // hosts may still be coming back after the start
    world_pass(w, 11000);
    assert_state(w, high, RUNNING);
    assert_state(w, low, QUEUED);
    assert_non_null(strstr(world_event_text(w, low, "preempted"), "high"));
    assert_int_equal(world_job(w, low)->nfailures, 0);
    world_finish(w, high);
    assert_state(w, low, RUNNING);
}

static void test_equal_priorities_do_not_preempt(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    world_pass(w, 11000);
    const char *one = world_submit(w, "one", 1, PRIORITY(3));
    const char *two = world_submit(w, "two", 1, PRIORITY(3));
    world_pass(w, 2000);
    assert_state(w, one, RUNNING);
    assert_state(w, two, QUEUED);
}

static void test_whoever_loses_least_is_preempted(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 3);
    world_pass(w, 11000);
    const char *one = world_submit(w, "one", 1, CALM);
    const char *two = world_submit(w, "two", 1, CALM);
    const char *three = world_submit(w, "three", 1, CALM);
    world_step(w, one, 3);
    world_step(w, two, 3);
    world_step(w, three, 3);
    world_pass(w, 5000);
    world_save(w, two, 3); // it has just saved
    world_pass(w, 1000);
    const char *high = world_submit(w, "high", 1, PRIORITY(9));
    assert_state(w, high, RUNNING);
    assert_state(w, two, QUEUED);
    assert_state(w, one, RUNNING);
    assert_state(w, three, RUNNING);
}

static void test_no_more_are_preempted_than_are_needed(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    world_host(w, 1, 4);
    world_pass(w, 11000);
    const char *big = world_submit(w, "big", 4, CALM); // fills host1
    const char *small = world_submit(w, "small", 1, CALM);
    world_step(w, big, 3);
    world_pass(w, 3000);
    world_step(w, small, 3);
    world_save(w, small, 3); // it would lose nothing, and does not help
    const char *high = world_submit(w, "high", 4, PRIORITY(9));
    assert_state(w, high, RUNNING);
    assert_state(w, big, QUEUED);
    assert_state(w, small, RUNNING);
}

static void test_devices_that_become_free_are_waited_for(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 2);
    world_pass(w, 11000);
    const char *one = world_submit(w, "one", 1, CALM);
    const char *two = world_submit(w, "two", 1, CALM);
    w->no_stop = true;
    world_act(w, WEFT__V1__VERB__HOLD, one);
    const char *high = world_submit(w, "high", 1, PRIORITY(9));
    world_pass(w, 3000);
    assert_state(w, high, QUEUED);
    assert_non_null(strstr(world_next(w, high), "stopping"));
    assert_state(w, two, RUNNING); // nobody else had to go
}

static enum coord_action_kind answer_of(const struct coord_out *out)
{
    for (int i = 0; i < out->nactions; i++)
        if (out->actions[i].kind == COORD_REPLY || out->actions[i].kind == COORD_REFUSE)
            return out->actions[i].kind;
    fail_msg("the call is not answered");
    return COORD_SEND;
}

// As many as may wait where there is time for it: the next one is refused.
static void test_ten_thousand_jobs_wait_in_line(void **state)
{
    const int many = getenv("WEFT_LONG") ? 50000 : 10000;
    struct world *w = *state;
    // The world's rows are few: the decider is fed alone.
    static struct coord_config config = {.lease_ns = 10 * CLOCK_S};
    struct coord *c = coord_new(&config);
    struct arena a;
    (void)w;
    arena_init(&a);
    struct coord_out out = {.arena = &a};
    coord_started(c, CLOCK_S, 1700000000000, &out);
    static const char text[] =
        "name: it\nmodel: {program: mlp, inputs: 4, hidden: [8], classes: 3}\nmesh: {dp: 1}\n"
        "data: {train: {images: x, labels: l}, batch: 12}\ntrain: {steps: 10}\n";
    Weft__Plan__JobFacts *facts = read_facts(&a, text, "", NULL);
    char request[20];
    for (int i = 0; i < many + (many == 50000); i++) {
        Weft__V1__SubmitRequest q;
        weft__v1__submit_request__init(&q);
        struct coord_event ev = {
            .kind = COORD_EV_SUBMIT, .now_ns = CLOCK_S, .wall_ms = 1700000000000, .submit = &q};
        struct arena step;
        arena_init(&step);
        out = (struct coord_out){.arena = &step};
        snprintf(request, sizeof request, "r%d", i);
        q.request_id = request;
        q.resolved = frame_text(text);
        ev.who = ev.role = "x";
        ev.facts = &facts;
        coord_step(c, &ev, &out);
        assert_int_equal(answer_of(&out), i < 50000 ? COORD_REPLY : COORD_REFUSE);
        arena_clear(&step);
    }
    struct coord_counts n;
    coord_count(c, &n);
    assert_int_equal(n.jobs[STATE(QUEUED)], many);
    size_t told = 0, pages = 0;
    uint64_t after = 0;
    do { // each once, by order of submission
        Weft__V1__JobsReply *r = coord_jobs(c, false, after, 3000, &a);
        assert_true(r->n_jobs == 3000 || !r->next);
        told += r->n_jobs;
        assert_true(!r->next || r->next > after);
        after = r->next;
        pages++;
    } while (after);
    assert_int_equal(told, many);
    assert_int_equal(pages, many / 3000 + 1);
    coord_free(c);
    arena_clear(&a);
}

#define AUTO CALM "resources: {threads: 0}\n"

// Its row says so; once it has started its ranks were told, and its text is as it was.
static bool has_threads(struct world *w, const char *job, int threads)
{
    const struct job_record *row = world_job(w, job);
    assert_true(!row->fenced || w->threads == threads);
    assert_true(strstr(row->resolved, "threads: 0") || strstr(row->resolved, "threads: 5"));
    return row->threads == threads;
}

// As people are told; an empty `why` is the job's own number.
static void expect_threads(struct world *w, const char *job, int threads, const char *why)
{
    struct arena a;
    arena_init(&a);
    const Weft__V1__JobStatus *s = coord_status(w->c, job, &a, NULL);
    assert_int_equal(s->threads, threads);
    assert_string_equal(s->threads_why, why);
    arena_clear(&a);
}

static void test_the_first_placement_decides_the_threads_by_the_poorest_host(void **state)
{
    struct world *w = *state;
    w->hosts[0].cores = 8;
    w->hosts[1].cores = 7;
    const char *job = world_submit(w, "job", 4, AUTO);
    assert_true(has_threads(w, job, 0));
    expect_threads(w, job, 0, THREADS_LATER);
    world_host(w, 0, 2);
    world_host(w, 1, 2);
    assert_state(w, job, RUNNING);
    assert_true(has_threads(w, job, 3));
    expect_threads(w, job, 3, "7 cores of host1 divided by 2 devices");
}

static void test_a_job_keeps_its_threads_wherever_it_continues(void **state)
{
    struct world *w = *state;
    w->hosts[0].cores = 8;
    world_host(w, 0, 2);
    const char *job = world_submit(w, "job", 2, AUTO);
    assert_true(has_threads(w, job, 4));
    w->hosts[1].cores = 64;
    world_host(w, 1, 2);
    assert_true(world_act(w, WEFT__V1__VERB__DRAIN, "host0"));
    assert_int_equal(world_host_of(w, job, 0), 1);
    assert_true(has_threads(w, job, 4));
    world_restart(w);
    assert_state(w, job, RUNNING);
    assert_true(has_threads(w, job, 4));
    expect_threads(w, job, 4, "8 cores of host0 divided by 2 devices");
}

static void test_workers_of_one_machine_share_its_cores(void **state)
{
    struct world *w = *state;
    for (int i = 0; i < 2; i++) {
        w->hosts[i].cores = 12;
        snprintf(w->hosts[i].share, sizeof w->hosts[i].share, "one machine");
        world_host(w, i, 2);
    }
    assert_true(has_threads(w, world_submit(w, "job", 2, AUTO), 3));
}

static void
test_a_number_that_the_job_names_counts_and_a_host_that_says_nothing_has_one(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 2);
    const char *silent = world_submit(w, "silent", 1, AUTO);
    assert_true(has_threads(w, silent, 1));
    expect_threads(w, silent, 1, "host0 does not report its cores");
    w->hosts[1].cores = 64;
    world_host(w, 1, 1);
    const char *named = world_submit(w, "named", 1, CALM "resources: {threads: 5}\n");
    assert_true(has_threads(w, named, 5));
    expect_threads(w, named, 5, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_the_first_placement_decides_the_threads_by_the_poorest_host),
        CASE(test_a_job_keeps_its_threads_wherever_it_continues),
        CASE(test_workers_of_one_machine_share_its_cores),
        CASE(test_a_number_that_the_job_names_counts_and_a_host_that_says_nothing_has_one),
        CASE(test_jobs_of_a_priority_go_in_order_of_submission),
        CASE(test_who_joins_a_full_queue_gets_its_turn_when_those_before_it_leave),
        CASE(test_who_joins_a_full_queue_with_a_greater_priority_is_first),
        CASE(test_small_jobs_do_not_starve_a_big_one),
        CASE(test_what_the_first_in_line_cannot_use_serves_others),
        CASE(test_a_job_that_no_known_host_could_take_says_so_and_blocks_nobody),
        CASE(test_more_hosts_are_not_asked_for_by_a_job_that_may_not_have_them),
        CASE(test_why_hosts_have_none_of_the_devices_is_said_of_three_and_the_others_counted),
        CASE(test_a_job_that_a_host_that_is_away_could_have_taken_names_it),
        CASE(test_a_job_that_drained_hosts_could_take_names_them),
        CASE(test_a_job_on_hosts_that_do_not_reach_each_other_names_who_is_not_reached),
        CASE(test_a_job_that_may_not_be_spread_so_far_says_how_much_it_could_have),
        CASE(test_the_second_that_no_known_host_could_take_is_placed_when_one_comes),
        CASE(test_who_is_preempted_goes_back_to_its_place_in_line),
        CASE(test_a_greater_priority_preempts_the_smaller),
        CASE(test_equal_priorities_do_not_preempt),
        CASE(test_whoever_loses_least_is_preempted),
        CASE(test_no_more_are_preempted_than_are_needed),
        CASE(test_devices_that_become_free_are_waited_for),
        CASE(test_ten_thousand_jobs_wait_in_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
