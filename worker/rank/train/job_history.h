// SPDX-License-Identifier: Apache-2.0
// The changes that were made to a job's file between its attempts. A checkpoint's manifest holds the
// changes made before it, and the job that made it; what differs from the job now is one more.
// Inside worker/rank/train/ only.
#pragma once
#include "common/base/arena.h"
#include "common/ckpt/manifest.h"
#include "common/job/job.h"

struct job_history {
    struct manifest_change *changes; // oldest first; the arena's
    int n;
    bool names_other_data; // than the job that made the checkpoint
    bool other_length;     // of samples
};

// Reads the history of the restored checkpoint, and adds a change if this job (its hash is `hash`) is
// not the one that made it. ERR_DATA: it says a number of samples that no such job has drawn.
int job_history_read(struct job_history *h, struct arena *a, const struct manifest *restored,
                     const struct job *now, const char *hash, struct err *e);
