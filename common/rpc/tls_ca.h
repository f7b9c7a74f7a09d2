// SPDX-License-Identifier: Apache-2.0
// The cluster's own certificate authority, in a directory (0700) of the coordinator's host:
//
//   DIR/ca.pem ca.key               the authority
//   DIR/server.pem server.key       the coordinator's certificate, role coordinator
//   DIR/NAME.pem NAME.key           issued here; the first is `admin`
//   DIR/tokens/<sha256 of secret>   a join token: role, host's name, expiry; unlinked when it is used
//   DIR/names/NAME                  the SHA-256 of the key that has a certificate of this name
//
// Certificates carry their role as a URI SAN "weft:role:client|worker|admin|coordinator", a fleet's
// the number of its hosts as "weft:hosts:N", and their name as common name. A join token is one
// line of text to carry by hand: the CA's SHA-256, which the joiner checks before it trusts
// anything, a secret, and the host's name. Keys are EC P-256, files 0600, each pair replaced together
// (the certificate last). OpenSSL lives here and in tls.c only.
//
// A name belongs to the first key that gets a certificate of it, for good: whoever wants a name again
// has that key, which its request proves. So a certificate is renewed by its owner alone, and nobody
// becomes another host by asking for its name.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/err.h"

enum { TLS_TOKEN_MAX = 240, TLS_NAME_MAX = 64, TLS_SANS_MAX = 64 };

// Makes the authority, the server's certificate (names and addresses in `sans`: "coord.example",
// "10.0.0.1"; localhost is always in) and the admin's. ERR_EXISTS when there is one already.
int tls_ca_init(const char *dir, const char *const *sans, int nsans, struct err *e);
struct tls_issue {
    const char *role, *name;
    int days;  // 0: a year
    int hosts; // of a worker: for how many hosts at a time; 0: one
};
// A certificate DIR_OUT/ROLE.pem, where daemons and clients look for their own, its key, and a copy
// of ca.pem there. A key that is there already is kept. ERR_REFUSED: another key has the name.
int tls_ca_issue(const char *dir, const struct tls_issue *what, const char *dir_out, struct err *e);
// A new server certificate with these names, in place of the old.
int tls_ca_renew_server(const char *dir, const char *const *sans, int nsans, struct err *e);

struct tls_token {
    const char *role;
    const char *name; // of the host that joins with it, once; null: of
    int hosts;        // so many hosts whose names nobody has yet, each once
    int64_t ttl_s;    // good until now_s + ttl_s
};
int tls_token_make(const char *dir, const struct tls_token *what, int64_t now_s,
                   char out[TLS_TOKEN_MAX], struct err *e);
// Whether a certificate of this name was made, for whichever key.
bool tls_name_is_taken(const char *dir, const char *name);
struct tls_request {
    const char *secret, *csr_pem;
    const char *role; // what the joiner is; "": whatever the token says
};
// Uses a token up (durably) and signs the request: *cert is PEM. ERR_REFUSED: unknown, used,
// expired; for another role or name, or another key has the name (it stays good then); or the
// request's signature is wrong. The role is the token's.
int tls_token_sign(const char *dir, const struct tls_request *q, int64_t now_s, struct arena *a,
                   const char **cert, const char **ca, struct err *e);

// ---- the joiner's side ----
struct tls_token_text {
    char ca_sha256[65], secret[65];
    char name[TLS_NAME_MAX]; // of the host that it is for; "": the joiner chooses
};
int tls_token_parse(const char *token, struct tls_token_text *out, struct err *e);
// The key that DIR/FILE.key holds, or a join that was not finished left there, as PEM text; else a new
// one, which is stored there before anybody is asked: a name that was given to it is not lost with it.
int tls_key_keep(const char *dir, const char *file, struct arena *a, const char **key_pem,
                 struct err *e);
// A request of that key for `name`.
int tls_request_make(const char *name, const char *key_pem, struct arena *a, const char **csr_pem,
                     struct err *e);
// Checks that ca_pem has the hash, that cert_pem is signed by it for this key and for the role that
// `file` is named after; then stores ca.pem, FILE.pem, FILE.key in `dir` (made 0700).
int tls_request_store(const char *dir, const char *file, const char *ca_sha256, const char *ca_pem,
                      const char *cert_pem, const char *key_pem, struct err *e);
// The certificate's end of validity and role, for doctor.
int tls_cert_read(const char *pem_file, int64_t *not_after_s, char *role, size_t size, char *name,
                  size_t name_size, struct err *e);
// Connects to HOST:PORT and fetches the server's CA, which is trusted only when its hash is
// `ca_sha256`; writes it to `ca_file`. What Join does first. It takes at most `seconds` to connect to
// each address that HOST has, and as many for each wait of the handshake.
int tls_fetch_ca(const char *address, const char *ca_sha256, const char *ca_file, int seconds,
                 struct err *e);
