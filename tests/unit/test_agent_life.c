// SPDX-License-Identifier: Apache-2.0
// The agent as a decider: what one worker asks for when it is fed this and that.
#include "tests/unit/agent_rig.h"

static void stop(struct rig *r, uint64_t attempt, int64_t grace_ms)
{
    DOWN(r, STOP, Stop, stop, stop, m->job = text(JOB), m->attempt = attempt,
         m->reason = text("cancelled"), m->grace_ms = grace_ms);
}

static void sync_with(struct rig *r, uint64_t attempt)
{
    DOWN(r, SYNC, Sync, sync, sync, m->job = text(JOB), m->attempt = attempt);
}

static void ended(struct rig *r, int slot, int code, int sig)
{
    feed(r, (struct agent_event){
                .kind = AGENT_EV_ENDED, .slot = slot, .code = code, .signal = sig, .log = "tail"});
}

// ---- registering ----

static void a_new_worker_echoes_the_nonce_and_then_remembers_the_cluster(void **state)
{
    struct rig *r = *state;
    feed(r, (struct agent_event){.kind = AGENT_EV_OPEN});
    assert_string_equal(said(r, UP(HELLO))->hello->incarnation, "i1");
    challenge(r, "first");
    challenge(r, "second"); // the newest counts
    assert_string_equal(said(r, UP(REGISTER))->register_->nonce, "second");
    assert_string_equal(said(r, UP(REGISTER))->register_->cluster, "c1");
    assert_int_equal(said(r, UP(REGISTER))->register_->n_devices, 4);
    assert_string_equal(said(r, UP(REGISTER))->register_->devices[2]->isa, "sm_90");
    assert_null(the(r, AGENT_REMEMBER));
    registered(r);
    assert_string_equal(the(r, AGENT_REMEMBER)->cluster, "c1");
    assert_non_null(said(r, UP(HEARTBEAT)));
}

static void nothing_is_obeyed_before_registration(void **state)
{
    struct rig *r = *state;
    feed(r, (struct agent_event){.kind = AGENT_EV_OPEN});
    start(r, 1, 1);
    assert_int_equal(r->out.n, 0);
    challenge(r, "n");
    start(r, 1, 1);
    assert_int_equal(r->out.n, 0);
}

static void a_coordinator_of_another_cluster_is_left(void **state)
{
    struct rig *r = *state;
    attach(r);
    lose(r);
    feed(r, (struct agent_event){.kind = AGENT_EV_OPEN});
    DOWN(r, CHALLENGE, Challenge, challenge, challenge, m->cluster = text("c2"),
         m->nonce = text("n"));
    assert_null(said(r, UP(REGISTER)));
    assert_non_null(strstr(the(r, AGENT_DISCONNECT)->text, "c2"));
}

static void it_comes_back_with_a_wait_below_a_quarter_of_the_lease(void **state)
{
    struct rig *r = *state;
    int64_t last = 0, grown = 0;
    attach(r);
    for (int i = 0; i < 40; i++) {
        lose(r);
        int64_t wait = the(r, AGENT_CONNECT)->wait_ns;
        assert_true(wait > 0 && wait < LEASE / 4);
        grown += wait > last;
        last = wait;
    }
    assert_true(last >= LEASE / 8); // it has grown to the upper half of the bound
    assert_true(grown > 3);
}

static void a_silent_coordinator_is_left_after_a_lease_but_not_when_we_stood_still(void **state)
{
    struct rig *r = *state;
    attach(r);
    tick(r, 0);
    tick(r, 3 * LEASE); // this process was stopped: nobody can say who was silent
    assert_null(the(r, AGENT_DISCONNECT));
    for (int64_t t = 0; t < LEASE; t += CLOCK_S) {
        assert_null(the(r, AGENT_DISCONNECT));
        tick(r, CLOCK_S);
    }
    assert_non_null(the(r, AGENT_DISCONNECT));
}

// ---- Start ----

static void a_start_spawns_each_rank_once_with_this_hosts_roots(void **state)
{
    struct rig *r = *state;
    attach(r);
    start(r, 1, 2);
    assert_int_equal(count(r, AGENT_SPAWN), 2);
    const struct agent_spawn *sp = r->out.v[1].spawn;
    assert_int_equal(sp->assign->rank, 1);
    assert_int_equal(sp->device, 1);
    assert_string_equal(sp->assign->data_root, "/mine");
    start(r, 1, 2);
    assert_int_equal(count(r, AGENT_SPAWN), 0);
}

// To its ranks a device is one of its kind, whatever else the host offers.
static void a_rank_learns_which_of_its_kind_its_device_is(void **state)
{
    struct rig *r = *state;
    attach(r);
    start_on(r, JOB, 1, "i1", 2, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(r->out.v[i].spawn->device, 2 + i);
        assert_int_equal(r->out.v[i].spawn->assign->device, i);
    }
}

// Two writers of one file would take it from each other.
static void the_first_rank_alone_writes_the_metrics(void **state)
{
    struct rig *r = *state;
    attach(r);
    start(r, 1, 2);
    assert_string_equal(r->out.v[0].spawn->assign->metrics, "ckpt/test-j1/metrics.jsonl");
    assert_string_equal(r->out.v[1].spawn->assign->metrics, "");
}

static void every_rank_with_a_process_is_in_the_heartbeat(void **state)
{
    struct rig *r = running(state, 2);
    tick(r, 0);
    assert_int_equal(said(r, UP(HEARTBEAT))->heartbeat->n_ranks, 2);
    assert_int_equal(said(r, UP(HEARTBEAT))->heartbeat->ranks[1]->pid, 101);
    ended(r, 0, 0, 0);
    tick(r, 0);
    assert_int_equal(said(r, UP(HEARTBEAT))->heartbeat->n_ranks, 1);
    tick(r, BEAT - 1);
    assert_null(said(r, UP(HEARTBEAT)));
    tick(r, 1);
    assert_non_null(said(r, UP(HEARTBEAT)));
}

static void a_start_for_an_earlier_incarnation_does_nothing(void **state)
{
    struct rig *r = *state;
    attach(r);
    start_on(r, JOB, 1, "i0", 1, 0);
    assert_int_equal(r->out.n, 0);
}

static void what_was_reaped_never_starts_again(void **state)
{
    struct rig *r = running(state, 1);
    ended(r, 0, 0, 0);
    sync_with(r, 1);
    assert_non_null(the(r, AGENT_FORGET));
    start(r, 1, 1);
    assert_int_equal(count(r, AGENT_SPAWN), 0);
    assert_int_equal(said(r, UP(REAPED))->reaped->attempt, 1);
    start(r, 2, 1);
    assert_int_equal(count(r, AGENT_SPAWN), 1);
}

static void a_stop_that_overtakes_its_start_forbids_it(void **state)
{
    struct rig *r = *state;
    attach(r);
    stop(r, 3, 1000);
    assert_int_equal(said(r, UP(REAPED))->reaped->attempt, 3);
    start(r, 3, 1);
    assert_int_equal(count(r, AGENT_SPAWN), 0);
    start(r, 2, 1);
    assert_int_equal(count(r, AGENT_SPAWN), 0);
}

static void a_device_with_a_living_rank_is_refused_to_another_job(void **state)
{
    struct rig *r = running(state, 2);
    start_on(r, "j2", 1, "i1", 1, 1);
    assert_int_equal(count(r, AGENT_SPAWN), 0);
    assert_int_equal(said(r, UP(RANK_END))->rank_end->code, RANK_EXIT_LOST);
    assert_non_null(strstr(said(r, UP(RANK_END))->rank_end->why, "rank 1 of job j1"));
    assert_string_equal(said(r, UP(REAPED))->reaped->job, "j2");
    start_on(r, "j2", 2, "i1", 1, 2);
    assert_int_equal(count(r, AGENT_SPAWN), 1);
}

static void a_rank_that_cannot_be_spawned_has_ended_with_the_reason(void **state)
{
    struct rig *r = *state;
    attach(r);
    start(r, 1, 1);
    feed(r, (struct agent_event){.kind = AGENT_EV_SPAWNED, .slot = 0, .text = "no weft-rank"});
    assert_int_equal(said(r, UP(RANK_END))->rank_end->code, RANK_EXIT_HOST);
    assert_string_equal(said(r, UP(RANK_END))->rank_end->why, "no weft-rank");
    assert_non_null(said(r, UP(REAPED)));
}

// ---- ends ----

static void the_other_ranks_learn_at_once_who_failed(void **state)
{
    struct rig *r = running(state, 3);
    struct page_view v = {.rank = 1, .step = 12, .state = RANK_RUNNING};
    feed(r, (struct agent_event){.kind = AGENT_EV_PAGE, .slot = 1, .page = &v});
    ended(r, 1, 0, SIGSEGV);
    const Weft__Rank__Frame *lost = sent_to(r, 2, BODY(LOST));
    assert_int_equal(lost->lost->rank, 1);
    assert_non_null(strstr(lost->lost->why, "signal 11"));
    assert_non_null(strstr(lost->lost->why, "step 12"));
    assert_non_null(sent_to(r, 0, BODY(LOST)));
    assert_int_equal(said(r, UP(RANK_END))->rank_end->code, 128 + SIGSEGV);
    assert_string_equal(said(r, UP(RANK_END))->rank_end->log, "tail");
}

static void a_rank_that_is_done_or_drained_harms_nobody(void **state)
{
    struct rig *r = running(state, 3);
    ended(r, 0, RANK_EXIT_DONE, 0);
    assert_int_equal(count(r, AGENT_FRAME), 0);
    ended(r, 1, RANK_EXIT_DRAINED, 0);
    assert_int_equal(count(r, AGENT_FRAME), 0);
}

static void ends_are_repeated_until_they_were_heard(void **state)
{
    struct rig *r = running(state, 1);
    FRAME_BODY(why, Exit, exit);
    why.code = RANK_EXIT_DATA;
    why.why = text("a bad file");
    why.unreached = 7;
    FRAME(f, EXIT, exit, &why);
    say(r, 0, &f);
    ended(r, 0, RANK_EXIT_DATA, 0);
    assert_string_equal(said(r, UP(RANK_END))->rank_end->why, "a bad file");
    assert_int_equal(said(r, UP(RANK_END))->rank_end->unreached, 7);
    assert_non_null(said(r, UP(REAPED)));
    for (int i = 0; i < 3; i++) {
        tick(r, BEAT);
        assert_non_null(said(r, UP(RANK_END)));
        assert_non_null(said(r, UP(REAPED)));
    }
    lose(r);
    feed(r, (struct agent_event){.kind = AGENT_EV_OPEN});
    challenge(r, "n");
    const Weft__V1__AttemptHere *here = said(r, UP(REGISTER))->register_->attempts[0];
    assert_true(here->reaped);
    assert_int_equal(here->ranks[0]->end->code, RANK_EXIT_DATA);
    registered(r);
    sync_with(r, 1);
    tick(r, BEAT);
    assert_null(said(r, UP(RANK_END)));
    assert_null(said(r, UP(REAPED)));
}

static void a_sync_of_what_still_lives_forgets_nothing(void **state)
{
    struct rig *r = running(state, 2);
    ended(r, 0, 0, 0);
    sync_with(r, 1);
    assert_int_equal(r->out.n, 0);
    ended(r, 1, 0, 0);
    assert_non_null(said(r, UP(REAPED)));
}

// ---- Stop ----

static void a_stop_asks_once_and_kills_when_the_grace_is_over(void **state)
{
    struct rig *r = running(state, 2);
    stop(r, 1, 5000);
    assert_string_equal(sent_to(r, 0, BODY(STOP))->stop->reason, "cancelled");
    assert_int_equal(count(r, AGENT_KILL), 0);
    stop(r, 1, 5000); // repeated later, it neither asks again nor extends
    assert_int_equal(count(r, AGENT_FRAME), 0);
    ended(r, 0, RANK_EXIT_DRAINED, 0);
    tick(r, 5 * CLOCK_S - 1);
    assert_int_equal(count(r, AGENT_KILL), 0);
    stop(r, 1, 5000);
    tick(r, 1);
    assert_int_equal(count(r, AGENT_KILL), 1);
    assert_int_equal(the(r, AGENT_KILL)->slot, 1);
    assert_int_equal(the(r, AGENT_KILL)->signal, SIGKILL);
}

static void a_stop_without_grace_kills_now(void **state)
{
    struct rig *r = running(state, 2);
    stop(r, 1, 0);
    assert_int_equal(count(r, AGENT_KILL), 2);
}

static void a_rank_killed_before_it_was_there_is_killed_when_it_is(void **state)
{
    struct rig *r = *state;
    attach(r);
    start(r, 1, 1);
    stop(r, 1, 0);
    spawned(r, 0);
    assert_int_equal(count(r, AGENT_KILL), 1);
}

// ---- fencing ----

static void fenced(struct rig *r, bool twin)
{
    DOWN(r, FENCED, FencedOut, fenced_out, fenced, m->twin = twin, m->why = text("lost its lease"));
}

static void a_lost_lease_kills_proves_it_and_comes_back_as_somebody_new(void **state)
{
    struct rig *r = running(state, 2);
    fenced(r, false);
    assert_int_equal(count(r, AGENT_KILL), 2);
    assert_non_null(the(r, AGENT_DISCONNECT));
    lose(r);
    assert_null(the(r, AGENT_CONNECT)); // not before it is proved
    ended(r, 0, 0, SIGKILL);
    assert_null(the(r, AGENT_CLEAR));
    ended(r, 1, 0, SIGKILL);
    assert_non_null(the(r, AGENT_CLEAR));
    feed(r, (struct agent_event){.kind = AGENT_EV_CLEARED, .ok = true, .incarnation = "i2"});
    assert_null(the(r, AGENT_EXIT));
    assert_non_null(the(r, AGENT_FORGET));
    assert_non_null(the(r, AGENT_CONNECT));
    feed(r, (struct agent_event){.kind = AGENT_EV_OPEN});
    assert_string_equal(said(r, UP(HELLO))->hello->incarnation, "i2");
    challenge(r, "n");
    assert_int_equal(said(r, UP(REGISTER))->register_->n_attempts, 0);
    registered(r);
    start_on(r, JOB, 1, "i1", 1, 0);
    assert_int_equal(count(r, AGENT_SPAWN), 0);
    start_on(r, JOB, 2, "i2", 1, 0);
    assert_int_equal(count(r, AGENT_SPAWN), 1);
}

static void one_stream_at_a_time_when_the_proof_is_faster_than_the_goodbye(void **state)
{
    struct rig *r = *state;
    attach(r);
    fenced(r, false);
    feed(r, (struct agent_event){.kind = AGENT_EV_CLEARED, .ok = true, .incarnation = "i2"});
    assert_null(the(r, AGENT_CONNECT));
    lose(r);
    assert_int_equal(count(r, AGENT_CONNECT), 1);
}

static void ranks_that_cannot_be_proved_dead_end_the_worker(void **state)
{
    struct rig *r = *state;
    attach(r);
    fenced(r, false);
    feed(r, (struct agent_event){.kind = AGENT_EV_CLEARED, .ok = false, .text = "held"});
    assert_int_equal(the(r, AGENT_EXIT)->code, 70);
}

static void a_twin_kills_its_ranks_and_leaves_with_76(void **state)
{
    struct rig *r = running(state, 1);
    fenced(r, true);
    assert_int_equal(count(r, AGENT_KILL), 1);
    assert_null(the(r, AGENT_EXIT));
    ended(r, 0, 0, SIGKILL);
    assert_int_equal(the(r, AGENT_EXIT)->code, 76);
    lose(r);
    assert_int_equal(r->out.n, 0); // it is over
}

// ---- leaving ----

static void term(struct rig *r)
{
    feed(r, (struct agent_event){.kind = AGENT_EV_TERM});
}

static void a_worker_without_ranks_leaves_at_once(void **state)
{
    struct rig *r = *state;
    attach(r);
    term(r);
    assert_non_null(said(r, UP(LEAVING)));
    assert_int_equal(the(r, AGENT_EXIT)->code, 0);
}

static void asked_to_stop_it_drains_and_leaves_when_the_coordinator_knows(void **state)
{
    struct rig *r = running(state, 2);
    term(r);
    assert_int_equal(said(r, UP(LEAVING))->leaving->grace_ms, 30000);
    assert_non_null(sent_to(r, 0, BODY(STOP)));
    start_on(r, "j2", 1, "i1", 1, 3); // it takes nothing new
    assert_int_equal(count(r, AGENT_SPAWN), 0);
    DOWN(r, SYNC, Sync, sync, sync, m->job = text("j2"), m->attempt = 1);
    ended(r, 0, RANK_EXIT_DRAINED, 0);
    ended(r, 1, RANK_EXIT_DRAINED, 0);
    assert_null(the(r, AGENT_EXIT));
    sync_with(r, 1);
    assert_int_equal(the(r, AGENT_EXIT)->code, 0);
}

static void at_the_end_of_the_grace_it_kills_and_leaves(void **state)
{
    struct rig *r = running(state, 1);
    lose(r);
    term(r);
    tick(r, 30 * CLOCK_S - 1);
    assert_int_equal(count(r, AGENT_KILL), 0);
    tick(r, 1);
    assert_int_equal(count(r, AGENT_KILL), 1);
    ended(r, 0, 0, SIGKILL);
    assert_int_equal(the(r, AGENT_EXIT)->code, 0);
}

static void without_a_coordinator_it_leaves_after_a_lease_not_the_whole_grace(void **state)
{
    struct rig *r = running(state, 1);
    lose(r);
    term(r);
    ended(r, 0, RANK_EXIT_DRAINED, 0);
    for (int64_t t = CLOCK_S; t < LEASE; t += CLOCK_S) {
        tick(r, CLOCK_S);
        assert_null(the(r, AGENT_EXIT));
    }
    assert_int_equal(agent_due(r->g), r->now + CLOCK_S);
    tick(r, CLOCK_S);
    assert_int_equal(the(r, AGENT_EXIT)->code, 0);
}

static void a_greeting_that_is_not_answered_is_given_up_after_a_lease(void **state)
{
    struct rig *r = *state;
    feed(r, (struct agent_event){.kind = AGENT_EV_OPEN});
    int64_t due = agent_due(r->g);
    assert_int_equal(due, r->now + LEASE);
    tick(r, due - r->now);
    assert_non_null(the(r, AGENT_DISCONNECT));
}

static void asked_twice_it_kills_at_once(void **state)
{
    struct rig *r = running(state, 1);
    term(r);
    assert_int_equal(count(r, AGENT_KILL), 0);
    term(r);
    assert_int_equal(count(r, AGENT_KILL), 1);
    ended(r, 0, 0, SIGKILL);
    assert_int_equal(the(r, AGENT_EXIT)->code, 0);
}

static void a_leaving_worker_that_comes_back_says_so(void **state)
{
    struct rig *r = running(state, 1);
    lose(r);
    term(r);
    feed(r, (struct agent_event){.kind = AGENT_EV_OPEN});
    challenge(r, "n");
    assert_true(said(r, UP(REGISTER))->register_->draining);
    registered(r);
    assert_non_null(said(r, UP(LEAVING)));
}

static void something_is_due_whenever_a_tick_would_act(void **state)
{
    struct rig *r = *state;
    assert_int_equal(agent_due(r->g), 0); // AWAY: the connection's end is an event
    attach(r);
    assert_true(agent_due(r->g) <= r->now + BEAT);
    start(r, 1, 1);
    spawned(r, 0);
    assert_true(agent_due(r->g) <= r->now); // the heartbeat has news
    tick(r, 0);
    stop(r, 1, 100);
    assert_int_equal(agent_due(r->g), r->now + 100 * CLOCK_MS);
    tick(r, 100 * CLOCK_MS);
    assert_int_equal(count(r, AGENT_KILL), 1);
}

#define CASE(fn) cmocka_unit_test_setup_teardown(fn, set_up, tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_new_worker_echoes_the_nonce_and_then_remembers_the_cluster),
        CASE(nothing_is_obeyed_before_registration),
        CASE(a_coordinator_of_another_cluster_is_left),
        CASE(it_comes_back_with_a_wait_below_a_quarter_of_the_lease),
        CASE(a_silent_coordinator_is_left_after_a_lease_but_not_when_we_stood_still),
        CASE(a_start_spawns_each_rank_once_with_this_hosts_roots),
        CASE(the_first_rank_alone_writes_the_metrics),
        CASE(every_rank_with_a_process_is_in_the_heartbeat),
        CASE(a_start_for_an_earlier_incarnation_does_nothing),
        CASE(what_was_reaped_never_starts_again),
        CASE(a_stop_that_overtakes_its_start_forbids_it),
        CASE(a_rank_learns_which_of_its_kind_its_device_is),
        CASE(a_device_with_a_living_rank_is_refused_to_another_job),
        CASE(a_rank_that_cannot_be_spawned_has_ended_with_the_reason),
        CASE(the_other_ranks_learn_at_once_who_failed),
        CASE(a_rank_that_is_done_or_drained_harms_nobody),
        CASE(ends_are_repeated_until_they_were_heard),
        CASE(a_sync_of_what_still_lives_forgets_nothing),
        CASE(a_stop_asks_once_and_kills_when_the_grace_is_over),
        CASE(a_stop_without_grace_kills_now),
        CASE(a_rank_killed_before_it_was_there_is_killed_when_it_is),
        CASE(a_lost_lease_kills_proves_it_and_comes_back_as_somebody_new),
        CASE(one_stream_at_a_time_when_the_proof_is_faster_than_the_goodbye),
        CASE(ranks_that_cannot_be_proved_dead_end_the_worker),
        CASE(a_twin_kills_its_ranks_and_leaves_with_76),
        CASE(a_worker_without_ranks_leaves_at_once),
        CASE(asked_to_stop_it_drains_and_leaves_when_the_coordinator_knows),
        CASE(at_the_end_of_the_grace_it_kills_and_leaves),
        CASE(without_a_coordinator_it_leaves_after_a_lease_not_the_whole_grace),
        CASE(a_greeting_that_is_not_answered_is_given_up_after_a_lease),
        CASE(asked_twice_it_kills_at_once),
        CASE(a_leaving_worker_that_comes_back_says_so),
        CASE(something_is_due_whenever_a_tick_would_act),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
