// SPDX-License-Identifier: Apache-2.0
// The agent as a decider: stories of one worker, told by what it is fed and what it asks for.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on
#include <signal.h>
#include <string.h>

#include "common/attempt/frame.h"
#include "common/attempt/life.h"
#include "common/base/clock.h"
#include "worker/agent.h"

#define LEASE   (10 * CLOCK_S)
#define BEAT    (2 * CLOCK_S)
#define JOB     "j1"
#define UP(x)   WEFT__V1__UP__BODY_##x
#define BODY(x) WEFT__RANK__FRAME__BODY_##x

struct rig {
    struct agent *g;
    struct arena arena;
    struct agent_out out;
    int64_t now;
};

// ---- feeding ----

static void feed(struct rig *r, struct agent_event ev)
{
    arena_clear(&r->arena);
    r->out = (struct agent_out){.arena = &r->arena};
    ev.now_ns = r->now;
    agent_step(r->g, &ev, &r->out);
}

static void tick(struct rig *r, int64_t later_ns)
{
    r->now += later_ns;
    feed(r, (struct agent_event){.kind = AGENT_EV_TICK});
}

#define DOWN(r, CASE, Type, type, member, ...)                                  \
    do {                                                                        \
        Weft__V1__##Type body_;                                                 \
        Weft__V1__Down down_;                                                   \
        weft__v1__##type##__init(&body_);                                       \
        weft__v1__down__init(&down_);                                           \
        struct Weft__V1__##Type *m = &body_;                                    \
        (void)m;                                                                \
        __VA_ARGS__;                                                            \
        down_.body_case = WEFT__V1__DOWN__BODY_##CASE;                          \
        down_.member = &body_;                                                  \
        feed((r), (struct agent_event){.kind = AGENT_EV_DOWN, .down = &down_}); \
    } while (0)

static char *text(const char *s)
{
    return frame_text(s);
}

static void hear_frame(struct rig *r, int rank, Weft__Rank__Frame *f)
{
    DOWN(r, FRAME, RankFrame, rank_frame, frame, m->job = text(JOB), m->epoch = 1, m->rank = rank,
         m->frame = f);
}

static void say(struct rig *r, int slot, const Weft__Rank__Frame *f)
{
    feed(r, (struct agent_event){.kind = AGENT_EV_FRAME, .slot = slot, .frame = f});
}

// ---- what came out ----

static int count(const struct rig *r, enum agent_action_kind kind)
{
    int n = 0;
    for (int i = 0; i < r->out.n; i++)
        n += r->out.v[i].kind == kind;
    return n;
}

static const struct agent_action *the(const struct rig *r, enum agent_action_kind kind)
{
    for (int i = 0; i < r->out.n; i++)
        if (r->out.v[i].kind == kind)
            return &r->out.v[i];
    return NULL;
}

static const Weft__V1__Up *said(const struct rig *r, int kind)
{
    for (int i = 0; i < r->out.n; i++)
        if (r->out.v[i].kind == AGENT_SEND && (int)r->out.v[i].up->body_case == kind)
            return r->out.v[i].up;
    return NULL;
}

// A rank's frame of a kind on its way up.
static const Weft__Rank__Frame *passed(const struct rig *r, int kind)
{
    for (int i = 0; i < r->out.n; i++)
        if (r->out.v[i].kind == AGENT_SEND && r->out.v[i].up->body_case == UP(FRAME) &&
            (int)r->out.v[i].up->frame->frame->body_case == kind)
            return r->out.v[i].up->frame->frame;
    return NULL;
}

static const Weft__Rank__Frame *told(const struct rig *r, int slot, int kind)
{
    for (int i = 0; i < r->out.n; i++)
        if (r->out.v[i].kind == AGENT_FRAME && r->out.v[i].slot == slot &&
            (int)r->out.v[i].frame->body_case == kind)
            return r->out.v[i].frame;
    return NULL;
}

// ---- arranging ----

static void challenge(struct rig *r, const char *nonce)
{
    DOWN(r, CHALLENGE, Challenge, challenge, challenge, m->cluster = text("c1"),
         m->nonce = text(nonce));
}

static void registered(struct rig *r)
{
    DOWN(r, REGISTERED, Registered, registered, registered, m->cluster = text("c1"),
         m->lease_ms = LEASE / CLOCK_MS, m->heartbeat_ms = BEAT / CLOCK_MS);
}

static void attach(struct rig *r)
{
    feed(r, (struct agent_event){.kind = AGENT_EV_OPEN});
    challenge(r, "n");
    registered(r);
}

static void lose(struct rig *r)
{
    feed(r, (struct agent_event){.kind = AGENT_EV_CLOSED, .text = "gone"});
}

static void start_on(struct rig *r, const char *job, uint64_t epoch, const char *incarnation,
                     int ranks, int first_device)
{
    Weft__V1__RankPlace places[4], *refs[4];
    Weft__Rank__Assign assign;
    weft__rank__assign__init(&assign);
    assign.ranks = ranks;
    assign.data_root = text("/theirs");
    for (int i = 0; i < ranks; i++) {
        weft__v1__rank_place__init(&places[i]);
        places[i].rank = i;
        places[i].device = first_device + i;
        refs[i] = &places[i];
    }
    DOWN(r, START, Start, start, start, m->job = text(job), m->epoch = epoch,
         m->incarnation = text(incarnation), m->n_ranks = (size_t)ranks, m->ranks = refs,
         m->assign = &assign, m->kind = text("cpu"), m->threads = 1);
}

static void start(struct rig *r, uint64_t epoch, int ranks)
{
    start_on(r, JOB, epoch, "i1", ranks, 0);
}

static void spawned(struct rig *r, int slot)
{
    feed(r, (struct agent_event){
                .kind = AGENT_EV_SPAWNED, .slot = slot, .ok = true, .pid = 100 + slot});
}

static void ended(struct rig *r, int slot, int code, int sig)
{
    feed(r, (struct agent_event){
                .kind = AGENT_EV_ENDED, .slot = slot, .code = code, .signal = sig, .log = "tail"});
}

static void stop(struct rig *r, uint64_t epoch, int64_t grace_ms)
{
    DOWN(r, STOP, Stop, stop, stop, m->job = text(JOB), m->epoch = epoch,
         m->reason = text("cancelled"), m->grace_ms = grace_ms);
}

static void sync_with(struct rig *r, uint64_t epoch)
{
    DOWN(r, SYNC, Sync, sync, sync, m->job = text(JOB), m->epoch = epoch);
}

static int set_up(void **state)
{
    static struct rig r;
    static const struct agent_device devices[4] = {
        {"cpu", "cpu", 1}, {"cpu", "cpu", 1}, {"cpu", "cpu", 1}, {"cpu", "cpu", 1}};
    struct agent_config c = {.host = "h1",
                             .incarnation = "i1",
                             .name = "host-a",
                             .data_root = "/mine",
                             .devices = devices,
                             .ndevices = 4,
                             .grace_ns = 30 * CLOCK_S};
    memset(&r, 0, sizeof r);
    arena_init(&r.arena);
    r.g = agent_new(&c);
    r.now = 1000 * CLOCK_S;
    tick(&r, 0);
    assert_int_equal(count(&r, AGENT_CONNECT), 1);
    *state = &r;
    return 0;
}

static int tear_down(void **state)
{
    struct rig *r = *state;
    agent_free(r->g);
    arena_clear(&r->arena);
    return 0;
}

static struct rig *running(void **state, int ranks) // attached, with an attempt of epoch 1
{
    struct rig *r = *state;
    attach(r);
    start(r, 1, ranks);
    for (int i = 0; i < ranks; i++)
        spawned(r, i);
    return r;
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
    assert_int_equal(said(r, UP(REGISTER))->register_->n_devices, 4);
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
    assert_int_equal(said(r, UP(REAPED))->reaped->epoch, 1);
    start(r, 2, 1);
    assert_int_equal(count(r, AGENT_SPAWN), 1);
}

static void a_stop_that_overtakes_its_start_forbids_it(void **state)
{
    struct rig *r = *state;
    attach(r);
    stop(r, 3, 1000);
    assert_int_equal(said(r, UP(REAPED))->reaped->epoch, 3);
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
    assert_int_equal(said(r, UP(RANK_END))->rank_end->code, RANK_EXIT_INTERNAL);
    assert_string_equal(said(r, UP(RANK_END))->rank_end->why, "no weft-rank");
    assert_non_null(said(r, UP(REAPED)));
}

// ---- ends ----

static void fellows_of_a_failed_rank_are_told_who_it_was_at_once(void **state)
{
    struct rig *r = running(state, 3);
    struct page_view v = {.rank = 1, .step = 12, .state = RANK_RUNNING};
    feed(r, (struct agent_event){.kind = AGENT_EV_PAGE, .slot = 1, .page = &v});
    ended(r, 1, 0, SIGSEGV);
    const Weft__Rank__Frame *lost = told(r, 2, BODY(LOST));
    assert_int_equal(lost->lost->rank, 1);
    assert_non_null(strstr(lost->lost->why, "signal 11"));
    assert_non_null(strstr(lost->lost->why, "step 12"));
    assert_non_null(told(r, 0, BODY(LOST)));
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
    FRAME(f, EXIT, exit, &why);
    say(r, 0, &f);
    ended(r, 0, RANK_EXIT_DATA, 0);
    assert_string_equal(said(r, UP(RANK_END))->rank_end->why, "a bad file");
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
    assert_string_equal(told(r, 0, BODY(STOP))->stop->reason, "cancelled");
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
    assert_string_equal(told(r, 1, BODY(KV_VALUE))->kv_value->value, "v");
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
    assert_string_equal(told(r, 0, BODY(KV_VALUE))->kv_value->value, "v");
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
    assert_non_null(told(r, 0, BODY(BARRIER_DONE)));
    assert_null(told(r, 1, BODY(BARRIER_DONE)));
    assert_non_null(told(r, 2, BODY(BARRIER_DONE)));
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
    assert_non_null(told(r, 0, BODY(COMMITTED)));
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
    assert_non_null(told(r, 0, BODY(COMMIT)));
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
    assert_null(told(r, 0, BODY(COMMIT)));
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
             m->job = text(JOB), m->epoch = 1, m->attempt = text("a"));
        assert_int_equal(count(r, AGENT_STORAGE), i == 0);
    }
    DOWN(r, STORAGE, Storage, storage, storage, m->op = WEFT__V1__STORAGE_OP__STORAGE_FENCE,
         m->job = text(JOB), m->epoch = 2, m->attempt = text("b"));
    assert_int_equal(count(r, AGENT_STORAGE), 0);
    Weft__V1__StorageDone done;
    weft__v1__storage_done__init(&done);
    done.job = text(JOB);
    done.epoch = 1;
    feed(r, (struct agent_event){.kind = AGENT_EV_STORAGE, .storage = &done});
    assert_int_equal(said(r, UP(STORAGE))->storage->epoch, 1);
    assert_int_equal(the(r, AGENT_STORAGE)->storage->epoch, 2);
}

// ---- progress ----

static void changed_pages_are_told_at_most_four_times_a_second(void **state)
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
    assert_non_null(told(r, 0, BODY(STOP)));
    start_on(r, "j2", 1, "i1", 1, 3); // it takes nothing new
    assert_int_equal(count(r, AGENT_SPAWN), 0);
    DOWN(r, SYNC, Sync, sync, sync, m->job = text("j2"), m->epoch = 1);
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

#define STORY(fn) cmocka_unit_test_setup_teardown(fn, set_up, tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        STORY(a_new_worker_echoes_the_nonce_and_then_remembers_the_cluster),
        STORY(nothing_is_obeyed_before_registration),
        STORY(a_coordinator_of_another_cluster_is_left),
        STORY(it_comes_back_with_a_wait_below_a_quarter_of_the_lease),
        STORY(a_silent_coordinator_is_left_after_a_lease_but_not_when_we_stood_still),
        STORY(a_start_spawns_each_rank_once_with_this_hosts_roots),
        STORY(every_rank_with_a_process_is_in_the_heartbeat),
        STORY(a_start_for_an_earlier_incarnation_does_nothing),
        STORY(what_was_reaped_never_starts_again),
        STORY(a_stop_that_overtakes_its_start_forbids_it),
        STORY(a_device_with_a_living_rank_is_refused_to_another_job),
        STORY(a_rank_that_cannot_be_spawned_has_ended_with_the_reason),
        STORY(fellows_of_a_failed_rank_are_told_who_it_was_at_once),
        STORY(a_rank_that_is_done_or_drained_harms_nobody),
        STORY(ends_are_repeated_until_they_were_heard),
        STORY(a_sync_of_what_still_lives_forgets_nothing),
        STORY(a_stop_asks_once_and_kills_when_the_grace_is_over),
        STORY(a_stop_without_grace_kills_now),
        STORY(a_rank_killed_before_it_was_there_is_killed_when_it_is),
        STORY(what_ranks_asked_put_and_were_answered_is_brought_back),
        STORY(an_answer_is_given_again_even_while_the_coordinator_is_away),
        STORY(one_answer_for_all_reaches_each_rank_that_asked),
        STORY(a_shards_report_is_repeated_until_committed_across_reconnects),
        STORY(an_order_that_was_answered_is_answered_again_by_the_first_answer),
        STORY(durable_acts_go_one_at_a_time_a_job),
        STORY(changed_pages_are_told_at_most_four_times_a_second),
        STORY(the_newest_report_waits_for_the_coordinators_return),
        STORY(a_lost_lease_kills_proves_it_and_comes_back_as_somebody_new),
        STORY(one_stream_at_a_time_when_the_proof_is_faster_than_the_goodbye),
        STORY(ranks_that_cannot_be_proved_dead_end_the_worker),
        STORY(a_twin_kills_its_ranks_and_leaves_with_76),
        STORY(a_worker_without_ranks_leaves_at_once),
        STORY(asked_to_stop_it_drains_and_leaves_when_the_coordinator_knows),
        STORY(at_the_end_of_the_grace_it_kills_and_leaves),
        STORY(asked_twice_it_kills_at_once),
        STORY(a_leaving_worker_that_comes_back_says_so),
        STORY(something_is_due_whenever_a_tick_would_act),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
