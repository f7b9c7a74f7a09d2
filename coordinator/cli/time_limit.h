// SPDX-License-Identifier: Apache-2.0
// When a `weft run` is to be over, and how long before that it must begin to stop: the earliest of
// train.until, SLURM_JOB_END_TIME, and the time that squeue says is left. What a stop takes follows from
// what the slowest checkpoint took to write, and the newest step. Inside coordinator/cli/ only.
#pragma once
#include "common/job/job.h"
#include "coordinator/cli/allocation.h"

struct time_limit {
    int64_t start_ms, end_ms; // since 1970; end 0: there is none
    const char *from;         // who says so
    int64_t grace_ns;         // what a stop takes where no checkpoint was written yet
    char checkpoint[700];     // whose time was taken last
    int64_t save_ms;          // −1: not known
};

// Asks squeue, in a process of its own, in a job of Slurm's whose variables do not say it.
void time_limit_find(struct time_limit *t, const struct job *job, const struct allocation *a,
                     int64_t grace_ns);
// Whether it is time to stop. `store`: the job's checkpoint folder, "": not known; `step` and `attempt`:
// of its newest checkpoint, −1: none; `step_ms`: what its newest step took, 0: not known.
bool time_limit_due(struct time_limit *t, const char *store, int64_t attempt, int64_t step,
                    double step_ms);
