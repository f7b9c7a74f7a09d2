// SPDX-License-Identifier: Apache-2.0
// resources.threads where a job file names none: 0 until the job first starts. Whoever starts it
// then decides by the cores that are there, and the job keeps the number wherever it continues, since
// another may round products otherwise.
#pragma once
#include "common/base/arena.h"
#include "common/job/job.h"

enum { JOB_MAX_THREADS = 1024 }; // a device

// One device's share of a host's cores.
static inline int64_t threads_share(int64_t cores, int64_t devices)
{
    int64_t share = devices > 0 ? cores / devices : 1;
    return share < 1 ? 1 : share < JOB_MAX_THREADS ? share : JOB_MAX_THREADS;
}

// How the number came about, for people: "4 cores of w0 divided by 2 devices".
static inline const char *threads_print_why(struct arena *a, const char *host, int64_t cores,
                                            int64_t devices)
{
    if (cores < 1)
        return arena_printf(a, "%s does not report its cores", host);
    return arena_printf(a, "%lld core%s of %s divided by %lld device%s", (long long)cores,
                        cores == 1 ? "" : "s", host, (long long)devices, devices == 1 ? "" : "s");
}
#define THREADS_LATER                                                                         \
    "decided when the job first starts: a host's cores divided by its devices, of the job's " \
    "poorest host"

// A job file that names no number continues with the one that the job began with.
static inline void threads_keep(struct job *now, const struct job *before)
{
    if (!now->resources.threads)
        now->resources.threads = before->resources.threads;
}

// A rank's threads: one where the job names none.
static inline int threads_of(const struct job *job)
{
    return job->resources.threads ? (int)job->resources.threads : 1;
}
