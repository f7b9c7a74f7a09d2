// SPDX-License-Identifier: Apache-2.0
// How large a job may be that is to run. A plan may be of any size, and takes its time: whoever is
// to run a job asks this before planning it.
#pragma once
#include "common/job/job.h"

// ERR_INVALID: it asks for more devices than a job runs on (RANK_MAX).
int job_check_devices(const struct job *job, struct err *e);
