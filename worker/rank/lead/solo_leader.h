// SPDX-License-Identifier: Apache-2.0
// The leader of a solo attempt: a thread of rank 0's process with a poll loop and no other work.
//
// It decides nothing: that is common/attempt/leader.h's. It holds the connections (solo_conns.h),
// looks at the progress pages and processes of the ranks of this host, and carries the decisions
// out. When the leader names a culprit it sends Lost to all ranks, so that the others end with 69. If
// the culprit was only asked to stop before the first step, Stop goes first, and ranks that have not
// begun end with 75. Rank 0's own link is one of its connections, a socketpair made by solo_leader_start.
#pragma once
#include <stdint.h>

#include "common/base/err.h"
#include "common/ckpt/store.h"
#include "worker/rank/lead/rank_cores.h"
#include "worker/rank/link/assignment.h"
#include "worker/rank/link/metrics_file.h"

struct solo_leader;

struct solo_leader_config {
    const struct assignment *assignment; // borrowed: what Assign carries; host is the leader's
    int unix_fd, tcp_fd;                 // listening sockets, taken; −1: none
    const char *dir;                     // where ranks look for the leader
    const char *page_dir;                // has the pages of the ranks of this host
    int64_t steps;                       // of the job; 0: not known
    int keep;                            // checkpoints, as in struct commit_config
    int64_t keep_every;
    int64_t patience_ns;            // that saves may fail
    const struct store_entry *scan; // what the fence listed; copied
    int nscan;
    int64_t join_ns; // until every rank is here
    // Completes the assignment by the cores of all ranks once the last has joined, on the thread
    // that it joined on. Null: it is complete, and goes to each rank as that joins. An error ends
    // the attempt.
    int (*on_met)(void *met_ctx, const struct rank_cores *cores, struct err *e);
    void *met_ctx;
    // On the leader's thread; must not wait. May be null.
    void (*on_row)(void *ctx, const struct step_row *row);
    void (*on_saved)(void *ctx, int64_t step);
    void *ctx;
};
// *link_fd is rank 0's end, for link_open.
int solo_leader_start(const struct solo_leader_config *c, struct solo_leader **out, int *link_fd,
                      struct err *e);
// Waits up to wait_ns for every rank's end, then stops. Null is fine.
void solo_leader_stop(struct solo_leader *l, int64_t wait_ns);
