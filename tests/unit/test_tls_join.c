// SPDX-License-Identifier: Apache-2.0
// Joining a cluster: tokens that work once, and joiners that trust nobody but the token's authority.
#include "tests/unit/authority.h"

// ---- tokens ----

struct joiner {
    struct arena a;
    char token[TLS_TOKEN_MAX];
    struct tls_token_text text;
    const char *key, *csr, *cert, *ca, *role;
    struct err e;
};

static int make_token(const char *role, const char *name, int hosts, int64_t ttl_s,
                      char token[TLS_TOKEN_MAX])
{
    return tls_token_make(in_top("ca"), &(struct tls_token){role, name, hosts, ttl_s}, NOW, token,
                          NULL);
}

// A joiner with a key of its own, which asks for `name`.
static void ask_for(struct joiner *j, const char *name)
{
    struct scratch own;
    scratch_make(&own);
    assert_int_equal(tls_key_keep(scratch_path(&own, ""), "worker", &j->a, &j->key, &j->e), 0);
    scratch_remove(&own);
    assert_int_equal(tls_request_make(name, j->key, &j->a, &j->csr, &j->e), 0);
}

static void join_as(struct joiner *j, const char *name, const char *role, int64_t ttl_s)
{
    memset(j, 0, sizeof *j);
    arena_init(&j->a);
    j->role = "";
    assert_int_equal(make_token(role, name, 0, ttl_s, j->token), 0);
    assert_int_equal(tls_token_parse(j->token, &j->text, &j->e), 0);
    assert_string_equal(j->text.name, name);
    ask_for(j, name);
}

static void join_begin(struct joiner *j, const char *role, int64_t ttl_s)
{
    join_as(j, "host-7", role, ttl_s);
}

static int join_sign(struct joiner *j, int64_t now_s)
{
    const struct tls_request q = {j->text.secret, j->csr, j->role};
    return tls_token_sign(in_top("ca"), &q, now_s, &j->a, &j->cert, &j->ca, &j->e);
}

static int join_store(struct joiner *j, const char *dir)
{
    return tls_request_store(dir, "worker", j->text.ca_sha256, j->ca, j->cert, j->key, &j->e);
}

static void a_token_is_traded_for_a_certificate_of_its_role(void **state)
{
    (void)state;
    struct joiner j;
    char name[65], path[300], text[200];
    int64_t until;
    char role[16], cn[65];
    join_begin(&j, "worker", 3600);
    sha256_hex(j.text.secret, 64, name);
    snprintf(path, sizeof path, "%s/%s", in_top("ca/tokens"), name);
    assert_mode(in_top("ca/tokens"), 0700);
    assert_mode(path, 0600);
    read_text(path, text, sizeof text);
    assert_string_equal(text, "role worker\nname host-7\nexpires 1800003600\n");
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
        char name[16];
        snprintf(name, sizeof name, "host-%d", round);
        join_as(&j[0], name, "worker", 3600);
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
    assert_int_equal(tls_token_make(in_top("ca"), &(struct tls_token){"worker", "host-8", 0, 60},
                                    NOW + 61, j.token, NULL),
                     0);
    assert_int_equal(count_files(in_top("ca/tokens")), 1);
}

static void unknown_and_damaged_tokens_are_refused(void **state)
{
    (void)state;
    struct joiner j;
    struct tls_token_text read;
    char text[TLS_TOKEN_MAX + 4];
    enum { NAMELESS = sizeof "weft-join." - 1 + 64 + 1 + 64 };
    join_begin(&j, "worker", 3600);
    j.text.secret[5] = j.text.secret[5] == 'a' ? 'b' : 'a';
    assert_int_equal(join_sign(&j, NOW), ERR_REFUSED);
    strcpy(j.text.secret, "../ca.pem");
    assert_int_equal(join_sign(&j, NOW), ERR_REFUSED);
    static const char *const bad[] = {"", "weft-join.", "weft-join.00.11", "x"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(tls_token_parse(bad[i], &read, NULL), ERR_INVALID);
    strcpy(text, j.token);
    text[NAMELESS - 1] = 0; // cut when it was copied
    assert_int_equal(tls_token_parse(text, &read, NULL), ERR_INVALID);
    snprintf(text, sizeof text, "%.*s0", NAMELESS, j.token);
    assert_int_equal(tls_token_parse(text, &read, NULL), ERR_INVALID);
    snprintf(text, sizeof text, "%.*s.", NAMELESS, j.token);
    assert_int_equal(tls_token_parse(text, &read, NULL), ERR_INVALID);
    snprintf(text, sizeof text, "%.*s.a/b", NAMELESS, j.token);
    assert_int_equal(tls_token_parse(text, &read, NULL), ERR_INVALID);
    snprintf(text, sizeof text, " %s\n", j.token); // harmless
    assert_int_equal(tls_token_parse(text, &read, NULL), 0);
    assert_string_equal(read.name, "host-7");
    snprintf(text, sizeof text, "%.*s", NAMELESS, j.token); // a token of several hosts
    assert_int_equal(tls_token_parse(text, &read, NULL), 0);
    assert_string_equal(read.name, "");
    // A token's file that somebody wrote into.
    assert_int_equal(run("for f in %s/*; do echo role coordinator >$f; done", in_top("ca/tokens")),
                     0);
    assert_int_equal(tls_token_parse(j.token, &j.text, NULL), 0);
    assert_int_equal(join_sign(&j, NOW), ERR_REFUSED);
    assert_non_null(strstr(j.e.text, "damaged"));
    arena_clear(&j.a);
}

static void tokens_are_for_known_roles_and_times(void **state)
{
    (void)state;
    char token[TLS_TOKEN_MAX];
    assert_int_equal(make_token("coordinator", "a", 0, 60, token), ERR_INVALID);
    assert_int_equal(make_token("worker", "a", 0, 0, token), ERR_INVALID);
    assert_int_equal(make_token("worker", "../a", 0, 60, token), ERR_INVALID);
    assert_int_equal(make_token("worker", NULL, 0, 60, token), ERR_INVALID);
    assert_int_equal(
        tls_token_make(in_top("none"), &(struct tls_token){"worker", "a", 0, 60}, NOW, token, NULL),
        ERR_NOTFOUND);
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

// ---- whose a name is ----

static void a_token_is_for_the_host_that_it_names(void **state)
{
    (void)state;
    struct joiner j;
    join_as(&j, "w1", "worker", 3600);
    const char *own = j.csr;
    assert_int_equal(tls_request_make("w0", j.key, &j.a, &j.csr, &j.e), 0);
    assert_int_equal(join_sign(&j, NOW), ERR_REFUSED);
    assert_string_equal(j.e.text, "the join token is for 'w1', not for 'w0'");
    assert_false(tls_name_is_taken(in_top("ca"), "w0"));
    j.csr = own; // and it is not used up
    assert_int_equal(join_sign(&j, NOW), 0);
    assert_true(tls_name_is_taken(in_top("ca"), "w1"));
    arena_clear(&j.a);
}

static void nobody_gets_a_name_that_another_key_has(void **state)
{
    (void)state;
    struct joiner j, thief;
    join_as(&j, "w0", "worker", 3600);
    assert_int_equal(join_sign(&j, NOW), 0);
    join_as(&thief, "w0", "worker", 3600); // with a token for that very name
    assert_int_equal(join_sign(&thief, NOW), ERR_REFUSED);
    assert_non_null(strstr(thief.e.text, "another key has a certificate of the name 'w0'"));
    static const char *const issued[] = {"w0", "admin"}; // by the authority itself, too
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tls_ca_issue(in_top("ca"), &(struct tls_issue){"worker", issued[i], 0, 0},
                                      in_top("another"), &thief.e),
                         ERR_REFUSED);
        assert_int_not_equal(access(in_top("another/worker.key"), F_OK), 0);
    }
    // The host itself renews with the token that the thief could not use up.
    j.text = thief.text;
    assert_int_equal(join_sign(&j, NOW + 60), 0);
    arena_clear(&j.a);
    arena_clear(&thief.a);
}

static void a_token_of_several_hosts_is_for_as_many_new_names(void **state)
{
    (void)state;
    struct joiner j[4];
    static const char *const names[] = {"a", "b", "a", "c"};
    static const int says[] = {0, 0, ERR_REFUSED, ERR_REFUSED}; // the last: it is used up
    char token[TLS_TOKEN_MAX];
    assert_int_equal(make_token("worker", NULL, 2, 3600, token), 0);
    for (int i = 0; i < 4; i++) {
        j[i] = (struct joiner){.role = ""};
        arena_init(&j[i].a);
        assert_int_equal(tls_token_parse(token, &j[i].text, NULL), 0);
        assert_string_equal(j[i].text.name, "");
        ask_for(&j[i], names[i]);
        assert_int_equal(join_sign(&j[i], NOW), says[i]);
        arena_clear(&j[i].a);
    }
    assert_int_equal(count_files(in_top("ca/tokens")), 0);
}

static void a_join_that_was_not_finished_has_its_key_and_name_when_it_is_tried_again(void **state)
{
    (void)state;
    struct joiner j;
    const char *again;
    join_as(&j, "w0", "worker", 3600);
    assert_int_equal(run("mkdir -m 700 %s", in_top("host")), 0);
    assert_int_equal(tls_key_keep(in_top("host"), "worker", &j.a, &j.key, &j.e), 0);
    assert_int_equal(tls_request_make("w0", j.key, &j.a, &j.csr, &j.e), 0);
    assert_int_equal(join_sign(&j, NOW), 0); // and the answer was lost
    assert_int_equal(tls_key_keep(in_top("host"), "worker", &j.a, &again, &j.e), 0);
    assert_string_equal(again, j.key);
    assert_mode(in_top("host/.joining.key"), 0600);
    assert_int_equal(make_token("worker", "w0", 0, 3600, j.token), 0);
    assert_int_equal(tls_token_parse(j.token, &j.text, NULL), 0);
    assert_int_equal(join_sign(&j, NOW), 0);
    assert_int_equal(join_store(&j, in_top("host")), 0);
    assert_int_equal(count_files(in_top("host")), 3); // without .joining.key
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
    join_as(&other, "host-8", "worker", 3600);
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
    struct joiner user; // what an older coordinator would answer to a client's token
    join_as(&user, "host-9", "client", 3600);
    assert_int_equal(join_sign(&user, NOW), 0);
    assert_int_equal(join_store(&user, in_top("host")), ERR_REFUSED);
    assert_non_null(strstr(user.e.text, "of role client, not worker"));
    arena_clear(&user.a);
    j.cert = cert;
    assert_int_equal(
        tls_request_store(in_top("host"), "ca", j.text.ca_sha256, j.ca, j.cert, j.key, NULL),
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
    assert_int_equal(tls_fetch_ca(evil.address, j.text.ca_sha256, file, 10, &j.e), ERR_REFUSED);
    assert_non_null(strstr(j.e.text, "another authority"));
    assert_int_equal(tls_fetch_ca(deaf.address, j.text.ca_sha256, file, 10, &j.e), ERR_PEER);
    assert_int_not_equal(access(file, F_OK), 0);
    assert_int_equal(tls_fetch_ca(own.address, j.text.ca_sha256, file, 10, &j.e), 0);
    read_text(file, got, sizeof got);
    assert_string_equal(got, want);
    assert_mode(file, 0600);
    server_stop(&own);
    server_stop(&evil);
    server_stop(&deaf);
    assert_int_equal(tls_fetch_ca(own.address, j.text.ca_sha256, file, 10, &j.e), ERR_PEER); // gone
    assert_int_equal(tls_fetch_ca("nowhere", j.text.ca_sha256, file, 10, &j.e), ERR_INVALID);
    alarm(0);
    arena_clear(&j.a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_token_is_traded_for_a_certificate_of_its_role),
        CASE(a_token_works_once),
        CASE(of_many_who_use_a_token_at_once_one_gets_a_certificate),
        CASE(an_expired_token_is_refused_and_gone),
        CASE(unknown_and_damaged_tokens_are_refused),
        CASE(tokens_are_for_known_roles_and_times),
        CASE(a_request_that_proves_no_key_is_refused_and_costs_no_token),
        CASE(a_token_is_for_the_host_that_it_names),
        CASE(nobody_gets_a_name_that_another_key_has),
        CASE(a_token_of_several_hosts_is_for_as_many_new_names),
        CASE(a_join_that_was_not_finished_has_its_key_and_name_when_it_is_tried_again),
        CASE(a_joiner_stores_nothing_but_its_own_authoritys_answer),
        CASE(a_joiner_finds_its_authority_at_the_server_and_no_other),
    };
    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
