// SPDX-License-Identifier: Apache-2.0
// A job's way from submit to SUCCEEDED, on one host and two, over restarts of the coordinator.
#include "common/attempt/frame.h"
#include "common/attempt/life.h"
#include "tests/unit/coord_world.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void test_a_job_goes_from_submit_to_succeeded(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 2, "");
    assert_state(w, job, RUNNING);
    assert_int_equal(world_living(w, job), 2);
    world_step(w, job, 1);
    world_finish(w, job);
    assert_state(w, job, SUCCEEDED);
    assert_int_equal(job_exit_code(world_job(w, job)), 0);
    assert_int_equal(world_job(w, job)->committed_step, 10);
    assert_int_equal(world_job(w, job)->nplaced, 0);
    assert_int_equal(world_events(w, job, "submitted"), 1);
    assert_int_equal(world_events(w, job, "placed"), 1);
    assert_int_equal(world_events(w, job, "started"), 1);
    assert_int_equal(world_events(w, job, "committed"), 1);
    assert_int_equal(world_events(w, job, "succeeded"), 1);
}

static void report_evaluation(struct world *w, const char *job, int64_t step)
{
    FRAME_BODY(report, StepReport, step_report);
    report.step = step;
    report.steps = 10;
    report.loss = 0.25;
    report.samples_per_s = 1280; // of this step, which was quick
    report.step_ms = 5;
    report.mean_ms = 10;
    report.evaluated = true;
    report.eval_loss = 0.5;
    report.eval_accuracy = 0.875;
    FRAME(f, STEP_REPORT, step_report, &report);
    world_frame(w, job, 0, &f);
}

static void report_dropped(struct world *w, const char *job, int64_t step, int64_t dropped)
{
    FRAME_BODY(report, StepReport, step_report);
    report.step = step;
    report.steps = 10;
    report.loss = (double)NAN;
    report.dropped = dropped;
    FRAME(f, STEP_REPORT, step_report, &report);
    world_frame(w, job, 0, &f);
}

// Reports may be left out, and there may be a million of them.
static void test_updates_that_were_dropped_are_in_the_history_ever_more_rarely(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 1, "");
    world_step(w, job, 1);
    report_dropped(w, job, 2, 0);
    assert_int_equal(world_events(w, job, "dropped"), 0);
    for (int dropped = 1; dropped <= 7; dropped++)
        report_dropped(w, job, 2 + dropped, dropped);
    assert_int_equal(world_events(w, job, "dropped"), 3); // 1, 2, 4
    assert_non_null(strstr(world_event_text(w, job, "dropped"),
                           "not finite: its update is dropped (4 so far)"));
    report_dropped(w, job, 9, 7);
    assert_int_equal(world_events(w, job, "dropped"), 3);
}

static void test_results_of_an_ended_job_outlive_a_restart(void **state)
{
    struct world *w = *state;
    struct arena a;
    arena_init(&a);
    const char *job = world_job_alone(w, 2, "");
    world_step(w, job, 1);
    report_evaluation(w, job, 9);
    world_save(w, job, 10);
    assert_state(w, job, SUCCEEDED);
    const char *mesh = coord_status(w->c, job, &a, NULL)->mesh;
    assert_true(mesh[0]);
    world_restart(w);
    const Weft__V1__JobStatus *s = coord_status(w->c, job, &a, NULL);
    assert_string_equal(s->mesh, mesh);
    assert_true(s->reported && s->evaluated);
    assert_true(s->loss == 0.25 && s->samples_per_s == 640);
    assert_true(s->eval_loss == 0.5 && s->eval_accuracy == 0.875);
    arena_clear(&a);
}

static void test_a_job_larger_than_one_host_spans_two(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 2);
    const char *job = world_submit(w, "wide", 4, "");
    assert_state(w, job, QUEUED);
    world_host(w, 1, 2);
    assert_state(w, job, RUNNING);
    assert_int_equal(world_host_of(w, job, 0), world_host_of(w, job, 1));
    assert_int_not_equal(world_host_of(w, job, 0), world_host_of(w, job, 2));
    world_finish(w, job);
    assert_state(w, job, SUCCEEDED);
}

static void test_no_start_goes_out_before_the_fence_has_answered(void **state)
{
    struct world *w = *state;
    w->no_fence = true;
    const char *job = world_job_alone(w, 2, "");
    world_pass(w, 5000);
    assert_state(w, job, STARTING);
    assert_int_equal(w->starts, 0);
    w->no_fence = false;
    world_detach(w, 0); // what was not answered goes out again
    world_attach(w, 0);
    assert_state(w, job, RUNNING);
}

static void test_a_fence_that_finds_a_greater_attempt_is_passed(void **state)
{
    struct world *w = *state;
    w->fences[0] = 41;
    const char *job = world_job_alone(w, 1, "");
    assert_state(w, job, RUNNING);
    assert_int_equal(world_job(w, job)->attempt, 42);
}

static void test_the_newest_good_checkpoint_is_restored(void **state)
{
    struct world *w = *state;
    w->no_fence = true;
    const char *job = world_job_alone(w, 1, "");
    for (int i = 0; i < 3; i++) {
        w->saves[i] = (struct world_save){.attempt = 1, .step = 2 * (i + 1), .bad = i == 2};
        memcpy(w->saves[i].job, job, 33);
    }
    w->nsaves = 3;
    w->fences[0] = 1;
    w->no_fence = false;
    w->restored = true; // the rows are of a time before those saves
    world_restart(w);
    world_attach(w, 0);
    assert_state(w, job, RUNNING);
    assert_string_equal(world_job(w, job)->restore, "step-00000004.a1");
    assert_int_equal(world_job(w, job)->restore_step, 4);
}

static void test_the_last_checkpoint_found_by_the_scan_ends_the_job(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 2, "");
    w->no_commit = true;
    world_finish(w, job); // the order is out, its answer is lost with the host
    assert_state(w, job, RUNNING);
    w->saves[0] = (struct world_save){.attempt = 1, .step = 10};
    memcpy(w->saves[0].job, job, 33);
    w->nsaves = 1;
    world_reborn(w, 0);
    world_pass(w, 1000);
    assert_state(w, job, SUCCEEDED);
    assert_int_equal(w->starts, 1); // nothing was started for it
    assert_int_equal(world_job(w, job)->committed_step, 10);
}

static void test_a_store_that_is_not_shared_fails_the_job_naming_the_host(void **state)
{
    struct world *w = *state;
    w->storage_fails = "the nonce of host1 is not there";
    const char *job = world_job_alone(w, 1, "");
    assert_state(w, job, FAILED);
    assert_non_null(strstr(world_job(w, job)->diagnosis, "host0"));
    assert_non_null(strstr(world_job(w, job)->diagnosis, "the nonce of host1 is not there"));
    assert_int_equal(job_exit_code(world_job(w, job)), 1);
    assert_int_equal(w->starts, 0);
}

// A host that is still busy with the fence of the attempt before answers late, and how late is not the
// job's fault: it tries again for as long as that takes, ever more rarely.
static void test_a_storage_that_answers_late_is_asked_again(void **state)
{
    struct world *w = *state;
    w->no_storage = true;
    const char *job = world_job_alone(w, 1, CALM);
    for (int i = 0; i < 60; i++)
        world_pass(w, 61000);
    assert_true(world_events(w, job, "failed") > 3);
    assert_false(job_state_ended(world_state(w, job)));
    w->no_storage = false;
    for (int i = 0; i < 20; i++)
        world_pass(w, 61000);
    assert_state(w, job, RUNNING);
}

// A row of before has the step and nothing else.
static void test_a_job_that_was_to_go_back_does_so_after_an_upgrade(void **state)
{
    struct world *w = *state;
    w->no_fence = true;
    const char *job = world_job_alone(w, 1, CALM);
    char key[80];
    snprintf(key, sizeof key, "job %s", job);
    world_restart(w);
    world_attach(w, 0);
    assert_int_equal(w->asked_back, -1);
    world_crash(w);
    struct job_record *row = w->rows[world_row(w, key)]->job;
    row->from_step = 4;
    row->goes_back = false;
    world_restart(w);
    world_attach(w, 0);
    assert_int_equal(w->asked_back, 4);
}

static void test_the_order_goes_out_when_all_shards_are_in(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 2, "");
    world_shard(w, job, 1, 4, 0);
    assert_int_equal(w->nsaves, 0);
    world_shard(w, job, 1, 4, 0); // repeated
    assert_int_equal(w->nsaves, 0);
    world_shard(w, job, 0, 4, 0);
    assert_int_equal(w->nsaves, 1);
    assert_int_equal(world_job(w, job)->committed_step, 4);
    world_shard(w, job, 0, 4, 0); // answered again, not written again
    assert_int_equal(w->nsaves, 1);
}

static void test_a_failed_shard_aborts_and_training_continues(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 2, "");
    world_shard(w, job, 0, 4, 0);
    world_shard(w, job, 1, 4, 4);
    assert_int_equal(world_events(w, job, "aborted"), 1);
    assert_non_null(strstr(world_event_text(w, job, "aborted"), "no space left"));
    assert_state(w, job, RUNNING);
    world_save(w, job, 6);
    assert_int_equal(world_job(w, job)->committed_step, 6);
}

static void test_retention_deletes_what_is_older(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    const char *job = world_submit(w, "tiny", 1, "checkpoint: {every: 1, keep: 2}\n");
    for (int64_t s = 1; s <= 5; s++)
        world_save(w, job, s);
    int left = 0;
    for (int i = 0; i < w->nsaves; i++)
        left += !w->saves[i].gone;
    assert_int_equal(left, 2);
    assert_false(w->saves[4].gone);
    assert_false(w->saves[3].gone);
}

static void test_a_coordinator_restart_restarts_nothing(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 2);
    world_host(w, 1, 2);
    const char *job = world_submit(w, "wide", 4, "restart: {hang_after: 2h}\n");
    world_step(w, job, 3);
    for (int i = 0; i < 4; i++) {
        world_restart(w);
        world_pass(w, 12000);
        assert_state(w, job, RUNNING);
    }
    assert_int_equal(w->starts, 2);
    assert_int_equal(world_job(w, job)->restarts, 0);
    world_finish(w, job);
    assert_state(w, job, SUCCEEDED);
}

static void test_a_start_that_was_not_heard_of_goes_out_again_after_a_restart(void **state)
{
    struct world *w = *state;
    w->no_start = true;
    const char *job = world_job_alone(w, 1, "");
    assert_state(w, job, STARTING);
    assert_int_equal(w->starts, 1);
    w->no_start = false;
    world_restart(w);
    assert_state(w, job, RUNNING);
    assert_int_equal(w->starts, 2);
    assert_int_equal(world_job(w, job)->attempt, 1);
}

static void test_a_restart_between_ready_and_running_finds_the_ranks(void **state)
{
    struct world *w = *state;
    w->no_ready = true;
    world_host(w, 0, 1);
    world_host(w, 1, 1);
    const char *job = world_submit(w, "wide", 2, "");
    assert_state(w, job, STARTING);
    world_restart(w); // the questions are brought
    assert_state(w, job, RUNNING);
    assert_int_equal(w->starts, 2);
}

static void test_a_restart_in_the_probe_begins_it_again(void **state)
{
    struct world *w = *state;
    w->no_storage = true;
    const char *job = world_job_alone(w, 1, "");
    char id[33];
    strcpy(id, world_job(w, job)->attempt_id);
    w->no_storage = false;
    world_restart(w);
    assert_state(w, job, RUNNING);
    assert_string_not_equal(world_job(w, job)->attempt_id, id);
}

static void test_a_restart_while_the_order_is_out_takes_the_answer(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 2, "");
    w->no_commit = true;
    world_save(w, job, 4);
    world_restart(w);
    assert_state(w, job, RUNNING);
    assert_int_equal(world_job(w, job)->committed_step, -1);
    w->no_commit = false;
    world_shard(w, job, 1, 4, 0); // the agents repeat what was not answered
    assert_int_equal(w->nsaves, 0);
    world_shard(w, job, 0, 4, 0);
    assert_int_equal(w->nsaves, 1);
    assert_int_equal(world_job(w, job)->committed_step, 4);
}

static void test_a_restart_while_draining_continues_to_the_goal(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 2, "");
    w->no_stop = true;
    assert_true(world_act(w, WEFT__V1__VERB__HOLD, job));
    assert_state(w, job, DRAINING);
    w->no_stop = false;
    world_restart(w);
    assert_state(w, job, HELD);
}

static void test_a_restart_while_recovering_continues_to_the_goal(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    world_host(w, 1, 1);
    const char *job = world_submit(w, "wide", 2, "");
    world_step(w, job, 2);
    w->hosts[1].stopped = true; // its Stop is not answered
    world_die(w, job, world_host_of(w, job, 0) == 0 ? 0 : 1, 71, 0);
    assert_state(w, job, RECOVERING);
    w->hosts[1].stopped = false;
    world_restart(w);
    assert_state(w, job, RUNNING);
    assert_int_equal(world_job(w, job)->attempt, 2);
}

static void test_barrier_answers_are_brought_back(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 2, "");
    FRAME_BODY(barrier, Barrier, barrier);
    barrier.name = frame_text("mesh");
    barrier.seq = 1;
    barrier.timeout_ns = CLOCK_S;
    FRAME(f, BARRIER, barrier, &barrier);
    world_frame(w, job, 0, &f);
    assert_int_equal(w->barriers_failed, 0);
    world_pass(w, 2000);
    assert_int_equal(w->barriers_failed, 1);
    assert_non_null(strstr(w->barrier_text, "rank 1"));
    world_restart(w);
    world_frame(w, job, 1, &f); // comes too late: the answer stands
    assert_int_equal(w->barriers_failed, 2);
    assert_int_equal(w->barriers_done, 0);
}

// What `why` says of a job's time; null: in all.
static int64_t spent_ms(struct world *w, const char *what)
{
    struct arena a;
    arena_init(&a);
    int64_t ms = 0;
    Weft__V1__WhyReply *why = coord_why(w->c, "tiny", w->now, &a, NULL);
    assert_non_null(why);
    for (size_t i = 0; i < why->n_spent; i++)
        ms += !what || !strcmp(why->spent[i]->what, what) ? why->spent[i]->ms : 0;
    arena_clear(&a);
    return ms;
}

static void test_time_is_accounted_for(void **state)
{
    struct world *w = *state;
    const char *job = world_submit(w, "tiny", 1, "");
    world_pass(w, 3000);
    world_host(w, 0, 1);
    world_step(w, job, 1);
    world_pass(w, 4000);
    assert_int_equal(spent_ms(w, "queued"), 3000);
    assert_int_equal(spent_ms(w, "running"), 4000);
}

// The save that finds the folder removed fails too: who fails next goes back to the beginning.
static void test_all_that_ran_is_lost_with_a_removed_checkpoint_folder(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 2, CALM);
    world_step(w, job, 2);
    world_pass(w, 7000);
    world_save(w, job, 2);
    world_step(w, job, 4);
    world_pass(w, 1000);
    world_shard_anew(w, job, 1, 4);
    world_shard(w, job, 0, 4, 1);
    world_die(w, job, 1, 0, 11);
    assert_int_equal(spent_ms(w, "running"), 0);
    assert_int_equal(spent_ms(w, "lost"), 8000);
    assert_int_equal(world_job(w, job)->nfailures, 1);
}

static void test_a_clock_that_is_set_changes_no_time_of_a_job(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 1, CALM);
    world_step(w, job, 1);
    world_pass(w, 2000);
    w->wall += 2401LL * 24 * 3600 * 1000;
    world_pass(w, 2000);
    world_save(w, job, 2);
    w->wall -= 4802LL * 24 * 3600 * 1000;
    world_pass(w, 2000);
    world_restart(w);
    world_pass(w, 2000);
    assert_int_equal(spent_ms(w, "running"), 8000 + 1000); // the restart takes a second
    assert_int_equal(spent_ms(w, NULL), 9000);
}

static void test_time_in_which_a_job_has_failed_or_is_cancelled_is_counted(void **state)
{
    struct world *w = *state;
    const char *job = world_submit(w, "tiny", 1, "");
    world_act(w, WEFT__V1__VERB__CANCEL, job);
    world_pass(w, 2000);
    world_act(w, WEFT__V1__VERB__RESUME, job);
    world_host(w, 0, 1);
    world_die(w, job, 0, RANK_EXIT_CONFIG, 0);
    assert_state(w, job, FAILED);
    world_pass(w, 3000);
    world_restart(w);
    assert_int_equal(spent_ms(w, "cancelled"), 2000);
    assert_int_equal(spent_ms(w, "failed"), 4000);
    assert_int_equal(spent_ms(w, NULL), 6000);
}

static void test_time_that_nobody_measured_is_called_unknown(void **state)
{
    struct world *w = *state;
    (void)world_submit(w, "tiny", 1, "");
    world_pass(w, 3000);
    world_act(w, WEFT__V1__VERB__HOLD, "tiny"); // its row is written
    world_act(w, WEFT__V1__VERB__RESUME, "tiny");
    world_crash(w);
    w->boot = "second"; // its monotonic clock begins anew
    w->now = 5 * CLOCK_S;
    w->wall += 60000;
    world_restart(w);
    int64_t away = 60000 + 2000; // crash and restart take a second each
    world_pass(w, 1000);
    assert_int_equal(spent_ms(w, "unknown"), away);
    assert_int_equal(spent_ms(w, "queued"), 3000 + 1000);
    world_restart(w);
    assert_int_equal(spent_ms(w, NULL), 3000 + away + 1000 + 1000);
}

// A fence reads the newest checkpoint, which may take long; the acts before it read and write a file.
static void test_a_fence_may_read_for_long_and_no_other_act(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    w->no_fence = true;
    const char *job = world_submit(w, "it", 1, CALM);
    for (int i = 0; i < 20; i++)
        world_pass(w, 60000);
    assert_int_equal(world_events(w, job, "failed"), 0);
    assert_state(w, job, STARTING);
    w->no_storage = true;
    world_host(w, 1, 1);
    const char *other = world_submit(w, "other", 1, CALM);
    world_pass(w, 61000);
    assert_non_null(strstr(world_event_text(w, other, "failed"), "no answer within 60 s"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_a_fence_may_read_for_long_and_no_other_act),
        CASE(test_a_job_goes_from_submit_to_succeeded),
        CASE(test_results_of_an_ended_job_outlive_a_restart),
        CASE(test_updates_that_were_dropped_are_in_the_history_ever_more_rarely),
        CASE(test_a_job_larger_than_one_host_spans_two),
        CASE(test_no_start_goes_out_before_the_fence_has_answered),
        CASE(test_a_fence_that_finds_a_greater_attempt_is_passed),
        CASE(test_the_newest_good_checkpoint_is_restored),
        CASE(test_the_last_checkpoint_found_by_the_scan_ends_the_job),
        CASE(test_a_store_that_is_not_shared_fails_the_job_naming_the_host),
        CASE(test_a_storage_that_answers_late_is_asked_again),
        CASE(test_a_job_that_was_to_go_back_does_so_after_an_upgrade),
        CASE(test_the_order_goes_out_when_all_shards_are_in),
        CASE(test_a_failed_shard_aborts_and_training_continues),
        CASE(test_retention_deletes_what_is_older),
        CASE(test_a_coordinator_restart_restarts_nothing),
        CASE(test_a_start_that_was_not_heard_of_goes_out_again_after_a_restart),
        CASE(test_a_restart_between_ready_and_running_finds_the_ranks),
        CASE(test_a_restart_in_the_probe_begins_it_again),
        CASE(test_a_restart_while_the_order_is_out_takes_the_answer),
        CASE(test_a_restart_while_draining_continues_to_the_goal),
        CASE(test_a_restart_while_recovering_continues_to_the_goal),
        CASE(test_barrier_answers_are_brought_back),
        CASE(test_time_is_accounted_for),
        CASE(test_all_that_ran_is_lost_with_a_removed_checkpoint_folder),
        CASE(test_a_clock_that_is_set_changes_no_time_of_a_job),
        CASE(test_time_in_which_a_job_has_failed_or_is_cancelled_is_counted),
        CASE(test_time_that_nobody_measured_is_called_unknown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
