// SPDX-License-Identifier: Apache-2.0
// Which host ids a certificate may speak for, durably. An id belongs to the name and the key of the
// certificate that used it first: a renewed one has both. One key has a number of ids at a time: a new
// id beyond it takes the place of one that gives way. Inside coordinator/ only.
#pragma once
#include "coordinator/store/db.h"

struct binding {
    const char *host;
    const char *name, *print; // of the certificate, and of its key
    int most;                 // ids that the certificate may have at a time
    // Whether a host that has one of them gives way to a new one; then `gone` hears of it.
    bool (*gives_way)(void *ctx, const char *host);
    void (*gone)(void *ctx, const char *host);
    void *ctx;
};
// ERR_FENCED: the id is another certificate's. ERR_LIMIT: the certificate has as many as it may.
int binding_make(struct db *db, const struct binding *b, struct err *e);
