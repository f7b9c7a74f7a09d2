// SPDX-License-Identifier: Apache-2.0
// The data files that a job names and that cannot be read where it says, as seen from here.
// Inside coordinator/cli/ only.
#pragma once
#include "common/job/job.h"

enum { ABSENT_MAX = 6 };

struct absent {
    const char *key;  // "data.train.tokens"
    const char *path; // as the job says it
    const char *why;  // "cannot open /home/a/train.bin: No such file or directory"
};

// Returns how many there are, each path once; their texts lie in the arena or the job.
int absent_data(const struct job *job, struct arena *a, struct absent out[ABSENT_MAX]);
