// SPDX-License-Identifier: Apache-2.0
// The leader: ranks join, train, save, fail and stop, as events; what it does about
// each is its list of actions. No process, no socket, no clock.
#include <stdio.h>
#include <string.h>

#include "common/attempt/frame.h"
#include "common/attempt/leader.h"
#include "common/base/clock.h"
#include "tests/unit/unit.h"

enum { RANKS = 3, ATTEMPT = 4, STEPS = 100 };

struct fixture {
    struct leader *leader;
    struct arena arena;
    struct leader_out out; // of the newest event
    int64_t now;
    const struct culprit *culprit; // the newest
    int culprits, readies, committed, aborted, reports;
};

static struct leader_config config(void)
{
    return (struct leader_config){.ranks = RANKS,
                                  .steps = STEPS,
                                  .hang_after_ns = 3 * CLOCK_S,
                                  .join_ns = 60 * CLOCK_S,
                                  .keep = 2};
}

static void happens(struct fixture *s, struct leader_event ev)
{
    ev.now_ns = s->now;
    s->out = (struct leader_out){.arena = &s->arena};
    leader_step(s->leader, &ev, &s->out);
    for (int i = 0; i < s->out.n; i++) {
        const struct leader_action *a = &s->out.v[i];
        s->readies += a->kind == LEADER_READY;
        s->committed += a->kind == LEADER_COMMITTED;
        s->aborted += a->kind == LEADER_ABORTED;
        s->reports += a->kind == LEADER_REPORT;
        s->culprits += a->kind == LEADER_CULPRIT;
        s->culprit = a->kind == LEADER_CULPRIT ? a->culprit : s->culprit;
        if (a->kind == LEADER_READY || a->kind == LEADER_COMMITTED || a->kind == LEADER_CULPRIT)
            assert_int_equal(i, s->out.n - 1); // what may end the attempt comes last
    }
}

static void begin_with(struct fixture *s, const struct leader_config *c)
{
    *s = (struct fixture){.now = 1000 * CLOCK_S};
    arena_init(&s->arena);
    s->leader = leader_new(c, s->now);
    for (int r = 0; r < c->ranks; r++) {
        char place[40];
        snprintf(place, sizeof place, "host h%d device 0", r);
        leader_place(s->leader, r, place);
    }
    happens(s, (struct leader_event){.kind = LEADER_EV_FENCED, .attempt = ATTEMPT});
}

static void end(struct fixture *s)
{
    leader_free(s->leader);
    arena_clear(&s->arena);
}

static int begin_usual(void **state)
{
    static struct fixture s;
    struct leader_config c = config();
    begin_with(&s, &c);
    *state = &s;
    return 0;
}

static int end_usual(void **state)
{
    end(*state);
    return 0;
}
#define TEST(f) cmocka_unit_test_setup_teardown(f, begin_usual, end_usual)

static void says(struct fixture *s, int rank, const Weft__Rank__Frame *f)
{
    assert_true(leader_hears(f));
    happens(s, (struct leader_event){.kind = LEADER_EV_FRAME, .rank = rank, .frame = f});
}

// Time passes in ticks, in which nobody says anything.
static void pass_cut_off(struct fixture *s, int64_t ms, bool cut_off)
{
    int64_t end = s->now + ms * CLOCK_MS;
    while (s->now < end && !s->culprits) {
        s->now += LEADER_TICK_MS * CLOCK_MS;
        happens(s, (struct leader_event){.kind = LEADER_EV_TICK, .cut_off = cut_off});
    }
}

static void pass(struct fixture *s, int64_t ms)
{
    pass_cut_off(s, ms, false);
}

static void shows(struct fixture *s, int rank, enum rank_state state, int64_t step,
                  uint64_t entered)
{
    struct page_view v = {.state = (int)state,
                          .step = step,
                          .collective_entered = entered,
                          .collective_left = entered,
                          .collective_text = "fc1/weight"};
    happens(s, (struct leader_event){.kind = LEADER_EV_PAGE, .rank = rank, .page = &v});
}

static void is_ready(struct fixture *s, int rank, const char *plan)
{
    FRAME_BODY(b, Ready, ready);
    b.plan_hash = frame_text(plan);
    FRAME(f, READY, ready, &b);
    says(s, rank, &f);
}

static void train(struct fixture *s, int64_t step)
{
    for (int r = 0; r < RANKS && !s->readies; r++)
        is_ready(s, r, "plan");
    for (int r = 0; r < RANKS; r++)
        shows(s, r, RANK_RUNNING, step, (uint64_t)step);
}

static void saves(struct fixture *s, int rank, int64_t step, int code, const char *text)
{
    uint8_t digest[16] = {0};
    FRAME_BODY(b, ShardDone, shard_done);
    b.rank = 77; // whatever it says: who speaks is known
    b.step = step;
    b.code = code;
    b.text = frame_text(text);
    b.head_digest.data = b.digests.data = digest;
    b.head_digest.len = b.digests.len = 16;
    FRAME(f, SHARD_DONE, shard_done, &b);
    says(s, rank, &f);
}

static void writer_answers(struct fixture *s, int64_t step, int code)
{
    FRAME_BODY(b, CommitDone, commit_done);
    b.step = step;
    b.code = code;
    b.text = frame_text(code ? "no space left" : "");
    FRAME(f, COMMIT_DONE, commit_done, &b);
    says(s, 0, &f);
}

static void save_shards(struct fixture *s, int64_t step)
{
    for (int r = 0; r < RANKS; r++)
        saves(s, r, step, 0, "");
}

static void commit(struct fixture *s, int64_t step)
{
    save_shards(s, step);
    writer_answers(s, step, 0);
}

static void ends(struct fixture *s, int rank, int code, int signal, const char *why)
{
    happens(
        s, (struct leader_event){
               .kind = LEADER_EV_ENDED, .rank = rank, .code = code, .signal = signal, .text = why});
}

static void ends_with_log(struct fixture *s, int rank, int code, const char *log)
{
    happens(s, (struct leader_event){
                   .kind = LEADER_EV_ENDED, .rank = rank, .code = code, .text = "", .log = log});
}

static void owner(struct fixture *s, enum leader_event_kind kind)
{
    happens(s, (struct leader_event){.kind = kind});
}

// The frame of this kind that the newest event made for a rank (−1: for all), or null.
static const Weft__Rank__Frame *sent(const struct fixture *s, int rank, int kind)
{
    for (int i = 0; i < s->out.n; i++)
        if (s->out.v[i].kind == LEADER_SEND && s->out.v[i].rank == rank &&
            (int)s->out.v[i].frame->body_case == kind)
            return s->out.v[i].frame;
    return NULL;
}
#define SENT(s, rank, NAME) sent((s), (rank), WEFT__RANK__FRAME__BODY_##NAME)

static void assert_named(const struct fixture *s, enum culprit_kind kind, int rank,
                         const char *text)
{
    assert_int_equal(s->culprits, 1);
    assert_int_equal(s->culprit->kind, kind);
    assert_int_equal(s->culprit->rank, rank);
    if (!strstr(s->culprit->text, text))
        fail_msg("'%s' does not say '%s'", s->culprit->text, text);
}

// ---- joining ----

static void all_ready_with_one_plan_begin(void **state)
{
    struct fixture *s = *state;
    is_ready(s, 0, "plan");
    is_ready(s, 2, "plan");
    assert_int_equal(s->readies, 0);
    is_ready(s, 1, "plan");
    assert_int_equal(s->readies, 1);
    for (int r = 0; r < RANKS; r++)
        assert_non_null(SENT(s, r, READY_DONE));
    is_ready(s, 1, "plan"); // asked again: the same answer, and no second beginning
    assert_non_null(SENT(s, 1, READY_DONE));
    assert_int_equal(s->readies, 1);
}

static void plans_that_differ_are_nobodys_single_fault(void **state)
{
    struct fixture *s = *state;
    for (int r = 0; r < RANKS; r++)
        is_ready(s, r, r == 2 ? "another" : "plan");
    assert_named(s, CULPRIT_PLANS, -1,
                 "the plan or the data of rank 0 differs from that of rank 2");
    assert_int_equal(s->readies, 0);
    assert_string_not_equal(SENT(s, 1, READY_DONE)->ready_done->failed, "");
}

static void who_does_not_join_in_time_is_named(void **state)
{
    struct fixture *s = *state;
    shows(s, 1, RANK_STARTING, 0, 0);
    pass(s, 59800);
    assert_int_equal(s->culprits, 0);
    pass(s, 200);
    assert_named(s, CULPRIT_ABSENT, 0, "only 1 of 3 ranks joined within 60.0 s; missing: 0 2");
}

static void while_a_host_is_away_nobody_is_late(void **state)
{
    struct fixture *s = *state;
    pass(s, 50000);
    pass_cut_off(s, 30000, true);
    pass(s, 9800);
    assert_int_equal(s->culprits, 0);
    pass(s, 800);
    assert_named(s, CULPRIT_ABSENT, 0, "missing");
}

static void a_barrier_names_who_is_missing_and_where_it_was(void **state)
{
    struct fixture *s = *state;
    shows(s, 1, RANK_STARTING, 0, 0);
    FRAME_BODY(b, Barrier, barrier);
    b.name = frame_text("load");
    b.timeout_ns = CLOCK_S;
    FRAME(f, BARRIER, barrier, &b);
    says(s, 0, &f);
    pass(s, 1000);
    const Weft__Rank__Frame *answer = SENT(s, 0, BARRIER_DONE);
    assert_non_null(answer);
    const char *text = answer->barrier_done->failed;
    assert_non_null(strstr(text, "missing: rank 1 on host h1 device 0 (starting, step 0"));
    assert_non_null(strstr(text, "rank 2 on host h2 device 0 (not heard of yet)"));
}

// ---- who it was ----

static void a_rank_that_fails_of_its_own_is_named_at_once(void **state)
{
    struct fixture *s = *state;
    train(s, 7);
    ends(s, 2, RANK_EXIT_DEVICE, 0, "out of memory");
    assert_named(s, CULPRIT_EXITED, 2,
                 "rank 2 on host h2 device 0 (running, step 7, forward of microbatch 0, after "
                 "collective 7 (fc1/weight)) ended with exit 71, device failed: out of memory");
    assert_int_equal(s->culprit->code, RANK_EXIT_DEVICE);
}

static void a_rank_that_only_logged_why_it_fails_is_named_with_that(void **state)
{
    struct fixture *s = *state;
    train(s, 7);
    ends_with_log(s, 2, RANK_EXIT_DATA,
                  "2026-01-02T03:04:05.678Z error train job=a rank=2 step=7 another\n"
                  "2026-01-02T03:04:05.678Z error rank job=a rank=2 step=7 the loss is not finite\n"
                  "2026-01-02T03:04:05.679Z info rank job=a rank=2 leaves\n");
    assert_named(s, CULPRIT_EXITED, 2,
                 "rank 2 on host h2 device 0 (running, step 7, forward of microbatch 0, after "
                 "collective 7 (fc1/weight)) ended with exit 65, bad data or numbers: "
                 "the loss is not finite");
}

static void a_rank_that_fails_before_it_showed_a_step_is_not_said_to_be_starting(void **state)
{
    struct fixture *s = *state;
    train(s, 0);
    shows(s, 2, RANK_STARTING, 0, 0);
    happens(s, (struct leader_event){.kind = LEADER_EV_ENDED,
                                     .rank = 2,
                                     .code = RANK_EXIT_DATA,
                                     .step = 14,
                                     .text = "the loss is not finite"});
    assert_named(s, CULPRIT_EXITED, 2,
                 "rank 2 on host h2 device 0 (running, step 14) ended with exit 65, bad data "
                 "or numbers: the loss is not finite");
}

static void a_rank_that_lost_a_peer_is_not_named_when_the_cause_comes_within_a_moment(void **state)
{
    struct fixture *s = *state;
    train(s, 7);
    ends(s, 0, RANK_EXIT_LOST, 0, "lost rank 1");
    pass(s, 1000);
    assert_int_equal(s->culprits, 0);
    ends(s, 1, 0, 11, "");
    assert_named(s, CULPRIT_DIED, 1, "ended with signal 11, killed");
    owner(s, LEADER_EV_OVER);
    pass(s, 5000);
    assert_int_equal(s->culprits, 1);
}

static void for_want_of_a_cause_the_first_that_lost_a_peer_is_named(void **state)
{
    struct fixture *s = *state;
    train(s, 7);
    ends(s, 1, RANK_EXIT_LOST, 0, "no answer from rank 2");
    ends(s, 0, RANK_EXIT_LOST, 0, "lost rank 1");
    pass(s, LEADER_BLAME_MS - LEADER_TICK_MS);
    assert_int_equal(s->culprits, 0);
    pass(s, 2 * LEADER_TICK_MS);
    assert_named(s, CULPRIT_GAVE_UP, 1, "gave up: no answer from rank 2");
}

static void ends_without_reaching(struct fixture *s, int rank, int one_more)
{
    happens(s, (struct leader_event){.kind = LEADER_EV_ENDED,
                                     .rank = rank,
                                     .code = RANK_EXIT_LOST,
                                     .unreached = one_more,
                                     .text = "cannot reach it"});
}

static void
with_a_rank_that_lost_a_peer_comes_the_one_that_it_did_not_find_at_its_address(void **state)
{
    struct fixture *s = *state;
    ends_without_reaching(s, 2, 1 + 0);
    pass(s, LEADER_BLAME_MS + 2 * LEADER_TICK_MS);
    assert_named(s, CULPRIT_GAVE_UP, 2, "gave up: cannot reach it");
    assert_int_equal(s->culprit->unreached, 0);
}

static void a_rank_that_has_ended_too_is_not_the_one_that_was_not_found(void **state)
{
    struct fixture *s = *state;
    ends_without_reaching(s, 2, 1 + 1);
    ends(s, 1, RANK_EXIT_LOST, 0, "lost rank 2");
    pass(s, LEADER_BLAME_MS + 2 * LEADER_TICK_MS);
    assert_named(s, CULPRIT_GAVE_UP, 2, "gave up: cannot reach it");
    assert_int_equal(s->culprit->unreached, -1);
}

static void a_rank_that_does_not_exist_is_not_the_one_that_was_not_found(void **state)
{
    static const int lies[] = {-1, INT32_MIN, INT32_MAX, RANKS + 1};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        struct fixture *s = *state;
        ends_without_reaching(s, 2, lies[i]);
        pass(s, LEADER_BLAME_MS + 2 * LEADER_TICK_MS);
        assert_int_equal(s->culprit->unreached, -1);
        end_usual(state);
        begin_usual(state);
    }
}

// Stopped for less than what it takes for a pause, it has not read yet that rank 1 died.
static void a_rank_that_lost_a_peer_is_not_named_while_its_leader_was_stopped(void **state)
{
    struct fixture *s = *state;
    train(s, 7);
    ends(s, 0, RANK_EXIT_LOST, 0, "lost rank 1");
    pass(s, LEADER_TICK_MS);
    s->now += (LEADER_BLAME_MS + 300) * CLOCK_MS;
    happens(s, (struct leader_event){.kind = LEADER_EV_TICK});
    assert_int_equal(s->culprits, 0);
    ends(s, 1, 0, 11, "");
    assert_named(s, CULPRIT_DIED, 1, "ended with signal 11, killed");
}

static void an_attempt_whose_commit_meets_a_greater_attempt_is_over(void **state)
{
    struct fixture *s = *state;
    train(s, 10);
    save_shards(s, 10);
    writer_answers(s, 10, ERR_IO); // a full disk ends no attempt
    assert_int_equal(s->culprits, 0);
    save_shards(s, 20);
    writer_answers(s, 20, ERR_FENCED);
    assert_named(s, CULPRIT_FENCED, -1, "a newer attempt has the checkpoint folder");
}

static void when_no_rank_is_left_no_cause_is_waited_for(void **state)
{
    struct fixture *s = *state;
    train(s, 7);
    for (int r = 0; r < RANKS; r++)
        ends(s, r, RANK_EXIT_LOST, 0, "lost a peer");
    pass(s, LEADER_TICK_MS);
    assert_named(s, CULPRIT_GAVE_UP, 0, "gave up");
}

static void a_rank_that_goes_without_a_word_has_died(void **state)
{
    struct fixture *s = *state;
    struct page_view page = {.state = RANK_RUNNING,
                             .step = 17,
                             .phase = 1,
                             .collective_entered = 31,
                             .collective_left = 30};
    train(s, 16);
    happens(s, (struct leader_event){.kind = LEADER_EV_PAGE, .rank = 2, .page = &page});
    ends(s, 2, 0, 9, "");
    assert_named(s, CULPRIT_DIED, 2, "(running, step 17, backward of microbatch 0, in collective");
}

static void who_stands_still_hangs_and_its_peers_say_how_far_it_came(void **state)
{
    struct fixture *s = *state;
    train(s, 7);
    struct page_view v = {.state = RANK_RUNNING,
                          .step = 7,
                          .collective_entered = 9,
                          .awaits = 2 + 1,
                          .awaits_entered = 8};
    for (int r = 0; r < 2; r++)
        happens(s, (struct leader_event){.kind = LEADER_EV_PAGE, .rank = r, .page = &v});
    pass(s, 4000);
    assert_named(s, CULPRIT_HUNG, 2, "; its peers saw it enter 8 last) hangs: no progress for 3.");
}

static void silence_of_a_host_is_no_hang(void **state)
{
    struct fixture *s = *state;
    train(s, 7);
    pass(s, 2000);
    pass_cut_off(s, 8000, true);
    pass(s, 800);
    assert_int_equal(s->culprits, 0);
    pass(s, 400);
    assert_named(s, CULPRIT_HUNG, 0, "hangs");
}

static void a_leader_that_stood_still_itself_blames_nobody_for_it(void **state)
{
    struct fixture *s = *state;
    train(s, 7);
    ends(s, 1, RANK_EXIT_LOST, 0, "lost rank 2");
    s->now += 60 * CLOCK_S;
    happens(s, (struct leader_event){.kind = LEADER_EV_TICK});
    assert_int_equal(s->culprits, 0);
    ends(s, 2, RANK_EXIT_INTERNAL, 0, "out of memory"); // had waited to be read
    assert_named(s, CULPRIT_EXITED, 2, "out of memory");
}

static void no_rank_shows_more_steps_than_the_job_has(void **state)
{
    struct fixture *s = *state;
    shows(s, 1, RANK_RUNNING, 1 << 30, 1);
    assert_int_equal(leader_shown_step(s->leader), STEPS);
}

static void a_rank_that_has_not_trained_yet_is_at_no_step(void **state)
{
    struct fixture *s = *state;
    shows(s, 1, RANK_STARTING, 0, 0);
    assert_int_equal(leader_shown_step(s->leader), -1);
    shows(s, 1, RANK_ENDED, 0, 0);
    assert_int_equal(leader_shown_step(s->leader), -1);
    shows(s, 1, RANK_RUNNING, 0, 1);
    assert_int_equal(leader_shown_step(s->leader), 0);
    shows(s, 1, RANK_ENDED, 3, 1);
    assert_int_equal(leader_shown_step(s->leader), 3);
}

static void a_rank_that_ends_before_it_was_heard_of_is_at_the_step_of_its_end(void **state)
{
    struct fixture *s = *state;
    happens(s, (struct leader_event){.kind = LEADER_EV_ENDED,
                                     .rank = 1,
                                     .code = RANK_EXIT_INTERNAL,
                                     .step = 3,
                                     .text = "out of memory"});
    assert_int_equal(leader_shown_step(s->leader), 3);
    assert_named(s, CULPRIT_EXITED, 1, "step 3");
}

// ---- saves ----

static void a_checkpoint_is_ordered_when_all_shards_are_in_and_reported_to_all(void **state)
{
    struct fixture *s = *state;
    train(s, 10);
    saves(s, 2, 10, 0, "");
    saves(s, 0, 10, 0, "");
    assert_null(SENT(s, 0, COMMIT));
    saves(s, 1, 10, 0, "");
    const Weft__Rank__Frame *order = SENT(s, 0, COMMIT);
    assert_non_null(order);
    assert_int_equal(order->commit->n_shards, RANKS);
    assert_int_equal(order->commit->shards[2]->rank, 2);
    assert_int_equal(s->out.v[0].kind, LEADER_RECORDS); // durable before the order leaves
    writer_answers(s, 10, 0);
    assert_non_null(SENT(s, -1, COMMITTED));
    assert_int_equal(s->committed, 1);
}

static void a_shard_that_failed_or_makes_no_sense_aborts_the_checkpoint(void **state)
{
    struct fixture *s = *state;
    train(s, 10);
    saves(s, 1, 10, ERR_IO, "no space left");
    assert_non_null(strstr(SENT(s, -1, ABORTED)->aborted->why, "rank 1: no space left"));
    FRAME_BODY(b, ShardDone, shard_done);
    b.step = 20;
    FRAME(f, SHARD_DONE, shard_done, &b); // no digest of its head
    says(s, 2, &f);
    assert_non_null(strstr(SENT(s, -1, ABORTED)->aborted->why, "digests of a wrong length"));
    assert_int_equal(s->aborted, 2);
}

static void deletions_leave_before_the_answer_that_lets_rank_0_end(void **state)
{
    struct fixture *s = *state;
    train(s, 10);
    commit(s, 10);
    commit(s, 20);
    commit(s, 30);
    const Weft__Rank__Frame *first = NULL;
    for (int i = 0; i < s->out.n && !first; i++)
        first = s->out.v[i].kind == LEADER_SEND ? s->out.v[i].frame : NULL;
    assert_int_equal(first->body_case, WEFT__RANK__FRAME__BODY_DELETE);
    assert_int_equal(first->delete_->step, 10);
    assert_int_equal(s->committed, 3);
}

static void a_checkpoint_that_is_refused_takes_nothing_from_the_open_one(void **state)
{
    struct fixture *s = *state;
    train(s, 10);
    save_shards(s, 10);
    saves(s, 1, 11, 0, ""); // too early
    assert_non_null(strstr(SENT(s, -1, ABORTED)->aborted->why, "step 10 is still open"));
    saves(s, 0, 10, 0, ""); // the writer asks for its order again
    assert_int_equal(SENT(s, 0, COMMIT)->commit->n_shards, RANKS);
}

static void after_the_end_no_checkpoint_begins_and_an_ordered_one_still_counts(void **state)
{
    struct fixture *s = *state;
    train(s, 10);
    save_shards(s, 10);
    owner(s, LEADER_EV_OVER);
    saves(s, 0, 20, 0, "");
    assert_int_equal(s->out.n, 0);
    writer_answers(s, 10, 0);
    assert_int_equal(s->committed, 1);
}

// ---- stopping ----

static void ranks_that_are_to_stop_before_all_are_ready_do_not_begin(void **state)
{
    struct fixture *s = *state;
    is_ready(s, 0, "plan");
    owner(s, LEADER_EV_STOPPING);
    assert_true(SENT(s, 0, READY_DONE)->ready_done->called_off);
    is_ready(s, 1, "plan");
    is_ready(s, 2, "plan");
    assert_true(SENT(s, 2, READY_DONE)->ready_done->called_off);
    assert_int_equal(s->readies, 0);
    for (int r = 0; r < RANKS; r++)
        ends(s, r, RANK_EXIT_DRAINED, 0, "");
    assert_int_equal(s->culprits, 0);
}

static void ranks_that_leave_as_asked_are_not_blamed(void **state)
{
    struct fixture *s = *state;
    train(s, 10);
    owner(s, LEADER_EV_STOPPING);
    ends(s, 0, RANK_EXIT_DRAINED, 0, "");
    ends(s, 1, RANK_EXIT_LOST, 0, "lost rank 0");
    pass(s, 5000);
    assert_int_equal(s->culprits, 0);
    ends(s, 2, RANK_EXIT_DEVICE, 0, "out of memory"); // this is nobody's wish
    assert_named(s, CULPRIT_EXITED, 2, "out of memory");
}

static void all_that_leave_before_the_last_checkpoint_are_missed(void **state)
{
    struct fixture *s = *state;
    train(s, STEPS);
    for (int r = 0; r < RANKS; r++)
        ends(s, r, RANK_EXIT_DONE, 0, "");
    assert_named(s, CULPRIT_LEFT, -1, "the last checkpoint is not acknowledged");
}

// ---- a leader that was restarted ----

static void what_it_had_answered_is_brought_back_and_stays_the_answer(void **state)
{
    (void)state;
    struct fixture s;
    struct leader_config c = config();
    struct commit_record ordered = {.id = {ATTEMPT, 10}, .state = COMMIT_ORDERED};
    struct leader_memory m = {
        .attempt = ATTEMPT, .records = &ordered, .nrecords = 1, .state = LEADER_JOINING};
    s = (struct fixture){.now = 1000 * CLOCK_S};
    arena_init(&s.arena);
    s.leader = leader_new(&c, s.now);
    leader_restore(s.leader, &m, s.now);
    FRAME_BODY(done, ReadyDone, ready_done);
    FRAME(answer, READY_DONE, ready_done, &done);
    happens(&s, (struct leader_event){.kind = LEADER_EV_RECALL, .frame = &answer});
    assert_int_equal(s.readies, 1);
    for (int r = 0; r < RANKS; r++)
        saves(&s, r, 10, 0, ""); // they come again; with the last of them the order
    assert_int_equal(SENT(&s, 0, COMMIT)->commit->n_shards, RANKS);
    end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(all_ready_with_one_plan_begin),
        TEST(plans_that_differ_are_nobodys_single_fault),
        TEST(who_does_not_join_in_time_is_named),
        TEST(while_a_host_is_away_nobody_is_late),
        TEST(a_barrier_names_who_is_missing_and_where_it_was),
        TEST(a_rank_that_fails_of_its_own_is_named_at_once),
        TEST(a_rank_that_only_logged_why_it_fails_is_named_with_that),
        TEST(a_rank_that_fails_before_it_showed_a_step_is_not_said_to_be_starting),
        TEST(a_rank_that_lost_a_peer_is_not_named_when_the_cause_comes_within_a_moment),
        TEST(for_want_of_a_cause_the_first_that_lost_a_peer_is_named),
        TEST(with_a_rank_that_lost_a_peer_comes_the_one_that_it_did_not_find_at_its_address),
        TEST(a_rank_that_has_ended_too_is_not_the_one_that_was_not_found),
        TEST(a_rank_that_does_not_exist_is_not_the_one_that_was_not_found),
        TEST(a_rank_that_lost_a_peer_is_not_named_while_its_leader_was_stopped),
        TEST(an_attempt_whose_commit_meets_a_greater_attempt_is_over),
        TEST(when_no_rank_is_left_no_cause_is_waited_for),
        TEST(a_rank_that_goes_without_a_word_has_died),
        TEST(who_stands_still_hangs_and_its_peers_say_how_far_it_came),
        TEST(silence_of_a_host_is_no_hang),
        TEST(a_leader_that_stood_still_itself_blames_nobody_for_it),
        TEST(no_rank_shows_more_steps_than_the_job_has),
        TEST(a_rank_that_has_not_trained_yet_is_at_no_step),
        TEST(a_rank_that_ends_before_it_was_heard_of_is_at_the_step_of_its_end),
        TEST(a_checkpoint_is_ordered_when_all_shards_are_in_and_reported_to_all),
        TEST(a_shard_that_failed_or_makes_no_sense_aborts_the_checkpoint),
        TEST(deletions_leave_before_the_answer_that_lets_rank_0_end),
        TEST(a_checkpoint_that_is_refused_takes_nothing_from_the_open_one),
        TEST(after_the_end_no_checkpoint_begins_and_an_ordered_one_still_counts),
        TEST(ranks_that_are_to_stop_before_all_are_ready_do_not_begin),
        TEST(ranks_that_leave_as_asked_are_not_blamed),
        TEST(all_that_leave_before_the_last_checkpoint_are_missed),
        cmocka_unit_test(what_it_had_answered_is_brought_back_and_stays_the_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
