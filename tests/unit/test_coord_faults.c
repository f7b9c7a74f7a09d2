// SPDX-License-Identifier: Apache-2.0
// Ranks that die, hang or give up: what follows, at what cost.
#include "common/attempt/frame.h"
#include "common/attempt/life.h"
#include "common/base/plain.h"
#include "common/ckpt/commit.h"
#include "tests/unit/coord_world.h"

#include <string.h>

static void test_a_rank_that_dies_after_a_step_is_restarted_at_once(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 2, "");
    world_step(w, job, 3);
    world_die(w, job, 1, 0, 11);
    assert_state(w, job, RUNNING); // no time has passed
    assert_int_equal(world_job(w, job)->attempt, 2);
    assert_int_equal(world_job(w, job)->restarts, 1);
    assert_int_equal(world_job(w, job)->nfailures, 1);
    assert_int_equal(world_living(w, job), 2);
    assert_non_null(strstr(world_event_text(w, job, "failed"), "rank 1 on host host0 device 1"));
    assert_non_null(strstr(world_event_text(w, job, "failed"), "signal 11"));
}

static void test_kills_from_outside_cost_the_job_nothing_however_many(void **state)
{
    static const int signals[] = {9, 15, 2, 1, 3, 7, 10};
    struct world *w = *state;
    const char *job = world_job_alone(w, 2, "restart: {budget: 0, hang_after: 2h}\n");
    for (int i = 0; i < 14; i++) {
        world_step(w, job, 3);
        world_die(w, job, 1, 0, signals[i % 7]);
        world_pass(w, 120000); // the wait of one that saves nothing
        assert_state(w, job, RUNNING);
    }
    assert_int_equal(world_job(w, job)->nfailures, 0);
    assert_non_null(strstr(world_event_text(w, job, "failed"),
                           "a signal from outside of the job: it counts against host host0"));
    world_step(w, job, 3);
    world_die(w, job, 1, 0, 11); // its own doing
    assert_state(w, job, HELD);
}

static void test_a_host_in_trouble_is_avoided_while_another_can_take_the_job(void **state)
{
    static const int codes[] = {RANK_EXIT_HOST, RANK_EXIT_DEVICE};
    for (int i = 0; i < 2; i++) {
        struct world *w = *state;
        world_host(w, 0, 1);
        const char *job = world_submit(w, "tiny", 1, "restart: {budget: 0, hang_after: 2h}\n");
        world_host(w, 1, 2);
        world_step(w, job, 3);
        assert_int_equal(world_host_of(w, job, 0), 0);
        world_die_saying(w, job, 0, codes[i], "cannot write: No space left on device");
        assert_state(w, job, RUNNING);
        assert_int_equal(world_host_of(w, job, 0), 1); // though host 0 would be the closer fit
        assert_non_null(
            strstr(world_event_text(w, job, "failed"), "host host0, which is avoided for"));
        assert_int_equal(world_job(w, job)->nfailures, 0);
        world_step(w, job, 4);
        world_detach(w, 1);
        world_pass(w, 11000); // it is given up: there is nobody else now
        assert_state(w, job, RUNNING);
        assert_int_equal(world_host_of(w, job, 0), 0);
        world_step(w, job, 5);
        world_die_saying(w, job, 0, codes[i], "cannot write: No space left on device");
        const char *said = world_event_text(w, job, "failed");
        assert_non_null(strstr(said, "which stays there: no other host can take it"));
        assert_null(strstr(said, "avoided"));
        world_teardown(state);
        world_setup(state);
    }
}

// Its sentence is cut, and one of the two texts inside a character.
static void test_a_long_fault_of_a_job_that_waits_is_shown_in_whole_characters(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 1, "restart: {backoff: [1h, 2h], hang_after: 2h}\n");
    for (int i = 0; i < 4; i++) {
        struct arena a;
        char why[801] = "x";
        for (size_t at = (size_t)i % 2; at + 2 < sizeof why; at += 2)
            memcpy(why + at, "\xc3\xa9", 2);
        world_die_saying(w, job, 0, RANK_EXIT_HOST, why);
        arena_init(&a);
        char *text = coord_status(w->c, job, &a, NULL)->text, *plain = arena_strdup(&a, text);
        assert_true(i == 0 || strstr(text, "attempts led nowhere; the newest: "));
        assert_int_equal(coord_status(w->c, job, &a, NULL)->in_trouble, i > 0);
        plain_mask(plain);
        assert_string_equal(text, plain);
        arena_clear(&a);
        world_pass(w, i ? 7200000 : 0);
    }
}

static void test_a_host_is_used_again_when_its_time_is_over(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    const char *job = world_submit(w, "tiny", 1, CALM);
    world_host(w, 1, 2);
    world_die(w, job, 0, RANK_EXIT_HOST, 0);
    assert_int_equal(world_host_of(w, job, 0), 1);
    const char *next = world_submit(w, "next", 1, CALM); // another job avoids it too
    assert_int_equal(world_host_of(w, next, 0), 1);
    world_act(w, WEFT__V1__VERB__CANCEL, next);
    world_pass(w, 61000);
    const char *last = world_submit(w, "last", 1, CALM);
    assert_int_equal(world_host_of(w, last, 0), 0);
}

// Its data is the job's: others run on that host.
static void test_a_host_that_lacks_the_data_is_avoided_by_that_job_alone(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    const char *job = world_submit(w, "tiny", 1, "restart: {budget: 0, hang_after: 2h}\n");
    world_host(w, 1, 2);
    assert_int_equal(world_host_of(w, job, 0), 0);
    world_die_saying(w, job, 0, RANK_EXIT_ABSENT, "cannot open x: No such file");
    assert_state(w, job, RUNNING);
    assert_int_equal(world_host_of(w, job, 0), 1); // though host 0 would be the closer fit
    assert_int_equal(world_job(w, job)->nfailures, 0);
    assert_non_null(strstr(world_event_text(w, job, "failed"),
                           "cannot open x: No such file. It counts "
                           "against host host0, which this job"));
    const char *other = world_submit(w, "other", 1, CALM);
    assert_int_equal(world_host_of(w, other, 0), 0);
    world_die_saying(w, job, 0, RANK_EXIT_ABSENT, "cannot open x: No such file");
    assert_state(w, job, FAILED); // no host is left that may have it
    assert_non_null(strstr(world_job(w, job)->diagnosis, "cannot open x: No such file"));
    assert_null(strstr(world_job(w, job)->diagnosis, "counts against"));
}

static void test_a_host_that_lacks_the_data_takes_no_checkpoint_for_bad(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    const char *job = world_submit(w, "tiny", 1, CALM);
    world_step(w, job, 4);
    world_save(w, job, 4);
    world_host(w, 1, 1);
    world_host(w, 2, 1);
    world_die(w, job, 0, RANK_EXIT_HOST, 0); // it moves to another host, which restores
    assert_int_equal(world_job(w, job)->restore_step, 4);
    int second = world_host_of(w, job, 0);
    assert_int_not_equal(second, 0);
    world_die_saying(w, job, 0, RANK_EXIT_ABSENT, "cannot open x: No such file");
    assert_state(w, job, RUNNING);
    assert_int_equal(world_job(w, job)->restore_step, 4);
    assert_int_equal(world_host_of(w, job, 0), 3 - second);
}

static void test_devices_are_not_given_away_before_the_ranks_are_reaped(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    world_host(w, 1, 1);
    const char *job = world_submit(w, "wide", 2, "");
    world_step(w, job, 3);
    int dies = world_host_of(w, job, 0) == 0 ? 0 : 1;
    w->hosts[1].stopped = true;
    world_die(w, job, dies, 70, 0);
    assert_state(w, job, RECOVERING);
    world_pass(w, 5000);
    assert_state(w, job, RECOVERING);
    assert_int_equal(w->starts, 2);
}

static void test_a_second_attempt_without_a_step_waits(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    const char *job = world_submit(w, "tiny", 1, "restart: {backoff: [4s, 60s], hang_after: 2h}\n");
    world_die(w, job, 0, 72, 0);
    assert_state(w, job, RUNNING); // the first: at once
    world_die(w, job, 0, 70, 0);
    assert_state(w, job, QUEUED);
    world_pass(w, 3800);
    assert_state(w, job, QUEUED);
    world_pass(w, 300);
    assert_state(w, job, RUNNING);
    world_die(w, job, 0, 72, 0);
    world_pass(w, 7800); // twice as long
    assert_state(w, job, QUEUED);
    world_pass(w, 300);
    assert_state(w, job, RUNNING);
    world_step(w, job, 1);
    world_die(w, job, 0, 70, 0); // a step was made
    assert_state(w, job, RUNNING);
}

static void test_the_wait_survives_a_restart_of_the_coordinator(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    const char *job = world_submit(w, "tiny", 1, "restart: {backoff: [8s, 60s]}\n");
    world_die(w, job, 0, 72, 0);
    world_die(w, job, 0, 70, 0);
    world_restart(w); // a second passes
    assert_state(w, job, QUEUED);
    world_pass(w, 6800);
    assert_state(w, job, QUEUED);
    world_pass(w, 400);
    assert_state(w, job, RUNNING);
}

static void test_a_spent_budget_holds_the_job_and_resume_gives_it_back(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    const char *job = world_submit(w, "tiny", 1, "restart: {budget: 2, hang_after: 2h}\n");
    for (int64_t s = 1; s <= 2; s++) {
        world_step(w, job, s);
        world_die(w, job, 0, 70, 0);
        assert_state(w, job, RUNNING);
    }
    world_step(w, job, 3);
    world_die(w, job, 0, 70, 0);
    assert_state(w, job, HELD);
    assert_non_null(strstr(world_job(w, job)->diagnosis, "budget"));
    assert_true(world_act(w, WEFT__V1__VERB__RESUME, job));
    assert_state(w, job, RUNNING);
    assert_int_equal(world_job(w, job)->nfailures, 0);
}

static void test_failures_that_are_long_ago_do_not_count(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    const char *job =
        world_submit(w, "tiny", 1, "restart: {budget: 1, per: 20s, hang_after: 2h}\n");
    for (int64_t s = 1; s <= 3; s++) {
        world_step(w, job, s);
        world_die(w, job, 0, 70, 0);
        assert_state(w, job, RUNNING);
        world_pass(w, 21000);
    }
}

static void test_a_checkpoint_since_the_last_failure_makes_the_next_free(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    const char *job = world_submit(w, "tiny", 1, "restart: {budget: 1, hang_after: 2h}\n");
    for (int64_t s = 1; s <= 6; s++) {
        world_step(w, job, s);
        world_save(w, job, s);
        world_die(w, job, 0, 70, 0);
        assert_state(w, job, RUNNING);
        assert_int_equal(world_job(w, job)->nfailures, 0);
        assert_int_equal(world_job(w, job)->restore_step, s);
    }
}

static void test_the_same_failure_at_the_same_step_three_times_fails_the_job(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 1, CALM);
    for (int i = 0; i < 3; i++) {
        assert_state(w, job, RUNNING);
        world_step(w, job, 7);
        world_die(w, job, 0, 70, 0);
    }
    assert_state(w, job, FAILED);
    assert_non_null(strstr(world_job(w, job)->diagnosis, "exit 70 at step 7"));
}

static void test_another_failure_or_step_in_between_begins_the_count_again(void **state)
{
    struct world *w = *state;
    static const struct {
        int64_t step;
        int code;
    } deaths[] = {{7, 70}, {7, 70}, {7, 72}, {7, 70}, {8, 70}};
    world_host(w, 0, 1);
    const char *job = world_submit(w, "tiny", 1, "restart: {budget: 9, hang_after: 2h}\n");
    for (size_t i = 0; i < sizeof deaths / sizeof *deaths; i++) {
        world_step(w, job, deaths[i].step);
        world_die(w, job, 0, deaths[i].code, 0);
        assert_state(w, job, RUNNING);
    }
}

static void test_a_rank_that_lost_its_peer_is_never_the_cause(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 2, "");
    world_step(w, job, 2);
    world_die(w, job, 0, RANK_EXIT_LOST, 0); // the one that lost a peer comes first
    assert_state(w, job, RUNNING);
    world_die(w, job, 1, 0, 11);
    assert_non_null(strstr(world_event_text(w, job, "failed"), "rank 1"));
    assert_int_equal(world_job(w, job)->nfailures, 1);
    assert_int_equal(world_job(w, job)->restarts, 1);
}

static void test_a_lost_peer_that_nobody_explains_costs_nothing(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 2, "");
    world_step(w, job, 2);
    world_die(w, job, 0, RANK_EXIT_LOST, 0);
    world_pass(w, 2000);
    assert_state(w, job, RUNNING);
    assert_int_equal(world_job(w, job)->attempt, 2);
    assert_int_equal(world_job(w, job)->nfailures, 0);
}

static void test_bad_configuration_fails_the_job(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 2, "");
    world_die_saying(w, job, 0, RANK_EXIT_CONFIG, "data/x is not there");
    assert_state(w, job, FAILED);
    assert_non_null(strstr(world_job(w, job)->diagnosis, "data/x is not there"));
    assert_int_equal(world_living(w, job), 0);
}

static void test_bad_data_while_training_fails_the_job(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 1, "");
    world_step(w, job, 3);
    world_die_saying(w, job, 0, RANK_EXIT_DATA, "label 7 of 3 classes");
    assert_state(w, job, FAILED);
}

static void test_a_hang_is_named_and_its_attempt_killed(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 2);
    const char *job = world_submit(w, "tiny", 2, "restart: {hang_after: 5s}\n");
    world_page(w, job, 0, 4, RANK_RUNNING, 31);
    world_page(w, job, 1, 4, RANK_RUNNING, 30);
    world_pass(w, 4500);
    assert_int_equal(world_job(w, job)->attempt, 1);
    world_pass(w, 1500);
    assert_int_equal(world_events(w, job, "hang"), 1);
    const char *text = world_event_text(w, job, "hang");
    assert_non_null(strstr(text, "rank 1 on host host0 device 1"));
    assert_non_null(strstr(text, "step 4"));
    assert_non_null(strstr(text, "30"));
    assert_state(w, job, RUNNING);
    assert_int_equal(world_job(w, job)->attempt, 2);
    assert_int_equal(world_job(w, job)->nfailures, 1);
}

static void test_a_silent_agent_is_not_a_hang(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    const char *job = world_submit(w, "tiny", 1, "restart: {hang_after: 5s}\n");
    world_step(w, job, 1);
    w->hosts[0].stopped = true;
    world_pass(w, 9000);
    w->hosts[0].stopped = false;
    world_pass(w, 3000);
    assert_int_equal(world_events(w, job, "hang"), 0);
    assert_state(w, job, RUNNING);
    assert_int_equal(world_job(w, job)->attempt, 1);
}

static void test_a_final_checkpoint_that_cannot_be_written_holds_the_job(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 1, "checkpoint: {patience: 0s}\n");
    world_step(w, job, 10);
    world_shard(w, job, 0, 10, 4);
    world_die(w, job, 0, RANK_EXIT_HOST, 0);
    assert_state(w, job, HELD);
    assert_null(strstr(world_event_text(w, job, "failed"), "counts against host"));
    assert_non_null(strstr(world_job(w, job)->diagnosis, "last step cannot be written"));
}

static void test_a_crash_while_draining_continues_to_the_goal(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 2, "");
    world_step(w, job, 2);
    w->no_stop = true;
    assert_true(world_act(w, WEFT__V1__VERB__CANCEL, job));
    assert_state(w, job, DRAINING);
    world_die(w, job, 0, 0, 9);
    assert_state(w, job, CANCELLED);
    assert_int_equal(world_job(w, job)->nfailures, 0);
}

static void test_all_ranks_leaving_without_the_last_checkpoint_is_no_success(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 2, "");
    world_step(w, job, 2);
    world_die(w, job, 0, 0, 0);
    assert_state(w, job, RUNNING);
    assert_int_equal(world_job(w, job)->attempt, 1);
    world_die(w, job, 1, 0, 0);
    assert_state(w, job, RUNNING);
    assert_int_equal(world_job(w, job)->attempt, 2);
}

static void test_ranks_that_do_not_leave_after_the_last_checkpoint_are_killed(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 2, "");
    w->no_leave = true;
    world_finish(w, job);
    assert_state(w, job, DRAINING);
    world_pass(w, 61000);
    assert_state(w, job, SUCCEEDED);
    assert_int_equal(world_living(w, job), 0);
}

static void test_frames_of_another_attempt_are_ignored(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 1, "");
    world_step(w, job, 2);
    struct world_attempt *at = world_at(w, 0, job);
    at->number = 7; // an agent that speaks of an attempt that is not
    world_save(w, job, 4);
    assert_int_equal(w->nsaves, 0);
    assert_int_equal(world_job(w, job)->committed_step, -1);
}

static void test_a_held_job_says_that_its_saves_have_failed(void **state)
{
    struct world *w = *state;
    struct arena a;
    arena_init(&a);
    const char *job = world_job_alone(w, 1, CALM);
    world_step(w, job, 2);
    world_shard(w, job, 0, 2, 1);
    assert_true(world_act(w, WEFT__V1__VERB__HOLD, job));
    world_pass(w, 120000);
    assert_state(w, job, HELD);
    const Weft__V1__JobStatus *s = coord_jobs(w->c, false, 0, 0, &a)->jobs[0];
    assert_non_null(strstr(s->text, "held by"));
    assert_non_null(strstr(s->text, "failed: rank 0: no space left"));
    assert_true(s->in_trouble);
    arena_clear(&a);
}

static void test_saves_that_fail_are_shown_with_their_time_until_one_succeeds(void **state)
{
    struct world *w = *state;
    struct arena a;
    arena_init(&a);
    const char *job = world_job_alone(w, 1, CALM);
    world_step(w, job, 2);
    int64_t first = w->wall;
    world_shard(w, job, 0, 2, 1);
    world_pass(w, 300000);
    world_step(w, job, 4);
    world_shard(w, job, 0, 4, 1);
    world_restart(w);
    const Weft__V1__JobStatus *s = coord_jobs(w->c, false, 0, 0, &a)->jobs[0];
    assert_int_equal(s->unsaved, 2);
    assert_int_equal(s->unsaved_since_ms, first);
    assert_int_equal(s->unsaved_for_ms, 300000 + 1000); // a restart takes a second
    assert_non_null(strstr(s->unsaved_why, "no space left"));
    assert_non_null(strstr(s->text, "not saved for 5 min, 2 saves failed: rank 0: no space left"));
    assert_true(s->in_trouble);
    world_step(w, job, 6);
    world_save(w, job, 6);
    s = coord_status(w->c, job, &a, NULL);
    assert_int_equal(s->unsaved, 0);
    assert_false(s->in_trouble);
    assert_string_equal(s->text, "");
    arena_clear(&a);
}

static void test_training_stops_when_saves_fail_for_longer_than_the_job_has_patience(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 1, CALM "checkpoint: {patience: 5m}\n");
    world_step(w, job, 2);
    world_shard(w, job, 0, 2, 1);
    world_pass(w, 200000);
    world_restart(w); // it remembers since when
    world_step(w, job, 4);
    world_shard(w, job, 0, 4, 1);
    assert_state(w, job, RUNNING);
    world_pass(w, 100000);
    world_step(w, job, 6);
    world_shard(w, job, 0, 6, 1);
    world_pass(w, 1000);
    assert_state(w, job, HELD);
    assert_non_null(strstr(world_event_text(w, job, "held"), "3 saves in a row failed"));
    assert_int_equal(world_living(w, job), 0);
    struct arena a;
    arena_init(&a);
    const Weft__V1__JobStatus *s = coord_status(w->c, job, &a, NULL);
    assert_true(s->in_trouble); // no person held it
    assert_non_null(strstr(s->text, "resume it when there is room"));
    arena_clear(&a);
}

static void test_a_job_that_starts_on_a_full_disk_waits_for_room(void **state)
{
    struct world *w = *state;
    struct arena a;
    arena_init(&a);
    w->storage_fails = "no space left on device";
    w->storage_full = true;
    const char *job = world_job_alone(w, 1, "restart: {backoff: [1s, 8s], hang_after: 2h}\n");
    world_pass(w, 20000);
    assert_state(w, job, QUEUED);
    int tries = world_events(w, job, "placed");
    assert_true(tries > 2 && tries < 10); // each wait is twice as long as the one before
    const Weft__V1__JobStatus *s = coord_status(w->c, job, &a, NULL);
    assert_non_null(strstr(s->text, "no space left on device"));
    assert_int_equal(s->unsaved, tries);
    assert_int_equal(world_job(w, job)->nfailures, 0);
    w->storage_fails = NULL;
    world_pass(w, 10000);
    assert_state(w, job, RUNNING);
    assert_int_equal(coord_status(w->c, job, &a, NULL)->unsaved, 0);
    arena_clear(&a);
}

// weft why has the event; status, jobs and watch have the sentence, also after a restart.
static void test_a_removed_checkpoint_folder_is_shown_everywhere(void **state)
{
    struct world *w = *state;
    struct arena a;
    arena_init(&a);
    const char *job = world_job_alone(w, 2, CALM);
    world_step(w, job, 2);
    world_save(w, job, 2);
    world_step(w, job, 4);
    world_save(w, job, 4);
    world_step(w, job, 6);
    world_shard_anew(w, job, 1, 6);
    assert_int_equal(coord_status(w->c, job, &a, NULL)->checkpoint_step, -1);
    world_shard_anew(w, job, 0, 6);
    assert_int_equal(world_events(w, job, "removed"), 1);
    assert_non_null(strstr(world_event_text(w, job, "removed"), "2 checkpoints, of steps 2 to 4"));
    world_restart(w);
    const Weft__V1__JobStatus *s = coord_jobs(w->c, false, 0, 0, &a)->jobs[0];
    assert_non_null(strstr(s->text, "2 checkpoints, of steps 2 to 4"));
    assert_int_equal(s->checkpoint_step, 6);
    const Weft__V1__CheckpointsReply *r = coord_checkpoints(w->c, job, &a, NULL);
    assert_int_equal(r->n_checkpoints, 3); // the newest first
    assert_int_equal(r->checkpoints[0]->state, COMMIT_COMMITTED);
    assert_int_equal(r->checkpoints[1]->state, COMMIT_LOST);
    assert_int_equal(r->checkpoints[2]->state, COMMIT_LOST);
    world_die(w, job, 1, 0, 9); // this fence lists all three: the directory decides
    assert_int_equal(coord_checkpoints(w->c, job, &a, NULL)->checkpoints[2]->state,
                     COMMIT_COMMITTED);
    arena_clear(&a);
}

static void test_a_save_that_ends_with_its_attempt_says_nothing_of_the_storage(void **state)
{
    struct world *w = *state;
    struct arena a;
    arena_init(&a);
    w->no_commit = true;
    const char *job = world_job_alone(w, 2, CALM);
    world_step(w, job, 2);
    world_shard(w, job, 0, 2, 0); // the other one never comes
    world_die(w, job, 1, 0, 9);
    assert_int_equal(world_events(w, job, "aborted"), 1);
    assert_int_equal(coord_status(w->c, job, &a, NULL)->unsaved, 0);
    arena_clear(&a);
}

static void test_what_a_lost_host_was_writing_is_swept_when_the_job_is_cancelled(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 1, CALM);
    world_step(w, job, 3);
    w->hosts[0].stopped = true;
    world_pass(w, 15000); // its lease is over
    assert_state(w, job, QUEUED);
    world_host(w, 1, 0);            // sees the storage, has no device
    assert_int_equal(w->tidied, 0); // the next attempt's fence would do it
    assert_true(world_act(w, WEFT__V1__VERB__CANCEL, job));
    world_pass(w, 1000);
    assert_int_equal(w->tidied, 1);
    assert_int_equal(w->tidied_attempt, 2); // what lives there has attempt 1
    assert_int_equal(world_job(w, job)->untidy, 0);
    assert_true(world_act(w, WEFT__V1__VERB__RESUME, job));
    world_host(w, 2, 1);
    assert_state(w, job, RUNNING);
    assert_int_equal(world_job(w, job)->attempt, 3);
}

static void test_a_folder_is_swept_once_somebody_is_there(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 1, CALM);
    w->hosts[0].stopped = true;
    assert_true(world_act(w, WEFT__V1__VERB__CANCEL, job));
    world_pass(w, 15000);
    assert_state(w, job, CANCELLED);
    world_restart(w);
    world_host(w, 1, 1);
    assert_int_equal(w->tidied, 1); // at once: this coordinator may not live for a minute
    world_pass(w, 61000);
    assert_int_equal(w->tidied, 1);
}

static void test_a_folder_that_no_job_may_have_is_not_swept_again_and_again(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 1, CALM);
    w->storage_fails = "path 'link' leaves the root";
    assert_true(world_act(w, WEFT__V1__VERB__CANCEL, job));
    world_pass(w, 1000);
    assert_state(w, job, CANCELLED);
    assert_int_equal(world_job(w, job)->untidy, 1);
    world_pass(w, 61000); // it may work later
    assert_int_equal(world_job(w, job)->untidy, 1);
    w->storage_config = true; // no other try can help
    world_pass(w, 61000);
    assert_int_equal(world_job(w, job)->untidy, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_a_rank_that_dies_after_a_step_is_restarted_at_once),
        CASE(test_a_folder_that_no_job_may_have_is_not_swept_again_and_again),
        CASE(test_kills_from_outside_cost_the_job_nothing_however_many),
        CASE(test_a_host_in_trouble_is_avoided_while_another_can_take_the_job),
        CASE(test_a_long_fault_of_a_job_that_waits_is_shown_in_whole_characters),
        CASE(test_a_host_is_used_again_when_its_time_is_over),
        CASE(test_devices_are_not_given_away_before_the_ranks_are_reaped),
        CASE(test_a_second_attempt_without_a_step_waits),
        CASE(test_the_wait_survives_a_restart_of_the_coordinator),
        CASE(test_a_spent_budget_holds_the_job_and_resume_gives_it_back),
        CASE(test_failures_that_are_long_ago_do_not_count),
        CASE(test_a_checkpoint_since_the_last_failure_makes_the_next_free),
        CASE(test_the_same_failure_at_the_same_step_three_times_fails_the_job),
        CASE(test_another_failure_or_step_in_between_begins_the_count_again),
        CASE(test_a_rank_that_lost_its_peer_is_never_the_cause),
        CASE(test_a_lost_peer_that_nobody_explains_costs_nothing),
        CASE(test_bad_configuration_fails_the_job),
        CASE(test_bad_data_while_training_fails_the_job),
        CASE(test_a_host_that_lacks_the_data_is_avoided_by_that_job_alone),
        CASE(test_a_host_that_lacks_the_data_takes_no_checkpoint_for_bad),
        CASE(test_a_hang_is_named_and_its_attempt_killed),
        CASE(test_a_silent_agent_is_not_a_hang),
        CASE(test_a_final_checkpoint_that_cannot_be_written_holds_the_job),
        CASE(test_a_crash_while_draining_continues_to_the_goal),
        CASE(test_all_ranks_leaving_without_the_last_checkpoint_is_no_success),
        CASE(test_ranks_that_do_not_leave_after_the_last_checkpoint_are_killed),
        CASE(test_frames_of_another_attempt_are_ignored),
        CASE(test_what_a_lost_host_was_writing_is_swept_when_the_job_is_cancelled),
        CASE(test_a_folder_is_swept_once_somebody_is_there),
        CASE(test_saves_that_fail_are_shown_with_their_time_until_one_succeeds),
        CASE(test_a_held_job_says_that_its_saves_have_failed),
        CASE(test_a_removed_checkpoint_folder_is_shown_everywhere),
        CASE(test_a_save_that_ends_with_its_attempt_says_nothing_of_the_storage),
        CASE(test_training_stops_when_saves_fail_for_longer_than_the_job_has_patience),
        CASE(test_a_job_that_starts_on_a_full_disk_waits_for_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
