// SPDX-License-Identifier: Apache-2.0
// A cluster's authority in a folder of its own, and reading what it leaves there, for tests of it.
#pragma once
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
#include "tests/unit/scratch.h"

enum { NOW = 1800000000 }; // what tokens take for the time
#define DAY_S 86400

static struct scratch top;
static const char *const sans[] = {"coord.example", "10.0.0.1", "fd00::7"};

static inline const char *in_top(const char *rest)
{
    return scratch_path(&top, rest);
}

static inline int make_top(void **state)
{
    struct err e = {0};
    (void)state;
    scratch_make(&top);
    if (tls_ca_init(in_top("ca"), sans, 3, &e)) {
        print_error("%s\n", e.text);
        return -1;
    }
    return 0;
}

static inline int remove_top(void **state)
{
    (void)state;
    scratch_remove(&top);
    return 0;
}

static inline int run(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static inline int run(const char *fmt, ...)
{
    char line[1500];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    int status = system(line);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static inline void read_text(const char *path, char *out, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    ssize_t n = read(fd, out, size - 1);
    assert_true(n >= 0);
    out[n] = 0;
    close(fd);
}

static inline X509 *read_cert(const char *path)
{
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    X509 *cert = PEM_read_X509(f, NULL, NULL, NULL);
    assert_non_null(cert);
    fclose(f);
    return cert;
}

static inline EVP_PKEY *read_key(const char *path)
{
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    EVP_PKEY *key = PEM_read_PrivateKey(f, NULL, NULL, NULL);
    assert_non_null(key);
    fclose(f);
    return key;
}

// What a TLS peer would ask: 0, or an X509_V_ERR_ code.
static inline int verify(X509 *cert, X509 *ca, int purpose)
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

static inline void assert_mode(const char *path, mode_t mode)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, mode);
}

static inline void assert_role(const char *pem, const char *role, const char *name, int64_t days)
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

static inline int count_files(const char *dir)
{
    DIR *d = opendir(dir);
    int n = 0;
    assert_non_null(d);
    for (struct dirent *item; (item = readdir(d));)
        n += strcmp(item->d_name, ".") && strcmp(item->d_name, "..");
    closedir(d);
    return n;
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, make_top, remove_top)
