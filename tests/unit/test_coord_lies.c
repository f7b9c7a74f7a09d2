// SPDX-License-Identifier: Apache-2.0
// Workers and ranks that say what cannot be: the coordinator lives, and what it knows stays right.
#include "common/attempt/board.h"
#include "common/attempt/frame.h"
#include "common/attempt/life.h"
#include "tests/unit/coord_world.h"

#include <stdio.h>
#include <string.h>

static const struct host *host_row(const struct world *w, int host)
{
    char key[80];
    snprintf(key, sizeof key, "host %s", w->hosts[host].id);
    return w->rows[world_row(w, key)]->host;
}

// The fence's answer for a job that waits for it.
static void answer_fence(struct world *w, const char *job, Weft__V1__StorageDone *d)
{
    const struct job_record *row = world_job(w, job);
    d->op = WEFT__V1__STORAGE_OP__STORAGE_FENCE;
    d->job = frame_text(row->id);
    d->attempt = row->attempt;
    d->attempt_id = frame_text(row->attempt_id);
    UP(up, STORAGE, storage, d);
    world_up(w, 0, &up);
}

// Whoever stands in for a host of the job may list anything; so may whoever can write to the folder.
static void test_a_checkpoint_that_was_never_decided_is_not_believed(void **state)
{
    struct world *w = *state;
    Weft__V1__Checkpoint row, *list[] = {&row};
    NEW(StorageDone, storage_done, d);
    world_host(w, 0, 1);
    w->no_fence = true;
    const char *job = world_submit(w, "tiny", 1, CALM);
    weft__v1__checkpoint__init(&row);
    row.attempt = 1;
    row.step = world_job(w, job)->steps; // nothing would be left to do
    d.ok = true;
    d.store = frame_text("/ckpt/tiny");
    d.committed = list;
    d.n_committed = 1;
    answer_fence(w, job, &d);
    assert_state(w, job, RUNNING);
    assert_int_equal(world_job(w, job)->committed_step, -1);
    assert_string_equal(world_job(w, job)->restore, "");
    assert_non_null(
        strstr(world_event_text(w, job, "unused"), "this coordinator never decided it"));
    assert_non_null(strstr(world_event_text(w, job, "unused"), "--restored"));
}

static void test_a_list_of_checkpoints_with_nonsense_in_it_is_sorted_out(void **state)
{
    static const struct {
        uint64_t attempt;
        int64_t step;
    } told[] = {{1, 4}, {3, -1}, {1, 4}, {UINT64_MAX, 2}, {1, 2}, {1, 4}};
    enum { TOLD = sizeof told / sizeof *told };
    struct world *w = *state;
    Weft__V1__Checkpoint rows[TOLD], *list[TOLD];
    NEW(StorageDone, storage_done, d);
    world_host(w, 0, 1);
    w->no_fence = w->restored = true;
    const char *job = world_submit(w, "tiny", 1, CALM);
    world_restart(w); // the rows are of a time before those saves
    for (int i = 0; i < TOLD; i++) {
        weft__v1__checkpoint__init(&rows[i]);
        rows[i].attempt = told[i].attempt;
        rows[i].step = told[i].step;
        list[i] = &rows[i];
    }
    d.ok = true;
    d.store = frame_text("/ckpt/tiny");
    d.committed = list;
    d.n_committed = TOLD;
    answer_fence(w, job, &d);
    assert_state(w, job, RUNNING);
    assert_int_equal(world_job(w, job)->committed_step, 4);
    assert_string_equal(world_job(w, job)->restore, "step-00000004.a1");
    assert_int_equal(world_events(w, job, "unused"), 2); // and nobody needs to wonder
    world_restart(w);                                    // and its rows are read again
    assert_state(w, job, RUNNING);
}

static void test_an_attempt_that_no_folder_can_hold_fails_the_job_that_found_it(void **state)
{
    struct world *w = *state;
    NEW(StorageDone, storage_done, d);
    world_host(w, 0, 1);
    w->no_fence = true;
    const char *job = world_submit(w, "tiny", 1, CALM);
    d.greatest = UINT64_MAX;
    answer_fence(w, job, &d);
    assert_state(w, job, FAILED);
    assert_int_equal(world_job(w, job)->attempt, 1);
    assert_non_null(strstr(world_job(w, job)->diagnosis, "18446744073709551615"));
}

static void test_checkpoints_that_are_not_used_are_reported_with_why(void **state)
{
    struct world *w = *state;
    NEW(StorageDone, storage_done, d);
    char *unused[] = {frame_text("step-00000020.a100000000000000000")};
    Weft__V1__Checkpoint bad, *list[] = {&bad};
    weft__v1__checkpoint__init(&bad);
    world_host(w, 0, 1);
    w->no_fence = true;
    const char *job = world_submit(w, "tiny", 1, CALM);
    bad.attempt = 1;
    bad.step = 8;
    bad.bad = true;
    bad.why = frame_text("shard-00001: digest differs");
    d.ok = true;
    d.store = frame_text("/ckpt/tiny");
    d.committed = list;
    d.unused = unused;
    d.n_unused = 1;
    d.n_committed = 1;
    answer_fence(w, job, &d);
    assert_int_equal(world_events(w, job, "unused"), 2);
    assert_non_null(strstr(world_event_text(w, job, "unused"), "step-00000020.a1000000000"));
}

// A greater attempt is the folder's to tell: the fence of the next attempt finds it, or the next save.
static void test_a_greater_attempt_is_not_learnt_from_a_host(void **state)
{
    static const uint64_t told[] = {2, 7, ATTEMPT_MAX, UINT64_MAX};
    struct world *w = *state;
    const char *job = world_job_alone(w, 1, CALM);
    world_step(w, job, 3);
    for (size_t i = 0; i < sizeof told / sizeof *told; i++) {
        struct world_attempt *at = &w->hosts[1].attempts[0]; // of a host that never had the job
        *at = (struct world_attempt){.used = true, .number = told[i], .nranks = 1};
        strcpy(at->job, job);
        at->ranks[0].alive = true;
        world_host(w, 1, 1);
        assert_false(at->used); // it is stopped and forgotten
        world_detach(w, 1);
    }
    assert_state(w, job, RUNNING);
    assert_int_equal(world_job(w, job)->attempt, 1);
    assert_int_equal(world_events(w, job, "lost"), 0);
    world_act(w, WEFT__V1__VERB__HOLD, job);
    world_act(w, WEFT__V1__VERB__RESUME, job);
    assert_int_equal(world_job(w, job)->attempt, 2);
}

static void test_what_is_said_of_ranks_before_the_first_start_is_of_another_attempt(void **state)
{
    struct world *w = *state;
    Weft__Rank__Progress page, *pages[] = {&page};
    NEW(Progresses, progresses, p);
    NEW(RankEnd, rank_end, end);
    world_host(w, 0, 1);
    weft__rank__progress__init(&page);
    w->no_storage = true;
    const char *job = world_submit(w, "tiny", 1, CALM);
    p.job = end.job = frame_text(job);
    p.attempt = end.attempt = 1;
    p.n_ranks = 1;
    p.ranks = pages;
    page.state = RANK_RUNNING;
    page.step = 7;
    UP(told, PROGRESS, progress, &p);
    world_up(w, 0, &told);
    end.code = 137;
    end.signal = 9;
    UP(ended, RANK_END, rank_end, &end);
    world_up(w, 0, &ended);
    assert_state(w, job, STARTING);
    assert_int_equal(world_job(w, job)->nfailures, 0);
    w->no_storage = false;
    world_detach(w, 0);
    world_attach(w, 0); // asked again
    assert_state(w, job, RUNNING);
    assert_int_equal(world_job(w, job)->attempt, 1);
}

static void test_steps_beyond_the_last_are_not_believed(void **state)
{
    struct world *w = *state;
    struct arena a;
    struct err e = {0};
    static const int64_t steps[] = {INT64_MAX, INT64_MIN, 11, -3};
    const char *job = world_job_alone(w, 1, CALM);
    world_step(w, job, 2);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        FRAME_BODY(report, StepReport, step_report);
        report.step = steps[i];
        FRAME(f, STEP_REPORT, step_report, &report);
        world_frame(w, job, 0, &f);
        world_page(w, job, 0, steps[i], RANK_RUNNING, 1);
    }
    arena_init(&a);
    assert_int_equal(coord_status(w->c, job, &a, &e)->step, 2);
    arena_clear(&a);
    world_step(w, job, 3);
    world_finish(w, job);
    assert_state(w, job, SUCCEEDED);
}

static void test_barriers_without_end_are_refused_and_forgotten(void **state)
{
    struct world *w = *state;
    char name[BOARD_KEY_MAX + 1];
    const char *job = world_job_alone(w, 2, CALM);
    FRAME_BODY(b, Barrier, barrier);
    FRAME(f, BARRIER, barrier, &b);
    b.name = name;
    b.timeout_ns = INT64_MAX;
    for (int i = 0; i <= BOARD_BARRIERS_MAX; i++) {
        snprintf(name, sizeof name, "b%d", i);
        world_frame(w, job, 0, &f);
    }
    assert_int_equal(w->barriers_failed, 1); // the one too many
    memset(name, 'x', BOARD_KEY_MAX);
    name[BOARD_KEY_MAX] = 0;
    world_frame(w, job, 0, &f);
    assert_int_equal(w->barriers_failed, 2);
    snprintf(name, sizeof name, "b%d", 0);
    world_frame(w, job, 1, &f); // both have come
    assert_int_equal(w->barriers_done, 2);
    snprintf(name, sizeof name, "another"); // takes the place of the one that is done
    world_frame(w, job, 0, &f);
    assert_int_equal(w->barriers_failed, 2);
    assert_state(w, job, RUNNING);
}

static void test_a_host_that_breaks_the_rules_is_away_at_once(void **state)
{
    struct world *w = *state;
    struct arena a;
    world_host(w, 0, 1);
    NEW(Register, register, again);
    again.host = w->hosts[0].id;
    UP(up, REGISTER, register_, &again);
    world_up(w, 0, &up); // without a new challenge
    assert_string_not_equal(w->dropped, "");
    arena_init(&a);
    assert_string_equal(coord_workers(w->c, w->now, &a)->workers[0]->state, "away");
    arena_clear(&a);
    const char *job = world_submit(w, "tiny", 1, CALM);
    assert_state(w, job, QUEUED);
    world_attach(w, 0);
    assert_state(w, job, RUNNING);
}

static void test_names_that_are_none_are_not_registered(void **state)
{
    struct world *w = *state;
    struct arena a;
    world_host(w, 0, 1);
    snprintf(w->hosts[1].id, sizeof w->hosts[1].id, "../../../../../../../etc/passwd1");
    strcpy(w->hosts[1].incarnation, "000000000000000000000000000000ff");
    world_attach(w, 1);
    assert_string_equal(w->dropped, "that is no greeting of a worker");
    snprintf(w->hosts[1].id, sizeof w->hosts[1].id, "%032x", 1);
    strcpy(w->hosts[1].name, "\033[2Jhost");
    world_attach(w, 1);
    assert_non_null(strstr(w->dropped, "a text of the registration"));
    arena_init(&a);
    assert_int_equal(coord_workers(w->c, w->now, &a)->n_workers, 1);
    arena_clear(&a);
}

static const char *name_of(struct world *w, int host)
{
    static char name[80];
    struct arena a;
    arena_init(&a);
    const Weft__V1__WorkersReply *r = coord_workers(w->c, w->now, &a);
    name[0] = 0;
    for (size_t i = 0; i < r->n_workers; i++)
        if (!strcmp(r->workers[i]->host, w->hosts[host].id))
            snprintf(name, sizeof name, "%s", r->workers[i]->name);
    arena_clear(&a);
    return name;
}

static void register_as(struct world *w, int host, const char *name)
{
    world_host(w, host, 1);
    world_detach(w, host);
    strcpy(w->hosts[host].name, name);
    world_attach(w, host);
}

static void test_a_name_that_a_host_has_is_not_taken_from_it(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    register_as(w, 1, "host0");
    register_as(w, 2, "host0");
    assert_string_equal(name_of(w, 0), "host0");
    assert_string_not_equal(name_of(w, 1), "host0");
    char second[80];
    strcpy(second, name_of(w, 1));
    assert_string_not_equal(name_of(w, 2), second);
    assert_true(world_act(w, WEFT__V1__VERB__DRAIN, "host0")); // it is clear whom that means
    assert_int_equal(host_row(w, 0)->draining, 1);
    assert_int_equal(host_row(w, 1)->draining, 0);
    world_restart(w); // whoever comes back first
    assert_string_equal(name_of(w, 0), "host0");
}

static void test_a_certificate_that_says_the_name_gets_it_back_from_whoever_came_first(void **state)
{
    struct world *w = *state;
    w->hosts[1].certificate = "mallory";
    register_as(w, 1, "host0"); // before host0 is up
    assert_string_equal(name_of(w, 1), "host0");
    w->hosts[0].certificate = "host0";
    world_host(w, 0, 1);
    assert_string_equal(name_of(w, 0), "host0");
    assert_string_not_equal(name_of(w, 1), "host0");
    world_detach(w, 1);
    world_attach(w, 1);
    assert_string_equal(name_of(w, 0), "host0");
}

static void test_the_last_lines_of_an_event_are_bounded(void **state)
{
    enum { LONG = 1 << 20 };
    static char lines[LONG];
    struct world *w = *state;
    NEW(RankEnd, rank_end, end);
    const char *job = world_job_alone(w, 1, CALM);
    memset(lines, 'x', LONG - 1);
    end.job = frame_text(job);
    end.attempt = 1;
    end.code = RANK_EXIT_CONFIG;
    end.log = lines;
    UP(up, RANK_END, rank_end, &end);
    world_up(w, 0, &up);
    assert_state(w, job, FAILED);
    for (int i = 0; i < w->nrows; i++)
        if (w->rows[i]->row.kind == ROW_EVENT)
            assert_true(strlen(w->rows[i]->event->text) < LONG / 8);
}

static void test_what_a_rank_says_last_does_not_steer_a_terminal(void **state)
{
    struct world *w = *state;
    struct arena a;
    struct err e = {0};
    const char *job = world_job_alone(w, 1, CALM);
    world_die_saying(w, job, 0, RANK_EXIT_CONFIG, "no \033]0;title\a, \xc2\x9b caf\xc3\xa9 \xff");
    assert_state(w, job, FAILED);
    arena_init(&a);
    const char *text = coord_status(w->c, job, &a, &e)->text;
    assert_non_null(strstr(text, "no ?]0;title?, ?? caf\xc3\xa9 ?"));
    assert_non_null(strstr(world_event_text(w, job, "failed"), "no ?]0;title?, ?? caf\xc3\xa9 ?"));
    arena_clear(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_a_list_of_checkpoints_with_nonsense_in_it_is_sorted_out),
        CASE(test_a_checkpoint_that_was_never_decided_is_not_believed),
        CASE(test_an_attempt_that_no_folder_can_hold_fails_the_job_that_found_it),
        CASE(test_checkpoints_that_are_not_used_are_reported_with_why),
        CASE(test_a_greater_attempt_is_not_learnt_from_a_host),
        CASE(test_what_is_said_of_ranks_before_the_first_start_is_of_another_attempt),
        CASE(test_steps_beyond_the_last_are_not_believed),
        CASE(test_barriers_without_end_are_refused_and_forgotten),
        CASE(test_a_host_that_breaks_the_rules_is_away_at_once),
        CASE(test_names_that_are_none_are_not_registered),
        CASE(test_a_name_that_a_host_has_is_not_taken_from_it),
        CASE(test_a_certificate_that_says_the_name_gets_it_back_from_whoever_came_first),
        CASE(test_the_last_lines_of_an_event_are_bounded),
        CASE(test_what_a_rank_says_last_does_not_steer_a_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
