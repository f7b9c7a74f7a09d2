// SPDX-License-Identifier: Apache-2.0
// Calls of Slurm's programs (squeue, sbatch), as the user who called weft. Inside coordinator/cli/ only.
#pragma once
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/err.h"

struct slurm_call {
    char *const *argv; // ended by null; argv[0] is looked for in PATH
    const char *input; // its standard input; null: none
    bool quiet;        // what it says on standard error is not shown
    int64_t wait_ns;   // then it is killed
    // Null: none. Called once, when its first line is whole; then it has all the time that it
    // wants.
    void (*heard)(void *ctx, const char *output);
    void *ctx;
    int signals; // with `heard`: a signalfd, whose signals are passed on; then it ends within 5 s
};
// Appends what it prints to `out`. ERR_NOTFOUND: there is no such program; ERR_REFUSED: it ended otherwise
// than with 0; ERR_TIMEOUT: it was killed; ERR_ABORTED: after a signal. With over
// 64 KiB it is killed, and what was read counts.
int slurm_call(const struct slurm_call *c, struct buf *out, struct err *e);
