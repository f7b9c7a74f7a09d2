// SPDX-License-Identifier: Apache-2.0
// The cluster's own certificate authority, in a directory (0700) of the coordinator's host:
//
//   DIR/ca.pem ca.key               the authority
//   DIR/server.pem server.key       the coordinator's certificate, role coordinator
//   DIR/NAME.pem NAME.key           issued here; the first is `admin`
//   DIR/tokens/<sha256 of secret>   a join token: role, expiry; unlinked when it is used
//
// Certificates carry their role as a URI SAN "weft:role:client|worker|admin|coordinator", a fleet's
// the number of its hosts as "weft:hosts:N", and their name as common name. A join token is one
// line of text to carry by hand: the CA's SHA-256, which the joiner checks before it trusts
// anything, and a secret. Keys are EC P-256, files 0600, each pair replaced together (the
// certificate last). OpenSSL lives here and in tls.c only.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/err.h"

enum { TLS_TOKEN_MAX = 200, TLS_NAME_MAX = 64, TLS_SANS_MAX = 64 };

// Makes the authority, the server's certificate (names and addresses in `sans`: "coord.example",
// "10.0.0.1"; localhost is always in) and the admin's. ERR_EXISTS when there is one already.
int tls_ca_init(const char *dir, const char *const *sans, int nsans, struct err *e);
struct tls_issue {
    const char *role, *name;
    int days;  // 0: a year
    int hosts; // of a worker: for how many hosts at a time; 0: one
};
// A new key pair and certificate DIR_OUT/ROLE.{pem,key}, where daemons and clients look for their
// own, and a copy of ca.pem there.
int tls_ca_issue(const char *dir, const struct tls_issue *what, const char *dir_out, struct err *e);
// A new server certificate with these names, in place of the old.
int tls_ca_renew_server(const char *dir, const char *const *sans, int nsans, struct err *e);

// A join token for `role`, good once and until now_s + ttl_s.
int tls_token_make(const char *dir, const char *role, int64_t now_s, int64_t ttl_s,
                   char out[TLS_TOKEN_MAX], struct err *e);
struct tls_request {
    const char *secret, *csr_pem;
    const char *role; // what the joiner is; "": whatever the token says
};
// Uses a token up (durably) and signs the request: *cert is PEM. ERR_REFUSED: unknown, used,
// expired, for another role (it stays good then), or the request's signature is wrong. The role is
// the token's, the name the request's.
int tls_token_sign(const char *dir, const struct tls_request *q, int64_t now_s, struct arena *a,
                   const char **cert, const char **ca, struct err *e);

// ---- the joiner's side ----
// Splits a token: the CA's hash (64 hex digits) and the secret.
int tls_token_parse(const char *token, char ca_sha256[65], char secret[65], struct err *e);
// A key (kept as PEM text until the certificate is there) and a request for `name`.
int tls_request_make(const char *name, struct arena *a, const char **key_pem, const char **csr_pem,
                     struct err *e);
// Checks that ca_pem has the hash, that cert_pem is signed by it for this key and for the role that
// `file` is named after; then stores ca.pem, FILE.pem, FILE.key in `dir` (made 0700).
int tls_request_store(const char *dir, const char *file, const char *ca_sha256, const char *ca_pem,
                      const char *cert_pem, const char *key_pem, struct err *e);
// The certificate's end of validity and role, for doctor.
int tls_cert_read(const char *pem_file, int64_t *not_after_s, char *role, size_t size, char *name,
                  size_t name_size, struct err *e);
// Connects to HOST:PORT and fetches the server's CA, which is trusted only when its hash is
// `ca_sha256`; writes it to `ca_file`. What Join does first.
int tls_fetch_ca(const char *address, const char *ca_sha256, const char *ca_file, struct err *e);
