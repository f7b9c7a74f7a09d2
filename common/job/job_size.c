// SPDX-License-Identifier: Apache-2.0
// See job_size.h.
#include "common/job/job_size.h"

#include "common/base/rank_max.h"

int job_check_devices(const struct job *job, struct err *e)
{
    if (job->resources.devices <= RANK_MAX)
        return 0;
    return err_set(e, ERR_INVALID, "resources.devices: is %lld: a job runs on at most %d devices",
                   (long long)job->resources.devices, RANK_MAX);
}
