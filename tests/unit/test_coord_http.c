// SPDX-License-Identifier: Apache-2.0
// The coordinator's HTTP over real sockets: every path, every refusal, clients that are slow,
// silent, many or mad, and certificates of all kinds.
// The server's loop runs on a thread of its own; clients block, with a watchdog.
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/rpc/tls_ca.h"
#include "coordinator/http.h"
#include "tests/unit/coord_world.h"

enum { WATCHDOG_S = 60, BIG = 32 << 20 };

static char top[64]; // the authority and everybody's certificates

static const char *in_top(const char *rest)
{
    static char path[8][200];
    static int next;
    next = (next + 1) % 8;
    snprintf(path[next], sizeof path[next], "%s/%s", top, rest);
    return path[next];
}

static int shell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static int shell(const char *fmt, ...)
{
    char line[1500];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    int status = system(line);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// ---- the server ----

struct served {
    struct http *http;
    pthread_t thread;
    int wake[2];
    char bound[64];
    atomic_bool ready, big;
};

static bool is_ready(void *ctx, struct buf *why)
{
    struct served *s = ctx;
    if (!s->ready)
        buf_puts(why, "the store is being read");
    return s->ready;
}

static void print_text(void *ctx, struct buf *out)
{
    struct served *s = ctx;
    buf_puts(out, "weft_a 1\n");
    if (s->big) {
        buf_reserve(out, BIG);
        memset(out->data + out->len, '#', BIG);
        out->len += BIG;
    }
}

static void *serve(void *ctx)
{
    struct served *s = ctx;
    for (;;) {
        struct pollfd p[2] = {{.fd = http_fd(s->http), .events = POLLIN},
                              {.fd = s->wake[0], .events = POLLIN}};
        int64_t now = clock_mono_ns(), due = http_due_ns(s->http, now);
        int wait = !due ? -1 : due <= now ? 0 : (int)((due - now) / CLOCK_MS) + 1;
        poll(p, 2, wait);
        if (p[1].revents)
            return NULL;
        http_turn(s->http);
    }
}

static void begin(struct served *s, const struct http_options *tls)
{
    struct err e = {0};
    struct http_options o = {.address = "127.0.0.1:0"};
    if (tls)
        o = *tls;
    o.ctx = s;
    o.metrics = print_text;
    o.ready = is_ready;
    *s = (struct served){.ready = true};
    if (http_open(&o, &s->http, s->bound, sizeof s->bound, &e))
        fail_msg("%s", e.text);
    assert_int_equal(pipe(s->wake), 0);
    assert_int_equal(pthread_create(&s->thread, NULL, serve, s), 0);
}

static void end(struct served *s)
{
    assert_int_equal(write(s->wake[1], "x", 1), 1);
    pthread_join(s->thread, NULL);
    http_close(s->http);
    close(s->wake[0]);
    close(s->wake[1]);
}

// ---- clients ----

static int dial(const struct served *s)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)atoi(strrchr(s->bound, ':') + 1))};
    struct timeval watchdog = {.tv_sec = WATCHDOG_S};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    inet_pton(AF_INET, "127.0.0.1", &a.sin_addr);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &watchdog, sizeof watchdog);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &watchdog, sizeof watchdog);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static void say(int fd, const void *data, size_t len)
{
    const char *p = data;
    while (len) {
        ssize_t n = send(fd, p, len, MSG_NOSIGNAL);
        if (n < 0) // the server may have had enough
            return;
        p += n;
        len -= (size_t)n;
    }
}

// Everything until the server ends the connection; a client that has to wait too long fails.
static void hear(int fd, struct buf *out)
{
    for (;;) {
        buf_reserve(out, 65536);
        ssize_t n = recv(fd, out->data + out->len, 65536, 0);
        if (n < 0)
            assert_int_equal(errno, ECONNRESET);
        if (n <= 0)
            break;
        out->len += (size_t)n;
    }
    buf_append(out, "", 0);
}

static int status_of(const struct buf *reply) // 0: none
{
    return strncmp(buf_str(reply), "HTTP/1.", 7) != 0 ? 0 : atoi(reply->data + 9);
}

static const char *body_of(const struct buf *reply)
{
    const char *p = strstr(buf_str(reply), "\r\n\r\n");
    return p ? p + 4 : "";
}

// `out` may be null. The status.
static int ask_bytes(const struct served *s, const void *data, size_t len, struct buf *out)
{
    struct buf reply = {0};
    int fd = dial(s);
    say(fd, data, len);
    shutdown(fd, SHUT_WR);
    hear(fd, &reply);
    close(fd);
    int status = status_of(&reply);
    if (out)
        *out = reply;
    else
        buf_clear(&reply);
    return status;
}

static int ask(const struct served *s, const char *method, const char *path, struct buf *out)
{
    char text[300];
    snprintf(text, sizeof text, "%s %s HTTP/1.1\r\nHost: x\r\n\r\n", method, path);
    return ask_bytes(s, text, strlen(text), out);
}

static void assert_serves(const struct served *s)
{
    struct buf out = {0};
    assert_int_equal(ask(s, "GET", "/healthz", &out), 200);
    assert_string_equal(body_of(&out), "ok\n");
    buf_clear(&out);
}

// ---- pages ----

static int plain(void **state)
{
    static struct served s;
    begin(&s, NULL);
    *state = &s;
    return 0;
}

static int over(void **state)
{
    assert_serves(*state); // whatever the test did
    end(*state);
    return 0;
}

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

static void head_tells_the_length_and_sends_no_body(void **state)
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
        {"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", 413},
        {"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", 413},
        {"GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n"
         "\r\n",
         413},
        {"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nhello", 405},
        {"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400},
        {"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 200},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(ask_bytes(*state, cases[i].request, strlen(cases[i].request), NULL),
                         cases[i].status);
}

static void a_connection_is_one_request(void **state)
{
    struct buf text = {0}, out = {0};
    for (int i = 0; i < 50; i++)
        buf_puts(&text, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
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
        buf_puts(&header, "GET /healthz HTTP/1.1\r\nHost: x\r\nX: ");
        for (size_t k = 0; k < sizes[i]; k++) {
            buf_putc(&url, 'a');
            buf_putc(&header, 'a');
        }
        buf_puts(&url, " HTTP/1.1\r\nHost: x\r\n\r\n");
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
    buf_puts(&text, "GET /healthz HTTP/1.1\r\nHost: x\r\n");
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
        "GET /healthz HTTP/9.9\r\nHost: x",
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
    say(fds[199], "thz HTTP/1.1\r\nHost: x\r\n\r\n", 26);
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
    say(deaf, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 34);
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

// ---- addresses ----

static void open_as(const char *address, const char *ca, const char *cert, const char *key,
                    int want, const char *says)
{
    struct served s = {0};
    struct http_options o = {.address = address,
                             .ca = ca,
                             .cert = cert,
                             .key = key,
                             .ctx = &s,
                             .metrics = print_text,
                             .ready = is_ready};
    struct err e = {0};
    struct http *h = NULL;
    int rc = http_open(&o, &h, NULL, 0, &e);
    if (rc != want)
        fail_msg("%s: %d, not %d: %s", address, rc, want, e.text);
    assert_non_null(strstr(e.text, says));
    http_close(h);
}

static void without_tls_only_loopback_is_served(void **state)
{
    (void)state;
    open_as("0.0.0.0:0", NULL, NULL, NULL, ERR_INVALID, "without TLS");
    open_as("10.0.0.1:0", NULL, NULL, NULL, ERR_INVALID, "without TLS");
    open_as("[::]:0", NULL, NULL, NULL, ERR_INVALID, "without TLS");
    open_as("coord.example:0", NULL, NULL, NULL, ERR_INVALID, "without TLS");
    open_as("unix:/tmp/x", NULL, NULL, NULL, ERR_INVALID, "HTTP needs HOST:PORT");
    open_as("127.0.0.1", NULL, NULL, NULL, ERR_INVALID, "HOST:PORT");
    open_as("127.0.0.1:0", NULL, NULL, NULL, 0, "");
    open_as("localhost:0", NULL, NULL, NULL, 0, "");
}

static void a_port_that_is_taken_is_named(void **state)
{
    const struct served *s = *state;
    open_as(s->bound, NULL, NULL, NULL, ERR_IO, "Address already in use");
}

static void files_that_do_not_fit_are_refused_at_the_start(void **state)
{
    (void)state;
    const char *ca = in_top("ca/ca.pem"), *cert = in_top("ca/server.pem"),
               *key = in_top("ca/server.key"), *other = in_top("ca/admin.key");
    open_as("0.0.0.0:0", ca, cert, key, 0, "");
    open_as("0.0.0.0:0", ca, cert, NULL, ERR_INVALID, "TLS needs");
    open_as("0.0.0.0:0", ca, cert, other, ERR_INVALID, "server.pem with");
    open_as("0.0.0.0:0", key, cert, key, ERR_INVALID, "server.key");
    open_as("0.0.0.0:0", ca, in_top("none.pem"), key, ERR_IO, "No such file");
    open_as("0.0.0.0:0", ca, "/dev/zero", key, ERR_INVALID, "over");
}

// ---- certificates ----

static int with_tls(void **state)
{
    static struct served s;
    struct http_options o = {.address = "0.0.0.0:0",
                             .ca = in_top("ca/ca.pem"),
                             .cert = in_top("ca/server.pem"),
                             .key = in_top("ca/server.key")};
    begin(&s, &o);
    *state = &s;
    return 0;
}

static int tls_over(void **state)
{
    end(*state);
    return 0;
}

// As `who` (DIR/NAME without .pem; null: nobody). The status; −1: no handshake. `print` may be
// null: of the server's certificate.
static int ask_tls(const struct served *s, const char *who, int version, struct buf *out,
                   unsigned char print[32])
{
    struct buf reply = {0};
    char file[300];
    int status = -1, fd = dial(s);
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_security_level(ctx, 0); // so that old versions are tried
    SSL_CTX_set_min_proto_version(ctx, version);
    SSL_CTX_set_max_proto_version(ctx, version);
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
    assert_int_equal(SSL_CTX_load_verify_locations(ctx, in_top("ca/ca.pem"), NULL), 1);
    if (who) {
        snprintf(file, sizeof file, "%s/%s.pem", top, who);
        assert_int_equal(SSL_CTX_use_certificate_chain_file(ctx, file), 1);
        snprintf(file, sizeof file, "%s/%s.key", top, who);
        assert_int_equal(SSL_CTX_use_PrivateKey_file(ctx, file, SSL_FILETYPE_PEM), 1);
    }
    SSL *ssl = SSL_new(ctx);
    SSL_set_fd(ssl, fd);
    if (SSL_connect(ssl) == 1) {
        static const char text[] = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
        X509 *cert = SSL_get1_peer_certificate(ssl);
        if (print)
            assert_int_equal(X509_digest(cert, EVP_sha256(), print, NULL), 1);
        X509_free(cert);
        SSL_write(ssl, text, sizeof text - 1);
        for (int n = 1; n > 0; reply.len += n > 0 ? (size_t)n : 0) {
            buf_reserve(&reply, 4096);
            n = SSL_read(ssl, reply.data + reply.len, 4096);
        }
        buf_append(&reply, "", 0);
        status = status_of(&reply);
    }
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    close(fd);
    if (out)
        *out = reply;
    else
        buf_clear(&reply);
    return status;
}

static void a_client_and_an_admin_may_ask(void **state)
{
    static const char *const who[] = {"ca/admin", "alice/client"};
    static const int versions[] = {TLS1_2_VERSION, TLS1_3_VERSION};
    for (size_t i = 0; i < sizeof who / sizeof *who; i++)
        for (int v = 0; v < 2; v++) {
            struct buf out = {0};
            assert_int_equal(ask_tls(*state, who[i], versions[v], &out, NULL), 200);
            assert_string_equal(body_of(&out), "weft_a 1\n");
            buf_clear(&out);
        }
}

static void whoever_is_neither_is_refused(void **state)
{
    static const int versions[] = {TLS1_2_VERSION, TLS1_3_VERSION};
    for (int v = 0; v < 2; v++) {
        struct buf out = {0};
        assert_int_equal(ask_tls(*state, NULL, versions[v], &out, NULL), 403);
        assert_null(strstr(out.data, "weft_a"));
        buf_clear(&out);
        assert_int_equal(ask_tls(*state, "other/admin", versions[v], NULL, NULL), 403);
        assert_int_equal(ask_tls(*state, "w1/worker", versions[v], NULL, NULL), 403);
        assert_int_equal(ask_tls(*state, "ca/server", versions[v], NULL, NULL), 403);
    }
}

static void made_by_openssl(const char *name, const char *how)
{
    assert_int_equal(shell("cd %s && openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 "
                           "-nodes -keyout %s.key -subj /CN=admin -out %s.csr 2>/dev/null && "
                           "openssl x509 -req -in %s.csr -out %s.pem %s 2>/dev/null",
                           top, name, name, name, name, how),
                     0);
}

static void a_certificate_without_role_of_its_own_making_or_expired_is_refused(void **state)
{
    if (shell("command -v openssl >/dev/null")) {
        print_message("SKIP: no openssl command here\n");
        skip();
    }
    assert_int_equal(shell("printf 'subjectAltName=URI:weft:role:admin\\n"
                           "extendedKeyUsage=clientAuth\\n' > %s",
                           in_top("role.ext")),
                     0);
    assert_int_equal(shell("printf 'subjectAltName=URI:weft:role:admin\\n"
                           "extendedKeyUsage=serverAuth\\n' > %s",
                           in_top("serves.ext")),
                     0);
    made_by_openssl("good", "-CA ca/ca.pem -CAkey ca/ca.key -extfile role.ext -days 1");
    made_by_openssl("plain", "-CA ca/ca.pem -CAkey ca/ca.key -days 1");
    made_by_openssl("itself", "-signkey itself.key -extfile role.ext -days 1");
    made_by_openssl("serves", "-CA ca/ca.pem -CAkey ca/ca.key -extfile serves.ext -days 1");
    made_by_openssl("old", "-CA ca/ca.pem -CAkey ca/ca.key -extfile role.ext -days -1");
    assert_int_equal(ask_tls(*state, "good", TLS1_3_VERSION, NULL, NULL), 200);
    assert_int_equal(ask_tls(*state, "plain", TLS1_3_VERSION, NULL, NULL), 403);
    assert_int_equal(ask_tls(*state, "itself", TLS1_3_VERSION, NULL, NULL), 403);
    assert_int_equal(ask_tls(*state, "serves", TLS1_3_VERSION, NULL, NULL), 403);
    assert_int_equal(ask_tls(*state, "old", TLS1_3_VERSION, NULL, NULL), 403);
}

static void versions_below_1_2_and_plain_text_get_nothing(void **state)
{
    assert_int_equal(ask_tls(*state, "ca/admin", TLS1_1_VERSION, NULL, NULL), -1);
    assert_int_equal(ask(*state, "GET", "/metrics", NULL), 0);
    assert_int_equal(ask_tls(*state, "ca/admin", TLS1_3_VERSION, NULL, NULL), 200);
}

static void handshakes_that_never_come_keep_nobody_out(void **state)
{
    int fds[100];
    for (int i = 0; i < 100; i++)
        fds[i] = dial(*state);
    assert_int_equal(ask_tls(*state, "ca/admin", TLS1_3_VERSION, NULL, NULL), 200);
    for (int i = 0; i < 100; i++)
        close(fds[i]);
}

static void a_new_certificate_is_used_without_a_restart_and_a_broken_one_is_not(void **state)
{
    unsigned char before[32], now[32];
    assert_int_equal(ask_tls(*state, "ca/admin", TLS1_3_VERSION, NULL, before), 200);
    assert_int_equal(tls_ca_renew_server(in_top("ca"), NULL, 0, NULL), 0);
    int64_t watchdog = clock_mono_ns() + WATCHDOG_S * CLOCK_S;
    do {
        clock_sleep_ms(50);
        assert_int_equal(ask_tls(*state, "ca/admin", TLS1_3_VERSION, NULL, now), 200);
    } while (!memcmp(now, before, 32) && clock_mono_ns() < watchdog);
    assert_memory_not_equal(now, before, 32);
    memcpy(before, now, 32);
    assert_int_equal(shell("echo nonsense > %s", in_top("ca/server.key")), 0);
    for (int i = 0; i < 30; i++) { // over more than a second, so that it was looked at
        clock_sleep_ms(50);
        assert_int_equal(ask_tls(*state, "ca/admin", TLS1_3_VERSION, NULL, now), 200);
        assert_memory_equal(now, before, 32);
    }
    assert_int_equal(tls_ca_renew_server(in_top("ca"), NULL, 0, NULL), 0);
}

// ---- all ----

static int make_top(void **state)
{
    struct err e = {0};
    (void)state;
    signal(SIGPIPE, SIG_IGN); // of OpenSSL's writes
    strcpy(top, "/tmp/weft-http-XXXXXX");
    if (!mkdtemp(top))
        return -1;
    if (tls_ca_init(in_top("ca"), NULL, 0, &e) || tls_ca_init(in_top("other"), NULL, 0, &e) ||
        tls_ca_issue(in_top("ca"), "client", "alice", 0, in_top("alice"), &e) ||
        tls_ca_issue(in_top("ca"), "worker", "w1", 0, in_top("w1"), &e)) {
        print_error("%s\n", e.text);
        return -1;
    }
    return 0;
}

static int remove_top(void **state)
{
    (void)state;
    return shell("rm -rf %s", top);
}

#define ON_PLAIN(f) cmocka_unit_test_setup_teardown(f, plain, over)
#define ON_TLS(f)   cmocka_unit_test_setup_teardown(f, with_tls, tls_over)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_PLAIN(a_process_that_runs_is_healthy),
        ON_PLAIN(one_that_does_not_serve_yet_is_not_ready_and_says_why),
        ON_PLAIN(metrics_come_whole_with_their_type),
        ON_PLAIN(head_tells_the_length_and_sends_no_body),
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
        cmocka_unit_test(without_tls_only_loopback_is_served),
        ON_PLAIN(a_port_that_is_taken_is_named),
        cmocka_unit_test(files_that_do_not_fit_are_refused_at_the_start),
        ON_TLS(a_client_and_an_admin_may_ask),
        ON_TLS(whoever_is_neither_is_refused),
        ON_TLS(a_certificate_without_role_of_its_own_making_or_expired_is_refused),
        ON_TLS(versions_below_1_2_and_plain_text_get_nothing),
        ON_TLS(handshakes_that_never_come_keep_nobody_out),
        ON_TLS(a_new_certificate_is_used_without_a_restart_and_a_broken_one_is_not),
    };
    return cmocka_run_group_tests(tests, make_top, remove_top);
}
