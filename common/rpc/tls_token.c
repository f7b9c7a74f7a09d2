// SPDX-License-Identifier: Apache-2.0
// Join tokens at the authority's side; see tls_ca.h.
//
// A token is a file named by its secret's SHA-256, so reading the directory reveals no secret. To
// use one it is renamed, which only one of several can do, then removed durably, then the
// certificate is signed. A crash in between costs the token and never makes a second certificate.
// Expiring uses a token up too; a request whose signature is wrong, or that asks for a name which it
// may not have, does not. A token of several hosts is written again with one less.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/folder.h"
#include "common/base/hash.h"
#include "common/rpc/tls_ca.h"
#include "common/rpc/tls_cert.h"

#define CLAIMED ".claimed-"

struct join_token {
    char role[16], name[TLS_NAME_MAX]; // name "": of `hosts` hosts whose names are new
    int hosts;
    int64_t expires_s;
};

static void print_token(const struct join_token *t, char out[160])
{
    int n = snprintf(out, 160, "role %s\n", t->role);
    n += t->name[0] ? snprintf(out + n, 80, "name %s\n", t->name)
                    : snprintf(out + n, 80, "hosts %d\n", t->hosts);
    snprintf(out + n, 40, "expires %" PRId64 "\n", t->expires_s);
}

static bool parse_token(const char *text, struct join_token *out)
{
    char again[160];
    *out = (struct join_token){.hosts = 1};
    bool ok = sscanf(text, "role %15s\nname %63s\nexpires %" SCNd64, out->role, out->name,
                     &out->expires_s) == 3 ||
              sscanf(text, "role %15s\nhosts %d\nexpires %" SCNd64, out->role, &out->hosts,
                     &out->expires_s) == 3;
    if (!ok || !tls_role_ok(out->role) || out->hosts < 1)
        return false;
    print_token(out, again);
    return !strcmp(text, again);
}

// ---- making ----

// Removes tokens that have expired or whose user died while claiming them. Best effort: what stays
// does no harm.
static void sweep_tokens(const char *tokens, int64_t now_s)
{
    DIR *d = opendir(tokens);
    struct dirent *item;
    while (d && (item = readdir(d))) {
        struct buf text = {0};
        struct join_token t;
        const char *name = item->d_name;
        bool gone = !strncmp(name, CLAIMED, strlen(CLAIMED));
        if (!gone && hex_is(name, 64) && !tls_file_read(tokens, name, &text, NULL))
            gone = parse_token(buf_str(&text), &t) && t.expires_s <= now_s;
        if (gone)
            (void)unlinkat(dirfd(d), name, 0);
        buf_clear(&text);
    }
    if (d)
        closedir(d);
}

// Reads the authority's certificate; its key is not needed.
static int read_ca(const char *dir, char sha256[65], struct err *e)
{
    struct buf pem = {0};
    X509 *cert = NULL;
    int rc = tls_file_read(dir, "ca.pem", &pem, e);
    rc = rc ? rc : tls_cert_parse(buf_str(&pem), &cert, e);
    if (!rc)
        tls_cert_sha256(cert, sha256);
    X509_free(cert);
    buf_clear(&pem);
    return rc;
}

static int new_secret(char out[65], struct err *e)
{
    unsigned char bytes[32];
    if (RAND_priv_bytes(bytes, sizeof bytes) != 1)
        return tls_failed(e, ERR_INTERNAL, "cannot get random bytes");
    hex_print(bytes, sizeof bytes, out);
    OPENSSL_cleanse(bytes, sizeof bytes);
    return 0;
}

int tls_token_make(const char *dir, const struct tls_token *what, int64_t now_s,
                   char out[TLS_TOKEN_MAX], struct err *e)
{
    char tokens[PATH_MAX], ca_sha256[65], secret[65], name[65], text[160];
    struct join_token t = {.hosts = what->hosts, .expires_s = now_s + what->ttl_s};
    if (!tls_role_ok(what->role))
        return err_set(e, ERR_INVALID, "'%s' is no role: client, worker, admin are", what->role);
    if (what->ttl_s <= 0)
        return err_set(e, ERR_INVALID, "a token must be good for a while");
    if (what->name ? !tls_name_ok(what->name) : what->hosts < 1)
        return err_set(e, ERR_INVALID, "'%.80s' is no name for a certificate",
                       what->name ? what->name : "");
    if ((size_t)snprintf(tokens, sizeof tokens, "%s/tokens", dir) >= sizeof tokens)
        return err_set(e, ERR_INVALID, "the path %.200s… is too long", dir);
    int rc = read_ca(dir, ca_sha256, e);
    rc = rc ? rc : folder_make(tokens, e);
    rc = rc ? rc : new_secret(secret, e);
    if (rc)
        return rc;
    sweep_tokens(tokens, now_s);
    sha256_hex(secret, 64, name);
    snprintf(t.role, sizeof t.role, "%s", what->role);
    snprintf(t.name, sizeof t.name, "%s", what->name ? what->name : "");
    print_token(&t, text);
    rc = folder_write(tokens, name, text, FOLDER_DURABLE, e);
    if (!rc)
        snprintf(out, TLS_TOKEN_MAX, "weft-join.%s.%s%s%s", ca_sha256, secret, t.name[0] ? "." : "",
                 t.name);
    OPENSSL_cleanse(secret, sizeof secret);
    return rc;
}

// ---- using up ----

static int refuse_token(struct err *e, const char *why)
{
    return err_set(e, ERR_REFUSED, "the join token %s: `weft-coordinator token` makes another",
                   why);
}

// Takes the token of that name out of the directory, durably; *text is what it says.
static int claim_token(int tokens, const char *name, char *text, size_t size, struct err *e)
{
    char claimed[120];
    ssize_t n = -1;
    int fd = openat(tokens, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return errno == ENOENT ? refuse_token(e, "is unknown or was used")
                               : err_errno(e, ERR_IO, "cannot open the join token");
    snprintf(claimed, sizeof claimed, CLAIMED "%s", name);
    int rc = 0;
    if (renameat(tokens, name, tokens, claimed)) // another one was first
        rc = errno == ENOENT ? refuse_token(e, "is unknown or was used")
                             : err_errno(e, ERR_IO, "cannot take the join token");
    else if ((n = read(fd, text, size - 1)) < 0)
        rc = err_errno(e, ERR_IO, "cannot read the join token");
    else if ((unlinkat(tokens, claimed, 0) && errno != ENOENT) || fsync(tokens))
        rc = err_errno(e, ERR_IO, "cannot remove the join token");
    text[n > 0 ? n : 0] = 0;
    close(fd);
    return rc;
}

// Whether the request may have what the token is for. If not, the token stays good: whoever has it
// may still use it for what it is.
static int check_request(const char *dir, const char *tokens, const char *file,
                         const struct tls_request *q, EVP_PKEY *key, const char *name,
                         struct err *e)
{
    struct buf text = {0};
    struct join_token t;
    bool known = !tls_file_read(tokens, file, &text, NULL) && parse_token(buf_str(&text), &t);
    buf_clear(&text);
    if (!known)
        return 0; // claim_token says what is wrong
    if (*q->role && strcmp(t.role, q->role) != 0)
        return err_set(e, ERR_REFUSED,
                       "the join token is for a %s: make one with `weft-coordinator token "
                       "--role %s`",
                       t.role, q->role);
    if (t.name[0] && strcmp(t.name, name) != 0)
        return err_set(e, ERR_REFUSED, "the join token is for '%s', not for '%s'", t.name, name);
    return tls_name_check(dir, name, key, e);
}

static int use_up_token(const char *dir, const struct tls_request *q, EVP_PKEY *key,
                        const char *name, int64_t now_s, struct join_token *out, struct err *e)
{
    char path[PATH_MAX], file[65], text[200];
    const char *secret = q->secret;
    if (!hex_is(secret, 64))
        return refuse_token(e, "is unknown or was used");
    sha256_hex(secret, 64, file);
    snprintf(path, sizeof path, "%s/tokens", dir);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? refuse_token(e, "is unknown or was used")
                               : err_errno(e, ERR_IO, "cannot open %s", path);
    int rc = check_request(dir, path, file, q, key, name, e);
    rc = rc ? rc : claim_token(fd, file, text, sizeof text, e);
    close(fd);
    if (!rc && !parse_token(text, out))
        rc = refuse_token(e, "is damaged");
    if (!rc && out->expires_s <= now_s)
        rc = refuse_token(e, "has expired");
    if (rc || out->hosts == 1)
        return rc;
    out->hosts--;
    print_token(out, text);
    return folder_write(path, file, text, FOLDER_DURABLE, e);
}

// ---- signing ----

static bool read_request_name(X509_REQ *req, char out[TLS_NAME_MAX])
{
    X509_NAME *subject = X509_REQ_get_subject_name(req);
    int n = X509_NAME_get_text_by_NID(subject, NID_commonName, out, TLS_NAME_MAX);
    return n > 0 && (size_t)n == strlen(out) && tls_name_ok(out);
}

// The request, which its own signature proves, and the name that it asks for.
static int read_request(const char *pem, X509_REQ **out, char name[TLS_NAME_MAX], struct err *e)
{
    BIO *bio = strlen(pem) <= TLS_FILE_MAX ? BIO_new_mem_buf(pem, -1) : NULL;
    X509_REQ *req = bio ? PEM_read_bio_X509_REQ(bio, NULL, NULL, NULL) : NULL;
    EVP_PKEY *key = req ? X509_REQ_get0_pubkey(req) : NULL;
    int rc = 0;
    BIO_free(bio);
    if (!req || !key)
        rc = tls_failed(e, ERR_REFUSED, "the request is no certificate request in PEM");
    else if (!EVP_PKEY_is_a(key, "EC") || EVP_PKEY_get_bits(key) != 256)
        rc = refuse_token(e, "the request's key is not of P-256");
    else if (X509_REQ_verify(req, key) != 1)
        rc = tls_failed(e, ERR_REFUSED, "the request's signature is wrong");
    else if (!read_request_name(req, name))
        rc = refuse_token(e, "the request's name is no name for a certificate");
    *out = rc ? NULL : req;
    if (rc)
        X509_REQ_free(req);
    return rc;
}

static int sign_request(const struct tls_pair *ca, X509_REQ *req, const struct tls_leaf *leaf,
                        struct arena *a, const char **cert_pem, const char **ca_pem, struct err *e)
{
    struct buf leaf_text = {0}, ca_text = {0};
    X509 *cert = NULL;
    int rc = tls_cert_make_leaf(ca, X509_REQ_get0_pubkey(req), leaf, &cert, e);
    rc = rc ? rc : tls_cert_print(cert, &leaf_text, e);
    rc = rc ? rc : tls_cert_print(ca->cert, &ca_text, e);
    if (!rc) {
        *cert_pem = arena_strdup(a, buf_str(&leaf_text));
        *ca_pem = arena_strdup(a, buf_str(&ca_text));
    }
    buf_clear(&leaf_text);
    buf_clear(&ca_text);
    X509_free(cert);
    return rc;
}

int tls_token_sign(const char *dir, const struct tls_request *q, int64_t now_s, struct arena *a,
                   const char **cert, const char **ca, struct err *e)
{
    char name[TLS_NAME_MAX];
    struct tls_pair pair = {0};
    struct join_token token;
    X509_REQ *req = NULL;
    int rc = read_request(q->csr_pem, &req, name, e);
    rc = rc ? rc : tls_pair_read(dir, &pair, e); // before the token, which a failure must not cost
    if (!rc)
        rc = use_up_token(dir, q, X509_REQ_get0_pubkey(req), name, now_s, &token, e);
    if (!rc)
        rc = tls_name_give(dir, name, X509_REQ_get0_pubkey(req), e);
    if (!rc) {
        struct tls_leaf leaf = {
            .role = token.role, .name = name, .now_s = now_s, .days = TLS_LEAF_DAYS};
        rc = sign_request(&pair, req, &leaf, a, cert, ca, e);
    }
    X509_REQ_free(req);
    tls_pair_clear(&pair);
    return rc;
}
