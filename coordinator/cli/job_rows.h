// SPDX-License-Identifier: Apache-2.0
// The file of a job's metrics, as a client comes by it: that of a `weft run` which is not under way is
// opened where it lies, every other comes over the service, piece by piece, into a file that has no
// name. Inside coordinator/cli/ only.
#pragma once
#include <stdio.h>

#include "common/metrics/rows.h"
#include "coordinator/cli/cli_link.h"

struct job_rows {
    struct cli_link *link; // borrowed
    char job[64];          // its id, since a name may mean another job later
    char name[128];
    Weft__V1__JobState state; // when it was asked last
    int fd;                   // holds all from the first byte on; -1: there is nothing yet
    FILE *copy;               // null: fd is the file itself
    int64_t end;              // bytes of the copy
};

// Returns an exit code; what went wrong has been printed. Close it after an error too.
int job_rows_open(struct job_rows *r, struct cli_link *l, const char *target);
// Gets what was written since, and the job's state from before that: rows of a job that had ended are
// all there then.
int job_rows_more(struct job_rows *r);
// Adds those that `rows` does not have yet. An exit code, as of job_rows_open.
int job_rows_read(const struct job_rows *r, struct rows *rows);
void job_rows_close(struct job_rows *r);
