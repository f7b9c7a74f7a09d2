// SPDX-License-Identifier: Apache-2.0
// The leader of a solo attempt: a thread of rank 0's process with a poll loop and no other work.
//
// It accepts the other ranks, hands every rank its Assign, answers keys, barriers and readiness
// (board.h), watches the progress pages (watch.h), decides checkpoints (common/ckpt/commit.h) and,
// when a rank dies, fails or hangs, tells all the others who it was, so that they end with 69.
// Rank 0's own link is one of its connections, a socketpair made by lead_start.
#pragma once
#include <stdint.h>

#include "common/base/err.h"
#include "common/ckpt/commit.h"
#include "common/ckpt/store.h"
#include "worker/rank/link/assignment.h"
#include "worker/rank/link/metrics_file.h"

struct lead;

struct lead_config {
    const struct assignment *assignment; // borrowed: what Assign carries; host is the leader's
    int unix_fd, tcp_fd;                 // listening sockets, taken; −1: none
    const char *page_dir;                // has page-RRRR of the ranks of this host
    struct commit_config commit;
    const struct store_entry *scan; // what the fence listed; copied
    int nscan;
    int64_t join_ns;  // until every rank is here
    int64_t start_ns; // a starting rank's page stands still for no longer
    int64_t save_ns;  // the same for a saving one
    // On the leader's thread; must not wait. May be null.
    void (*on_row)(void *ctx, const struct step_row *row);
    void (*on_saved)(void *ctx, int64_t step);
    void *ctx;
};
// *link_fd is rank 0's end, for link_open.
int lead_start(const struct lead_config *c, struct lead **out, int *link_fd, struct err *e);
// Waits up to wait_ns for every rank's end, then stops. Null is fine.
void lead_stop(struct lead *l, int64_t wait_ns);
// The name of a rank's page file under page_dir.
void lead_page_path(const char *page_dir, int rank, char *out, size_t size);
