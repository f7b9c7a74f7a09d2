// SPDX-License-Identifier: Apache-2.0
// The bound on jobs that run. A plan may be of any size, and then takes long, so whoever is about
// to run a job checks this before planning it.
#pragma once
#include "common/job/job.h"

// ERR_INVALID: it asks for more devices than a job runs on (RANK_MAX).
int job_check_devices(const struct job *job, struct err *e);
