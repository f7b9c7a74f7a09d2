// SPDX-License-Identifier: Apache-2.0
// The joiner's side of tls_ca.h: the token's text, the request, the answer checked and stored, and
// the first look at a server that nobody here trusts yet.
//
// The token carries the authority's hash by hand. What comes over the wire is checked against it,
// so somebody in between can refuse service and nothing else.
#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "common/base/folder.h"
#include "common/base/hash.h"
#include "common/base/path.h"
#include "common/rpc/tls_ca.h"
#include "common/rpc/tls_cert.h"

// ---- the token ----

int tls_token_parse(const char *token, struct tls_token_text *out, struct err *e)
{
    static const char head[] = "weft-join.", white[] = " \t\r\n";
    enum { HEAD = sizeof head - 1, ALL = HEAD + 64 + 1 + 64 };
    token += strspn(token, white); // blanks that copying by hand leaves around it
    size_t len = strcspn(token, white), name = len > ALL ? len - ALL - 1 : 0;
    *out = (struct tls_token_text){0};
    bool ok = len >= ALL && len < TLS_TOKEN_MAX && !strncmp(token, head, HEAD) &&
              token[HEAD + 64] == '.' && (len == ALL || (token[ALL] == '.' && name)) &&
              name < TLS_NAME_MAX && !token[len + strspn(token + len, white)];
    if (ok) {
        snprintf(out->ca_sha256, 65, "%.64s", token + HEAD);
        snprintf(out->secret, 65, "%.64s", token + HEAD + 65);
        snprintf(out->name, sizeof out->name, "%.*s", (int)name, name ? token + ALL + 1 : "");
    }
    if (!hex_is(out->ca_sha256, 64) || !hex_is(out->secret, 64) ||
        (name && !tls_name_ok(out->name)))
        return err_set(e, ERR_INVALID, "that is no join token: copy it whole, 'weft-join.…'");
    return 0;
}

// ---- the request ----

static int new_request(EVP_PKEY *key, const char *name, X509_REQ **out, struct err *e)
{
    X509_REQ *req = *out = X509_REQ_new();
    bool ok = req && X509_REQ_set_version(req, X509_REQ_VERSION_1) &&
              X509_NAME_add_entry_by_txt(X509_REQ_get_subject_name(req), "CN", MBSTRING_ASC,
                                         (const unsigned char *)name, -1, -1, 0) &&
              X509_REQ_set_pubkey(req, key) && X509_REQ_sign(req, key, EVP_sha256());
    return ok ? 0 : tls_failed(e, ERR_INTERNAL, "cannot make the request");
}

static int print_request(X509_REQ *req, struct arena *a, const char **out, struct err *e)
{
    BIO *bio = BIO_new(BIO_s_mem());
    char *data = NULL;
    long n = bio && PEM_write_bio_X509_REQ(bio, req) ? BIO_get_mem_data(bio, &data) : 0;
    if (n > 0)
        *out = arena_printf(a, "%.*s", (int)n, data);
    BIO_free(bio);
    return n > 0 ? 0 : tls_failed(e, ERR_INTERNAL, "cannot write the request");
}

#define PENDING ".joining.key" // until there is a certificate of it

int tls_key_keep(const char *dir, const char *file, struct arena *a, const char **key_pem,
                 struct err *e)
{
    char name[TLS_NAME_MAX + 8];
    EVP_PKEY *key = NULL;
    struct buf text = {0};
    snprintf(name, sizeof name, "%s.key", file);
    int rc = tls_file_read(dir, name, &text, e);
    rc = rc == ERR_NOTFOUND ? tls_file_read(dir, PENDING, &text, e) : rc;
    if (rc == ERR_NOTFOUND) {
        rc = tls_key_new(&key, e);
        rc = rc ? rc : tls_key_print(key, &text, e);
        rc = rc ? rc : folder_write(dir, PENDING, buf_str(&text), FOLDER_DURABLE, e);
    }
    if (!rc)
        *key_pem = arena_strdup(a, buf_str(&text));
    tls_wipe(&text);
    EVP_PKEY_free(key);
    return rc;
}

int tls_request_make(const char *name, const char *key_pem, struct arena *a, const char **csr_pem,
                     struct err *e)
{
    EVP_PKEY *key = NULL;
    X509_REQ *req = NULL;
    if (!tls_name_ok(name))
        return err_set(e, ERR_INVALID, "'%.80s' is no name for a certificate", name);
    int rc = tls_key_parse(key_pem, &key, e);
    rc = rc ? rc : new_request(key, name, &req, e);
    rc = rc ? rc : print_request(req, a, csr_pem, e);
    X509_REQ_free(req);
    EVP_PKEY_free(key);
    return rc;
}

// ---- the answer ----

static int check_ca(X509 *ca, const char *want, struct err *e)
{
    char is[65];
    tls_cert_sha256(ca, is);
    return *is && !strcmp(is, want)
               ? 0
               : err_set(e, ERR_REFUSED, "the authority is not the token's: its hash is %s", is);
}

static int check_answer(X509 *ca, X509 *cert, EVP_PKEY *key, const char *ca_sha256,
                        const char *want_role, struct err *e)
{
    char role[16];
    int rc = check_ca(ca, ca_sha256, e);
    if (rc)
        return rc;
    if (!tls_cert_signed_by(cert, ca))
        return err_set(e, ERR_REFUSED, "the certificate was not signed by the authority");
    if (X509_check_private_key(cert, key) != 1)
        return tls_failed(e, ERR_REFUSED, "the certificate is for another key");
    tls_cert_role(cert, role, sizeof role);
    if (strcmp(role, want_role) != 0)
        return err_set(e, ERR_REFUSED, "the certificate is of role %s, not %s", role, want_role);
    return 0;
}

int tls_request_store(const char *dir, const char *file, const char *ca_sha256, const char *ca_pem,
                      const char *cert_pem, const char *key_pem, struct err *e)
{
    X509 *ca = NULL, *cert = NULL;
    EVP_PKEY *key = NULL;
    struct buf ca_text = {0}, cert_text = {0};
    char pending[PATH_MAX];
    if (!tls_name_ok(file) || !strcmp(file, "ca"))
        return err_set(e, ERR_INVALID, "'%.80s' is no name for a file", file);
    int rc = tls_cert_parse(ca_pem, &ca, e);
    rc = rc ? rc : tls_cert_parse(cert_pem, &cert, e);
    rc = rc ? rc : tls_key_parse(key_pem, &key, e);
    rc = rc ? rc : check_answer(ca, cert, key, ca_sha256, file, e);
    // What was checked is written, not what may follow it in the text.
    rc = rc ? rc : tls_cert_print(ca, &ca_text, e);
    rc = rc ? rc : tls_cert_print(cert, &cert_text, e);
    rc = rc ? rc : folder_make(dir, e);
    rc = rc ? rc : folder_write(dir, "ca.pem", buf_str(&ca_text), FOLDER_DURABLE, e);
    rc = rc ? rc : tls_files_write(dir, file, key_pem, buf_str(&cert_text), e);
    if (!rc && (size_t)snprintf(pending, sizeof pending, "%s/" PENDING, dir) < sizeof pending)
        (void)unlink(pending);
    buf_clear(&ca_text);
    buf_clear(&cert_text);
    X509_free(ca);
    X509_free(cert);
    EVP_PKEY_free(key);
    return rc;
}

int tls_cert_read(const char *pem_file, int64_t *not_after_s, char *role, size_t size, char *name,
                  size_t name_size, struct err *e)
{
    struct buf pem = {0};
    X509 *cert = NULL;
    struct tm tm = {0};
    char dir[PATH_MAX];
    path_folder(pem_file, dir, sizeof dir);
    int rc = tls_file_read(dir, path_name(pem_file), &pem, e);
    rc = rc ? rc : tls_cert_parse(buf_str(&pem), &cert, e);
    if (!rc && !ASN1_TIME_to_tm(X509_get0_notAfter(cert), &tm))
        rc = tls_failed(e, ERR_DATA, "its end of validity cannot be read");
    if (rc && rc != ERR_NOTFOUND)
        err_wrap(e, "%s", pem_file);
    if (!rc) {
        *not_after_s = (int64_t)timegm(&tm);
        tls_cert_role(cert, role, size);
        *name = 0;
        X509_NAME_get_text_by_NID(X509_get_subject_name(cert), NID_commonName, name,
                                  (int)name_size);
    }
    X509_free(cert);
    buf_clear(&pem);
    return rc;
}

// ---- the first look at a server ----

static int split_address(const char *address, char *host, size_t size, const char **port,
                         struct err *e)
{
    const char *colon = strrchr(address, ':');
    bool brackets = *address == '[' && colon && colon > address + 2 && colon[-1] == ']';
    if (!colon || colon == address || !colon[1] || (size_t)(colon - address) >= size)
        return err_set(e, ERR_INVALID, "'%s' is no HOST:PORT", address);
    snprintf(host, size, "%.*s", (int)(colon - address) - 2 * brackets, address + brackets);
    *port = colon + 1;
    return 0;
}

static int connect_to(const char *address, int seconds, int *out, struct err *e)
{
    char host[256];
    const char *port = NULL;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list, *at;
    struct timeval limit = {.tv_sec = seconds};
    int fd = -1, rc = split_address(address, host, sizeof host, &port, e);
    if (rc)
        return rc;
    int found = getaddrinfo(host, port, &hints, &list);
    if (found)
        return err_set(e, ERR_PEER, "cannot resolve '%s': %s", address, gai_strerror(found));
    for (at = list; at && fd < 0; at = at->ai_next) {
        fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
            continue;
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit); // connect's too
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        if (connect(fd, at->ai_addr, at->ai_addrlen)) {
            int saved = errno;
            close(fd);
            errno = saved;
            fd = -1;
        }
    }
    if (fd < 0)
        rc = err_errno(e, ERR_PEER, "cannot connect to %s", address);
    freeaddrinfo(list);
    *out = fd;
    return rc;
}

// Finds the authority of that hash among the certificates that the server showed. It must have
// signed the server's own, whose key the handshake proved.
static int choose_ca(SSL *ssl, const char *ca_sha256, struct buf *pem, struct err *e)
{
    STACK_OF(X509) *chain = SSL_get_peer_cert_chain(ssl);
    int n = chain ? sk_X509_num(chain) : 0;
    for (int i = 1; i < n; i++) {
        X509 *ca = sk_X509_value(chain, i);
        if (!check_ca(ca, ca_sha256, NULL) && tls_cert_signed_by(sk_X509_value(chain, 0), ca))
            return tls_cert_print(ca, pem, e);
    }
    return err_set(e, ERR_REFUSED, "the server there belongs to another authority than the token");
}

// Nothing of this handshake is trusted but what choose_ca checks.
static int fetch_authority(int fd, const char *ca_sha256, struct buf *pem, struct err *e)
{
    static const unsigned char h2[] = {2, 'h', '2'};
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL *ssl = NULL;
    int rc = 0;
    bool ready = ctx && SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) &&
                 !SSL_CTX_set_alpn_protos(ctx, h2, sizeof h2) && (ssl = SSL_new(ctx)) &&
                 SSL_set_fd(ssl, fd);
    if (!ready)
        rc = tls_failed(e, ERR_INTERNAL, "cannot prepare TLS");
    else if (SSL_connect(ssl) != 1)
        rc = tls_failed(e, ERR_PEER, "the server speaks no TLS, or other than ours");
    else
        rc = choose_ca(ssl, ca_sha256, pem, e);
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    return rc;
}

int tls_fetch_ca(const char *address, const char *ca_sha256, const char *ca_file, int seconds,
                 struct err *e)
{
    struct buf pem = {0};
    char dir[PATH_MAX];
    path_folder(ca_file, dir, sizeof dir);
    int fd = -1, rc = connect_to(address, seconds, &fd, e);
    if (rc)
        return rc;
    rc = fetch_authority(fd, ca_sha256, &pem, e);
    close(fd);
    if (rc)
        err_wrap(e, "%s", address);
    if (!rc)
        rc = folder_write(dir, path_name(ca_file), buf_str(&pem), FOLDER_DURABLE, e);
    buf_clear(&pem);
    return rc;
}
