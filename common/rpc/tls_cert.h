// SPDX-License-Identifier: Apache-2.0
// Keys and certificates as the cluster makes them, and their files: what the authority (tls_ca.c),
// its tokens (tls_token.c) and a joiner (tls_join.c) share. Inside common/rpc/ only.
//
// EC P-256 and SHA-256 throughout. Roles travel as a URI name "weft:role:ROLE".
#pragma once
#include <openssl/evp.h>
#include <openssl/x509.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/err.h"

enum { TLS_CA_DAYS = 3650, TLS_LEAF_DAYS = 365, TLS_FILE_MAX = 1 << 16 };

// A file or common name: letters, digits, '.', '_', '-', begins with a letter or digit.
bool tls_name_ok(const char *name);
bool tls_role_ok(const char *role); // of those that tokens and `issue` give: client, worker, admin
// `code` with OpenSSL's reason behind the text; its queue of errors is emptied.
int tls_failed(struct err *e, int code, const char *what);

struct tls_pair {
    EVP_PKEY *key;
    X509 *cert;
};
void tls_pair_clear(struct tls_pair *p); // zeroed is fine

// ---- making ----
int tls_key_new(EVP_PKEY **out, struct err *e);
int tls_cert_make_ca(EVP_PKEY *key, int64_t now_s, X509 **out, struct err *e);
struct tls_leaf {
    const char *role, *name; // a "coordinator" is a server too
    const char *const *sans; // DNS names and addresses
    int nsans;
    int64_t now_s;
    int days;  // at most as long as the authority's
    int hosts; // of a worker: for so many; 0 and 1: one
};
int tls_cert_make_leaf(const struct tls_pair *ca, EVP_PKEY *public_key, const struct tls_leaf *leaf,
                       X509 **out, struct err *e);

// ---- text ----
int tls_key_print(EVP_PKEY *key, struct buf *pem, struct err *e);
int tls_cert_print(X509 *cert, struct buf *pem, struct err *e); // appends
int tls_key_parse(const char *pem, EVP_PKEY **out, struct err *e);
int tls_cert_parse(const char *pem, X509 **out, struct err *e); // the first
void tls_wipe(struct buf *secret);                              // overwritten, then freed
void tls_cert_sha256(X509 *cert, char out[65]);
void tls_key_sha256(EVP_PKEY *key, char out[65]); // of its public half; "" equals no digest
// The role in the names, or "none".
void tls_cert_role(X509 *cert, char *out, size_t size);
// Whether `cert` was signed by the authority `ca`.
bool tls_cert_signed_by(X509 *cert, X509 *ca);

// ---- files, 0600, whole or not at all, durable ----
int tls_file_read(const char *dir, const char *name, struct buf *out, struct err *e);
// DIR/NAME.key, then DIR/NAME.pem.
int tls_files_write(const char *dir, const char *name, const char *key_pem, const char *cert_pem,
                    struct err *e);
// DIR/ca.pem and DIR/ca.key.
int tls_pair_read(const char *dir, struct tls_pair *out, struct err *e);
// Gives the name to this key, durably and for good (DIR/names). ERR_REFUSED: another key has it.
int tls_name_give(const char *dir, const char *name, EVP_PKEY *key, struct err *e);
int tls_name_check(const char *dir, const char *name, EVP_PKEY *key,
                   struct err *e); // gives nothing
