// SPDX-License-Identifier: Apache-2.0
// The cores of each rank of a solo run, for a job that names no threads: ranks tell theirs when they
// join, and rank 0 decides one number for all, which the rank with the smallest share can have.
// Inside worker/rank/lead/ only.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "common/base/cores.h"
#include "worker/rank/link/assignment.h"

enum { RANK_CPUS_BYTES = CORES_MASK_BYTES };

struct rank_cores {
    char host[RANK_HOST_MAX];
    int cores;                           // cores_usable() of it
    unsigned char cpus[RANK_CPUS_BYTES]; // a bit for each of the host's cores that it may run on
};

// Those of this process.
void rank_cores_read(const char *host, struct rank_cores *out);
// Returns how many threads a device may have. Each of the n ≥ 1 ranks shares its cores with the
// ranks of its host that may run on any of them too; the smallest share counts, and `why` says
// whose it is.
int64_t rank_cores_share(const struct rank_cores *ranks, int n, char *why, size_t size);
