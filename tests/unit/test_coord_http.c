// SPDX-License-Identifier: Apache-2.0
// The coordinator's HTTP over real sockets: every path, every refusal, and clients that are slow,
// silent, many or mad.
#include <sys/stat.h>
#include <sys/un.h>

#include "tests/support/temp_folder.h"
#include "tests/unit/http_served.h"

// ---- pages ----

static void a_process_that_runs_is_healthy(void **state)
{
    struct buf out = {0};
    assert_int_equal(ask(*state, "GET", "/healthz", &out), 200);
    assert_string_equal(body_of(&out), "ok\n");
    assert_non_null(strstr(out.data, "Connection: close"));
    buf_clear(&out);
}

static void one_that_does_not_serve_yet_is_not_ready_and_says_why(void **state)
{
    struct served *s = *state;
    struct buf out = {0};
    s->ready = false;
    assert_int_equal(ask(s, "GET", "/readyz", &out), 503);
    assert_string_equal(body_of(&out), "the store is being read\n");
    buf_clear(&out);
    s->ready = true;
    assert_int_equal(ask(s, "GET", "/readyz", &out), 200);
    assert_string_equal(body_of(&out), "ready\n");
    buf_clear(&out);
}

static void metrics_come_whole_with_their_type(void **state)
{
    struct served *s = *state;
    struct buf out = {0};
    assert_int_equal(ask(s, "GET", "/metrics?x=1", &out), 200);
    assert_string_equal(body_of(&out), "weft_a 1\n");
    assert_non_null(strstr(out.data, "Content-Type: text/plain; version=0.0.4; charset=utf-8"));
    buf_clear(&out);
    s->big = true;
    assert_int_equal(ask(s, "GET", "/metrics", &out), 200);
    assert_int_equal(strlen(body_of(&out)), strlen("weft_a 1\n") + BIG);
    buf_clear(&out);
}

static void head_gives_the_length_and_sends_no_body(void **state)
{
    struct buf out = {0};
    assert_int_equal(ask(*state, "HEAD", "/metrics", &out), 200);
    assert_non_null(strstr(out.data, "Content-Length: 9\r\n"));
    assert_string_equal(body_of(&out), "");
    buf_clear(&out);
}

static void other_paths_are_not_found(void **state)
{
    static const char *const paths[] = {"/",         "/metrics/",  "/metricsx",         "/Healthz",
                                        "//healthz", "/healthz%0", "/../../etc/passwd", "*"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        assert_int_equal(ask(*state, "GET", paths[i], NULL), 404);
}

static void other_methods_are_refused(void **state)
{
    static const char *const methods[] = {"POST",  "PUT",     "DELETE", "OPTIONS",
                                          "PATCH", "CONNECT", "get",    "NONSENSE"};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        struct buf out = {0};
        assert_int_equal(ask(*state, methods[i], "/metrics", &out), 405);
        assert_non_null(strstr(out.data, "Allow: GET, HEAD\r\n"));
        buf_clear(&out);
    }
}

// ---- what is too much or makes no sense ----

static void bodies_are_refused_before_they_are_read(void **state)
{
    static const struct {
        const char *request;
        int status;
    } cases[] = {
        {"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello", 413},
        {"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n", 413},
        {"GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
         "chunked\r\n\r\n5\r\nhello\r\n0\r\n"
         "\r\n",
         413},
        {"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nhello", 405},
        {"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400},
        {"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", 200},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(ask_bytes(*state, cases[i].request, strlen(cases[i].request), NULL),
                         cases[i].status);
}

static void a_connection_is_one_request(void **state)
{
    struct buf text = {0}, out = {0};
    for (int i = 0; i < 50; i++)
        buf_puts(&text, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_int_equal(ask_bytes(*state, text.data, text.len, &out), 200);
    assert_null(strstr(body_of(&out), "HTTP/1.1"));
    buf_clear(&text);
    buf_clear(&out);
}

static void a_huge_url_or_header_is_refused(void **state)
{
    static const size_t sizes[] = {9000, 100000, 5000000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct buf url = {0}, header = {0};
        buf_puts(&url, "GET /");
        buf_puts(&header, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ");
        for (size_t k = 0; k < sizes[i]; k++) {
            buf_putc(&url, 'a');
            buf_putc(&header, 'a');
        }
        buf_puts(&url, " HTTP/1.1\r\nHost: localhost\r\n\r\n");
        buf_puts(&header, "\r\n\r\n");
        // What is still under way when the server has had enough may reset the answer away.
        int status = ask_bytes(*state, url.data, url.len, NULL);
        assert_true(status == 414 || (status == 0 && sizes[i] > 9000));
        status = ask_bytes(*state, header.data, header.len, NULL);
        assert_true(status == 431 || (status == 0 && sizes[i] > 9000));
        buf_clear(&url);
        buf_clear(&header);
    }
}

static void many_headers_are_refused(void **state)
{
    struct buf text = {0};
    buf_puts(&text, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n");
    for (int i = 0; i < 2000; i++)
        buf_printf(&text, "A%d: b\r\n", i);
    buf_puts(&text, "\r\n");
    int status = ask_bytes(*state, text.data, text.len, NULL);
    assert_true(status == 431 || status == 0);
    buf_clear(&text);
}

static void lines_that_are_no_request_are_refused(void **state)
{
    static const char *const lines[] = {
        "GET",
        "GET /healthz",
        "GET /healthz HTTP/9.9\r\nHost: localhost",
        "GET /healthz HTTP/1.1", // no Host
        "GET /healthz HTTP/1.1\r\nno colon",
        "PRI * HTTP/2.0\r\n\r\nSM",         // gRPC's first words
        "\x16\x03\x01\x02\x01\xfc\x03\x03", // TLS'
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char text[100];
        snprintf(text, sizeof text, "%s\r\n\r\n", lines[i]);
        int status = ask_bytes(*state, text, strlen(text), NULL);
        if (status && status < 400)
            fail_msg("'%s': %d", lines[i], status);
    }
}

static void garbage_changes_nothing(void **state)
{
    unsigned seed = 7;
    for (int round = 0; round < 300; round++) {
        unsigned char bytes[512];
        int fd = dial(*state);
        for (size_t k = 0; k < sizeof bytes; k++)
            bytes[k] = (unsigned char)((seed = seed * 1103515245u + 12345u) >> 16);
        say(fd, bytes, 1 + seed / 7 % sizeof bytes);
        close(fd);
        if (round % 50 == 0)
            assert_serves(*state);
    }
}

// ---- many and slow ----

static void two_hundred_idle_connections_keep_nobody_out(void **state)
{
    int fds[200];
    for (int i = 0; i < 200; i++) {
        fds[i] = dial(*state);
        if (i % 2)
            say(fds[i], "GET /heal", 9);
        if (i % 50 == 0)
            assert_serves(*state);
    }
    for (int i = 0; i < 20; i++)
        assert_serves(*state);
    // The last to come are still there.
    struct buf out = {0};
    say(fds[199], "thz HTTP/1.1\r\nHost: localhost\r\n\r\n", 34);
    hear(fds[199], &out);
    assert_int_equal(status_of(&out), 200);
    // The first are not.
    buf_reset(&out);
    hear(fds[0], &out);
    assert_int_equal(out.len, 0);
    buf_clear(&out);
    for (int i = 0; i < 200; i++)
        close(fds[i]);
}

// A byte now and then, no byte ever, or an answer that is not read: ended all the same.
static void slow_clients_are_ended(void **state)
{
    struct served *s = *state;
    struct buf out = {0};
    int silent = dial(s), drips = dial(s), deaf = dial(s);
    bool ended = false;
    s->big = true;
    say(deaf, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 42);
    say(drips, "GET /healthz HTTP/1.1\r\nX: ", 26);
    for (int i = 0; !ended && i < WATCHDOG_S * 4; i++) {
        struct pollfd p = {.fd = drips, .events = POLLIN};
        ended = poll(&p, 1, 250) > 0;
        if (!ended)
            say(drips, "x", 1);
        if (i == 4)
            assert_serves(s);
    }
    assert_true(ended);
    hear(drips, &out);
    assert_int_equal(out.len, 0);
    hear(silent, &out);
    assert_int_equal(out.len, 0);
    hear(deaf, &out);
    assert_true(out.len < BIG);
    buf_clear(&out);
    close(silent);
    close(drips);
    close(deaf);
}

// ---- who may stand before which door ----

static void try_open(const char *address, bool probes, int want, const char *says)
{
    struct served s = {0};
    struct http_options o = {
        .address = address, .probes = probes, .ctx = &s, .metrics = print_text, .ready = is_ready};
    struct err e = {0};
    struct http *h = NULL;
    int rc = http_open(&o, &h, NULL, 0, &e);
    if (rc != want)
        fail_msg("%s: %d, not %d: %s", address, rc, want, e.text);
    assert_non_null(strstr(e.text, says));
    http_close(h);
}

static void pages_are_served_on_this_machine_alone(void **state)
{
    static const char *const beyond[] = {"0.0.0.0:0", "10.0.0.1:0", "[::]:0", "coord.example:0"};
    (void)state;
    for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++)
        try_open(beyond[i], false, ERR_INVALID, "loopback addresses and Unix sockets only");
    try_open("127.0.0.1:0", false, 0, "");
    try_open("localhost:0", false, 0, "");
    try_open("0.0.0.0:0", true, 0, "");
    try_open("127.0.0.1", false, ERR_INVALID, "HOST:PORT");
}

static void a_port_that_is_taken_is_named(void **state)
{
    const struct served *s = *state;
    try_open(s->bound, false, ERR_IO, "Address already in use");
}

static void probes_see_health_and_no_page(void **state)
{
    struct served s;
    struct buf out = {0};
    (void)state;
    begin(&s, "0.0.0.0:0", true);
    assert_int_equal(ask(&s, "GET", "/healthz", NULL), 200);
    s.ready = false;
    assert_int_equal(ask(&s, "GET", "/readyz", NULL), 503);
    assert_int_equal(ask(&s, "GET", "/metrics", &out), 404);
    assert_null(strstr(buf_str(&out), "weft_a"));
    buf_clear(&out);
    end(&s);
}

static int ask_as(const struct served *s, const char *path, const char *host)
{
    char text[300];
    snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", path, host);
    return ask_bytes(s, text, strlen(text), NULL);
}

// What a browser here was led to by a name that resolves to loopback.
static void a_name_that_somebody_may_own_gets_no_metrics(void **state)
{
    static const char *const foreign[] = {"evil.example", "evil.example:80",
                                          "localhost.evil.example", "127.0.0.1.evil.example", "x"};
    static const char *const own[] = {"localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:7702",
                                      "[::1]:7702"};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        assert_int_equal(ask_as(*state, "/metrics", foreign[i]), 403);
        assert_int_equal(ask_as(*state, "/healthz", foreign[i]), 200);
    }
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        assert_int_equal(ask_as(*state, "/metrics", own[i]), 200);
}

static void a_socket_is_its_user_s_alone_and_replaces_what_a_dead_one_left(void **state)
{
    char dir[TEMP_FOLDER_MAX], address[TEMP_FOLDER_MAX + 20];
    static const char text[] = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    (void)state;
    assert_int_equal(temp_folder_make(dir, "http"), 0);
    snprintf(address, sizeof address, "unix:%s/h.sock", dir);
    for (int i = 0; i < 2; i++) {
        struct sockaddr_un a = {.sun_family = AF_UNIX};
        struct served s;
        struct buf out = {0};
        struct stat st;
        begin(&s, address, false);
        assert_string_equal(s.bound, address);
        snprintf(a.sun_path, sizeof a.sun_path, "%s", address + strlen("unix:"));
        assert_int_equal(stat(a.sun_path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
        say(fd, text, sizeof text - 1);
        hear(fd, &out);
        assert_string_equal(body_of(&out), "weft_a 1\n");
        buf_clear(&out);
        close(fd);
        end(&s);
    }
    assert_int_equal(temp_folder_remove(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_PLAIN(a_process_that_runs_is_healthy),
        ON_PLAIN(one_that_does_not_serve_yet_is_not_ready_and_says_why),
        ON_PLAIN(metrics_come_whole_with_their_type),
        ON_PLAIN(head_gives_the_length_and_sends_no_body),
        ON_PLAIN(other_paths_are_not_found),
        ON_PLAIN(other_methods_are_refused),
        ON_PLAIN(bodies_are_refused_before_they_are_read),
        ON_PLAIN(a_connection_is_one_request),
        ON_PLAIN(a_huge_url_or_header_is_refused),
        ON_PLAIN(many_headers_are_refused),
        ON_PLAIN(lines_that_are_no_request_are_refused),
        ON_PLAIN(garbage_changes_nothing),
        ON_PLAIN(two_hundred_idle_connections_keep_nobody_out),
        ON_PLAIN(slow_clients_are_ended),
        cmocka_unit_test(pages_are_served_on_this_machine_alone),
        ON_PLAIN(a_port_that_is_taken_is_named),
        cmocka_unit_test(probes_see_health_and_no_page),
        ON_PLAIN(a_name_that_somebody_may_own_gets_no_metrics),
        cmocka_unit_test(a_socket_is_its_user_s_alone_and_replaces_what_a_dead_one_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
