// SPDX-License-Identifier: Apache-2.0
// The worker's own folder, --state DIR (0700): who it is, held by one process at a time.
// Inside worker/ only.
//
//   DIR/lock      flocked for life; its text is the holder's pid
//   DIR/host      the host's id: random, made once, kept
//   DIR/cluster   the cluster it belongs to, once that is known
//   DIR/attached  is there while its coordinator has it: for readiness probes
//
// Several workers on one machine have a folder each. The rest of DIR belongs to supervise.c and
// rank_logs.c.
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "common/base/err.h"
#include "common/base/id.h"

struct home {
    char dir[4000]; // absolute
    int lock;       // −1: not held
    char host[ID_LEN];
    char cluster[65]; // "": none yet
};

// Makes DIR as needed. ERR_EXISTS: another process holds it; its pid is named.
int home_open(struct home *h, const char *dir, struct err *e);
void home_close(struct home *h);                                       // lets go of it
int home_remember(struct home *h, const char *cluster, struct err *e); // durable
int home_mark_attached(const struct home *h, bool is, struct err *e);
// A folder beneath DIR (made) or anywhere (must be there): its absolute path.
int home_folder(const struct home *h, const char *name, const char *given, char *out, size_t size,
                struct err *e);
