// SPDX-License-Identifier: Apache-2.0
// The progress line that people see on rank 0's standard output: rewritten in place on a terminal,
// a plain line every ten seconds and at evaluations elsewhere. Fed by the leader's thread with the
// newest step reports; a terminal that does not read is skipped, never waited for.
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "worker/rank/link/metrics_file.h"

struct status {
    pthread_mutex_t mutex;
    int fd;
    bool tty, drawn;
    int64_t last_ns, first_ns, first_step;
    int64_t saved_step;        // −1: none yet
    struct step_row row, eval; // the newest; the newest that was evaluated
    bool any, evaluated;
};

void status_init(struct status *s, int fd);
void status_row(struct status *s, const struct step_row *row);
void status_saved(struct status *s, int64_t step);
// Ends the line and says where things are. code: how rank 0 ended.
void status_finish(struct status *s, int code, const char *dir, const char *store);
