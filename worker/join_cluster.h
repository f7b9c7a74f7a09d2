// SPDX-License-Identifier: Apache-2.0
// `weft-worker join`: trades a token for a certificate. Inside worker/ only.
#pragma once
#include "common/base/err.h"

// Fetches the authority from the coordinator, trusts it if it is the token's, and stores ca.pem,
// worker.pem and worker.key in `dir`. `name`: the certificate's. ERR_REFUSED: the token is not (or
// no longer) good.
int join_cluster(const char *token, const char *coordinator, const char *dir, const char *name,
                 struct err *e);
