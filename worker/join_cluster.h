// SPDX-License-Identifier: Apache-2.0
// `weft-worker join`: trades a token for a certificate. Inside worker/ and for `weft run`.
#pragma once
#include "common/base/err.h"

// Fetches the authority from the coordinator, trusts it if it is the token's, and stores ca.pem,
// worker.pem and worker.key in `dir`. A key that is there already is kept: it proves that a name which
// had a certificate before is this host's. The certificate's name is the token's, which `name` (null:
// nobody gave one) must be; of a token without one it is `name`, else host_name. ERR_REFUSED: the token
// is not (or no longer) good, or another key has the name.
// Looks for `look_s` seconds at most whether the coordinator is there (tls_fetch_ca).
enum { JOIN_LOOK_S = 10 };
int join_cluster(const char *token, const char *coordinator, const char *dir, int look_s,
                 const char *name, const char *host_name, struct err *e);
