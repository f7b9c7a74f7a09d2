// SPDX-License-Identifier: Apache-2.0
// The running coordinator: one loop on the main thread that owns all state. Each pass takes every
// event that is there, writes the rows of all of them in one transaction, and only then answers.
// Inside coordinator/ only.
#pragma once
#include <stdint.h>

#include "common/base/err.h"

enum { LISTEN_MAX = 8 };
// Exit codes of weft-coordinator: restart it, or do not.
enum { EXIT_INTERNAL = 70, EXIT_CONFIG = 78 };

struct coord_daemon_config { // strings are borrowed
    const char *state;       // folder
    const char *listen[LISTEN_MAX];
    int nlisten;
    const char *http;    // of all pages, null: none
    const char *probes;  // of /healthz and /readyz, null: none
    const char *tls_dir; // null: no TLS
    int64_t lease_ns;    // 0: the decider's default
    int ready_fd;        // gets the bound addresses, a line each; −1: none
    int parent_fd; // its end of file asks to stop, and to remove the sockets' folders; −1: none
};
// Until asked to stop: 0. SIGTERM and SIGINT are blocked by the caller before any thread.
// ERR_INVALID, ERR_EXISTS: configuration; ERR_IO from a transaction: start again from what is
// durable.
int coord_daemon_run(const struct coord_daemon_config *c, struct err *e);
