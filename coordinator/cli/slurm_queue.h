// SPDX-License-Identifier: Apache-2.0
// What Slurm's queue says of a job: by `squeue -o`, since its JSON differs from version to version. Inside
// coordinator/cli/ only.
#pragma once
#include "common/base/err.h"

enum { SLURM_LINES = 64, SLURM_WORD = 120 };
struct slurm_line { // of a job, or of a task of an array; texts as squeue prints them
    char id[SLURM_WORD], state[SLURM_WORD], reason[SLURM_WORD], nodes[SLURM_WORD];
    char submitted[SLURM_WORD], starts[SLURM_WORD], ran[SLURM_WORD];
};
// *n is at most SLURM_LINES; 0: it is not in the queue any more. ERR_NOTFOUND: squeue is not in PATH;
// ERR_TIMEOUT, ERR_DATA.
int slurm_queue_ask(const char *job, struct slurm_line out[SLURM_LINES], int *n, struct err *e);
// The same of what squeue printed.
int slurm_queue_parse(const char *text, struct slurm_line out[SLURM_LINES], int *n, struct err *e);
// What a reason of squeue's means for who waits; null: it says it itself.
const char *slurm_reason_means(const char *reason);
