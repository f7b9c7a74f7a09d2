// SPDX-License-Identifier: Apache-2.0
// Where the coordinator's HTTP listens, and with certificates of all kinds.
#include <openssl/ssl.h>
#include <sys/wait.h>

#include "common/rpc/tls_ca.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/http_served.h"

static char top[TEMP_FOLDER_MAX]; // the authority and everybody's certificates

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

static void versions_below_1_2_and_kept_text_get_nothing(void **state)
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
    if (temp_folder_make(top, "http"))
        return -1;
    if (tls_ca_init(in_top("ca"), NULL, 0, &e) || tls_ca_init(in_top("other"), NULL, 0, &e) ||
        tls_ca_issue(in_top("ca"), &(struct tls_issue){"client", "alice", 0, 0}, in_top("alice"),
                     &e) ||
        tls_ca_issue(in_top("ca"), &(struct tls_issue){"worker", "w1", 0, 0}, in_top("w1"), &e)) {
        print_error("%s\n", e.text);
        return -1;
    }
    return 0;
}

static int remove_top(void **state)
{
    (void)state;
    return temp_folder_remove(top);
}

#define ON_TLS(f) cmocka_unit_test_setup_teardown(f, with_tls, tls_over)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_tls_only_loopback_is_served),
        ON_PLAIN(a_port_that_is_taken_is_named),
        cmocka_unit_test(files_that_do_not_fit_are_refused_at_the_start),
        ON_TLS(a_client_and_an_admin_may_ask),
        ON_TLS(whoever_is_neither_is_refused),
        ON_TLS(a_certificate_without_role_of_its_own_making_or_expired_is_refused),
        ON_TLS(versions_below_1_2_and_kept_text_get_nothing),
        ON_TLS(handshakes_that_never_come_keep_nobody_out),
        ON_TLS(a_new_certificate_is_used_without_a_restart_and_a_broken_one_is_not),
    };
    return cmocka_run_group_tests(tests, make_top, remove_top);
}
