// SPDX-License-Identifier: Apache-2.0
// Which goal a failure leads to, at what cost, after what wait. Inside coordinator/ only.
#pragma once
#include "coordinator/decide/attempt.h"

// Counts the failure against the job's budget, and says where the job goes when nothing of the
// attempt lives any more: STARTING (again), HELD or FAILED.
enum job_state recover_goal(struct attempt *at, const struct fault *f);
void recover_forgive(struct job_record *j); // `resume`: all counts are 0 again
