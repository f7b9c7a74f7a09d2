// SPDX-License-Identifier: Apache-2.0
// What was changed in a job while its training went on, as the manifests of its checkpoints tell it.
// The checkpoint that a run restores says which changes there were before, and which job made it.
// Inside worker/rank/train/ only.
#pragma once
#include "common/base/arena.h"
#include "common/ckpt/manifest.h"
#include "common/job/job.h"

struct job_history {
    struct manifest_change *changes; // oldest first; the arena's
    int n;
};

// The history of the restored checkpoint, and one more change when this job is not the one that made
// it. A manifest of an older weft does not hold its job: then nothing is known of that change.
void job_history_read(struct job_history *h, struct arena *a, const struct manifest *restored,
                      const struct job *now, const char *hash);
