// SPDX-License-Identifier: Apache-2.0
// Shares of cores; see rank_cores.h. Ranks that a scheduler has bound to cores of their own share
// none with their neighbours.
#include "worker/rank/lead/rank_cores.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "common/job/threads.h"

void rank_cores_read(const char *host, struct rank_cores *out)
{
    *out = (struct rank_cores){.cores = cores_usable()};
    snprintf(out->host, sizeof out->host, "%s", host);
    cores_mask(out->cpus);
}

static bool share_cores(const struct rank_cores *a, const struct rank_cores *b)
{
    if (strcmp(a->host, b->host))
        return false;
    for (int i = 0; i < RANK_CPUS_BYTES; i++)
        if (a->cpus[i] & b->cpus[i])
            return true;
    return a == b;
}

int64_t rank_cores_share(const struct rank_cores *ranks, int n, char *why, size_t size)
{
    int64_t least = INT64_MAX;
    for (int r = 0; r < n; r++) {
        int sharers = 0;
        for (int other = 0; other < n; other++)
            sharers += share_cores(&ranks[r], &ranks[other]);
        int64_t share = threads_share(ranks[r].cores, sharers);
        if (share >= least)
            continue;
        least = share;
        snprintf(why, size, "%d core%s of host %s, divided by %d rank%s", ranks[r].cores,
                 ranks[r].cores == 1 ? "" : "s", ranks[r].host, sharers, sharers == 1 ? "" : "s");
    }
    return least;
}
