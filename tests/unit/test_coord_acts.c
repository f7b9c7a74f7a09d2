// SPDX-License-Identifier: Apache-2.0
// What people may ask for, in every state; request ids; names; history.
#include "common/attempt/frame.h"
#include "common/attempt/life.h"
#include "tests/unit/coord_world.h"

#include <stdio.h>
#include <string.h>

#define VERB(name) WEFT__V1__VERB__##name

// Brings a job into a state and leaves it there: agents do not answer what would end it.
static const char *job_in(struct world *w, enum job_state state, enum job_state goal)
{
    const char *job;
    if (state == STATE(QUEUED))
        return world_submit(w, "it", 4, CALM);
    w->no_start = state == STATE(STARTING);
    job = world_submit(w, "it", 2, CALM);
    w->no_start = false;
    if (state == STATE(STARTING) || state == STATE(RUNNING))
        return job;
    world_step(w, job, 2);
    if (state == STATE(SUCCEEDED)) {
        world_finish(w, job);
    } else if (state == STATE(FAILED)) {
        world_die(w, job, 0, RANK_EXIT_CONFIG, 0);
    } else if (state == STATE(RECOVERING)) {
        w->hosts[1].stopped = true;
        world_die(w, job, world_host_of(w, job, 0) == 0 ? 0 : 1, 71, 0);
    } else if (state == STATE(DRAINING)) {
        w->no_stop = true;
        world_act(w,
                  goal == STATE(CANCELLED) ? VERB(CANCEL)
                  : goal == STATE(HELD)    ? VERB(HOLD)
                                           : VERB(PREEMPT),
                  job);
    } else {
        world_act(w, state == STATE(HELD) ? VERB(HOLD) : VERB(CANCEL), job);
    }
    return job;
}

static const struct deed {
    enum job_state state, goal;
    Weft__V1__Verb verb;
    bool ok;
    enum job_state then, then_goal;
} deeds[] = {
#define D(s, g, v, ok, t, tg)                                \
    {                                                        \
        STATE(s), STATE(g), VERB(v), ok, STATE(t), STATE(tg) \
    }
    D(QUEUED, NONE, CANCEL, true, CANCELLED, NONE),
    D(QUEUED, NONE, HOLD, true, HELD, NONE),
    D(QUEUED, NONE, PREEMPT, true, QUEUED, NONE),
    D(QUEUED, NONE, RESUME, true, QUEUED, NONE),
    D(STARTING, NONE, CANCEL, true, CANCELLED, NONE),
    D(STARTING, NONE, HOLD, true, HELD, NONE),
    D(STARTING, NONE, RESUME, true, STARTING, NONE),
    D(RUNNING, NONE, CANCEL, true, CANCELLED, NONE),
    D(RUNNING, NONE, HOLD, true, HELD, NONE),
    D(RUNNING, NONE, RESUME, true, RUNNING, NONE),
    D(DRAINING, QUEUED, HOLD, true, DRAINING, HELD),
    D(DRAINING, QUEUED, CANCEL, true, DRAINING, CANCELLED),
    D(DRAINING, QUEUED, PREEMPT, true, DRAINING, QUEUED),
    D(DRAINING, QUEUED, RESUME, false, DRAINING, QUEUED),
    D(DRAINING, HELD, CANCEL, true, DRAINING, CANCELLED),
    D(DRAINING, HELD, PREEMPT, false, DRAINING, HELD),
    D(DRAINING, HELD, RESUME, false, DRAINING, HELD),
    D(DRAINING, CANCELLED, HOLD, false, DRAINING, CANCELLED),
    D(DRAINING, CANCELLED, PREEMPT, false, DRAINING, CANCELLED),
    D(DRAINING, CANCELLED, RESUME, false, DRAINING, CANCELLED),
    D(DRAINING, CANCELLED, CANCEL, true, DRAINING, CANCELLED),
    D(RECOVERING, STARTING, CANCEL, true, RECOVERING, CANCELLED),
    D(RECOVERING, STARTING, HOLD, true, RECOVERING, HELD),
    D(RECOVERING, STARTING, PREEMPT, true, RECOVERING, QUEUED),
    D(RECOVERING, STARTING, RESUME, false, RECOVERING, STARTING),
    D(HELD, NONE, CANCEL, true, CANCELLED, NONE),
    D(HELD, NONE, HOLD, true, HELD, NONE),
    D(HELD, NONE, PREEMPT, false, HELD, NONE),
    D(HELD, NONE, RESUME, true, RUNNING, NONE),
    D(SUCCEEDED, NONE, CANCEL, false, SUCCEEDED, NONE),
    D(SUCCEEDED, NONE, HOLD, false, SUCCEEDED, NONE),
    D(SUCCEEDED, NONE, PREEMPT, false, SUCCEEDED, NONE),
    D(SUCCEEDED, NONE, RESUME, false, SUCCEEDED, NONE),
    D(FAILED, NONE, CANCEL, false, FAILED, NONE),
    D(FAILED, NONE, HOLD, false, FAILED, NONE),
    D(FAILED, NONE, PREEMPT, false, FAILED, NONE),
    D(FAILED, NONE, RESUME, true, RUNNING, NONE),
    D(CANCELLED, NONE, CANCEL, true, CANCELLED, NONE),
    D(CANCELLED, NONE, HOLD, false, CANCELLED, NONE),
    D(CANCELLED, NONE, PREEMPT, false, CANCELLED, NONE),
    D(CANCELLED, NONE, RESUME, true, RUNNING, NONE),
#undef D
};

static void test_every_verb_in_every_state(void **state)
{
    struct world *w = *state;
    for (size_t i = 0; i < sizeof deeds / sizeof *deeds; i++) {
        const struct deed *d = &deeds[i];
        world_clear(w);
        world_init(w);
        world_host(w, 0, 1);
        world_host(w, 1, 1);
        const char *job = job_in(w, d->state, d->goal);
        assert_int_equal(world_state(w, job), d->state);
        assert_int_equal(world_job(w, job)->goal, d->goal);
        if (world_act(w, d->verb, job) != d->ok || world_state(w, job) != d->then ||
            world_job(w, job)->goal != d->then_goal)
            fail_msg("row %zu: state %d, goal %d: %s", i, (int)world_state(w, job),
                     (int)world_job(w, job)->goal, w->refused);
        if (!d->ok)
            assert_int_equal(w->refused_code, 9); // FAILED_PRECONDITION
    }
}

static void test_a_preempted_job_continues_from_what_it_saved(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    const char *job = world_submit(w, "it", 1, CALM);
    world_step(w, job, 4);
    world_save(w, job, 4);
    assert_true(world_act(w, VERB(PREEMPT), job));
    assert_state(w, job, RUNNING); // nobody else waits
    assert_int_equal(world_job(w, job)->attempt, 2);
    assert_int_equal(world_job(w, job)->restore_step, 4);
    assert_int_equal(world_job(w, job)->nfailures, 0);
}

static void test_a_job_that_ends_while_draining_has_succeeded(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    const char *job = world_submit(w, "it", 1, CALM);
    w->no_stop = true;
    assert_true(world_act(w, VERB(HOLD), job));
    world_finish(w, job);
    w->no_stop = false;
    world_pass(w, 80000);
    assert_state(w, job, SUCCEEDED);
}

static void test_a_job_that_was_cancelled_before_its_fence_ends_at_once(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    w->no_fence = true;
    const char *job = world_submit(w, "it", 1, CALM);
    assert_state(w, job, STARTING);
    assert_true(world_act(w, VERB(CANCEL), job));
    assert_state(w, job, CANCELLED);
    assert_int_equal(w->starts, 0);
}

static void test_a_repeated_submit_gets_the_first_answer(void **state)
{
    struct world *w = *state;
    char first[33];
    strcpy(first, world_submit_as(w, "r-1", "it", 1, ""));
    assert_string_equal(world_submit_as(w, "r-1", "it", 1, ""), first);
    world_restart(w);
    assert_string_equal(world_submit_as(w, "r-1", "it", 1, ""), first);
    assert_string_not_equal(world_submit_as(w, "r-2", "it", 1, ""), first);
    w->threads_why = "it was begun with as many"; // as a run's second try says
    assert_string_equal(world_submit_as(w, "r-1", "it", 1, ""), first);
    assert_string_equal(world_submit_as(w, "r-1", "other", 1, ""), "");
    assert_non_null(strstr(w->refused, "another call"));
    assert_string_equal(world_submit_as(w, "", "it", 1, ""), "");
}

static void test_answers_are_kept_for_a_day(void **state)
{
    struct world *w = *state;
    char first[33];
    strcpy(first, world_submit_as(w, "r-1", "it", 1, ""));
    w->now += 23 * 3600 * CLOCK_S;
    w->wall += 23LL * 3600 * 1000;
    world_pass(w, 200);
    assert_string_equal(world_submit_as(w, "r-1", "it", 1, ""), first);
    w->now += 2 * 3600 * CLOCK_S;
    w->wall += 2LL * 3600 * 1000;
    world_pass(w, 200);
    assert_string_not_equal(world_submit_as(w, "r-1", "it", 1, ""), first);
}

static void test_a_job_whose_paths_leave_every_workers_roots_is_refused(void **state)
{
    struct world *w = *state;
    w->hosts[0].data_root = "/data";
    w->hosts[0].checkpoint_root = "/ckpt";
    world_host(w, 0, 1);
    assert_string_equal(world_submit(w, "out", 1, CALM "checkpoint: {dir: a/../../b}\n"), "");
    assert_int_equal(w->refused_code, 3); // INVALID_ARGUMENT
    assert_non_null(strstr(w->refused, "checkpoint.dir: a/../../b leaves the --checkpoint-root"));
    assert_string_equal(world_submit(w, "away", 1, CALM "checkpoint: {dir: /elsewhere}\n"), "");
    assert_non_null(strstr(w->refused, "of one it is /ckpt"));
    assert_string_not_equal(world_submit(w, "in", 1, CALM "checkpoint: {dir: a/../b}\n"), "");
    assert_string_not_equal(world_submit(w, "beneath", 1, CALM "checkpoint: {dir: /ckpt/b}\n"), "");
    world_host(w, 1, 1); // without roots: it takes any path
    assert_string_not_equal(world_submit(w, "there", 1, CALM "checkpoint: {dir: /elsewhere}\n"),
                            "");
}

static void test_a_job_of_more_ranks_than_an_attempt_has_is_refused(void **state)
{
    struct world *w = *state;
    assert_string_equal(world_submit(w, "it", RANK_MAX + 1, ""), "");
    assert_non_null(
        strstr(w->refused, "resources.devices: is 1025: a job runs on at most 1024 devices"));
    const char *most = world_submit(w, "it", RANK_MAX, "");
    world_restart(w); // what was taken is read again
    assert_state(w, most, QUEUED);
}

// What the planner has compared is the text that the job had when it was asked.
static void test_a_job_continues_only_from_the_text_that_was_compared(void **state)
{
    struct world *w = *state;
    const char *job = world_submit(w, "it", 1, CALM);
    NEW(SubmitRequest, submit_request, q);
    struct coord_event ev = {.kind = COORD_EV_SUBMIT, .call = 900, .who = "ann", .submit = &q};
    char text[400], before[10000], request[8] = "again-0";
    snprintf(text, sizeof text,
             "name: it\nmodel: {program: mlp, inputs: 4, hidden: [8], classes: 3}\nmesh: {dp: 1}\n"
             "data: {train: {images: x, labels: l}, batch: 12}\ntrain: {steps: 20}\n");
    q.request_id = request;
    q.resolved = text;
    q.continues = frame_text(job);
    world_event(w, &ev);
    assert_non_null(strstr(w->refused, "it has not ended: `weft hold` it first"));
    assert_int_equal(w->refused_code, 10); // ABORTED: `weft run` holds it again
    assert_true(world_act(w, WEFT__V1__VERB__HOLD, job));
    request[6] = '1';
    world_event(w, &ev); // it was compared with nothing
    assert_non_null(strstr(w->refused, "its text was changed meanwhile: submit this one again"));
    assert_int_equal(w->refused_code, 10);
    request[6] = '2';
    w->before = before;
    snprintf(before, sizeof before, "%s", world_job(w, job)->resolved);
    world_event(w, &ev);
    assert_state(w, job, QUEUED);
    assert_int_equal(world_job(w, job)->steps, 20);
    assert_non_null(strstr(world_event_text(w, job, "changed"), "train.steps from 10 to 20"));
    assert_true(world_act(w, WEFT__V1__VERB__HOLD, job));
    request[6] = '3';
    text[strcspn(text, "8")] = '9';
    world_event(w, &ev); // compared with the text before the last
    assert_non_null(strstr(w->refused, "its text was changed meanwhile"));
    request[6] = '4';
    snprintf(before, sizeof before, "%s", world_job(w, job)->resolved);
    world_event(w, &ev);
    assert_non_null(
        strstr(w->refused, "it would be another training, which differs in model.hidden"));
    assert_int_equal(w->refused_code, 9); // FAILED_PRECONDITION
}

// Up to 4096 ranks were taken once; no attempt of such a job has ever begun.
static void test_a_row_of_more_ranks_from_an_earlier_version_is_read(void **state)
{
    struct world *w = *state;
    const char *job = world_submit(w, "it", RANK_MAX, "");
    for (int i = 0; i < w->nrows; i++)
        if (w->rows[i]->row.kind == ROW_JOB)
            w->rows[i]->job->ranks = 4096;
    world_restart(w);
    assert_state(w, job, QUEUED);
}

// Neither a submit nor a cancel nor a restart writes more for it where twice as many jobs wait.
static void test_what_an_act_writes_does_not_grow_with_the_jobs_that_wait(void **state)
{
    struct world *w = *state;
    long submits[2], cancels[2], restarts[2];
    for (int i = 0; i < 2; i++) {
        for (int n = 0; n < 100; n++)
            (void)world_submit(w, "waits", 4, "");
        long before = w->written;
        char job[33];
        snprintf(job, sizeof job, "%s", world_submit(w, "mine", 4, ""));
        submits[i] = w->written - before;
        before = w->written;
        assert_true(world_act(w, WEFT__V1__VERB__CANCEL, job));
        cancels[i] = w->written - before;
        before = w->written;
        world_restart(w);
        restarts[i] = w->written - before;
    }
    assert_true(submits[0] > 0 && cancels[0] > 0);
    assert_int_equal(submits[0], submits[1]);
    assert_int_equal(cancels[0], cancels[1]);
    assert_int_equal(restarts[0], restarts[1]);
}

static void test_a_target_is_an_id_its_start_or_the_newest_of_a_name(void **state)
{
    struct world *w = *state;
    struct arena a;
    struct err e = {0};
    char start[9];
    const char *old = world_submit(w, "it", 1, "");
    const char *new = world_submit(w, "it", 1, "");
    arena_init(&a);
    assert_string_equal(coord_status(w->c, "it", &a, &e)->job, new);
    snprintf(start, sizeof start, "%s", old);
    assert_string_equal(coord_status(w->c, start, &a, &e)->job, old);
    assert_string_equal(coord_status(w->c, old, &a, &e)->job, old);
    assert_null(coord_status(w->c, "no-such", &a, &e));
    assert_int_equal(e.code, ERR_NOTFOUND);
    arena_clear(&a);
    assert_false(world_act(w, VERB(CANCEL), "no-such"));
    assert_int_equal(w->refused_code, 5); // NOT_FOUND
}

static void test_old_events_make_room(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    const char *job = world_submit(w, "it", 1, CALM);
    for (int i = 0; i < 150; i++)
        assert_true(world_act(w, VERB(PREEMPT), job)); // several events each
    assert_true(world_job(w, job)->events > 600);
    int n = 0;
    for (int i = 0; i < w->nrows; i++)
        n += w->rows[i]->row.kind == ROW_EVENT;
    assert_int_equal(n, 500);
}

// Who asks for many things in a day fills nothing.
static void test_of_many_answers_the_newest_are_kept(void **state)
{
    struct world *w = *state;
    const char *job = world_submit(w, "it", 1, "");
    for (int i = 0; i < 400; i++)
        assert_true(world_act(w, i % 2 ? VERB(RESUME) : VERB(HOLD), job));
    world_pass(w, 61000);
    int n = 0;
    for (int i = 0; i < w->nrows; i++)
        n += w->rows[i]->row.kind == ROW_REQUEST;
    assert_int_equal(n, 300);
}

static void test_an_ended_job_is_forgotten_in_the_end(void **state)
{
    struct world *w = *state;
    const char *job = world_submit(w, "it", 1, "");
    assert_true(world_act(w, VERB(CANCEL), job));
    w->now += 31LL * 24 * 3600 * CLOCK_S;
    w->wall += 31LL * 24 * 3600 * 1000;
    world_pass(w, 200);
    for (int i = 0; i < w->nrows; i++) {
        assert_int_not_equal(w->rows[i]->row.kind, ROW_JOB);
        assert_int_not_equal(w->rows[i]->row.kind, ROW_EVENT);
    }
}

// A world's coordinator keeps six ended jobs of a user.
static void test_of_a_user_s_many_ended_jobs_the_newest_are_kept(void **state)
{
    struct world *w = *state;
    char job[9][40];
    w->user = "bob";
    const char *bobs = world_submit(w, "bobs", 1, "");
    assert_true(world_act(w, VERB(CANCEL), bobs));
    w->user = NULL;
    for (int i = 0; i < 9; i++) {
        snprintf(job[i], sizeof job[i], "job %s", world_submit(w, "it", 1, ""));
        if (i != 1)
            assert_true(world_act(w, VERB(CANCEL), job[i] + strlen("job ")));
    }
    world_pass(w, 2000); // it is looked every minute
    assert_true(world_row(w, job[0]) >= 0);
    world_pass(w, 60000);
    assert_state(w, bobs, CANCELLED);
    for (int i = 0; i < 9; i++)
        if ((world_row(w, job[i]) >= 0) != (i == 1 || i >= 3)) // the second waits
            fail_msg("job %d is %s", i, world_row(w, job[i]) >= 0 ? "kept" : "gone");
    world_restart(w);
    assert_state(w, job[8] + strlen("job "), CANCELLED);
}

static void test_every_mutating_call_is_audited(void **state)
{
    struct world *w = *state;
    const char *job = world_submit(w, "it", 1, "");
    world_act(w, VERB(HOLD), job);
    world_act(w, VERB(PREEMPT), job); // refused
    int n = 0, refused = 0;
    for (int i = 0; i < w->nrows; i++) {
        if (w->rows[i]->row.kind != ROW_AUDIT)
            continue;
        n++;
        assert_string_equal(w->rows[i]->audit->who, "ann");
        refused += strcmp(w->rows[i]->audit->result, "ok") != 0;
    }
    assert_int_equal(n, 3);
    assert_int_equal(refused, 1);
}

static bool is_forgotten(struct world *w, const char *job)
{
    char key[60];
    snprintf(key, sizeof key, "job %s", job);
    return world_row(w, key) < 0;
}

static void test_a_folder_that_no_worker_sees_is_no_deletion(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 1, CALM);
    world_host(w, 1, 0);
    world_host(w, 2, 0);
    assert_true(world_act(w, VERB(CANCEL), job));
    world_pass(w, 1000);
    for (int h = 0; h < 3; h++)
        w->hosts[h].unmounted = true;
    assert_true(world_act(w, VERB(DELETE), job));
    assert_int_equal(w->deletions, 3); // each was asked
    assert_non_null(strstr(world_event_text(w, job, "deleted"), "no worker that is here sees"));
    assert_true(world_job(w, job)->deleting);
    assert_false(world_act(w, VERB(RESUME), job));
    w->hosts[2].unmounted = false; // it is found by the one that sees it, without anybody's asking
    world_pass(w, 130000);
    assert_true(is_forgotten(w, job));
}

static void test_what_no_worker_sees_is_forgotten_when_a_person_says_so_again(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 1, CALM);
    assert_true(world_act(w, VERB(CANCEL), job));
    world_pass(w, 1000);
    w->hosts[0].unmounted = true;
    assert_true(world_act(w, VERB(DELETE), job));
    world_pass(w, 61000);
    world_pass(w, 61000);
    assert_int_equal(world_events(w, job, "deleted"), 2); // the wish, and once that it is nowhere
    assert_true(world_act(w, VERB(DELETE), job));
    assert_true(is_forgotten(w, job));
}

static void test_a_job_whose_files_are_still_there_is_not_forgotten_with_the_old(void **state)
{
    struct world *w = *state;
    char job[40];
    snprintf(job, sizeof job, "%s", world_job_alone(w, 1, CALM));
    assert_true(world_act(w, VERB(CANCEL), job));
    world_pass(w, 1000);
    w->hosts[0].unmounted = true;
    assert_true(world_act(w, VERB(DELETE), job));
    for (int i = 0; i < 8; i++) // more than are kept of a user
        assert_true(world_act(w, VERB(CANCEL), world_submit(w, "it", 9, "")));
    world_pass(w, 61000);
    assert_false(is_forgotten(w, job));
    w->now += 31LL * 24 * 3600 * CLOCK_S;
    w->wall += 31LL * 24 * 3600 * 1000;
    world_pass(w, 61000);
    assert_true(world_job(w, job)->deleting);
    world_host(w, 1, 0); // the storage is seen again
    world_pass(w, 61000);
    assert_true(is_forgotten(w, job));
}

#define FROM(of) CALM "checkpoint: {from: " of "}\n"

static void test_where_a_job_begins_is_named_once_when_it_is_submitted(void **state)
{
    struct world *w = *state;
    char base[33], want[100];
    const char *newer;
    w->source = "/ckpt/it/step-00000002.a1";
    w->source_step = 2;
    world_host(w, 0, 4);
    assert_string_equal("", world_submit(w, "it", 1, FROM("it"))); // not itself
    snprintf(base, sizeof base, "%s", world_submit(w, "it", 1, CALM));
    assert_state(w, base, RUNNING);
    const char *job = world_submit(w, "it", 5, FROM("it@2")); // more than there are: it waits
    snprintf(want, sizeof want, "%s@2", base);
    assert_string_equal(world_job(w, job)->source, want);
    char waits[33];
    snprintf(waits, sizeof waits, "%s", job);
    newer = world_submit(w, "it", 5, CALM);
    assert_string_equal("", world_submit(w, "new", 1, FROM("it"))); // the newest has not begun
    assert_non_null(strstr(w->refused, "has no checkpoints yet"));
    assert_true(world_act(w, VERB(CANCEL), newer));
    assert_true(world_act(w, VERB(CANCEL), base));
    world_pass(w, 1000);
    assert_false(world_act(w, VERB(DELETE), base));
    assert_non_null(strstr(w->refused, "is to begin with a checkpoint of it"));
    world_host(w, 1, 4);
    world_pass(w, 1000);
    assert_state(w, waits, RUNNING);
    assert_string_equal(w->asked_source, "/ckpt/it 2");
}

static void test_a_source_that_still_runs_is_spoken_of(void **state)
{
    struct world *w = *state;
    w->source = "/ckpt/it/step-00000002.a1";
    w->source_step = 2;
    world_host(w, 0, 1);
    world_submit(w, "it", 1, CALM);
    assert_string_not_equal("", world_submit(w, "tuned", 1, FROM("it@2")));
    assert_string_equal(w->notice, "");
    assert_string_not_equal("", world_submit(w, "tuned2", 1, FROM("it")));
    assert_non_null(strstr(w->notice, "begins with what is its newest checkpoint then"));
}

static void test_a_host_that_lies_about_the_source_fails_the_fence(void **state)
{
    static const struct {
        const char *source;
        int64_t step;
        const char *from;
    } lies[] = {
        {NULL, 0, FROM("./base")},
        {"/base/step-00000002.a1", -5, FROM("./base")},
        {"/base/step-00000002.a1", 3, FROM("./base")},
        {"/base/step-00000003.a1", 3, FROM("./base@2")},
        {"/base/latest", 2, FROM("./base")},
    };
    struct world *w = *state;
    world_host(w, 0, 4);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        char name[20];
        snprintf(name, sizeof name, "lie%zu", i);
        w->source = lies[i].source;
        w->source_step = lies[i].step;
        const char *job = world_submit(w, name, 1, lies[i].from);
        assert_state(w, job, FAILED);
    }
    w->source = "/base/step-00000002.a1";
    w->source_step = 2;
    assert_state(w, world_submit(w, "true", 1, FROM("./base@2")), RUNNING);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_a_folder_that_no_worker_sees_is_no_deletion),
        CASE(test_what_no_worker_sees_is_forgotten_when_a_person_says_so_again),
        CASE(test_a_job_whose_files_are_still_there_is_not_forgotten_with_the_old),
        CASE(test_where_a_job_begins_is_named_once_when_it_is_submitted),
        CASE(test_a_source_that_still_runs_is_spoken_of),
        CASE(test_a_host_that_lies_about_the_source_fails_the_fence),
        CASE(test_every_verb_in_every_state),
        CASE(test_a_preempted_job_continues_from_what_it_saved),
        CASE(test_a_job_that_ends_while_draining_has_succeeded),
        CASE(test_a_job_that_was_cancelled_before_its_fence_ends_at_once),
        CASE(test_a_repeated_submit_gets_the_first_answer),
        CASE(test_answers_are_kept_for_a_day),
        CASE(test_a_job_whose_paths_leave_every_workers_roots_is_refused),
        CASE(test_a_job_of_more_ranks_than_an_attempt_has_is_refused),
        CASE(test_a_job_continues_only_from_the_text_that_was_compared),
        CASE(test_a_row_of_more_ranks_from_an_earlier_version_is_read),
        CASE(test_what_an_act_writes_does_not_grow_with_the_jobs_that_wait),
        CASE(test_a_target_is_an_id_its_start_or_the_newest_of_a_name),
        CASE(test_old_events_make_room),
        CASE(test_of_many_answers_the_newest_are_kept),
        CASE(test_an_ended_job_is_forgotten_in_the_end),
        CASE(test_of_a_user_s_many_ended_jobs_the_newest_are_kept),
        CASE(test_every_mutating_call_is_audited),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
