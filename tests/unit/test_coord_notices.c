// SPDX-License-Identifier: Apache-2.0
// Notices: which events a receiver gets, each once, over failures, restarts and servers that take
// none.
#include "tests/unit/coord_world.h"

#include <stdio.h>
#include <string.h>

#include "common/base/heap.h"
#include "common/base/json.h"
#include "coordinator/decide/notices.h"

#define OPS CALM "notify: [ops]\n"

static struct world *world_with(void **state, const char *one, const char *two)
{
    struct world *w = *state;
    w->receivers[0] = one;
    w->receivers[1] = two;
    w->nreceivers = two ? 2 : one ? 1 : 0;
    world_restart(w);
    return w;
}

static int count_rows(const struct world *w, enum row_kind kind)
{
    int n = 0;
    for (int i = 0; i < w->nrows; i++)
        n += w->rows[i]->row.kind == kind;
    return n;
}

static void assert_posted(struct world *w, int posts, const char *event)
{
    char member[40];
    snprintf(member, sizeof member, "\"event\":\"%s\"", event);
    assert_int_equal(w->posts, posts);
    assert_non_null(strstr(w->post, member));
}

static void taken(struct world *w, const char *receiver)
{
    world_posted(w, receiver, POST_TAKEN, "");
}

static void test_a_start_is_noticed_once_however_many_attempts_follow(void **state)
{
    struct world *w = world_with(state, "ops", NULL);
    const char *job = world_job_alone(w, 1, OPS);
    assert_posted(w, 1, "started");
    assert_string_equal(w->post_receiver, "ops");
    taken(w, "ops");
    world_step(w, job, 3);
    world_save(w, job, 3);
    world_die(w, job, 0, 70, 0);
    assert_state(w, job, RUNNING);
    assert_int_equal(world_job(w, job)->attempt, 2);
    world_finish(w, job);
    assert_state(w, job, SUCCEEDED);
    assert_posted(w, 2, "succeeded");
    taken(w, "ops");
    world_pass(w, 20000);
    assert_int_equal(w->posts, 2);
    assert_int_equal(count_rows(w, ROW_NOTICE), 0);
}

static void test_each_hold_is_noticed_and_a_start_again_after_a_resume(void **state)
{
    static const char *const events[] = {"held", "started", "held", "started"};
    struct world *w = world_with(state, "ops", NULL);
    const char *job = world_job_alone(w, 1, OPS);
    taken(w, "ops");
    for (int i = 0; i < 4; i++) {
        assert_true(world_act(w, i % 2 ? WEFT__V1__VERB__RESUME : WEFT__V1__VERB__HOLD, job));
        assert_posted(w, 2 + i, events[i]);
        assert_true(i % 2 || strstr(w->post, "\"reason\":\"held by ann\""));
        taken(w, "ops");
    }
    assert_true(world_act(w, WEFT__V1__VERB__CANCEL, job));
    assert_state(w, job, CANCELLED);
    assert_int_equal(w->posts, 5); // somebody cancelled it: nobody needs to hear of that
}

static void test_a_job_that_fails_is_noticed_with_its_diagnosis(void **state)
{
    struct world *w = world_with(state, "ops", NULL);
    const char *job =
        world_job_alone(w, 1, "restart: {backoff: [1ms, 1ms], hang_after: 2h}\nnotify: [ops]\n");
    taken(w, "ops");
    for (int i = 0; i < 3; i++) {
        world_pass(w, 200);
        world_step(w, job, 4);
        world_die_saying(w, job, 0, 70, "the \"disk\" burns");
    }
    assert_state(w, job, FAILED);
    assert_posted(w, 2, "failed");
    assert_non_null(strstr(w->post, "exit 70 at step 4: "));
    assert_non_null(strstr(w->post, "the \\\"disk\\\" burns"));
    assert_non_null(strstr(w->post, "\"attempt\":3"));
}

static void hang(struct world *w, const char *job, int64_t step)
{
    int before = world_events(w, job, "hang");
    world_step(w, job, step);
    world_page(w, job, 0, step, RANK_RUNNING, 30);
    for (int i = 0; i < 100 && world_events(w, job, "hang") == before; i++)
        world_pass(w, 100);
    assert_int_equal(world_events(w, job, "hang"), before + 1);
    world_pass(w, 2000); // its backoff
}

static void test_a_stall_is_noticed_once_until_the_job_has_come_further(void **state)
{
    struct world *w = world_with(state, "ops", NULL);
    const char *job = world_job_alone(w, 1,
                                      "restart: {hang_after: 5s, backoff: [1ms, 1ms], budget: 9}\n"
                                      "notify: [ops]\n");
    taken(w, "ops");
    hang(w, job, 2);
    assert_posted(w, 2, "stalled");
    assert_non_null(strstr(w->post, "no progress for"));
    assert_non_null(strstr(w->post, "\"attempt\":1"));
    taken(w, "ops");
    world_restart(w);
    hang(w, job, 1);
    assert_int_equal(w->posts, 2);
    hang(w, job, 4);
    assert_posted(w, 3, "stalled");
}

static void test_attempts_that_lead_nowhere_are_a_stall(void **state)
{
    struct world *w = world_with(state, "ops", NULL);
    const char *job =
        world_job_alone(w, 1, "restart: {backoff: [1ms, 1ms], hang_after: 2h}\nnotify: [ops]\n");
    taken(w, "ops");
    world_die(w, job, 0, 0, 9);
    assert_int_equal(w->posts, 1);
    world_pass(w, 200);
    world_die(w, job, 0, 70, 0);
    assert_posted(w, 2, "stalled");
    assert_non_null(strstr(w->post, "the last 2 attempts led nowhere"));
    taken(w, "ops");
    world_pass(w, 200);
    world_die(w, job, 0, 71, 0);
    world_pass(w, 200);
    assert_int_equal(w->posts, 2);
}

static void test_a_restart_sends_what_was_not_taken_and_nothing_twice(void **state)
{
    struct world *w = world_with(state, "ops", NULL);
    char first[sizeof w->post];
    const char *job = world_job_alone(w, 1, OPS);
    memcpy(first, w->post, sizeof first);
    assert_int_equal(count_rows(w, ROW_NOTICE), 1);
    world_restart(w); // the answer never came
    assert_posted(w, 2, "started");
    assert_string_equal(w->post, first);
    taken(w, "ops");
    assert_int_equal(count_rows(w, ROW_NOTICE), 0);
    world_restart(w);
    world_pass(w, 15000);
    assert_int_equal(w->posts, 2);
    assert_state(w, job, RUNNING);
}

static void test_pauses_grow_and_hold_up_no_other_receiver(void **state)
{
    struct world *w = world_with(state, "ops", "chat");
    const char *job = world_job_alone(w, 1, CALM "notify: [ops, chat]\n");
    assert_int_equal(w->posts, 2);
    taken(w, "chat");
    for (int i = 0, pause_ms = NOTICE_PAUSE_S * 1000; i < 5; i++, pause_ms *= 2) {
        world_posted(w, "ops", POST_FAILED, "it answered 500");
        world_pass(w, pause_ms - 100);
        assert_int_equal(w->posts, 2 + i);
        world_pass(w, 100);
        assert_posted(w, 3 + i, "started");
        assert_string_equal(w->post_receiver, "ops");
    }
    world_finish(w, job);
    assert_posted(w, 8, "succeeded");
    assert_string_equal(w->post_receiver, "chat"); // ops has not answered
    taken(w, "ops");
    assert_posted(w, 9, "succeeded");
    assert_string_equal(w->post_receiver, "ops");
    assert_int_equal(world_events(w, job, "unsent"), 0);
}

static void test_after_hours_a_notice_is_given_up_and_the_history_says_so(void **state)
{
    struct world *w = world_with(state, "ops", NULL);
    const char *job = world_job_alone(w, 1, OPS);
    w->wall += NOTICE_HOURS * 3600 * INT64_C(1000) - 1000;
    world_posted(w, "ops", POST_FAILED, "it answered 503");
    assert_int_equal(count_rows(w, ROW_NOTICE), 1);
    world_pass(w, 6000);
    assert_int_equal(w->posts, 2);
    world_posted(w, "ops", POST_FAILED, "it answered 503");
    assert_int_equal(count_rows(w, ROW_NOTICE), 0);
    assert_string_equal(
        world_event_text(w, job, "unsent"),
        "notify: ops was not sent 'started': it was tried for 6 h, at last: it answered 503");
    world_pass(w, 20000);
    assert_int_equal(w->posts, 2);
}

static void test_what_is_refused_is_not_tried_again(void **state)
{
    struct world *w = world_with(state, "ops", NULL);
    const char *job = world_job_alone(w, 1, OPS);
    world_posted(w, "ops", POST_REFUSED, "it answered 404");
    assert_int_equal(count_rows(w, ROW_NOTICE), 0);
    assert_string_equal(world_event_text(w, job, "unsent"),
                        "notify: ops was not sent 'started': it answered 404");
    world_finish(w, job);
    assert_posted(w, 2, "succeeded");
}

static void test_one_that_is_never_taken_lets_the_others_past(void **state)
{
    struct world *w = world_with(state, "ops", NULL);
    world_host(w, 0, 2);
    world_submit(w, "poison", 1, OPS);
    world_submit(w, "good", 1, OPS);
    assert_non_null(strstr(w->post, "\"name\":\"poison\""));
    world_posted(w, "ops", POST_FAILED, "it answered 500");
    world_pass(w, NOTICE_PAUSE_S * 1000);
    assert_non_null(strstr(w->post, "\"name\":\"good\""));
    taken(w, "ops");
    assert_non_null(strstr(w->post, "\"name\":\"poison\""));
}

static void test_before_a_stop_what_was_not_tried_goes_at_once(void **state)
{
    struct world *w = world_with(state, "ops", NULL);
    const char *job = world_job_alone(w, 1, OPS);
    world_posted(w, "ops", POST_FAILED, "it answered 500");
    world_finish(w, job);
    assert_int_equal(w->posts, 1);
    assert_true(coord_has_unsent(w->c));
    coord_stops(w->c);
    assert_true(coord_due(w->c) <= w->now);
    world_pass(w, 100);
    assert_posted(w, 2, "succeeded");
    world_posted(w, "ops", POST_FAILED, "it answered 500");
    assert_false(coord_has_unsent(w->c));
    world_pass(w, 100);
    assert_int_equal(w->posts, 2); // what was tried waits as ever
    assert_int_equal(count_rows(w, ROW_NOTICE), 2);
}

static void test_an_answer_to_what_was_posted_before_a_restart_is_of_no_other_notice(void **state)
{
    struct world *w = world_with(state, "ops", NULL);
    char started[80];
    const char *job = world_job_alone(w, 1, OPS);
    snprintf(started, sizeof started, "%s", w->post_ids[0]);
    assert_true(world_act(w, WEFT__V1__VERB__HOLD, job));
    world_posted(w, "ops", POST_FAILED, "it answered 500");
    world_pass(w, NOTICE_PAUSE_S * 1000);
    assert_posted(w, 2, "held");
    struct coord_event old = {.kind = COORD_EV_POSTED,
                              .target = "ops",
                              .posted = POST_TAKEN,
                              .id = started,
                              .result = ""};
    world_event(w, &old);
    assert_int_equal(count_rows(w, ROW_NOTICE), 2);
    assert_true(coord_has_unsent(w->c));
    taken(w, "ops");
    assert_posted(w, 3, "started");
}

static void test_only_so_many_wait_for_a_receiver(void **state)
{
    struct world *w = world_with(state, "ops", NULL);
    const char *job = world_submit(w, "tiny", 1, OPS); // no host: it waits
    for (int i = 0; i <= 20; i++) {
        assert_int_equal(world_events(w, job, "unsent"), 0);
        assert_true(world_act(w, WEFT__V1__VERB__HOLD, job));
        assert_true(world_act(w, WEFT__V1__VERB__RESUME, job));
    }
    assert_int_equal(count_rows(w, ROW_NOTICE), 20);
    assert_int_equal(world_events(w, job, "unsent"), 1);
    assert_string_equal(world_event_text(w, job, "unsent"),
                        "notify: 20 notices wait for ops already: it is not sent 'held'");
}

static void test_a_receiver_that_is_not_here_is_refused_by_name(void **state)
{
    struct world *w = world_with(state, "ops", "chat");
    world_host(w, 0, 1);
    assert_string_equal(world_submit(w, "tiny", 1, "notify: [chat, opps]\n"), "");
    assert_string_equal(w->refused, "notify: this coordinator has no receiver opps, only ops, chat "
                                    "(weft-coordinator --notify NAME=URL)");
    assert_string_equal(world_submit(w, "tiny", 1, "notify: ['http://169.254.169.254/']\n"), "");
}

static void test_without_its_receiver_a_notice_waits_for_hours_and_is_given_up(void **state)
{
    struct world *w = world_with(state, "ops", NULL);
    const char *job = world_job_alone(w, 1, OPS);
    world_with(state, NULL, NULL);
    world_finish(w, job);
    assert_state(w, job, SUCCEEDED);
    assert_int_equal(w->posts, 1);
    assert_string_equal(world_event_text(w, job, "unsent"),
                        "notify: this coordinator has no receiver ops: it is not sent 'succeeded'");
    world_pass(w, 60100);
    assert_int_equal(count_rows(w, ROW_NOTICE), 1); // who forgot the flag may give it
    w->wall += NOTICE_HOURS * 3600 * INT64_C(1000);
    world_pass(w, 60100);
    assert_int_equal(count_rows(w, ROW_NOTICE), 0);
    assert_string_equal(
        world_event_text(w, job, "unsent"),
        "notify: ops was not sent 'started': this coordinator has no such receiver any more");
}

static void test_with_a_job_its_notices_go(void **state)
{
    struct world *w = world_with(state, "ops", NULL);
    world_host(w, 0, 2);
    const char *job = world_submit(w, "one", 1, OPS);
    world_submit(w, "two", 1, OPS);
    assert_true(world_act(w, WEFT__V1__VERB__CANCEL, job));
    assert_true(world_act(w, WEFT__V1__VERB__DELETE, job));
    world_pass(w, 1000);
    assert_int_equal(count_rows(w, ROW_NOTICE), 1);
    world_posted(w, "ops", POST_FAILED, "it answered 500");
    world_pass(w, NOTICE_PAUSE_S * 1000);
    assert_int_equal(w->posts, 2);
    assert_non_null(strstr(w->post, "\"name\":\"two\""));
}

static const char *text_of(const struct json *o, const char *key)
{
    const char *text = "";
    assert_int_equal(json_get_str(o, key, &text, NULL), 0);
    return text;
}

static void test_words_of_people_steer_neither_json_nor_a_chat(void **state)
{
    struct world *w = world_with(state, "ops", NULL);
    const char *job = world_job_alone(w, 1, OPS);
    struct arena a;
    struct json *o;
    NEW(ActRequest, act_request, q);
    struct coord_event ev = {.kind = COORD_EV_ACT, .call = ++w->calls, .who = "ann", .act = &q};
    taken(w, "ops");
    q.request_id = (char[]){"hostile"};
    q.verb = WEFT__V1__VERB__HOLD;
    q.target = (char[33]){0};
    memcpy(q.target, job, 32);
    q.why = (char[]){"\"}\\ \x1b[2J\xff <!channel> & @everyone\nnext"};
    world_event(w, &ev);
    world_pass(w, 100);
    assert_posted(w, 2, "held");
    arena_init(&a);
    assert_int_equal(json_parse(&a, w->post, strlen(w->post), &o, NULL), 0);
    assert_string_equal(text_of(o, "reason"),
                        "held by ann: \"}\\ ?[2J? <!channel> & @everyone next");
    assert_non_null(strstr(text_of(o, "text"), " is held, attempt 1: held by ann"));
    assert_non_null(strstr(text_of(o, "text"), "&lt;!channel&gt; &amp; @\xe2\x80\x8b"
                                               "everyone next"));
    assert_non_null(strstr(text_of(o, "content"), "<!channel> & @\xe2\x80\x8b"
                                                  "everyone next"));
    assert_string_equal(text_of(o, "job"), job);
    assert_string_equal(text_of(o, "name"), "tiny");
    assert_int_equal(json_get(json_get(o, "allowed_mentions"), "parse")->count, 0);
    assert_int_equal(json_get(o, "steps")->integer, 10);
    arena_clear(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_a_start_is_noticed_once_however_many_attempts_follow),
        CASE(test_each_hold_is_noticed_and_a_start_again_after_a_resume),
        CASE(test_a_job_that_fails_is_noticed_with_its_diagnosis),
        CASE(test_a_stall_is_noticed_once_until_the_job_has_come_further),
        CASE(test_attempts_that_lead_nowhere_are_a_stall),
        CASE(test_a_restart_sends_what_was_not_taken_and_nothing_twice),
        CASE(test_pauses_grow_and_hold_up_no_other_receiver),
        CASE(test_after_hours_a_notice_is_given_up_and_the_history_says_so),
        CASE(test_what_is_refused_is_not_tried_again),
        CASE(test_one_that_is_never_taken_lets_the_others_past),
        CASE(test_before_a_stop_what_was_not_tried_goes_at_once),
        CASE(test_an_answer_to_what_was_posted_before_a_restart_is_of_no_other_notice),
        CASE(test_only_so_many_wait_for_a_receiver),
        CASE(test_a_receiver_that_is_not_here_is_refused_by_name),
        CASE(test_without_its_receiver_a_notice_waits_for_hours_and_is_given_up),
        CASE(test_with_a_job_its_notices_go),
        CASE(test_words_of_people_steer_neither_json_nor_a_chat),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
