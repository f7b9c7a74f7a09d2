// SPDX-License-Identifier: Apache-2.0
// Keys, certificates and their files; see tls_cert.h.
#include "common/rpc/tls_cert.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/folder.h"
#include "common/base/hash.h"
#include "common/rpc/tls_ca.h"

#define ROLE_URI   "weft:role:"
#define HOSTS_URI  "weft:hosts:"
#define DAY_S      86400
#define CLOCK_SKEW 3600 // a certificate is good since an hour ago: clocks of other hosts differ

bool tls_name_ok(const char *name)
{
    static const char set[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t n = strlen(name);
    return n > 0 && n < TLS_NAME_MAX && strspn(name, set) == n && !strchr("._-", *name);
}

bool tls_role_ok(const char *role)
{
    return !strcmp(role, "client") || !strcmp(role, "worker") || !strcmp(role, "admin");
}

int tls_failed(struct err *e, int code, const char *what)
{
    unsigned long number = ERR_peek_last_error();
    const char *reason = number ? ERR_reason_error_string(number) : NULL;
    ERR_clear_error();
    return err_set(e, code, "%s%s%s", what, reason ? ": " : "", reason ? reason : "");
}

void tls_pair_clear(struct tls_pair *p)
{
    EVP_PKEY_free(p->key);
    X509_free(p->cert);
    *p = (struct tls_pair){0};
}

// ---- making ----

int tls_key_new(EVP_PKEY **out, struct err *e)
{
    *out = EVP_EC_gen("P-256");
    return *out ? 0 : tls_failed(e, ERR_INTERNAL, "cannot make a key");
}

// 127 random bits are unique without a counter and cannot be guessed.
static bool set_serial(X509 *cert)
{
    BIGNUM *n = BN_new();
    bool ok = n && BN_rand(n, 127, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) &&
              BN_to_ASN1_INTEGER(n, X509_get_serialNumber(cert));
    BN_free(n);
    return ok;
}

static bool set_times(X509 *cert, int64_t from_s, int64_t until_s)
{
    return ASN1_TIME_set(X509_getm_notBefore(cert), from_s) &&
           ASN1_TIME_set(X509_getm_notAfter(cert), until_s);
}

static bool set_name(X509_NAME *to, const char *name)
{
    return X509_NAME_add_entry_by_txt(to, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1,
                                      0);
}

static bool add_ext(X509 *cert, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX ctx;
    X509V3_set_ctx_nodb(&ctx);
    X509V3_set_ctx(&ctx, issuer, cert, NULL, NULL, 0);
    X509_EXTENSION *ext = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    bool ok = ext && X509_add_ext(cert, ext, -1);
    X509_EXTENSION_free(ext);
    return ok;
}

int tls_cert_make_ca(EVP_PKEY *key, int64_t now_s, X509 **out, struct err *e)
{
    X509 *cert = X509_new();
    bool ok = cert && X509_set_version(cert, X509_VERSION_3) && set_serial(cert) &&
              set_times(cert, now_s - CLOCK_SKEW, now_s + (int64_t)TLS_CA_DAYS * DAY_S) &&
              set_name(X509_get_subject_name(cert), "weft cluster authority") &&
              X509_set_issuer_name(cert, X509_get_subject_name(cert)) &&
              X509_set_pubkey(cert, key) &&
              add_ext(cert, cert, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
              add_ext(cert, cert, NID_key_usage, "critical,keyCertSign,cRLSign") &&
              add_ext(cert, cert, NID_subject_key_identifier, "hash") &&
              add_ext(cert, cert, NID_authority_key_identifier, "keyid:always") &&
              X509_sign(cert, key, EVP_sha256());
    if (!ok) {
        X509_free(cert);
        return tls_failed(e, ERR_INTERNAL, "cannot make the authority's certificate");
    }
    *out = cert;
    return 0;
}

static bool add_name(GENERAL_NAMES *names, int type, const void *data, int len)
{
    GENERAL_NAME *name = GENERAL_NAME_new();
    ASN1_STRING *text =
        type == GEN_IPADD ? (ASN1_STRING *)ASN1_OCTET_STRING_new() : ASN1_IA5STRING_new();
    if (name && text && ASN1_STRING_set(text, data, len)) {
        GENERAL_NAME_set0_value(name, type, text);
        text = NULL; // the name's
        if (sk_GENERAL_NAME_push(names, name))
            return true;
    }
    ASN1_STRING_free(text);
    GENERAL_NAME_free(name);
    return false;
}

// "10.0.0.1" and "::1" are addresses, all else is a DNS name.
static bool add_san(GENERAL_NAMES *names, const char *san)
{
    unsigned char address[16];
    if (inet_pton(AF_INET, san, address) == 1)
        return add_name(names, GEN_IPADD, address, 4);
    if (inet_pton(AF_INET6, san, address) == 1)
        return add_name(names, GEN_IPADD, address, 16);
    return add_name(names, GEN_DNS, san, (int)strlen(san));
}

static bool add_sans(X509 *cert, const struct tls_leaf *leaf)
{
    char uri[64];
    GENERAL_NAMES *names = GENERAL_NAMES_new();
    int n = snprintf(uri, sizeof uri, ROLE_URI "%s", leaf->role);
    bool ok = names && add_name(names, GEN_URI, uri, n);
    n = snprintf(uri, sizeof uri, HOSTS_URI "%d", leaf->hosts);
    if (leaf->hosts > 1)
        ok = ok && add_name(names, GEN_URI, uri, n);
    for (int i = 0; i < leaf->nsans && ok; i++)
        ok = add_san(names, leaf->sans[i]);
    ok = ok && X509_add1_ext_i2d(cert, NID_subject_alt_name, names, 0, 0) == 1;
    GENERAL_NAMES_free(names);
    return ok;
}

int tls_cert_make_leaf(const struct tls_pair *ca, EVP_PKEY *public_key, const struct tls_leaf *leaf,
                       X509 **out, struct err *e)
{
    struct tm tm = {0};
    int64_t until = leaf->now_s + (int64_t)leaf->days * DAY_S;
    int64_t last = ASN1_TIME_to_tm(X509_get0_notAfter(ca->cert), &tm) ? (int64_t)timegm(&tm) : 0;
    const char *usage = strcmp(leaf->role, "coordinator") ? "clientAuth" : "serverAuth,clientAuth";
    X509 *cert = X509_new();
    bool ok = cert && X509_set_version(cert, X509_VERSION_3) && set_serial(cert) &&
              set_times(cert, leaf->now_s - CLOCK_SKEW, until < last ? until : last) &&
              set_name(X509_get_subject_name(cert), leaf->name) &&
              X509_set_issuer_name(cert, X509_get_subject_name(ca->cert)) &&
              X509_set_pubkey(cert, public_key) &&
              add_ext(cert, ca->cert, NID_basic_constraints, "critical,CA:FALSE") &&
              add_ext(cert, ca->cert, NID_key_usage, "critical,digitalSignature") &&
              add_ext(cert, ca->cert, NID_ext_key_usage, usage) &&
              add_ext(cert, ca->cert, NID_subject_key_identifier, "hash") &&
              add_ext(cert, ca->cert, NID_authority_key_identifier, "keyid:always") &&
              add_sans(cert, leaf) && X509_sign(cert, ca->key, EVP_sha256());
    if (!ok) {
        X509_free(cert);
        return tls_failed(e, ERR_INTERNAL, "cannot make a certificate");
    }
    *out = cert;
    return 0;
}

// ---- text ----

void tls_wipe(struct buf *secret)
{
    if (secret->data)
        OPENSSL_cleanse(secret->data, secret->cap);
    buf_clear(secret);
}

// Appends what a memory BIO holds to `pem` and frees the BIO, which wipes it.
static int take_text(BIO *bio, bool ok, struct buf *pem, struct err *e)
{
    char *data = NULL;
    long n = ok ? BIO_get_mem_data(bio, &data) : 0;
    if (n > 0)
        buf_append(pem, data, (size_t)n);
    BIO_free(bio);
    return n > 0 ? 0 : tls_failed(e, ERR_INTERNAL, "cannot write PEM");
}

int tls_key_print(EVP_PKEY *key, struct buf *pem, struct err *e)
{
    BIO *bio = BIO_new(BIO_s_mem());
    buf_reserve(pem, 4096); // growing would leave a copy of it behind
    return take_text(bio, bio && PEM_write_bio_PKCS8PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL),
                     pem, e);
}

int tls_cert_print(X509 *cert, struct buf *pem, struct err *e)
{
    BIO *bio = BIO_new(BIO_s_mem());
    return take_text(bio, bio && PEM_write_bio_X509(bio, cert), pem, e);
}

// Keys in files have no passphrase, because nobody is there to type it.
static int refuse_passphrase(char *buf, int size, int writing, void *arg)
{
    (void)buf, (void)size, (void)writing, (void)arg;
    return 0;
}

int tls_key_parse(const char *pem, EVP_PKEY **out, struct err *e)
{
    BIO *bio = BIO_new_mem_buf(pem, -1);
    *out = bio ? PEM_read_bio_PrivateKey(bio, NULL, refuse_passphrase, NULL) : NULL;
    BIO_free(bio);
    return *out ? 0 : tls_failed(e, ERR_DATA, "not a private key in PEM");
}

int tls_cert_parse(const char *pem, X509 **out, struct err *e)
{
    BIO *bio = BIO_new_mem_buf(pem, -1);
    *out = bio ? PEM_read_bio_X509(bio, NULL, refuse_passphrase, NULL) : NULL;
    BIO_free(bio);
    return *out ? 0 : tls_failed(e, ERR_DATA, "not a certificate in PEM");
}

void tls_cert_sha256(X509 *cert, char out[65])
{
    unsigned char digest[32];
    unsigned n = 0;
    *out = 0;
    if (!X509_digest(cert, EVP_sha256(), digest, &n))
        return; // "" equals no digest
    hex_print(digest, n, out);
}

void tls_key_sha256(EVP_PKEY *key, char out[65])
{
    unsigned char *der = NULL;
    int n = i2d_PUBKEY(key, &der);
    *out = 0;
    if (n > 0)
        sha256_hex(der, (size_t)n, out);
    OPENSSL_free(der);
}

void tls_cert_role(X509 *cert, char *out, size_t size)
{
    GENERAL_NAMES *names = X509_get_ext_d2i(cert, NID_subject_alt_name, NULL, NULL);
    snprintf(out, size, "none");
    for (int i = 0; i < sk_GENERAL_NAME_num(names); i++) {
        int type;
        const ASN1_STRING *value = GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(names, i), &type);
        size_t n = strlen(ROLE_URI);
        if (type != GEN_URI || (size_t)ASN1_STRING_length(value) <= n)
            continue;
        const char *text = (const char *)ASN1_STRING_get0_data(value);
        if (!memcmp(text, ROLE_URI, n))
            snprintf(out, size, "%.*s", ASN1_STRING_length(value) - (int)n, text + n);
    }
    GENERAL_NAMES_free(names);
}

bool tls_cert_signed_by(X509 *cert, X509 *ca)
{
    EVP_PKEY *key = X509_get0_pubkey(ca);
    bool ok = key && X509_check_ca(ca) == 1 && X509_check_issued(ca, cert) == X509_V_OK &&
              X509_verify(cert, key) == 1;
    ERR_clear_error();
    return ok;
}

// ---- files ----

int tls_file_read(const char *dir, const char *name, struct buf *out, struct err *e)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return folder_read_whole(AT_FDCWD, path, true, TLS_FILE_MAX, out, e);
}

int tls_files_write(const char *dir, const char *name, const char *key_pem, const char *cert_pem,
                    struct err *e)
{
    char file[TLS_NAME_MAX + 8];
    snprintf(file, sizeof file, "%s.key", name);
    int rc = folder_write(dir, file, key_pem, FOLDER_DURABLE, e);
    snprintf(file, sizeof file, "%s.pem", name);
    if (rc)
        return rc;
    return folder_write(dir, file, cert_pem, FOLDER_DURABLE, e);
}

int tls_pair_read(const char *dir, struct tls_pair *out, struct err *e)
{
    struct buf key = {0}, cert = {0};
    *out = (struct tls_pair){0};
    int rc = tls_file_read(dir, "ca.pem", &cert, e);
    rc = rc ? rc : tls_cert_parse(buf_str(&cert), &out->cert, e);
    rc = rc ? rc : tls_file_read(dir, "ca.key", &key, e);
    rc = rc ? rc : tls_key_parse(buf_str(&key), &out->key, e);
    if (!rc && X509_check_private_key(out->cert, out->key) != 1)
        rc = tls_failed(e, ERR_DATA, "key and certificate are no pair");
    if (rc) {
        err_wrap(e, "%s/ca", dir);
        tls_pair_clear(out);
    }
    tls_wipe(&key);
    buf_clear(&cert);
    return rc;
}

// ---- whose a name is ----

bool tls_name_is_taken(const char *dir, const char *name)
{
    char path[PATH_MAX];
    return (size_t)snprintf(path, sizeof path, "%s/names/%s", dir, name) < sizeof path &&
           !access(path, F_OK);
}

static int find_names(const char *dir, char names[PATH_MAX], struct err *e)
{
    return (size_t)snprintf(names, PATH_MAX, "%s/names", dir) < PATH_MAX
               ? 0
               : err_set(e, ERR_INVALID, "the path %.200s… is too long", dir);
}

int tls_name_check(const char *dir, const char *name, EVP_PKEY *key, struct err *e)
{
    char names[PATH_MAX], print[65], has[80];
    int rc = find_names(dir, names, e);
    rc = rc ? rc : folder_read(names, name, has, sizeof has, e);
    if (rc)
        return rc == ERR_NOTFOUND ? 0 : rc;
    tls_key_sha256(key, print);
    has[strcspn(has, "\n")] = 0;
    if (*print && !strcmp(has, print))
        return 0;
    return err_set(
        e, ERR_REFUSED,
        "another key has a certificate of the name '%s', and a name is never given again: "
        "take another name, or renew with that key",
        name);
}

// The file appears whole, under a name of its own first; of several that give a name one wins.
int tls_name_give(const char *dir, const char *name, EVP_PKEY *key, struct err *e)
{
    char names[PATH_MAX], loose[80], path[PATH_MAX + 80], from[PATH_MAX + 80], text[80];
    int rc = find_names(dir, names, e);
    rc = rc ? rc : folder_make(names, e);
    if (rc)
        return rc;
    tls_key_sha256(key, text);
    strcat(text, "\n");
    snprintf(loose, sizeof loose, ".%.8s-%d", text, (int)getpid());
    snprintf(path, sizeof path, "%s/%s", names, name);
    snprintf(from, sizeof from, "%s/%s", names, loose);
    rc = folder_write(names, loose, text, FOLDER_DURABLE, e);
    if (!rc && link(from, path) && errno != EEXIST)
        rc = err_errno(e, ERR_IO, "cannot write %s", path);
    (void)unlink(from);
    if (rc || (rc = folder_sync(names, e)))
        return rc;
    return tls_name_check(dir, name, key, e);
}
