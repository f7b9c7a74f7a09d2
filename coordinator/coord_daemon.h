// SPDX-License-Identifier: Apache-2.0
// The running coordinator: one loop on one thread that owns all state. Each pass takes every event
// that is there, writes the rows of all of them in one transaction, and only then answers.
// weft-coordinator runs it on its main thread, `weft run` on a thread beside the worker's.
// Inside coordinator/ only.
//
//   coord_daemon_open (it listens) → coord_daemon_run (until it is asked to stop) → coord_daemon_close
//
// The three may be called by different threads, one after the other. A planner process dies with
// the thread that started it: the first with who opens, the others with who runs the loop.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/err.h"

enum { LISTEN_MAX = 8 };
// Exit codes of weft-coordinator: restart it, or do not.
enum { EXIT_INTERNAL = 70, EXIT_CONFIG = 78 };

struct coord_daemon_config { // strings are borrowed
    const char *state;       // folder
    bool locked;             // the caller holds DIR/lock of it
    const char *listen[LISTEN_MAX];
    int nlisten;
    const char *http;          // of all pages, null: none
    const char *probes;        // of /healthz and /readyz, null: none
    const char *tls_dir;       // null: no TLS
    int64_t lease_ns;          // 0: the decider's default
    const char *const *notify; // receivers of notices (serve/webhooks.h)
    int nnotify;
    // How long notices that were not tried yet hold up a stop. Then `stop` is an eventfd, and to write
    // to it again asks to stop at once.
    int64_t last_notices_ns;
    bool restored; // a person says that the database was put back from a copy
    int stop;      // asks to stop by being readable: a signalfd, an eventfd
};
struct coord_daemon;

// Whether it would open with these receivers, before anything is made. ERR_INVALID.
int coord_daemon_check_notify(const char *const *notify, int n, struct err *e);
// ERR_INVALID, ERR_EXISTS, ERR_DATA: what a person must mend. The caller has blocked its signals
// before, since threads are started that inherit the mask.
int coord_daemon_open(const struct coord_daemon_config *c, struct coord_daemon **out,
                      struct err *e);
// 0: it was asked to stop. ERR_IO from a transaction: start again from what is durable.
int coord_daemon_run(struct coord_daemon *d, struct err *e);
// How many notices wait, and for whom, once it has stopped: "1 to ops, 2 to chat".
void coord_daemon_unsent(const struct coord_daemon *d, struct buf *to);
// The address of listen[i], with the port that it got.
const char *coord_daemon_bound(const struct coord_daemon *d, int i);
void coord_daemon_close(struct coord_daemon *d); // null is fine
