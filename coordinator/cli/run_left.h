// SPDX-License-Identifier: Apache-2.0
// What `weft run` left of its job on this machine: the checkpoint folder is looked at, no coordinator
// is asked. Inside coordinator/cli/ only.
#pragma once
#include "common/base/data_identity.h"
#include "common/job/job.h"
#include "coordinator/cli/run_record.h"

// The job as it was started here. False: it cannot be read.
bool left_job(const struct record *r, const char *base_dir, struct arena *a, struct job *out);
// The step of the newest whole checkpoint, or `known`, as the coordinator says, where the folder
// cannot be looked at. −1: there is none. An error says why none of them can be used.
int left_step(const struct record *r, int64_t known, int64_t *step, struct err *e);
struct left_data {
    struct data_identity data; // that the newest checkpoint was trained with
    int64_t step;              // its step
    bool named_otherwise;      // by its job, than by `now`
};
// False: there is no checkpoint.
bool left_data(const struct record *r, const struct job *now, struct left_data *out);
// Refuses where no checkpoint of this step is left.
int left_find_step(const struct record *r, int64_t step, struct err *e);
// Refuses where the checkpoint of the finished job's last step is gone or damaged. *step: of the
// newest whole one, 0: none is left. Where the folder is not known nothing is said about it.
int left_check_result(const struct record *r, const struct job *job, int64_t *step, struct err *e);
// Whether no step was ever trained: it never got as far as a folder, or that has neither a checkpoint
// nor a row of metrics. False where nobody can say. `job`: as it was started.
bool left_untrained(const struct record *r, const struct job *job);
