// SPDX-License-Identifier: Apache-2.0
// What a worker is and what it offers: its folder, its name and address, its roots, and its devices,
// which a short-lived process looks for. All that worker_daemon.h wants to know.
// Inside worker/ and for `weft run`.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "worker/home.h"
#include "worker/sinks/sinks.h"
#include "worker/worker_daemon.h"

enum {
    WORKER_PATH = 4200,
    WORKER_GRACE_S = 90, // for ranks to save when it is asked to stop, unless another is given
};

struct worker_options { // strings are borrowed; null: not given
    const char *coordinator, *tls, *name, *address, *rack, *data_root, *checkpoint_root, *share;
    const char *state;             // folder; never null
    const char *rank;              // path of weft-rank; null: it is looked for
    int cpu_devices, cuda_devices; // −1: all that there are
    int64_t grace_ns;
    const char *sinks[SINKS_MAX]; // NAME=COMMAND
    int nsinks;
    bool own_rights; // of `weft run`: no roots, paths are what they are to its user
};
struct worker_tls {
    char ca[WORKER_PATH], cert[WORKER_PATH], key[WORKER_PATH];
};
struct worker_setup {
    struct worker_daemon_config c; // what it is all for
    struct home home;
    struct worker_tls tls;
    struct arena arena;
    Weft__V1__Register about;
    char name[128], rank[WORKER_PATH], address[300], own_address[256], share[256];
    char data_root[WORKER_PATH], checkpoint_root[WORKER_PATH], runs[WORKER_PATH];
};
int worker_setup_open(const struct worker_options *o, struct worker_setup *w, struct err *e);
void worker_setup_close(struct worker_setup *w); // also after a failure
void worker_choose_name(const struct worker_options *o, char *out, size_t size);
