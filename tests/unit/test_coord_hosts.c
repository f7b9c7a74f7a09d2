// SPDX-License-Identifier: Apache-2.0
// Hosts that are lost, come back, have twins, are cordoned, drained, not found at their address.
#include "common/attempt/frame.h"
#include "common/attempt/life.h"
#include "tests/unit/coord_world.h"

#include <stdio.h>
#include <string.h>

static void test_a_host_that_is_not_heard_for_a_lease_is_fenced(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    world_host(w, 1, 1);
    const char *job = world_submit(w, "tiny", 1, CALM);
    int lost = world_host_of(w, job, 0);
    world_step(w, job, 2);
    w->hosts[lost].stopped = true;
    world_pass(w, 9000);
    assert_int_equal(world_job(w, job)->attempt, 1);
    world_pass(w, 3500);
    assert_state(w, job, RUNNING); // on the other
    assert_int_equal(world_job(w, job)->attempt, 2);
    assert_int_equal(world_job(w, job)->nfailures, 0);
    assert_int_equal(world_events(w, job, "lost"), 1);
    assert_string_equal(world_job(w, job)->placement[0].host, w->hosts[1 - lost].id);
}

static void test_a_fenced_incarnation_is_never_accepted_again(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 1, CALM);
    char old[33];
    strcpy(old, w->hosts[0].incarnation);
    w->hosts[0].stopped = true;
    world_pass(w, 12000);
    assert_state(w, job, QUEUED);
    world_crash(w); // durably
    w->hosts[0].stopped = false;
    world_attach(w, 0); // with the old incarnation first
    assert_int_equal(w->fenced_out, 1);
    assert_false(w->twin);
    assert_string_not_equal(w->hosts[0].incarnation, old);
    world_pass(w, 500);
    assert_state(w, job, RUNNING);
    assert_int_equal(world_job(w, job)->attempt, 2);
}

static void test_a_host_that_is_fenced_was_seen_when_it_was_heard_last(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    world_pass(w, 30000);
    int64_t heard = w->wall;
    w->hosts[0].stopped = true;
    world_pass(w, 12000);
    int at = world_row(w, "host 000000000000000000000000000000a0");
    assert_true(at >= 0);
    assert_true(w->rows[at]->host->seen_ms >= heard - 3000); // not when it registered
    assert_true(w->rows[at]->host->seen_ms <= heard);
}

static int fenced_rows(struct world *w)
{
    int n = 0;
    for (int i = 0; i < w->nrows; i++)
        n += w->rows[i]->row.kind == ROW_FENCED;
    return n;
}

// A month after: but for the one its host still bears.
static void test_incarnations_fenced_long_ago_are_forgotten(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    world_host(w, 1, 1);
    for (int i = 0; i < 3; i++)
        world_reborn(w, 0);
    assert_int_equal(fenced_rows(w), 3);
    w->hosts[1].stopped = true;
    world_pass(w, 12000);
    assert_int_equal(fenced_rows(w), 4);
    w->wall += 29LL * 24 * 3600 * 1000;
    world_pass(w, 61000);
    assert_int_equal(fenced_rows(w), 4);
    w->wall += 2LL * 24 * 3600 * 1000;
    world_pass(w, 61000);
    assert_int_equal(fenced_rows(w), 0); // the host that bore the fourth is forgotten with it
    world_restart(w);
    world_reborn(w, 0);
    assert_int_equal(fenced_rows(w), 1);
}

// Each new life fences the one before: who begins one after the other fills nothing.
static void test_of_a_host_s_many_lives_the_newest_are_remembered(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    char last[33];
    for (int i = 0; i < 150; i++) {
        strcpy(last, w->hosts[0].incarnation);
        world_reborn(w, 0);
    }
    assert_int_equal(fenced_rows(w), 64);
    world_crash(w);
    int out = w->fenced_out;
    strcpy(w->hosts[0].incarnation, last);
    world_attach(w, 0);
    assert_int_equal(w->fenced_out, out + 1);
}

static void test_of_two_twins_the_first_is_fenced(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    memcpy(w->hosts[1].id, w->hosts[0].id, 33); // a copied identity
    strcpy(w->hosts[1].incarnation, "000000000000000000000000000000ff");
    w->hosts[1].devices = 1;
    world_attach(w, 1);
    assert_int_equal(w->fenced_out, 1);
    assert_true(w->twin);
    assert_true(w->hosts[0].exited);
    assert_int_not_equal(w->hosts[1].conn, 0);
    w->hosts[0].exited = false;
    world_attach(w, 0); // once more, with what is fenced
    assert_true(w->twin);
    const char *job = world_submit(w, "tiny", 1, "");
    assert_state(w, job, RUNNING);
}

static void test_a_worker_that_restarts_proves_that_its_ranks_are_gone(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 2, "");
    world_step(w, job, 2);
    world_reborn(w, 0);
    assert_state(w, job, RUNNING);
    assert_int_equal(world_job(w, job)->attempt, 2);
    assert_int_equal(world_job(w, job)->nfailures, 0);
}

static void test_a_reconnect_changes_nothing(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 2, "");
    world_step(w, job, 2);
    world_detach(w, 0);
    world_pass(w, 5000);
    world_attach(w, 0);
    world_pass(w, 1000);
    assert_state(w, job, RUNNING);
    assert_int_equal(world_job(w, job)->attempt, 1);
    assert_int_equal(w->starts, 1);
}

static void test_a_rank_that_died_while_its_agent_was_away_is_reported_later(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 2, "");
    world_step(w, job, 2);
    world_detach(w, 0);
    struct world_rank *k = &world_at(w, 0, job)->ranks[1];
    *k = (struct world_rank){.ended = true, .device = k->device, .code = 70, .step = 2};
    world_attach(w, 0);
    assert_state(w, job, RUNNING);
    assert_int_equal(world_job(w, job)->attempt, 2);
    assert_int_equal(world_job(w, job)->nfailures, 1);
}

static void test_a_pause_of_the_coordinator_begins_a_lease_of_grace(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    const char *job = world_submit(w, "tiny", 1, "restart: {hang_after: 5s}\n");
    world_step(w, job, 2);
    w->now += 60 * CLOCK_S; // stopped for a minute
    w->wall += 60000;
    world_pass(w, 1000);
    world_step(w, job, 3);
    world_pass(w, 3000);
    assert_state(w, job, RUNNING);
    assert_int_equal(world_job(w, job)->attempt, 1);
    assert_int_equal(w->fenced_out, 0);
}

static void test_a_host_that_does_not_come_back_after_a_restart_is_fenced(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 1, CALM);
    world_crash(w);
    world_pass(w, 9000);
    assert_state(w, job, RUNNING);
    world_pass(w, 2000);
    assert_state(w, job, QUEUED);
}

static void test_an_attempt_that_the_database_does_not_know_is_stopped(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    struct world_attempt *at = &w->hosts[0].attempts[0];
    *at = (struct world_attempt){.used = true, .number = 4, .nranks = 1};
    strcpy(at->job, "0123456789abcdef0123456789abcdef");
    at->ranks[0].alive = true;
    world_detach(w, 0);
    world_attach(w, 0);
    assert_false(at->used); // stopped, reaped, forgotten
    world_pass(w, 2000);    // the next report shows its device free
    const char *job = world_submit(w, "tiny", 1, "");
    assert_state(w, job, RUNNING);
}

static void test_a_nonce_of_an_older_greeting_does_not_register(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 1);
    assert_string_equal(w->dropped, "");
    Weft__V1__Register r;
    weft__v1__register__init(&r);
    r.nonce = frame_text("00000000000000000000000000000000");
    r.cluster = frame_text(coord_cluster(w->c));
    r.host = w->hosts[0].id;
    r.incarnation = w->hosts[0].incarnation;
    Weft__V1__Up up = WEFT__V1__UP__INIT;
    up.body_case = WEFT__V1__UP__BODY_REGISTER;
    up.register_ = &r;
    world_up(w, 0, &up);
    assert_non_null(strstr(w->dropped, "newest challenge"));
}

static void test_a_worker_of_another_cluster_is_refused(void **state)
{
    struct world *w = *state;
    Weft__V1__Hello hello;
    weft__v1__hello__init(&hello);
    w->hosts[0].conn = 77;
    hello.host = frame_text("000000000000000000000000000000a0");
    hello.incarnation = frame_text("000000000000000000000000000000a1");
    hello.cluster = frame_text("0000000000000000000000000000dead");
    Weft__V1__Up up = WEFT__V1__UP__INIT;
    up.body_case = WEFT__V1__UP__BODY_HELLO;
    up.hello = &hello;
    world_up(w, 0, &up);
    assert_non_null(strstr(w->dropped, "belongs to cluster 0000000000000000000000000000dead"));
    assert_non_null(
        strstr(w->dropped, "write 0000000000000000000000000000dead into its file cluster"));
}

static void test_a_cordoned_host_takes_no_more_and_keeps_what_it_has(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 2);
    const char *one = world_submit(w, "one", 1, CALM);
    assert_true(world_act(w, WEFT__V1__VERB__CORDON, "host0"));
    const char *two = world_submit(w, "two", 1, CALM);
    assert_state(w, one, RUNNING);
    assert_state(w, two, QUEUED);
    world_restart(w);
    assert_state(w, two, QUEUED); // durably
    assert_true(world_act(w, WEFT__V1__VERB__UNCORDON, "host0"));
    assert_state(w, two, RUNNING);
}

static void test_a_drained_host_gives_its_jobs_to_others(void **state)
{
    struct world *w = *state;
    world_host(w, 0, 2);
    world_host(w, 1, 2);
    const char *job = world_submit(w, "tiny", 2, CALM);
    int was = world_host_of(w, job, 0);
    world_step(w, job, 2);
    assert_true(world_act(w, WEFT__V1__VERB__DRAIN, was ? "host1" : "host0"));
    assert_state(w, job, RUNNING);
    assert_int_equal(world_host_of(w, job, 0), 1 - was);
    assert_int_equal(world_job(w, job)->nfailures, 0);
    assert_int_equal(world_events(w, job, "drained"), 1);
}

static void test_a_worker_that_leaves_is_drained(void **state)
{
    struct world *w = *state;
    const char *job = world_job_alone(w, 1, CALM);
    Weft__V1__Leaving leaving = WEFT__V1__LEAVING__INIT;
    Weft__V1__Up up = WEFT__V1__UP__INIT;
    up.body_case = WEFT__V1__UP__BODY_LEAVING;
    up.leaving = &leaving;
    world_up(w, 0, &up);
    assert_state(w, job, QUEUED);
    assert_int_equal(world_living(w, job), 0);
    world_reborn(w, 0);
    assert_state(w, job, RUNNING);
}

// Ends a rank that has found nobody at the address of another one.
static void give_up_on(struct world *w, const char *job, int rank, int other)
{
    int h = world_host_of(w, job, rank);
    world_at(w, h, job)->ranks[rank].unreached = 1 + other;
    world_die_saying(w, job, rank, RANK_EXIT_LOST, "cannot reach it");
    world_pass(w, 2000); // nobody comes forward as the cause
}

static void
test_a_host_that_is_not_found_at_its_address_is_avoided_not_the_one_that_says_so(void **state)
{
    struct world *w = *state;
    for (int i = 0; i < 2; i++)
        world_host(w, i, 1);
    const char *job = world_submit(w, "tiny", 2, "restart: {budget: 0, hang_after: 2h}\n");
    world_host(w, 2, 1);
    int bad = world_host_of(w, job, 0);
    give_up_on(w, job, 1, 0);
    char told[100];
    snprintf(told, sizeof told, "it counts against host host%d, which is avoided for", bad);
    assert_non_null(strstr(world_event_text(w, job, "lost"), told));
    assert_int_equal(world_job(w, job)->nfailures, 0);
    assert_int_not_equal(world_host_of(w, job, 0), bad);
    assert_int_not_equal(world_host_of(w, job, 1), bad);
}

// No other host can take its ranks, and still no count of failures ends it.
static void test_hosts_that_never_find_each_other_do_not_fail_the_job(void **state)
{
    struct world *w = *state;
    for (int i = 0; i < 2; i++)
        world_host(w, i, 1);
    const char *job = world_submit(w, "tiny", 2, "restart: {budget: 0, hang_after: 2h}\n");
    for (int i = 0; i < 8; i++) {
        give_up_on(w, job, 1, 0);
        world_pass(w, 3600000);
        assert_int_equal(world_job(w, job)->nfailures, 0);
    }
    assert_int_equal(world_job(w, job)->restarts, 8);
    assert_state(w, job, RUNNING);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_a_host_that_is_not_heard_for_a_lease_is_fenced),
        CASE(test_a_fenced_incarnation_is_never_accepted_again),
        CASE(test_a_host_that_is_fenced_was_seen_when_it_was_heard_last),
        CASE(test_incarnations_fenced_long_ago_are_forgotten),
        CASE(test_of_a_host_s_many_lives_the_newest_are_remembered),
        CASE(test_of_two_twins_the_first_is_fenced),
        CASE(test_a_worker_that_restarts_proves_that_its_ranks_are_gone),
        CASE(test_a_reconnect_changes_nothing),
        CASE(test_a_rank_that_died_while_its_agent_was_away_is_reported_later),
        CASE(test_a_pause_of_the_coordinator_begins_a_lease_of_grace),
        CASE(test_a_host_that_does_not_come_back_after_a_restart_is_fenced),
        CASE(test_an_attempt_that_the_database_does_not_know_is_stopped),
        CASE(test_a_nonce_of_an_older_greeting_does_not_register),
        CASE(test_a_worker_of_another_cluster_is_refused),
        CASE(test_a_cordoned_host_takes_no_more_and_keeps_what_it_has),
        CASE(test_a_drained_host_gives_its_jobs_to_others),
        CASE(test_a_worker_that_leaves_is_drained),
        CASE(test_a_host_that_is_not_found_at_its_address_is_avoided_not_the_one_that_says_so),
        CASE(test_hosts_that_never_find_each_other_do_not_fail_the_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
