// SPDX-License-Identifier: Apache-2.0
// Links and their leader over real sockets in one process: keys, barriers, agreement, stops,
// checkpoints' frames, and that whoever dies, fails, hangs or is missing is named.
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/attempt/frame.h"
#include "tests/support/frame_wait.h"
#include "tests/unit/rank_team.h"

static void every_rank_gets_its_assignment(void **state)
{
    (void)state;
    struct team t;
    team_start(&t, 3, 0);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(t.got[r].rank, r);
        assert_int_equal(t.got[r].ranks, 3);
        assert_int_equal(t.got[r].attempt, 3);
        assert_string_equal(t.got[r].job_text, "name: x\n");
        assert_string_equal(t.got[r].restore, "step-00000004.a2");
        assert_int_equal(t.got[r].restore_step, 4);
        assert_memory_equal(t.got[r].key, t.key, 32);
    }
    team_end(&t, 0);
}

struct getter {
    struct link *link;
    char value[32];
    int rc;
};

static void *get_later(void *arg)
{
    struct getter *g = arg;
    g->rc = link_kv_get(g->link, "addr/0", g->value, sizeof g->value, soon(), NULL);
    return NULL;
}

static void a_key_has_one_writer_and_wakes_who_waits(void **state)
{
    (void)state;
    struct team t;
    struct err e = {0};
    team_start(&t, 2, 0);
    struct getter g = {.link = t.link[1]};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, get_later, &g), 0);
    assert_int_equal(link_kv_put(t.link[0], "addr/0", "tcp:1", NULL), 0);
    pthread_join(thread, NULL);
    assert_int_equal(g.rc, 0);
    assert_string_equal(g.value, "tcp:1");
    assert_int_equal(link_kv_put(t.link[1], "addr/0", "tcp:2", &e), ERR_EXISTS);
    assert_non_null(strstr(e.text, "rank 0"));
    assert_int_equal(link_kv_get(t.link[1], "nobody", g.value, sizeof g.value,
                                 clock_mono_ns() + 50 * CLOCK_MS, NULL),
                     ERR_TIMEOUT);
    team_end(&t, 0);
}

struct waiter {
    struct link *link;
    struct progress_page *page;
    pthread_t thread;
    char value[32];
    int rc;
    struct err err;
};

static void *await_key(void *arg)
{
    struct waiter *w = arg;
    w->rc = link_kv_await(w->link, "slow/0", w->value, sizeof w->value, w->page, &w->err);
    return NULL;
}

static void waiter_start(struct waiter *w)
{
    strcpy(w->value, "untouched");
    assert_int_equal(pthread_create(&w->thread, NULL, await_key, w), 0);
}

// A wait that does not end fails the test instead of hanging it.
static void waiter_join(struct waiter *w)
{
    struct timespec end = {.tv_sec = time(NULL) + 60};
    assert_int_equal(pthread_timedjoin_np(w->thread, NULL, &end), 0);
}

// Returns once the waiter's page has moved so often: it is waiting, and has looked in vain before.
static void waiter_see_beats(const struct waiter *w, int wanted)
{
    struct page_view now;
    int beats = 0;
    page_read(w->page, &now);
    uint64_t last = now.heartbeat_ns;
    for (int64_t end = soon(); beats < wanted && clock_mono_ns() < end; clock_sleep_ms(10)) {
        page_read(w->page, &now);
        beats += now.heartbeat_ns != last;
        last = now.heartbeat_ns;
    }
    assert_int_equal(beats, wanted);
}

// However long another rank takes: the one that waits asks once, and its page goes on.
static void who_waits_for_a_key_without_an_end_shows_that_it_lives(void **state)
{
    (void)state;
    struct team t;
    struct page_view before, now;
    team_start(&t, 2, 0);
    struct waiter w = {.link = t.link[1], .page = t.page[1]};
    page_read(w.page, &before);
    waiter_start(&w);
    waiter_see_beats(&w, 2);
    page_read(w.page, &now);
    assert_int_equal(now.ops, before.ops); // or who waits would seem ahead of who measures
    assert_int_equal(link_kv_put(t.link[0], "slow/0", "measured", NULL), 0);
    waiter_join(&w);
    assert_int_equal(w.rc, 0);
    assert_string_equal(w.value, "measured");
    waiter_start(&w); // a value that is there is had at once
    waiter_join(&w);
    assert_int_equal(w.rc, 0);
    assert_string_equal(w.value, "measured");
    team_end(&t, 0);
}

// Rank 2 is to put the key and fails instead: the wait ends, and says which rank was lost and why.
static void a_wait_for_a_key_without_an_end_ends_when_the_other_rank_is_lost(void **state)
{
    (void)state;
    struct team t;
    static struct waiter w; // outlives the test if the wait does not end
    team_start(&t, 3, 0);
    w = (struct waiter){.link = t.link[1], .page = t.page[1]};
    waiter_start(&w);
    waiter_see_beats(&w, 1);
    link_close(t.link[2], RANK_EXIT_DEVICE, "the device fell off the bus");
    t.link[2] = NULL;
    waiter_join(&w);
    assert_int_equal(w.rc, ERR_PEER);
    assert_int_equal(w.err.code, ERR_PEER);
    assert_non_null(strstr(w.err.text, "rank 2 on host here"));
    assert_non_null(strstr(w.err.text, "the device fell off the bus"));
    assert_string_equal(w.value, "untouched");
    team_end(&t, RANK_EXIT_LOST);
}

static void a_wait_for_a_key_without_an_end_ends_when_the_leader_asks_to_stop(void **state)
{
    (void)state;
    int sv[2];
    struct frame_conn leader;
    Weft__Rank__Frame *asked;
    static struct waiter w; // outlives the test if the wait does not end
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
    frame_conn_init(&leader, sv[1]);
    w = (struct waiter){0};
    assert_int_equal(link_open(sv[0], &w.link, NULL), 0);
    waiter_start(&w);
    for (int i = 0; i < 2; i++) { // after Hello
        assert_int_equal(frame_recv_wait(&leader, &asked, soon(), NULL), 0);
        assert_int_equal(asked->body_case,
                         i ? WEFT__RANK__FRAME__BODY_KV_GET : WEFT__RANK__FRAME__BODY_HELLO);
        weft__rank__frame__free_unpacked(asked, NULL);
    }
    FRAME_BODY(body, Stop, stop);
    body.reason = frame_text("the host drains");
    FRAME(f, STOP, stop, &body);
    assert_int_equal(frame_send_wait(&leader, &f, soon(), NULL), 0);
    waiter_join(&w);
    assert_int_equal(w.rc, ERR_ABORTED);
    assert_int_equal(w.err.code, ERR_ABORTED);
    assert_non_null(strstr(w.err.text, "asked to stop while waiting for kv/slow/0"));
    assert_string_equal(w.value, "untouched");
    assert_true(link_stop_requested(w.link));
    assert_null(link_lost(w.link)); // nobody is lost: this rank ends as one that was asked to
    frame_conn_clear(&leader);
    link_close(w.link, RANK_EXIT_DRAINED, "");
}

static void *barrier_later(void *arg)
{
    struct getter *g = arg;
    g->rc = link_barrier(g->link, "load", 1, soon(), NULL);
    return NULL;
}

static void a_barrier_opens_when_all_came_and_names_who_is_missing(void **state)
{
    (void)state;
    struct team t;
    struct err e = {0};
    team_start(&t, 3, 0);
    struct getter g[3];
    pthread_t thread[3];
    for (int r = 0; r < 3; r++) {
        g[r].link = t.link[r];
        assert_int_equal(pthread_create(&thread[r], NULL, barrier_later, &g[r]), 0);
    }
    for (int r = 0; r < 3; r++) {
        pthread_join(thread[r], NULL);
        assert_int_equal(g[r].rc, 0);
    }
    page_step(t.page[2], 12);
    assert_int_equal(link_barrier(t.link[0], "save", 2, clock_mono_ns() + 300 * CLOCK_MS, &e),
                     ERR_TIMEOUT);
    assert_non_null(strstr(e.text, "missing: rank 1 on host here"));
    assert_non_null(strstr(e.text, "rank 2 on host here (starting, step 12"));
    team_end(&t, 0);
}

static void *ready_later(void *arg)
{
    struct getter *g = arg;
    struct err e = {0};
    g->rc = link_ready(g->link, g->value, "", soon(), &e);
    snprintf(g->value, sizeof g->value, "%.31s", e.text);
    return NULL;
}

static void differing_plans_stop_the_attempt_before_its_first_step(void **state)
{
    (void)state;
    for (int differ = 0; differ < 2; differ++) {
        struct team t;
        team_start(&t, 2, 0);
        struct getter g[2] = {{t.link[0], "plan-a", -1}, {t.link[1], "plan-a", -1}};
        if (differ)
            strcpy(g[1].value, "plan-b");
        pthread_t thread[2];
        for (int r = 0; r < 2; r++)
            assert_int_equal(pthread_create(&thread[r], NULL, ready_later, &g[r]), 0);
        for (int r = 0; r < 2; r++) {
            pthread_join(thread[r], NULL);
            assert_int_equal(g[r].rc, differ ? ERR_INVALID : 0);
            if (differ)
                assert_non_null(strstr(g[r].value, "the plan or the data of rank 0"));
        }
        team_end(&t, 0);
    }
}

// One rank may have been asked to stop and the others not yet: the leader alone says whether all begin.
static void after_a_stop_ranks_begin_or_not_as_the_leader_says(void **state)
{
    (void)state;
    for (int off = 0; off < 2; off++) {
        int sv[2];
        struct frame_conn leader;
        Weft__Rank__Frame *said;
        struct getter g = {.value = "plan"};
        pthread_t thread;
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
        frame_conn_init(&leader, sv[1]);
        assert_int_equal(link_open(sv[0], &g.link, NULL), 0);
        assert_int_equal(pthread_create(&thread, NULL, ready_later, &g), 0);
        for (int i = 0; i < 2; i++) { // after Hello
            assert_int_equal(frame_recv_wait(&leader, &said, soon(), NULL), 0);
            weft__rank__frame__free_unpacked(said, NULL);
        }
        if (!off) { // else the answer itself asks it to stop
            FRAME_BODY(stop, Stop, stop);
            FRAME(f, STOP, stop, &stop);
            assert_int_equal(frame_send_wait(&leader, &f, soon(), NULL), 0);
        }
        FRAME_BODY(done, ReadyDone, ready_done);
        done.called_off = off;
        FRAME(answer, READY_DONE, ready_done, &done);
        assert_int_equal(frame_send_wait(&leader, &answer, soon(), NULL), 0);
        pthread_join(thread, NULL);
        assert_int_equal(g.rc, off ? ERR_ABORTED : 0);
        assert_true(link_stop_requested(g.link));
        frame_conn_clear(&leader);
        link_close(g.link, RANK_EXIT_DRAINED, "");
    }
}

static void count_call(void *ctx, const char *why)
{
    if (strstr(why, "rank 2"))
        atomic_fetch_add((atomic_int *)ctx, 1);
}

static void a_failed_rank_is_named_to_all_with_its_reason(void **state)
{
    (void)state;
    struct team t;
    atomic_int calls = 0;
    team_start(&t, 3, 0);
    link_on_lost(t.link[1], count_call, &calls);
    link_close(t.link[2], RANK_EXIT_DATA, "the file train.idx is too short");
    t.link[2] = NULL;
    for (int r = 0; r < 2; r++) {
        const char *why = link_lost_wait(t.link[r], 60 * CLOCK_S);
        assert_non_null(why);
        assert_non_null(strstr(why, "rank 2 on host here"));
        assert_non_null(strstr(why, "65"));
        assert_non_null(strstr(why, "train.idx is too short"));
    }
    char value[8];
    assert_int_equal(link_kv_get(t.link[1], "k", value, sizeof value, soon(), NULL), ERR_PEER);
    for (int64_t end = soon(); !atomic_load(&calls) && clock_mono_ns() < end;)
        clock_sleep_ms(1);
    link_on_lost(t.link[1], NULL, NULL);
    assert_int_equal(atomic_load(&calls), 1);
    team_end(&t, RANK_EXIT_LOST);
}

static void a_dead_rank_is_named_with_its_step_and_collective(void **state)
{
    (void)state;
    struct team t;
    team_lead(&t, 3, 60 * CLOCK_S, 0);
    for (int r = 0; r < 2; r++) { // rank 2 never opens a link: only its page speaks
        team_join(&t, r);
        team_assign(&t, r);
    }
    char path[100];
    page_path(t.dir, 2, path, sizeof path);
    assert_int_equal(page_create(path, 2, &t.page[2], NULL), 0);
    page_state(t.page[2], RANK_RUNNING);
    page_step(t.page[2], 17);
    page_phase(t.page[2], 1, 0);
    atomic_store(&t.page[2]->collective_entered, 31);
    atomic_store(&t.page[2]->collective_left, 30);
    strcpy(t.page[2]->collective_text, "fc1/weight");
    close(t.fd[2]);
    t.fd[2] = -1;
    for (int r = 0; r < 2; r++) {
        const char *why = link_lost_wait(t.link[r], 60 * CLOCK_S);
        assert_non_null(why);
        assert_non_null(
            strstr(why, "rank 2 on host here (running, step 17, backward of microbatch 0, in "
                        "collective 31 (fc1/weight)) ended with signal 9, killed"));
    }
    team_end(&t, RANK_EXIT_LOST);
}

static void a_hang_names_the_rank_with_the_lowest_collective(void **state)
{
    (void)state;
    struct team t;
    team_start(&t, 3, 2 * CLOCK_S);
    for (int r = 0; r < 3; r++) {
        page_state(t.page[r], RANK_RUNNING);
        page_step(t.page[r], 8);
        atomic_store(&t.page[r]->collective_entered, r == 1 ? 40 : 41);
        atomic_store(&t.page[r]->collective_left, 40);
        strcpy(t.page[r]->collective_text, r == 1 ? "fc2/bias" : "fc2/weight");
        page_beat(t.page[r]);
    }
    const char *why = link_lost_wait(t.link[2], 60 * CLOCK_S);
    assert_non_null(why);
    assert_non_null(strstr(why, "rank 1 on host here (running, step 8"));
    assert_non_null(strstr(why, "collective 40 (fc2/bias)"));
    assert_non_null(strstr(why, "hangs: no progress for"));
    team_end(&t, RANK_EXIT_LOST);
}

static void ranks_that_do_not_join_in_time_are_named(void **state)
{
    (void)state;
    struct team t;
    team_lead(&t, 3, 2 * CLOCK_S, 0);
    for (int r = 0; r < 2; r++)
        team_join(&t, r);
    char value[8]; // the first frame is what counts as joining
    for (int r = 0; r < 2; r++)
        (void)link_kv_get(t.link[r], "k", value, sizeof value, clock_mono_ns() + 1, NULL);
    const char *why = link_lost_wait(t.link[0], 60 * CLOCK_S);
    assert_non_null(why);
    assert_non_null(strstr(why, "only 2 of 3 ranks joined"));
    assert_non_null(strstr(why, "missing: 2"));
    team_end(&t, RANK_EXIT_LOST);
}

static void an_agent_that_goes_away_is_lost(void **state)
{
    (void)state;
    int sv[2];
    struct link *l;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
    assert_int_equal(link_open(sv[0], &l, NULL), 0);
    close(sv[1]);
    const char *why = link_lost_wait(l, 60 * CLOCK_S);
    assert_non_null(why);
    assert_non_null(strstr(why, "lost the agent: "));
    link_close(l, RANK_EXIT_LOST, "");
}

static void a_signal_asks_for_a_stop_and_ends_waiting(void **state)
{
    (void)state;
    int sv[2];
    struct getter g = {0};
    pthread_t thread;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
    assert_int_equal(link_open(sv[0], &g.link, NULL), 0);
    assert_false(link_stop_requested(g.link));
    assert_int_equal(pthread_create(&thread, NULL, get_later, &g), 0);
    assert_int_equal(kill(getpid(), SIGTERM), 0);
    pthread_join(thread, NULL);
    assert_int_equal(g.rc, ERR_ABORTED);
    assert_true(link_stop_requested(g.link));
    assert_null(link_lost(g.link)); // the first asks, the second ends
    assert_int_equal(kill(getpid(), SIGTERM), 0);
    const char *why = link_lost_wait(g.link, 60 * CLOCK_S);
    assert_non_null(why);
    assert_non_null(strstr(why, "second signal"));
    close(sv[1]);
    link_close(g.link, RANK_EXIT_DRAINED, "");
}

// Slurm signals the ranks of a step beside the worker, which asks them too.
static void a_signal_behind_a_stop_frame_is_the_first(void **state)
{
    (void)state;
    int sv[2];
    struct frame_conn leader;
    struct link *l = NULL;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
    frame_conn_init(&leader, sv[1]);
    assert_int_equal(link_open(sv[0], &l, NULL), 0);
    FRAME_BODY(body, Stop, stop);
    body.reason = frame_text("the host drains");
    FRAME(f, STOP, stop, &body);
    assert_int_equal(frame_send_wait(&leader, &f, soon(), NULL), 0);
    while (!link_stop_requested(l))
        clock_sleep_ms(1);
    assert_int_equal(kill(getpid(), SIGTERM), 0);
    assert_null(link_lost_wait(l, CLOCK_S / 5));
    assert_int_equal(kill(getpid(), SIGTERM), 0);
    assert_non_null(link_lost_wait(l, 60 * CLOCK_S));
    frame_conn_clear(&leader);
    link_close(l, RANK_EXIT_DRAINED, "");
}

struct heard {
    pthread_mutex_t mutex;
    int kinds[8], n;
    uint64_t lo[2]; // of the second digest of each rank
};

static void hear(void *ctx, const struct link_event *ev)
{
    struct heard *h = ctx;
    pthread_mutex_lock(&h->mutex);
    if (h->n < 8)
        h->kinds[h->n++] = (int)ev->kind;
    for (int r = 0; ev->kind == LINK_COMMIT && r < 2; r++)
        h->lo[r] = ev->reports[r].digests[1].lo;
    pthread_mutex_unlock(&h->mutex);
}

static int heard_n(struct heard *h)
{
    pthread_mutex_lock(&h->mutex);
    int n = h->n;
    pthread_mutex_unlock(&h->mutex);
    return n;
}

static void wait_heard(struct heard *h, int n)
{
    int64_t end = soon();
    while (heard_n(h) < n && clock_mono_ns() < end)
        clock_sleep_ms(2);
    assert_int_equal(heard_n(h), n);
}

static void a_checkpoint_is_ordered_when_all_shards_are_in_and_all_get_the_answer(void **state)
{
    (void)state;
    struct team t;
    struct heard h[2] = {{.mutex = PTHREAD_MUTEX_INITIALIZER},
                         {.mutex = PTHREAD_MUTEX_INITIALIZER}};
    team_start(&t, 2, 0);
    struct hash128 digests[2] = {{1, 2}, {3, 0x1122334455667788u}};
    struct shard_report s = {.step = 10, .bytes = 64, .n = 2, .digests = digests};
    for (int r = 0; r < 2; r++) {
        link_on_event(t.link[r], hear, &h[r]);
        link_shard_done(t.link[r], &s);
    }
    wait_heard(&h[0], 1);
    assert_int_equal(h[0].kinds[0], LINK_COMMIT);
    assert_true(h[0].lo[0] == 0x1122334455667788u);
    assert_true(h[0].lo[1] == 0x1122334455667788u);
    assert_int_equal(heard_n(&h[1]), 0);
    link_commit_done(t.link[0], 10, 0, "");
    wait_heard(&h[0], 2);
    wait_heard(&h[1], 1);
    assert_int_equal(h[0].kinds[1], LINK_COMMITTED);
    assert_int_equal(h[1].kinds[0], LINK_COMMITTED);
    s.step = 20; // a failed shard aborts for everybody
    s.code = ERR_IO;
    strcpy(s.text, "no space left");
    link_shard_done(t.link[1], &s);
    wait_heard(&h[0], 3);
    wait_heard(&h[1], 2);
    assert_int_equal(h[0].kinds[2], LINK_ABORTED);
    assert_int_equal(h[1].kinds[1], LINK_ABORTED);
    team_end(&t, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_gets_its_assignment),
        cmocka_unit_test(a_key_has_one_writer_and_wakes_who_waits),
        cmocka_unit_test(who_waits_for_a_key_without_an_end_shows_that_it_lives),
        cmocka_unit_test(a_wait_for_a_key_without_an_end_ends_when_the_other_rank_is_lost),
        cmocka_unit_test(a_wait_for_a_key_without_an_end_ends_when_the_leader_asks_to_stop),
        cmocka_unit_test(a_barrier_opens_when_all_came_and_names_who_is_missing),
        cmocka_unit_test(differing_plans_stop_the_attempt_before_its_first_step),
        cmocka_unit_test(after_a_stop_ranks_begin_or_not_as_the_leader_says),
        cmocka_unit_test(a_failed_rank_is_named_to_all_with_its_reason),
        cmocka_unit_test(a_dead_rank_is_named_with_its_step_and_collective),
        cmocka_unit_test(a_hang_names_the_rank_with_the_lowest_collective),
        cmocka_unit_test(ranks_that_do_not_join_in_time_are_named),
        cmocka_unit_test(an_agent_that_goes_away_is_lost),
        cmocka_unit_test(a_checkpoint_is_ordered_when_all_shards_are_in_and_all_get_the_answer),
        cmocka_unit_test(a_signal_asks_for_a_stop_and_ends_waiting),
        cmocka_unit_test(a_signal_behind_a_stop_frame_is_the_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
