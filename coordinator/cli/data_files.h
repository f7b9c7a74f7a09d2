// SPDX-License-Identifier: Apache-2.0
// The data files that a job names, as seen from here: which are not where it says, and which are
// there but no rank could read. Inside coordinator/cli/ only.
#pragma once
#include "common/job/job.h"

enum { DATA_FAULTS_MAX = 6 };

struct data_fault {
    const char *key;  // "data.train.tokens"
    const char *path; // as the job says it
    const char *why;  // "cannot open /home/a/train.bin: No such file or directory"
    bool absent;      // it cannot be opened here; else it can, and ranks would fail with it
    bool forbidden;   // because this user may not read it
};

// Returns how many there are, each path once; their texts lie in the arena or the job. A set whose
// files can all be opened is read as far as job_set_try() does.
int data_faults_find(const struct job *job, struct arena *a,
                     struct data_fault out[DATA_FAULTS_MAX]);
