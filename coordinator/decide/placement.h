// SPDX-License-Identifier: Apache-2.0
// Where a gang of ranks goes. Pure: numbers in, numbers out.
//
// All ranks get devices or none does. One host takes them if one can: the one on which they leave
// the least. Else the hosts of one rack do, else hosts of all racks; as few hosts as possible, in the
// order of racks. The mesh's inner axes stay inside a host: ranks are dealt in blocks of the largest
// product of inner axes for which a placement exists. Inside coordinator/ only.
#pragma once
#include <stdbool.h>

#include "common/job/job.h"

struct place_host {
    const char *rack, *name;
    const char *share; // hosts with the same text reach each other without an address
    bool address;      // other hosts' ranks can reach it
    int free;          // devices of the wanted kind
};
struct place_want {
    int ranks, max_hosts;      // 0: any number
    int naxes, axes[MAX_AXES]; // the mesh, outermost first
};
struct place_share {
    int host, ranks; // index; how many of the next ranks
};
// out holds n. Returns how many hosts, 0: it does not fit.
int placement_find(const struct place_want *w, const struct place_host *hosts, int n,
                   struct place_share *out);
