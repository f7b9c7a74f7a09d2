// SPDX-License-Identifier: Apache-2.0
// The cluster's authority: what init, issue and renew leave on disk, and whether others believe it
// (OpenSSL's own verification, and its command where there is one).
#include "tests/unit/authority.h"

// ---- the authority ----

static void init_makes_an_authority_a_server_and_an_admin_for_their_owner_only(void **state)
{
    (void)state;
    static const char *const files[] = {"ca/ca.pem",     "ca/ca.key",    "ca/server.pem",
                                        "ca/server.key", "ca/admin.pem", "ca/admin.key"};
    assert_mode(in_top("ca"), 0700);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        assert_mode(in_top(files[i]), 0600);
    assert_int_equal(count_files(in_top("ca")), 7); // and whose its names are
    assert_int_equal(count_files(in_top("ca/names")), 1);
    assert_true(tls_name_is_taken(in_top("ca"), "admin"));
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
    assert_int_equal(tls_ca_issue(in_top("ca"), &(struct tls_issue){"client", "alice", 0, 0},
                                  in_top("alice"), &e),
                     0);
    assert_role(in_top("alice/client.pem"), "client", "alice", 365);
    assert_mode(in_top("alice"), 0700);
    assert_mode(in_top("alice/client.key"), 0600);
    X509 *ca = read_cert(in_top("alice/ca.pem")), *alice = read_cert(in_top("alice/client.pem"));
    EVP_PKEY *key = read_key(in_top("alice/client.key"));
    assert_int_equal(verify(alice, ca, X509_PURPOSE_SSL_CLIENT), 0);
    assert_int_equal(verify(alice, ca, X509_PURPOSE_SSL_SERVER), X509_V_ERR_INVALID_PURPOSE);
    assert_int_equal(X509_check_private_key(alice, key), 1);
    assert_int_equal(
        tls_ca_issue(in_top("ca"), &(struct tls_issue){"worker", "w-1", 30, 0}, in_top("w-1"), &e),
        0);
    assert_role(in_top("w-1/worker.pem"), "worker", "w-1", 30);
    // None outlives the authority.
    assert_int_equal(tls_ca_issue(in_top("ca"), &(struct tls_issue){"worker", "w-2", 36500, 0},
                                  in_top("w-2"), &e),
                     0);
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
        assert_int_equal(tls_ca_issue(in_top("ca"), &(struct tls_issue){"client", names[i], 0, 0},
                                      in_top("ca"), NULL),
                         ERR_INVALID);
    assert_int_equal(tls_ca_issue(in_top("ca"), &(struct tls_issue){"client", longest, 0, 0},
                                  in_top("ca"), NULL),
                     ERR_INVALID);
    assert_int_equal(tls_ca_issue(in_top("ca"), &(struct tls_issue){"coordinator", "x", 0, 0},
                                  in_top("ca"), NULL),
                     ERR_INVALID);
    assert_int_equal(
        tls_ca_issue(in_top("none"), &(struct tls_issue){"client", "x", 0, 0}, in_top("ca"), NULL),
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

int main(void)
{
    const struct CMUnitTest tests[] = {
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
    };
    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
