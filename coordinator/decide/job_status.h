// SPDX-License-Identifier: Apache-2.0
// What people read about a job: its status, why it waits, what it waits for next. Inside
// coordinator/ only.
#pragma once
#include "coordinator/decide/job_record.h"

Weft__V1__JobStatus *job_status(const struct job_record *j, struct arena *a);
char *job_next(const struct job_record *j, struct arena *a); // what it waits for now
