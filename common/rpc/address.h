// SPDX-License-Identifier: Apache-2.0
// Addresses as people write them: "unix:/path" or "HOST:PORT", nothing else of gRPC's target
// syntax. Says whether an address stays on this machine, which decides whether TLS may be left out.
#pragma once
#include <stdbool.h>

#include "common/base/err.h"

enum { ADDRESS_MAX = 320 };

struct address {
    bool unix_socket;
    bool local;              // a Unix socket, 127.0.0.0/8, ::1 or localhost
    char host[256];          // without brackets; of a socket: its path
    int port;                // of a socket: 0
    char serve[ADDRESS_MAX]; // as the core wants it to listen
    char dial[ADDRESS_MAX];  // as the core wants it to connect
};

// `tls`: null files were given or not; without them only local addresses pass (ERR_INVALID).
int address_parse(struct address *a, const char *text, bool tls, struct err *e);
