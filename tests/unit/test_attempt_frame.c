// SPDX-License-Identifier: Apache-2.0
// Frames over real sockets: whole, in pieces, garbage, and a peer that does not read.
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/attempt/frame.h"
#include "common/base/clock.h"
#include "tests/support/frame_wait.h"
#include "tests/unit/unit.h"

struct pair {
    struct frame_conn a, b;
};

static void pair_init(struct pair *p)
{
    int sv[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
    frame_conn_init(&p->a, sv[0]);
    frame_conn_init(&p->b, sv[1]);
}

static void pair_clear(struct pair *p)
{
    frame_conn_clear(&p->a);
    frame_conn_clear(&p->b);
}

static void queue_report(struct frame_conn *c, int64_t step, bool evaluated)
{
    FRAME_BODY(body, StepReport, step_report);
    body.step = step;
    body.evaluated = evaluated;
    FRAME(f, STEP_REPORT, step_report, &body);
    assert_int_equal(frame_queue(c, &f, NULL), 0);
}

static void queue_put(struct frame_conn *c, const char *key, const char *value)
{
    FRAME_BODY(body, KvPut, kv_put);
    body.key = frame_text(key);
    body.value = frame_text(value);
    FRAME(f, KV_PUT, kv_put, &body);
    assert_int_equal(frame_queue(c, &f, NULL), 0);
}

static void frames_arrive_whole_and_in_order(void **state)
{
    (void)state;
    struct pair p;
    pair_init(&p);
    queue_put(&p.a, "k", "one");
    queue_put(&p.a, "k", "two");
    assert_int_equal(frame_flush(&p.a, NULL), 0);
    assert_int_equal(frame_fill(&p.b, NULL), 0);
    for (int i = 0; i < 2; i++) {
        Weft__Rank__Frame *f;
        assert_int_equal(frame_next(&p.b, &f, NULL), 0);
        assert_non_null(f);
        assert_int_equal(f->body_case, WEFT__RANK__FRAME__BODY_KV_PUT);
        assert_string_equal(f->kv_put->value, i ? "two" : "one");
        weft__rank__frame__free_unpacked(f, NULL);
    }
    pair_clear(&p);
}

static void a_frame_in_single_bytes_is_one_frame(void **state)
{
    (void)state;
    struct pair p, q;
    char bytes[256];
    pair_init(&p);
    pair_init(&q);
    queue_put(&p.a, "key", "value");
    assert_int_equal(frame_flush(&p.a, NULL), 0);
    ssize_t n = recv(p.b.fd, bytes, sizeof bytes, 0);
    assert_true(n > 4);
    Weft__Rank__Frame *f = NULL;
    for (ssize_t i = 0; i < n; i++) {
        assert_null(f);
        assert_int_equal(send(q.a.fd, bytes + i, 1, 0), 1);
        assert_int_equal(frame_fill(&q.b, NULL), 0);
        assert_int_equal(frame_next(&q.b, &f, NULL), 0);
    }
    assert_non_null(f);
    assert_string_equal(f->kv_put->key, "key");
    weft__rank__frame__free_unpacked(f, NULL);
    pair_clear(&p);
    pair_clear(&q);
}

static void refuse_bytes(const void *bytes, size_t n, const char *says)
{
    struct pair p;
    struct err e = {0};
    Weft__Rank__Frame *f;
    pair_init(&p);
    assert_int_equal(send(p.a.fd, bytes, n, 0), (ssize_t)n);
    assert_int_equal(frame_fill(&p.b, NULL), 0);
    assert_int_equal(frame_next(&p.b, &f, &e), ERR_DATA);
    assert_null(f);
    assert_non_null(strstr(e.text, says));
    pair_clear(&p);
}

static void garbage_is_an_error_that_says_what(void **state)
{
    (void)state;
    refuse_bytes("\xff\xff\xff\xff", 4, "claims 4294967295 bytes");
    refuse_bytes("\x03\x00\x00\x00\x0a\xff\xff", 7, "does not decode");
    refuse_bytes("\x00\x00\x00\x00", 4, "unknown kind");
    refuse_bytes("\x04\x00\x00\x00\x98\x06\x01\x00", 8, "");
}

static void an_end_of_file_is_a_lost_peer_after_what_came_before(void **state)
{
    (void)state;
    struct pair p;
    Weft__Rank__Frame *f;
    pair_init(&p);
    queue_put(&p.a, "last", "words");
    assert_int_equal(frame_flush(&p.a, NULL), 0);
    frame_conn_clear(&p.a);
    assert_int_equal(frame_fill(&p.b, NULL), ERR_PEER);
    assert_int_equal(frame_next(&p.b, &f, NULL), 0);
    assert_non_null(f);
    weft__rank__frame__free_unpacked(f, NULL);
    pair_clear(&p);
}

static void of_reports_not_sent_only_the_newest_leaves(void **state)
{
    (void)state;
    struct pair p;
    pair_init(&p);
    queue_report(&p.a, 1, false);
    queue_report(&p.a, 2, true); // an evaluation is never replaced
    queue_report(&p.a, 3, false);
    queue_report(&p.a, 4, false);
    assert_int_equal(frame_flush(&p.a, NULL), 0);
    assert_int_equal(frame_fill(&p.b, NULL), 0);
    int64_t want[] = {2, 4};
    for (int i = 0; i < 2; i++) {
        Weft__Rank__Frame *f;
        assert_int_equal(frame_next(&p.b, &f, NULL), 0);
        assert_non_null(f);
        assert_int_equal(f->step_report->step, want[i]);
        weft__rank__frame__free_unpacked(f, NULL);
    }
    pair_clear(&p);
}

static void a_peer_that_does_not_read_meets_a_bound(void **state)
{
    (void)state;
    struct pair p;
    static char big[1 << 20];
    struct err e = {0};
    memset(big, 'x', sizeof big - 1);
    pair_init(&p);
    int rc = 0, n = 0;
    while (!rc && n++ < 1000) {
        FRAME_BODY(body, KvPut, kv_put);
        body.value = big;
        FRAME(f, KV_PUT, kv_put, &body);
        rc = frame_queue(&p.a, &f, &e);
        assert_int_equal(frame_flush(&p.a, NULL), 0);
    }
    assert_int_equal(rc, ERR_LIMIT);
    assert_true(p.a.out_bytes <= FRAME_QUEUE_MAX);
    assert_non_null(strstr(e.text, "does not read"));
    size_t before = p.a.out_bytes;
    queue_report(&p.a, 7, false); // reports and logs are dropped instead, without an error
    assert_int_equal(p.a.out_bytes, before);
    pair_clear(&p);
}

// Sends `all` bytes of one small frame again and again; returns how many frames that were.
static int send_many(int fd, size_t all)
{
    static unsigned char bytes[256 << 10];
    FRAME_BODY(body, KvGet, kv_get);
    FRAME(f, KV_GET, kv_get, &body);
    size_t len = weft__rank__frame__get_packed_size(&f), at = 0;
    int n = 0;
    assert_true(all <= sizeof bytes && len < 256);
    for (; at + 4 + len <= all; at += 4 + len, n++) {
        memcpy(bytes + at, (unsigned char[]){(unsigned char)len, 0, 0, 0}, 4);
        weft__rank__frame__pack(&f, bytes + at + 4);
    }
    assert_int_equal(send(fd, bytes, at, 0), (ssize_t)at);
    return n;
}

static int take_all(struct frame_conn *c)
{
    Weft__Rank__Frame *f;
    int n = 0;
    for (; !frame_next(c, &f, NULL) && f; n++)
        weft__rank__frame__free_unpacked(f, NULL);
    return n;
}

static void a_peer_that_never_pauses_gets_a_turn_at_a_time(void **state)
{
    (void)state;
    struct pair p;
    pair_init(&p);
    int sent = send_many(p.a.fd, 150000), turns = 0, n = 0;
    for (int now; n < sent; n += now, turns++) {
        assert_int_equal(frame_fill(&p.b, NULL), 0);
        now = take_all(&p.b);
        assert_in_range(now, 1, sent - 1);
    }
    assert_int_equal(n, sent);
    assert_in_range(turns, 2, 3);
    pair_clear(&p);
}

static void a_frame_that_is_larger_than_a_turn_comes_whole(void **state)
{
    (void)state;
    struct pair p;
    Weft__Rank__Frame *f;
    static char value[140000];
    memset(value, 'x', sizeof value - 1);
    pair_init(&p);
    queue_put(&p.a, "k", value);
    assert_int_equal(frame_flush(&p.a, NULL), 0);
    assert_int_equal(frame_fill(&p.b, NULL), 0);
    assert_int_equal(frame_next(&p.b, &f, NULL), 0);
    assert_non_null(f);
    assert_int_equal(strlen(f->kv_put->value), sizeof value - 1);
    weft__rank__frame__free_unpacked(f, NULL);
    pair_clear(&p);
}

static void waiting_for_a_frame_ends_at_the_deadline(void **state)
{
    (void)state;
    struct pair p;
    Weft__Rank__Frame *f = NULL;
    pair_init(&p);
    assert_int_equal(frame_recv_wait(&p.b, &f, clock_mono_ns() + 20 * CLOCK_MS, NULL), ERR_TIMEOUT);
    assert_null(f);
    pair_clear(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_arrive_whole_and_in_order),
        cmocka_unit_test(a_frame_in_single_bytes_is_one_frame),
        cmocka_unit_test(garbage_is_an_error_that_says_what),
        cmocka_unit_test(an_end_of_file_is_a_lost_peer_after_what_came_before),
        cmocka_unit_test(of_reports_not_sent_only_the_newest_leaves),
        cmocka_unit_test(a_peer_that_does_not_read_meets_a_bound),
        cmocka_unit_test(a_peer_that_never_pauses_gets_a_turn_at_a_time),
        cmocka_unit_test(a_frame_that_is_larger_than_a_turn_comes_whole),
        cmocka_unit_test(waiting_for_a_frame_ends_at_the_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
