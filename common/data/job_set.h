// SPDX-License-Identifier: Apache-2.0
// The data set that a job's data section names: opened and held against what the job says of it. A
// rank reads through it, and so does whoever wants to know before any rank whether one could.
#pragma once
#include "common/data/dataset.h"
#include "common/job/job.h"

// Opens the job's training or evaluation set and checks that its format, the type of its images and
// their size are what the job says. ERR_ABSENT: a file cannot be opened here. root: the folder beneath
// which the files must lie; null: anywhere. `e` is not null. After a failure there is nothing to close.
int job_set_open(const struct job *job, const char *root, const struct job_data_files *files,
                 struct dataset *set, struct err *e);
// Opens it from here, reads samples of step 0 (of an evaluation: of its first batch) as ranks would,
// at most JOB_SET_TRIED of them, and closes it.
enum { JOB_SET_TRIED = 1024 };
int job_set_try(const struct job *job, const struct job_data_files *files, struct err *e);
