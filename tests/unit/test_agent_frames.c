// SPDX-License-Identifier: Apache-2.0
// What passes through the agent: its ranks' questions and answers, checkpoints, progress.
#include "tests/unit/agent_rig.h"

// ---- what ranks ask ----

static void get(struct rig *r, int slot, const char *key)
{
    FRAME_BODY(b, KvGet, kv_get);
    b.key = text(key);
    FRAME(f, KV_GET, kv_get, &b);
    say(r, slot, &f);
}

static void value(struct rig *r, int rank, const char *key, const char *is)
{
    FRAME_BODY(b, KvValue, kv_value);
    b.key = text(key);
    b.value = text(is);
    FRAME(f, KV_VALUE, kv_value, &b);
    hear_frame(r, rank, &f);
}

static void what_ranks_asked_put_and_were_answered_is_brought_back(void **state)
{
    struct rig *r = running(state, 2);
    FRAME_BODY(b, KvPut, kv_put);
    b.key = text("k");
    b.value = text("v");
    FRAME(put, KV_PUT, kv_put, &b);
    say(r, 0, &put);
    assert_non_null(passed(r, BODY(KV_PUT)));
    get(r, 1, "k");
    value(r, 1, "k", "v");
    assert_string_equal(sent_to(r, 1, BODY(KV_VALUE))->kv_value->value, "v");
    lose(r);
    FRAME_BODY(ready, Ready, ready);
    ready.plan_hash = text("hash");
    FRAME(f, READY, ready, &ready);
    say(r, 0, &f);
    assert_int_equal(r->out.n, 0); // nobody is there to hear it
    feed(r, (struct agent_event){.kind = AGENT_EV_OPEN});
    challenge(r, "n");
    const Weft__V1__AttemptHere *here = said(r, UP(REGISTER))->register_->attempts[0];
    assert_int_equal(here->n_ranks, 2);
    assert_int_equal(here->n_puts, 1);
    assert_string_equal(here->puts[0]->value, "v");
    assert_int_equal(here->n_asked, 1);
    assert_string_equal(here->asked[0]->frame->ready->plan_hash, "hash");
    assert_int_equal(here->n_answered, 1);
    assert_string_equal(here->answered[0]->frame->kv_value->key, "k");
    registered(r);
    assert_non_null(passed(r, BODY(KV_PUT))); // its answer is still missing
}

static void an_answer_is_given_again_even_while_the_coordinator_is_away(void **state)
{
    struct rig *r = running(state, 1);
    get(r, 0, "k");
    value(r, 0, "k", "v");
    value(r, 0, "k", "v"); // told twice, the rank hears it once
    assert_int_equal(count(r, AGENT_FRAME), 0);
    lose(r);
    get(r, 0, "k");
    assert_string_equal(sent_to(r, 0, BODY(KV_VALUE))->kv_value->value, "v");
}

static void what_is_asked_while_nobody_is_there_goes_up_once(void **state)
{
    struct rig *r = running(state, 1);
    lose(r);
    get(r, 0, "away");
    feed(r, (struct agent_event){.kind = AGENT_EV_OPEN});
    challenge(r, "n");
    assert_int_equal(said(r, UP(REGISTER))->register_->attempts[0]->n_asked, 1);
    get(r, 0, "registering"); // Register has left without it
    assert_int_equal(r->out.n, 0);
    registered(r);
    assert_string_equal(passed(r, BODY(KV_GET))->kv_get->key, "registering");
    assert_int_equal(count(r, AGENT_SEND), 2); // that and the heartbeat
}

static void one_answer_for_all_reaches_each_rank_that_asked(void **state)
{
    struct rig *r = running(state, 3);
    FRAME_BODY(b, Barrier, barrier);
    b.name = text("last");
    b.seq = 7;
    FRAME(ask, BARRIER, barrier, &b);
    say(r, 0, &ask);
    say(r, 2, &ask);
    FRAME_BODY(done, BarrierDone, barrier_done);
    done.name = text("last");
    done.seq = 7;
    FRAME(f, BARRIER_DONE, barrier_done, &done);
    hear_frame(r, -1, &f);
    assert_non_null(sent_to(r, 0, BODY(BARRIER_DONE)));
    assert_null(sent_to(r, 1, BODY(BARRIER_DONE)));
    assert_non_null(sent_to(r, 2, BODY(BARRIER_DONE)));
}

// ---- checkpoints ----

static void shard_done(struct rig *r, int slot, int64_t step)
{
    FRAME_BODY(b, ShardDone, shard_done);
    b.rank = slot;
    b.step = step;
    FRAME(f, SHARD_DONE, shard_done, &b);
    say(r, slot, &f);
}

static void committed(struct rig *r, int64_t step)
{
    FRAME_BODY(b, Committed, committed);
    b.step = step;
    FRAME(f, COMMITTED, committed, &b);
    hear_frame(r, -1, &f);
}

static void a_shards_report_is_repeated_until_committed_across_reconnects(void **state)
{
    struct rig *r = running(state, 1);
    shard_done(r, 0, 20);
    assert_non_null(passed(r, BODY(SHARD_DONE)));
    tick(r, BEAT);
    assert_non_null(passed(r, BODY(SHARD_DONE)));
    lose(r);
    feed(r, (struct agent_event){.kind = AGENT_EV_OPEN});
    challenge(r, "n");
    assert_int_equal(said(r, UP(REGISTER))->register_->attempts[0]->n_asked, 1);
    registered(r);
    committed(r, 10); // of an earlier step
    tick(r, BEAT);
    assert_non_null(passed(r, BODY(SHARD_DONE)));
    committed(r, 20);
    assert_non_null(sent_to(r, 0, BODY(COMMITTED)));
    tick(r, BEAT);
    assert_null(passed(r, BODY(SHARD_DONE)));
}

static void an_order_that_was_answered_is_answered_again_by_the_first_answer(void **state)
{
    struct rig *r = running(state, 1);
    FRAME_BODY(c, Commit, commit);
    c.step = 20;
    FRAME(order, COMMIT, commit, &c);
    hear_frame(r, 0, &order);
    assert_non_null(sent_to(r, 0, BODY(COMMIT)));
    FRAME_BODY(d, CommitDone, commit_done);
    d.step = 20;
    d.code = 5;
    FRAME(done, COMMIT_DONE, commit_done, &d);
    say(r, 0, &done);
    assert_int_equal(passed(r, BODY(COMMIT_DONE))->commit_done->code, 5);
    d.code = 0;
    say(r, 0, &done);
    assert_int_equal(passed(r, BODY(COMMIT_DONE))->commit_done->code, 5);
    hear_frame(r, 0, &order);
    assert_null(sent_to(r, 0, BODY(COMMIT)));
    assert_int_equal(passed(r, BODY(COMMIT_DONE))->commit_done->code, 5);
    FRAME_BODY(a, Aborted, aborted);
    a.step = 20;
    FRAME(aborted, ABORTED, aborted, &a);
    hear_frame(r, -1, &aborted);
    tick(r, BEAT);
    assert_null(passed(r, BODY(COMMIT_DONE)));
}

static void durable_acts_go_one_at_a_time_a_job(void **state)
{
    struct rig *r = *state;
    attach(r);
    for (int i = 0; i < 2; i++) { // a repeat of what is being done is not a second act
        DOWN(r, STORAGE, Storage, storage, storage, m->op = WEFT__V1__STORAGE_OP__STORAGE_FENCE,
             m->job = text(JOB), m->attempt = 1, m->attempt_id = text("a"));
        assert_int_equal(count(r, AGENT_STORAGE), i == 0);
    }
    DOWN(r, STORAGE, Storage, storage, storage, m->op = WEFT__V1__STORAGE_OP__STORAGE_FENCE,
         m->job = text(JOB), m->attempt = 2, m->attempt_id = text("b"));
    assert_int_equal(count(r, AGENT_STORAGE), 0);
    Weft__V1__StorageDone done;
    weft__v1__storage_done__init(&done);
    done.job = text(JOB);
    done.attempt = 1;
    feed(r, (struct agent_event){.kind = AGENT_EV_STORAGE, .storage = &done});
    assert_int_equal(said(r, UP(STORAGE))->storage->attempt, 1);
    assert_int_equal(the(r, AGENT_STORAGE)->storage->attempt, 2);
}

// ---- progress ----

static void changed_pages_go_up_at_most_four_times_a_second(void **state)
{
    struct rig *r = running(state, 1);
    struct page_view v = {.rank = 0, .state = RANK_RUNNING};
    int n = 0;
    for (int i = 0; i < 100; i++) {
        v.step = i;
        feed(r, (struct agent_event){.kind = AGENT_EV_PAGE, .slot = 0, .page = &v});
        tick(r, 10 * CLOCK_MS);
        n += said(r, UP(PROGRESS)) != NULL;
    }
    assert_int_equal(n, 4);
    tick(r, 250 * CLOCK_MS);
    assert_int_equal(said(r, UP(PROGRESS))->progress->ranks[0]->step, 99);
    tick(r, 250 * CLOCK_MS);
    assert_null(said(r, UP(PROGRESS)));
}

static void the_newest_report_waits_for_the_coordinators_return(void **state)
{
    struct rig *r = running(state, 1);
    lose(r);
    for (int step = 1; step <= 3; step++) {
        FRAME_BODY(b, StepReport, step_report);
        b.step = step;
        FRAME(f, STEP_REPORT, step_report, &b);
        say(r, 0, &f);
    }
    attach(r);
    assert_int_equal(passed(r, BODY(STEP_REPORT))->step_report->step, 3);
}

#define CASE(fn) cmocka_unit_test_setup_teardown(fn, set_up, tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(what_ranks_asked_put_and_were_answered_is_brought_back),
        CASE(an_answer_is_given_again_even_while_the_coordinator_is_away),
        CASE(what_is_asked_while_nobody_is_there_goes_up_once),
        CASE(one_answer_for_all_reaches_each_rank_that_asked),
        CASE(a_shards_report_is_repeated_until_committed_across_reconnects),
        CASE(an_order_that_was_answered_is_answered_again_by_the_first_answer),
        CASE(durable_acts_go_one_at_a_time_a_job),
        CASE(changed_pages_go_up_at_most_four_times_a_second),
        CASE(the_newest_report_waits_for_the_coordinators_return),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
