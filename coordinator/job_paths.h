// SPDX-License-Identifier: Apache-2.0
// The paths of a submitted job, and whether they can lie beneath the workers' roots. Whether the
// files are there only workers see (data_looks.h). Inside coordinator/ only.
#pragma once
#include "common/base/buf.h"
#include "common/job/job.h"
#include "coordinator/coord_state.h"

enum { DATA_PATHS = 6 }; // at most
struct data_path {
    const char *key, *path; // borrowed
};
// Lists the paths of data that the job gives, and returns how many they are.
int job_data_paths(const struct job *job, struct data_path out[DATA_PATHS]);
// Appends a line for each path that leaves every root; nothing while no host is known.
void job_paths_check(const struct coord *c, const struct job *job, struct buf *no);
