// SPDX-License-Identifier: Apache-2.0
// The cluster's authority: what init, issue and renew leave on disk and whether others believe it
// (OpenSSL's own verification, its command where there is one), tokens that work once, joiners
// that trust nobody but the token's authority.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/hash.h"
#include "common/rpc/tls_ca.h"

enum { NOW = 1800000000 }; // tokens are told the time
#define DAY_S 86400

static char top[64];
static const char *const sans[] = {"coord.example", "10.0.0.1", "fd00::7"};

static const char *in_top(const char *rest)
{
    static _Thread_local char path[6][300];
    static _Thread_local int next;
    next = (next + 1) % 6;
    snprintf(path[next], sizeof path[next], "%s/%s", top, rest);
    return path[next];
}

static int make_top(void **state)
{
    struct err e = {0};
    (void)state;
    strcpy(top, "/tmp/weft-tls-XXXXXX");
    if (!mkdtemp(top))
        return -1;
    if (tls_ca_init(in_top("ca"), sans, 3, &e)) {
        print_error("%s\n", e.text);
        return -1;
    }
    return 0;
}

static int remove_top(void **state)
{
    char line[100];
    (void)state;
    snprintf(line, sizeof line, "rm -rf %s", top);
    return system(line);
}

static int run(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static int run(const char *fmt, ...)
{
    char line[1500];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    int status = system(line);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void read_text(const char *path, char *out, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    ssize_t n = read(fd, out, size - 1);
    assert_true(n >= 0);
    out[n] = 0;
    close(fd);
}

static X509 *read_cert(const char *path)
{
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    X509 *cert = PEM_read_X509(f, NULL, NULL, NULL);
    assert_non_null(cert);
    fclose(f);
    return cert;
}

static EVP_PKEY *read_key(const char *path)
{
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    EVP_PKEY *key = PEM_read_PrivateKey(f, NULL, NULL, NULL);
    assert_non_null(key);
    fclose(f);
    return key;
}

// What a TLS peer would ask: 0, or an X509_V_ERR_ code.
static int verify(X509 *cert, X509 *ca, int purpose)
{
    X509_STORE *store = X509_STORE_new();
    X509_STORE_CTX *ctx = X509_STORE_CTX_new();
    assert_int_equal(X509_STORE_add_cert(store, ca), 1);
    assert_int_equal(X509_STORE_CTX_init(ctx, store, cert, NULL), 1);
    X509_STORE_CTX_set_purpose(ctx, purpose);
    X509_VERIFY_PARAM_set_flags(X509_STORE_CTX_get0_param(ctx), X509_V_FLAG_X509_STRICT);
    int ok = X509_verify_cert(ctx), code = X509_STORE_CTX_get_error(ctx);
    X509_STORE_CTX_free(ctx);
    X509_STORE_free(store);
    return ok == 1 ? 0 : code;
}

static void assert_mode(const char *path, mode_t mode)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, mode);
}

static void assert_role(const char *pem, const char *role, const char *name, int64_t days)
{
    int64_t until, left;
    char r[32], n[80];
    struct err e = {0};
    if (tls_cert_read(pem, &until, r, sizeof r, n, sizeof n, &e))
        fail_msg("%s", e.text);
    assert_string_equal(r, role);
    assert_string_equal(n, name);
    left = until - (int64_t)time(NULL);
    assert_true(left > (days - 1) * DAY_S && left <= days * DAY_S + 60);
}

static int count_files(const char *dir)
{
    DIR *d = opendir(dir);
    int n = 0;
    assert_non_null(d);
    for (struct dirent *item; (item = readdir(d));)
        n += strcmp(item->d_name, ".") && strcmp(item->d_name, "..");
    closedir(d);
    return n;
}

// ---- the authority ----

static void init_makes_an_authority_a_server_and_an_admin_for_their_owner_only(void **state)
{
    (void)state;
    static const char *const files[] = {"ca/ca.pem",     "ca/ca.key",    "ca/server.pem",
                                        "ca/server.key", "ca/admin.pem", "ca/admin.key"};
    assert_mode(in_top("ca"), 0700);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        assert_mode(in_top(files[i]), 0600);
    assert_int_equal(count_files(in_top("ca")), 6);
    assert_role(in_top("ca/server.pem"), "coordinator", "coordinator", 365);
    assert_role(in_top("ca/admin.pem"), "admin", "admin", 365);
    assert_role(in_top("ca/ca.pem"), "none", "weft cluster authority", 3650);
}

static void a_second_init_is_refused_and_changes_nothing(void **state)
{
    (void)state;
    char before[4096], after[4096];
    struct err e = {0};
    read_text(in_top("ca/ca.key"), before, sizeof before);
    assert_int_equal(tls_ca_init(in_top("ca"), sans, 3, &e), ERR_EXISTS);
    assert_non_null(strstr(e.text, "holds an authority already"));
    read_text(in_top("ca/ca.key"), after, sizeof after);
    assert_string_equal(before, after);
}

static void an_init_that_died_halfway_may_be_done_again(void **state)
{
    (void)state;
    assert_int_equal(unlink(in_top("ca/ca.pem")), 0); // it comes last
    assert_int_equal(tls_ca_init(in_top("ca"), NULL, 0, NULL), 0);
    X509 *ca = read_cert(in_top("ca/ca.pem")), *server = read_cert(in_top("ca/server.pem"));
    assert_int_equal(verify(server, ca, X509_PURPOSE_SSL_SERVER), 0);
    X509_free(ca);
    X509_free(server);
}

static void the_servers_certificate_is_believed_for_its_names_and_no_other(void **state)
{
    (void)state;
    X509 *ca = read_cert(in_top("ca/ca.pem")), *server = read_cert(in_top("ca/server.pem"));
    EVP_PKEY *key = read_key(in_top("ca/server.key"));
    static const char *const names[] = {"localhost", "coord.example"};
    static const char *const addresses[] = {"127.0.0.1", "::1", "10.0.0.1", "fd00::7"};
    assert_int_equal(verify(server, ca, X509_PURPOSE_SSL_SERVER), 0);
    assert_int_equal(verify(server, ca, X509_PURPOSE_SSL_CLIENT), 0); // it may call itself
    assert_int_equal(X509_check_private_key(server, key), 1);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(X509_check_host(server, names[i], 0, 0, NULL), 1);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(X509_check_ip_asc(server, addresses[i], 0), 1);
    assert_int_equal(X509_check_host(server, "other.example", 0, 0, NULL), 0);
    assert_int_equal(X509_check_ip_asc(server, "10.0.0.2", 0), 0);
    X509_free(ca);
    X509_free(server);
    EVP_PKEY_free(key);
}

static void the_server_shows_its_chain(void **state)
{
    (void)state;
    FILE *f = fopen(in_top("ca/server.pem"), "re");
    assert_non_null(f);
    X509 *leaf = PEM_read_X509(f, NULL, NULL, NULL), *next = PEM_read_X509(f, NULL, NULL, NULL);
    X509 *ca = read_cert(in_top("ca/ca.pem"));
    assert_non_null(leaf);
    assert_non_null(next);
    assert_null(PEM_read_X509(f, NULL, NULL, NULL));
    assert_int_equal(X509_cmp(next, ca), 0);
    fclose(f);
    X509_free(leaf);
    X509_free(next);
    X509_free(ca);
}

static void keys_are_of_p256_and_the_authority_signs_leaves_only(void **state)
{
    (void)state;
    X509 *ca = read_cert(in_top("ca/ca.pem")), *admin = read_cert(in_top("ca/admin.pem"));
    static const char *const keys[] = {"ca/ca.key", "ca/server.key", "ca/admin.key"};
    for (size_t i = 0; i < 3; i++) {
        char group[32];
        EVP_PKEY *key = read_key(in_top(keys[i]));
        assert_int_equal(EVP_PKEY_get_group_name(key, group, sizeof group, NULL), 1);
        assert_string_equal(group, "prime256v1");
        EVP_PKEY_free(key);
    }
    assert_int_equal(X509_get_signature_nid(ca), NID_ecdsa_with_SHA256);
    assert_int_equal(X509_get_signature_nid(admin), NID_ecdsa_with_SHA256);
    assert_int_equal(X509_check_ca(ca), 1);
    assert_int_equal(X509_get_pathlen(ca), 0);
    assert_int_equal(X509_get_key_usage(ca), KU_KEY_CERT_SIGN | KU_CRL_SIGN);
    assert_int_equal(X509_check_ca(admin), 0);
    assert_int_not_equal(
        ASN1_INTEGER_cmp(X509_get0_serialNumber(ca), X509_get0_serialNumber(admin)), 0);
    X509_free(ca);
    X509_free(admin);
}

static void the_openssl_command_believes_them_too(void **state)
{
    (void)state;
    if (run("command -v openssl >/dev/null")) {
        print_message("SKIP: no openssl command here\n");
        skip();
    }
    const char *ca = in_top("ca/ca.pem");
    assert_int_equal(run("openssl verify -x509_strict -purpose sslserver -verify_hostname "
                         "coord.example -CAfile %s %s >/dev/null 2>&1",
                         ca, in_top("ca/server.pem")),
                     0);
    assert_int_equal(run("openssl verify -x509_strict -purpose sslclient -CAfile %s %s "
                         ">/dev/null 2>&1",
                         ca, in_top("ca/admin.pem")),
                     0);
    assert_int_not_equal(run("openssl verify -purpose sslserver -CAfile %s %s >/dev/null 2>&1", ca,
                             in_top("ca/admin.pem")),
                         0);
    assert_int_equal(run("openssl x509 -in %s -noout -ext subjectAltName | grep -q "
                         "'URI:weft:role:coordinator, DNS:localhost, IP Address:127.0.0.1'",
                         in_top("ca/server.pem")),
                     0);
    assert_int_equal(run("openssl x509 -in %s -noout -text | grep -q 'CA:TRUE, pathlen:0'", ca), 0);
}

static void issue_makes_a_certificate_of_a_role_with_the_authority_beside_it(void **state)
{
    (void)state;
    struct err e = {0};
    assert_int_equal(tls_ca_issue(in_top("ca"), "client", "alice", 0, in_top("alice"), &e), 0);
    assert_role(in_top("alice/client.pem"), "client", "alice", 365);
    assert_mode(in_top("alice"), 0700);
    assert_mode(in_top("alice/client.key"), 0600);
    X509 *ca = read_cert(in_top("alice/ca.pem")), *alice = read_cert(in_top("alice/client.pem"));
    EVP_PKEY *key = read_key(in_top("alice/client.key"));
    assert_int_equal(verify(alice, ca, X509_PURPOSE_SSL_CLIENT), 0);
    assert_int_equal(verify(alice, ca, X509_PURPOSE_SSL_SERVER), X509_V_ERR_INVALID_PURPOSE);
    assert_int_equal(X509_check_private_key(alice, key), 1);
    assert_int_equal(tls_ca_issue(in_top("ca"), "worker", "w-1", 30, in_top("w-1"), &e), 0);
    assert_role(in_top("w-1/worker.pem"), "worker", "w-1", 30);
    // None outlives the authority.
    assert_int_equal(tls_ca_issue(in_top("ca"), "worker", "w-2", 36500, in_top("w-2"), &e), 0);
    assert_role(in_top("w-2/worker.pem"), "worker", "w-2", 3650);
    X509_free(ca);
    X509_free(alice);
    EVP_PKEY_free(key);
}

static void issue_refuses_other_roles_and_names_that_are_paths(void **state)
{
    (void)state;
    static const char *const names[] = {"tokens", "", "../x", "a/b", ".x", "a b", "a,b"};
    char longest[80], before[4096], after[4096];
    memset(longest, 'a', sizeof longest);
    longest[64] = 0;
    read_text(in_top("ca/ca.key"), before, sizeof before);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_int_equal(tls_ca_issue(in_top("ca"), "client", names[i], 0, in_top("ca"), NULL),
                         ERR_INVALID);
    assert_int_equal(tls_ca_issue(in_top("ca"), "client", longest, 0, in_top("ca"), NULL),
                     ERR_INVALID);
    assert_int_equal(tls_ca_issue(in_top("ca"), "coordinator", "x", 0, in_top("ca"), NULL),
                     ERR_INVALID);
    assert_int_equal(tls_ca_issue(in_top("none"), "client", "x", 0, in_top("ca"), NULL),
                     ERR_NOTFOUND);
    read_text(in_top("ca/ca.key"), after, sizeof after);
    assert_string_equal(before, after);
}

static void a_renewed_server_has_its_new_names_and_the_same_authority(void **state)
{
    (void)state;
    static const char *const moved[] = {"moved.example"}, *const bad[] = {"x,DNS:evil.example"};
    struct err e = {0};
    X509 *old = read_cert(in_top("ca/server.pem")), *ca = read_cert(in_top("ca/ca.pem"));
    assert_int_equal(tls_ca_renew_server(in_top("ca"), bad, 1, &e), ERR_INVALID);
    assert_int_equal(tls_ca_renew_server(in_top("ca"), moved, 1, &e), 0);
    X509 *new = read_cert(in_top("ca/server.pem"));
    EVP_PKEY *key = read_key(in_top("ca/server.key"));
    assert_int_equal(X509_check_private_key(new, key), 1);
    assert_int_equal(verify(new, ca, X509_PURPOSE_SSL_SERVER), 0);
    assert_int_equal(X509_check_host(new, "moved.example", 0, 0, NULL), 1);
    assert_int_equal(X509_check_host(new, "coord.example", 0, 0, NULL), 0);
    assert_int_equal(X509_check_host(new, "localhost", 0, 0, NULL), 1);
    assert_int_not_equal(X509_cmp(old, new), 0);
    X509_free(old);
    X509_free(new);
    X509_free(ca);
    EVP_PKEY_free(key);
}

static void what_cannot_be_read_is_an_error_with_its_path(void **state)
{
    (void)state;
    int64_t until;
    char role[16], name[65];
    struct err e = {0};
    const char *path = in_top("ca/ca.key");
    assert_int_equal(tls_cert_read(path, &until, role, sizeof role, name, sizeof name, &e),
                     ERR_DATA);
    assert_non_null(strstr(e.text, path));
    assert_int_equal(
        tls_cert_read(in_top("none.pem"), &until, role, sizeof role, name, sizeof name, &e),
        ERR_NOTFOUND);
    assert_non_null(strstr(e.text, "none.pem"));
}

// ---- tokens ----

struct joiner {
    struct arena a;
    char token[TLS_TOKEN_MAX], ca_sha256[65], secret[65];
    const char *key, *csr, *cert, *ca;
    struct err e;
};

static void join_begin(struct joiner *j, const char *role, int64_t ttl_s)
{
    memset(j, 0, sizeof *j);
    arena_init(&j->a);
    assert_int_equal(tls_token_make(in_top("ca"), role, NOW, ttl_s, j->token, &j->e), 0);
    assert_int_equal(tls_token_parse(j->token, j->ca_sha256, j->secret, &j->e), 0);
    assert_int_equal(tls_request_make("host-7", &j->a, &j->key, &j->csr, &j->e), 0);
}

static int join_sign(struct joiner *j, int64_t now_s)
{
    return tls_token_sign(in_top("ca"), j->secret, j->csr, now_s, &j->a, &j->cert, &j->ca, &j->e);
}

static int join_store(struct joiner *j, const char *dir)
{
    return tls_request_store(dir, "worker", j->ca_sha256, j->ca, j->cert, j->key, &j->e);
}

static void a_token_is_traded_for_a_certificate_of_its_role(void **state)
{
    (void)state;
    struct joiner j;
    char name[65], path[300], text[200];
    int64_t until;
    char role[16], cn[65];
    join_begin(&j, "worker", 3600);
    sha256_hex(j.secret, 64, name);
    snprintf(path, sizeof path, "%s/%s", in_top("ca/tokens"), name);
    assert_mode(in_top("ca/tokens"), 0700);
    assert_mode(path, 0600);
    read_text(path, text, sizeof text);
    assert_string_equal(text, "role worker\nexpires 1800003600\n");
    assert_int_equal(join_sign(&j, NOW + 3599), 0);
    assert_int_equal(count_files(in_top("ca/tokens")), 0);
    assert_int_equal(join_store(&j, in_top("host")), 0);
    assert_mode(in_top("host"), 0700);
    assert_mode(in_top("host/worker.key"), 0600);
    assert_int_equal(count_files(in_top("host")), 3);
    assert_int_equal(
        tls_cert_read(in_top("host/worker.pem"), &until, role, sizeof role, cn, sizeof cn, &j.e),
        0);
    assert_string_equal(role, "worker");
    assert_string_equal(cn, "host-7");
    X509 *cert = read_cert(in_top("host/worker.pem")), *ca = read_cert(in_top("ca/ca.pem"));
    EVP_PKEY *key = read_key(in_top("host/worker.key")), *ca_key = X509_get0_pubkey(ca);
    assert_int_equal(X509_verify(cert, ca_key), 1);
    assert_int_equal(X509_check_purpose(cert, X509_PURPOSE_SSL_CLIENT, 0), 1);
    assert_int_equal(X509_check_purpose(cert, X509_PURPOSE_SSL_SERVER, 0), 0);
    assert_int_equal(X509_check_private_key(cert, key), 1);
    X509_free(cert);
    X509_free(ca);
    EVP_PKEY_free(key);
    arena_clear(&j.a);
}

static void a_token_works_once(void **state)
{
    (void)state;
    struct joiner j;
    join_begin(&j, "client", 3600);
    assert_int_equal(join_sign(&j, NOW), 0);
    assert_int_equal(join_sign(&j, NOW), ERR_REFUSED);
    assert_non_null(strstr(j.e.text, "unknown or was used"));
    arena_clear(&j.a);
}

static void *sign_thread(void *arg)
{
    struct joiner *j = arg;
    return join_sign(j, NOW) ? NULL : arg;
}

static void of_many_who_use_a_token_at_once_one_gets_a_certificate(void **state)
{
    (void)state;
    enum { MANY = 8, ROUNDS = 10 };
    for (int round = 0; round < ROUNDS; round++) {
        struct joiner j[MANY];
        pthread_t thread[MANY];
        int won = 0;
        join_begin(&j[0], "worker", 3600);
        for (int i = 1; i < MANY; i++) {
            j[i] = j[0];
            arena_init(&j[i].a);
        }
        for (int i = 0; i < MANY; i++)
            assert_int_equal(pthread_create(&thread[i], NULL, sign_thread, &j[i]), 0);
        for (int i = 0; i < MANY; i++) {
            void *got;
            pthread_join(thread[i], &got);
            won += got != NULL;
        }
        assert_int_equal(won, 1);
        for (int i = 0; i < MANY; i++)
            arena_clear(&j[i].a);
    }
}

static void an_expired_token_is_refused_and_gone(void **state)
{
    (void)state;
    struct joiner j;
    join_begin(&j, "worker", 60);
    assert_int_equal(join_sign(&j, NOW + 60), ERR_REFUSED);
    assert_non_null(strstr(j.e.text, "expired"));
    assert_int_equal(join_sign(&j, NOW),
                     ERR_REFUSED); // the clock going back does not bring it back
    arena_clear(&j.a);
    // Those that nobody used are swept when another is made.
    join_begin(&j, "worker", 60);
    arena_clear(&j.a);
    assert_int_equal(tls_token_make(in_top("ca"), "worker", NOW + 61, 60, j.token, NULL), 0);
    assert_int_equal(count_files(in_top("ca/tokens")), 1);
}

static void unknown_and_damaged_tokens_are_refused(void **state)
{
    (void)state;
    struct joiner j;
    char ca[65], secret[65], text[TLS_TOKEN_MAX + 4];
    join_begin(&j, "worker", 3600);
    j.secret[5] = j.secret[5] == 'a' ? 'b' : 'a';
    assert_int_equal(join_sign(&j, NOW), ERR_REFUSED);
    strcpy(j.secret, "../ca.pem");
    assert_int_equal(join_sign(&j, NOW), ERR_REFUSED);
    static const char *const bad[] = {"", "weft-join.", "weft-join.00.11", "x"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(tls_token_parse(bad[i], ca, secret, NULL), ERR_INVALID);
    strcpy(text, j.token);
    text[strlen(text) - 1] = 0; // cut when it was copied
    assert_int_equal(tls_token_parse(text, ca, secret, NULL), ERR_INVALID);
    snprintf(text, sizeof text, "%s0", j.token);
    assert_int_equal(tls_token_parse(text, ca, secret, NULL), ERR_INVALID);
    snprintf(text, sizeof text, " %s\n", j.token); // harmless
    assert_int_equal(tls_token_parse(text, ca, secret, NULL), 0);
    // A token's file that somebody wrote into.
    assert_int_equal(run("for f in %s/*; do echo role coordinator >$f; done", in_top("ca/tokens")),
                     0);
    assert_int_equal(tls_token_parse(j.token, j.ca_sha256, j.secret, NULL), 0);
    assert_int_equal(join_sign(&j, NOW), ERR_REFUSED);
    assert_non_null(strstr(j.e.text, "damaged"));
    arena_clear(&j.a);
}

static void tokens_are_for_known_roles_and_times(void **state)
{
    (void)state;
    char token[TLS_TOKEN_MAX];
    assert_int_equal(tls_token_make(in_top("ca"), "coordinator", NOW, 60, token, NULL),
                     ERR_INVALID);
    assert_int_equal(tls_token_make(in_top("ca"), "worker", NOW, 0, token, NULL), ERR_INVALID);
    assert_int_equal(tls_token_make(in_top("none"), "worker", NOW, 60, token, NULL), ERR_NOTFOUND);
}

// A request for `name` made by hand, as nobody's own code would.
static char *request_of(const char *name, EVP_PKEY *key, EVP_PKEY *signer)
{
    X509_REQ *req = X509_REQ_new();
    X509_NAME_add_entry_by_txt(X509_REQ_get_subject_name(req), "CN", MBSTRING_ASC,
                               (const unsigned char *)name, -1, -1, 0);
    assert_int_equal(X509_REQ_set_pubkey(req, key), 1);
    assert_true(X509_REQ_sign(req, signer, EVP_sha256()) > 0);
    BIO *bio = BIO_new(BIO_s_mem());
    char *data, *text;
    assert_int_equal(PEM_write_bio_X509_REQ(bio, req), 1);
    long n = BIO_get_mem_data(bio, &data);
    text = strndup(data, (size_t)n);
    BIO_free(bio);
    X509_REQ_free(req);
    return text;
}

static void a_request_that_proves_no_key_is_refused_and_costs_no_token(void **state)
{
    (void)state;
    struct joiner j;
    EVP_PKEY *own = EVP_EC_gen("P-256"), *other = EVP_EC_gen("P-256"), *rsa = EVP_RSA_gen(2048);
    const char *good;
    join_begin(&j, "worker", 3600);
    good = j.csr;
    char *bad[] = {request_of("host-7", own, other), request_of("../host", own, own),
                   request_of("host-7", rsa, rsa), strdup("nonsense"), strdup("")};
    static const char *const why[] = {"signature is wrong", "no name", "not of P-256",
                                      "no certificate request", "no certificate request"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        j.csr = bad[i];
        assert_int_equal(join_sign(&j, NOW), ERR_REFUSED);
        assert_non_null(strstr(j.e.text, why[i]));
        free(bad[i]);
    }
    j.csr = good;
    assert_int_equal(join_sign(&j, NOW), 0);
    EVP_PKEY_free(own);
    EVP_PKEY_free(other);
    EVP_PKEY_free(rsa);
    arena_clear(&j.a);
}

// ---- the joiner ----

static void a_joiner_stores_nothing_but_its_own_authoritys_answer(void **state)
{
    (void)state;
    struct joiner j, other;
    char foreign[4096];
    assert_int_equal(tls_ca_init(in_top("evil"), NULL, 0, NULL), 0);
    read_text(in_top("evil/ca.pem"), foreign, sizeof foreign);
    join_begin(&j, "worker", 3600);
    assert_int_equal(join_sign(&j, NOW), 0);
    join_begin(&other, "worker", 3600);
    assert_int_equal(join_sign(&other, NOW), 0);
    const char *ca = j.ca, *cert = j.cert;
    j.ca = foreign; // another authority
    assert_int_equal(join_store(&j, in_top("host")), ERR_REFUSED);
    assert_non_null(strstr(j.e.text, "not the token's"));
    j.ca = ca;
    j.cert = foreign; // a certificate of another authority
    assert_int_equal(join_store(&j, in_top("host")), ERR_REFUSED);
    assert_non_null(strstr(j.e.text, "not signed by the authority"));
    j.cert = other.cert; // a certificate for another's key
    assert_int_equal(join_store(&j, in_top("host")), ERR_REFUSED);
    assert_non_null(strstr(j.e.text, "another key"));
    j.cert = "nonsense";
    assert_int_equal(join_store(&j, in_top("host")), ERR_DATA);
    assert_int_not_equal(access(in_top("host"), F_OK), 0);
    j.cert = cert;
    assert_int_equal(
        tls_request_store(in_top("host"), "ca", j.ca_sha256, j.ca, j.cert, j.key, NULL),
        ERR_INVALID);
    assert_int_equal(join_store(&j, in_top("host")), 0);
    arena_clear(&j.a);
    arena_clear(&other.a);
}

struct server {
    pthread_t thread;
    int fd, calls;
    SSL_CTX *ctx; // null: it speaks no TLS
    char address[40];
};

static int choose_h2(SSL *ssl, const unsigned char **out, unsigned char *len,
                     const unsigned char *in, unsigned inlen, void *arg)
{
    static const unsigned char h2[] = "h2";
    (void)ssl, (void)arg;
    bool offered = inlen == 3 && !memcmp(in, "\2h2", 3);
    *out = h2;
    *len = 2;
    return offered ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

static void *serve(void *arg)
{
    struct server *s = arg;
    for (int i = 0; i < s->calls; i++) {
        int fd = accept(s->fd, NULL, NULL);
        if (fd < 0)
            break;
        SSL *ssl = s->ctx ? SSL_new(s->ctx) : NULL;
        if (ssl) {
            SSL_set_fd(ssl, fd);
            char byte;
            if (SSL_accept(ssl) == 1)
                (void)SSL_read(ssl, &byte, 1); // until the other side leaves
            SSL_free(ssl);
        } else {
            (void)!write(fd, "HTTP/1.1 400 no\r\n\r\n", 19);
        }
        close(fd);
    }
    return NULL;
}

static void server_start(struct server *s, const char *dir, int calls)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    char path[300];
    *s = (struct server){.calls = calls};
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(s->fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(s->fd, 8), 0);
    assert_int_equal(getsockname(s->fd, (struct sockaddr *)&at, &len), 0);
    snprintf(s->address, sizeof s->address, "127.0.0.1:%d", ntohs(at.sin_port));
    if (dir) {
        s->ctx = SSL_CTX_new(TLS_server_method());
        snprintf(path, sizeof path, "%s/server.pem", dir);
        assert_int_equal(SSL_CTX_use_certificate_chain_file(s->ctx, path), 1);
        snprintf(path, sizeof path, "%s/server.key", dir);
        assert_int_equal(SSL_CTX_use_PrivateKey_file(s->ctx, path, SSL_FILETYPE_PEM), 1);
        SSL_CTX_set_alpn_select_cb(s->ctx, choose_h2, NULL);
    }
    assert_int_equal(pthread_create(&s->thread, NULL, serve, s), 0);
}

static void server_stop(struct server *s)
{
    pthread_join(s->thread, NULL);
    close(s->fd);
    SSL_CTX_free(s->ctx);
}

static void a_joiner_finds_its_authority_at_the_server_and_no_other(void **state)
{
    (void)state;
    struct server own, evil, deaf;
    struct joiner j;
    char want[4096], got[4096], chain[9000];
    assert_int_equal(tls_ca_init(in_top("evil"), NULL, 0, NULL), 0);
    // The impostor shows the true authority behind a certificate that it did not sign.
    read_text(in_top("ca/ca.pem"), want, sizeof want);
    read_text(in_top("evil/server.pem"), got, sizeof got);
    snprintf(chain, sizeof chain, "%s%s", got, want);
    FILE *f = fopen(in_top("evil/server.pem"), "we");
    fputs(chain, f);
    fclose(f);
    join_begin(&j, "worker", 3600);
    server_start(&own, in_top("ca"), 1);
    server_start(&evil, in_top("evil"), 1);
    server_start(&deaf, NULL, 1);
    const char *file = in_top("found.pem");
    alarm(120);
    assert_int_equal(tls_fetch_ca(evil.address, j.ca_sha256, file, &j.e), ERR_REFUSED);
    assert_non_null(strstr(j.e.text, "another authority"));
    assert_int_equal(tls_fetch_ca(deaf.address, j.ca_sha256, file, &j.e), ERR_PEER);
    assert_int_not_equal(access(file, F_OK), 0);
    assert_int_equal(tls_fetch_ca(own.address, j.ca_sha256, file, &j.e), 0);
    read_text(file, got, sizeof got);
    assert_string_equal(got, want);
    assert_mode(file, 0600);
    server_stop(&own);
    server_stop(&evil);
    server_stop(&deaf);
    assert_int_equal(tls_fetch_ca(own.address, j.ca_sha256, file, &j.e), ERR_PEER); // gone
    assert_int_equal(tls_fetch_ca("nowhere", j.ca_sha256, file, &j.e), ERR_INVALID);
    alarm(0);
    arena_clear(&j.a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define CASE(f) cmocka_unit_test_setup_teardown(f, make_top, remove_top)
        CASE(init_makes_an_authority_a_server_and_an_admin_for_their_owner_only),
        CASE(a_second_init_is_refused_and_changes_nothing),
        CASE(an_init_that_died_halfway_may_be_done_again),
        CASE(the_servers_certificate_is_believed_for_its_names_and_no_other),
        CASE(the_server_shows_its_chain),
        CASE(keys_are_of_p256_and_the_authority_signs_leaves_only),
        CASE(the_openssl_command_believes_them_too),
        CASE(issue_makes_a_certificate_of_a_role_with_the_authority_beside_it),
        CASE(issue_refuses_other_roles_and_names_that_are_paths),
        CASE(a_renewed_server_has_its_new_names_and_the_same_authority),
        CASE(what_cannot_be_read_is_an_error_with_its_path),
        CASE(a_token_is_traded_for_a_certificate_of_its_role),
        CASE(a_token_works_once),
        CASE(of_many_who_use_a_token_at_once_one_gets_a_certificate),
        CASE(an_expired_token_is_refused_and_gone),
        CASE(unknown_and_damaged_tokens_are_refused),
        CASE(tokens_are_for_known_roles_and_times),
        CASE(a_request_that_proves_no_key_is_refused_and_costs_no_token),
        CASE(a_joiner_stores_nothing_but_its_own_authoritys_answer),
        CASE(a_joiner_finds_its_authority_at_the_server_and_no_other),
    };
    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
