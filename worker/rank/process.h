// SPDX-License-Identifier: Apache-2.0
// What a rank's process does: it opens the link to its agent, takes its assignment, makes its
// progress page, trains, judges how that ended and says so.
// Inside worker/rank/ only.
#pragma once
#include <stdbool.h>

#include "common/base/err.h"
#include "common/job/job.h"
#include "worker/rank/link/assignment.h"

struct link;

struct process_options {
    int fd;           // this rank's end of the link, taken
    const char *host; // ranks with the same text share memory
    const char *dir;  // progress pages and the collectives' sockets of this host's ranks, 0700
};

struct process {
    struct assignment assignment;
    struct job job;
    struct link *link;
    char socket_dir[4100];
    int socket_fd; // −1: none
};

void process_init(struct process *p);
// The exit code; what went wrong is logged, and in `e`.
int process_train(struct process *p, const struct process_options *o, struct err *e);
void process_clear(struct process *p);
