// SPDX-License-Identifier: Apache-2.0
// Receivers of notices: URLs that are taken and refused, and servers of every kind, each in a thread here.
#include "tests/unit/unit.h"

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/folder.h"
#include "coordinator/serve/webhooks.h"

enum { TRY_MS = 600, PATIENT_MS = 60000 };
#define SECRET "s3cr3t-0f-a-webhook"

// ---- a server ----

struct server {
    const char *answer, *more; // `more`: sent again and again behind the answer, null: it is closed
    int more_ms;               // between two of them
    bool keeps_open;           // it is not closed behind the answer
    int fd, port;
    pthread_t thread;
    atomic_int calls;
    atomic_bool over;
    char heard[4096]; // of the newest call
};

static void read_call(struct server *s, int fd)
{
    size_t n = 0;
    ssize_t got;
    while (n < sizeof s->heard - 1 && (got = read(fd, s->heard + n, sizeof s->heard - 1 - n)) > 0) {
        s->heard[n += (size_t)got] = 0;
        const char *body = strstr(s->heard, "\r\n\r\n"), *is = strstr(s->heard, "Content-Length: ");
        if (body && is && strlen(body + 4) >= strtoul(is + 16, NULL, 10))
            return;
    }
}

static void *serve(void *arg)
{
    struct server *s = arg;
    int fd;
    while ((fd = accept(s->fd, NULL, NULL)) >= 0) {
        read_call(s, fd);
        s->calls++;
        bool alive = send(fd, s->answer, strlen(s->answer), MSG_NOSIGNAL) >= 0;
        while (alive && !s->over && (s->more || s->keeps_open)) {
            if (s->more)
                alive = send(fd, s->more, strlen(s->more), MSG_NOSIGNAL) >= 0;
            poll(NULL, 0, s->more ? s->more_ms : 5);
        }
        close(fd);
    }
    return NULL;
}

static void start(struct server *s)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof at;
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(s->fd, (struct sockaddr *)(void *)&at, sizeof at), 0);
    assert_int_equal(listen(s->fd, 8), 0);
    assert_int_equal(getsockname(s->fd, (struct sockaddr *)(void *)&at, &size), 0);
    s->port = ntohs(at.sin_port);
    assert_int_equal(pthread_create(&s->thread, NULL, serve, s), 0);
}

static void stop(struct server *s)
{
    s->over = true;
    shutdown(s->fd, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->fd);
}

static const char *url_of(const struct server *s, const char *name)
{
    static char urls[4][200];
    static int next;
    char *url = urls[next++ % 4];
    snprintf(url, sizeof urls[0], "%s=http://127.0.0.1:%d/" SECRET, name, s->port);
    return url;
}

// ---- a call ----

static struct webhooks *open_for(const char *one, const char *two, int try_ms)
{
    const char *given[] = {one, two};
    struct webhooks *w;
    struct err e = {0};
    if (webhooks_open(given, two ? 2 : 1, try_ms, &w, &e))
        fail_msg("%s", e.text);
    return w;
}

static struct webhook_answer wait_answer(struct webhooks *w)
{
    struct webhook_answer a;
    struct pollfd p = {webhooks_fd(w), POLLIN, 0};
    while (!webhooks_next(w, &a))
        assert_int_equal(poll(&p, 1, PATIENT_MS), 1);
    assert_null(strstr(a.why, SECRET));
    return a;
}

static struct webhook_answer ask(struct server *s, int try_ms)
{
    start(s);
    struct webhooks *w = open_for(url_of(s, "it"), NULL, try_ms);
    webhooks_post(w, "it", "7", "{\"a\":1}");
    struct webhook_answer a = wait_answer(w);
    assert_string_equal(a.receiver, "it");
    assert_string_equal(a.id, "7");
    webhooks_close(w);
    stop(s);
    return a;
}

static void test_a_notice_is_one_post_of_json(void **state)
{
    struct server s = {.answer = "HTTP/1.1 204 No Content\r\n\r\n"};
    (void)state;
    assert_int_equal(ask(&s, PATIENT_MS).result, POST_TAKEN);
    assert_int_equal(s.calls, 1);
    assert_ptr_equal(strstr(s.heard, "POST /" SECRET " HTTP/1.1\r\n"), s.heard);
    assert_non_null(strstr(s.heard, "\r\nContent-Type: application/json\r\n"));
    assert_non_null(strstr(s.heard, "\r\n\r\n{\"a\":1}"));
}

static void test_what_an_answer_means(void **state)
{
    static const struct {
        const char *answer;
        enum post_result result;
        const char *why;
    } cases[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", POST_TAKEN, ""},
        {"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", POST_FAILED, "it answered 500"},
        {"HTTP/1.1 429 Slowly\r\nContent-Length: 0\r\n\r\n", POST_FAILED, "it answered 429"},
        {"HTTP/1.1 404 Gone\r\nContent-Length: 0\r\n\r\n", POST_REFUSED, "it answered 404"},
        {"HTTP/1.1 401 Who\r\nWWW-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n", POST_REFUSED,
         "it answered 401"},
        {"", POST_FAILED, "Server returned nothing (no headers, no data)"},
        {"SSH-2.0-OpenSSH_9.2\r\n", POST_FAILED, "Unsupported protocol"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct server s = {.answer = cases[i].answer};
        struct webhook_answer a = ask(&s, PATIENT_MS);
        assert_string_equal(a.why, cases[i].why);
        assert_int_equal(a.result, cases[i].result);
    }
}

static void test_a_redirect_is_not_followed(void **state)
{
    char text[200];
    struct server inner = {.answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"};
    (void)state;
    start(&inner);
    for (int code = 301; code <= 308; code++) {
        snprintf(text, sizeof text,
                 "HTTP/1.1 %d There\r\nLocation: http://127.0.0.1:%d/latest/meta-data\r\n"
                 "Content-Length: 0\r\n\r\n",
                 code, inner.port);
        struct server s = {.answer = text};
        struct webhook_answer a = ask(&s, PATIENT_MS);
        assert_int_equal(a.result, POST_REFUSED);
        assert_non_null(strstr(a.why, "a redirect is not followed"));
    }
    assert_int_equal(inner.calls, 0);
    stop(&inner);
}

static void test_an_answer_without_end_is_cut_off_and_its_status_counts(void **state)
{
    static char much[8192];
    (void)state;
    memset(much, 'x', sizeof much - 1);
    struct server good = {.answer = "HTTP/1.1 200 OK\r\n\r\n", .more = much};
    assert_int_equal(ask(&good, PATIENT_MS).result, POST_TAKEN);
    struct server bad = {.answer = "HTTP/1.1 503 Oops\r\n\r\n", .more = much};
    assert_int_equal(ask(&bad, PATIENT_MS).result, POST_FAILED);
    snprintf(much, sizeof much, "X-Much: %04000d\r\n", 0);
    struct server headers = {.answer = "HTTP/1.1 200 OK\r\n", .more = much};
    assert_int_equal(ask(&headers, PATIENT_MS).result, POST_TAKEN);
    struct server hints = {.answer = "", .more = "HTTP/1.1 103 Early\r\nLink: x\r\n\r\n"};
    assert_int_equal(ask(&hints, PATIENT_MS).result, POST_FAILED);
}

static void test_who_hangs_or_trickles_is_left_when_the_time_is_over(void **state)
{
    (void)state;
    struct server silent = {.answer = "", .keeps_open = true};
    struct webhook_answer a = ask(&silent, TRY_MS);
    assert_int_equal(a.result, POST_FAILED);
    assert_string_equal(a.why, "Timeout was reached");
    struct server slow = {.answer = "HTTP/1.1 200 OK\r\n", .more = "a", .more_ms = 10};
    a = ask(&slow, TRY_MS);
    assert_int_equal(a.result, POST_FAILED);
    assert_string_equal(a.why, "Timeout was reached");
}

static void test_a_server_that_hangs_holds_up_neither_another_nor_the_end(void **state)
{
    struct server silent = {.answer = "", .keeps_open = true};
    struct server good = {.answer = "HTTP/1.1 204 No\r\n\r\n"};
    (void)state;
    start(&silent);
    start(&good);
    struct webhooks *w =
        open_for(url_of(&silent, "hangs"), url_of(&good, "works"), 24 * 3600 * 1000);
    webhooks_post(w, "hangs", "1", "{}");
    for (int i = 0; i < 3; i++) {
        webhooks_post(w, "works", "2", "{}");
        struct webhook_answer a = wait_answer(w);
        assert_string_equal(a.receiver, "works");
        assert_int_equal(a.result, POST_TAKEN);
    }
    while (!silent.calls)
        poll(NULL, 0, 5);
    webhooks_post(w, "works", "3", "{}"); // may not be taken any more
    webhooks_close(w);                    // would take a day if it waited
    stop(&silent);
    stop(&good);
}

static void test_nobody_there_is_a_failure_to_be_tried_again(void **state)
{
    struct server s = {.answer = ""};
    (void)state;
    start(&s);
    struct webhooks *w = open_for(url_of(&s, "it"), NULL, PATIENT_MS);
    stop(&s);
    webhooks_post(w, "it", "1", "{}");
    struct webhook_answer a = wait_answer(w);
    assert_int_equal(a.result, POST_FAILED);
    assert_string_equal(a.why, "Couldn't connect to server");
    webhooks_close(w);
}

// ---- what is given ----

static void assert_refused(const char *given, const char *why)
{
    struct webhooks *w;
    struct err e = {0};
    assert_int_equal(webhooks_open(&given, 1, 1000, &w, &e), ERR_INVALID);
    assert_null(w);
    assert_null(strstr(e.text, SECRET));
    if (!strstr(e.text, why))
        fail_msg("'%s' is refused so: %s", given, e.text);
}

static void test_only_names_and_urls_of_http_are_taken(void **state)
{
    char lengthy[3000] = "it=http://x/";
    (void)state;
    memset(lengthy + 12, 'y', sizeof lengthy - 13);
    static const char no_url[] = "is no URL of http:// or https://";
    assert_refused("https://hooks.x/" SECRET, "--notify takes NAME=URL");
    assert_refused("It=https://hooks.x/" SECRET, "a name has 1 to 63 of");
    assert_refused("=https://hooks.x/" SECRET, "a name has 1 to 63 of");
    assert_refused("it=ftp://hooks.x/" SECRET, no_url);
    assert_refused("it=file:///etc/passwd?" SECRET, no_url);
    assert_refused("it=gopher://hooks.x/" SECRET, no_url);
    assert_refused("it=hooks.x/" SECRET, no_url);
    assert_refused("it=http://", no_url);
    assert_refused("it=", no_url);
    assert_refused("it=http://a b/" SECRET, no_url);
    assert_refused("it=http://a/\r\nHost: b/" SECRET, no_url);
    assert_refused(lengthy, no_url);
    assert_refused("it=@/nowhere/at/all", "--notify: it: /nowhere/at/all: No such file");
    assert_refused("it=@/dev/zero", "is no regular file");
    const char *twice[] = {"it=http://a/", "it=http://b/"};
    struct webhooks *w;
    struct err e = {0};
    assert_int_equal(webhooks_open(twice, 2, 1000, &w, &e), ERR_INVALID);
    assert_string_equal(e.text, "--notify: there is a receiver it already");
}

static void test_a_url_may_come_from_a_file_that_is_ours_alone(void **state)
{
    char dir[] = "/tmp/weft-test-XXXXXX", path[100], given[120], text[200];
    struct server s = {.answer = "HTTP/1.1 204 No\r\n\r\n"};
    (void)state;
    assert_non_null(mkdtemp(dir));
    start(&s);
    snprintf(path, sizeof path, "%s/url", dir);
    snprintf(given, sizeof given, "it=@%s", path);
    snprintf(text, sizeof text, "http://127.0.0.1:%d/" SECRET "\r\n", s.port);
    assert_int_equal(folder_write(dir, "url", text, FOLDER_LOOSE, NULL), 0);
    struct webhooks *w = open_for(given, NULL, PATIENT_MS);
    webhooks_post(w, "it", "1", "{}");
    assert_int_equal(wait_answer(w).result, POST_TAKEN);
    webhooks_close(w);
    assert_int_equal(chmod(path, 0640), 0);
    assert_refused(given, "is not this user's alone: chmod 600 it");
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(folder_write(dir, "url", SECRET "\n", FOLDER_LOOSE, NULL), 0);
    assert_refused(given, "is no URL of http:// or https://");
    unlink(path);
    rmdir(dir);
    stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_notice_is_one_post_of_json),
        cmocka_unit_test(test_what_an_answer_means),
        cmocka_unit_test(test_a_redirect_is_not_followed),
        cmocka_unit_test(test_an_answer_without_end_is_cut_off_and_its_status_counts),
        cmocka_unit_test(test_who_hangs_or_trickles_is_left_when_the_time_is_over),
        cmocka_unit_test(test_a_server_that_hangs_holds_up_neither_another_nor_the_end),
        cmocka_unit_test(test_nobody_there_is_a_failure_to_be_tried_again),
        cmocka_unit_test(test_only_names_and_urls_of_http_are_taken),
        cmocka_unit_test(test_a_url_may_come_from_a_file_that_is_ours_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
