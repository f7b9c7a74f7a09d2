// SPDX-License-Identifier: Apache-2.0
// What /metrics says: the decider's counts, the live jobs and the cost of commits, in Prometheus'
// text format. Inside coordinator/ only.
#pragma once
#include <stdint.h>

#include "common/base/buf.h"
#include "coordinator/decide/coord.h"

struct metrics_commits { // of db_commit, kept by the owner
    uint64_t n, rows;
    double seconds, longest_s;
    uint64_t under[6]; // cumulative buckets: 1 ms, 3 ms, 10 ms, 30 ms, 100 ms, 1 s
};
void metrics_commit(struct metrics_commits *m, int64_t ns, int rows);
void metrics_print(const struct coord *c, const struct metrics_commits *m, struct buf *out);
