// SPDX-License-Identifier: Apache-2.0
// Ranks of one attempt with their leader, over real sockets in this process.
//
//   team_start → the links of t.link[] do what the test is about → team_end
#pragma once
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/attempt/page.h"
#include "common/base/clock.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/unit.h"
#include "worker/rank/lead/rank_join.h"
#include "worker/rank/lead/solo_leader.h"
#include "worker/rank/link/rank_link.h"

enum { RANKS_MAX = 4 };

struct team {
    char dir[64], addr[100];
    int n;
    struct assignment plan;
    struct solo_leader *lead;
    struct link *link[RANKS_MAX]; // null: not joined, or gone
    struct progress_page *page[RANKS_MAX];
    struct assignment got[RANKS_MAX];
};

static inline int64_t soon(void)
{
    return clock_mono_ns() + 60 * CLOCK_S; // a watchdog: nothing here takes that long
}

static inline struct join_who who(struct team *t, int rank)
{
    return (struct join_who){rank, t->n, t->plan.epoch, "here", t->plan.key, NULL};
}

typedef int complete_fn(void *, const struct rank_cores *, struct err *);

// on_met: null where the assignment is complete.
static inline void team_lead_by(struct team *t, int n, int64_t join_ns, int64_t hang_ns,
                                complete_fn *on_met, void *ctx)
{
    char path[90];
    int fd, unix_fd;
    memset(t, 0, sizeof *t);
    assert_int_equal(temp_folder_make(t->dir, "link"), 0);
    t->n = n;
    t->plan.ranks = n;
    t->plan.epoch = 3;
    t->plan.host = "here";
    t->plan.job_text = "name: x\n";
    t->plan.base_dir = "/";
    t->plan.job_hash = "h";
    t->plan.store = "/ckpt";
    t->plan.restore = "step-00000004.e2";
    t->plan.restore_step = 4;
    t->plan.hang_after_ns = hang_ns;
    memset(t->plan.key, 7, sizeof t->plan.key);
    snprintf(path, sizeof path, "%s/sock", t->dir);
    snprintf(t->addr, sizeof t->addr, "unix:%s", path);
    assert_int_equal(join_listen_unix(path, &unix_fd, NULL), 0);
    struct solo_leader_config c = {.assignment = &t->plan,
                                   .unix_fd = unix_fd,
                                   .tcp_fd = -1,
                                   .dir = t->dir,
                                   .page_dir = t->dir,
                                   .keep = 2,
                                   .join_ns = join_ns,
                                   .on_met = on_met,
                                   .met_ctx = ctx};
    assert_int_equal(solo_leader_start(&c, &t->lead, &fd, NULL), 0);
    struct link_options o = {.fd = fd, .host = "here"};
    assert_int_equal(link_open(&o, &t->link[0], NULL), 0);
}

static inline void team_lead(struct team *t, int n, int64_t join_ns, int64_t hang_ns)
{
    team_lead_by(t, n, join_ns, hang_ns, NULL, NULL);
}

static inline void team_join_with(struct team *t, int rank, int cores)
{
    int fd;
    struct rank_cores own = {.cores = cores};
    struct join_who w = who(t, rank);
    w.cores = &own;
    assert_int_equal(join_connect(t->addr, &w, soon(), &fd, NULL), 0);
    struct link_options o = {.fd = fd, .host = "here"};
    assert_int_equal(link_open(&o, &t->link[rank], NULL), 0);
}

static inline void team_join(struct team *t, int rank)
{
    team_join_with(t, rank, 1);
}

static inline void team_assign(struct team *t, int rank)
{
    char path[100];
    assert_int_equal(link_assign(t->link[rank], &t->got[rank], soon(), NULL), 0);
    page_path(t->dir, rank, path, sizeof path);
    assert_int_equal(page_create(path, rank, &t->page[rank], NULL), 0);
    link_set_page(t->link[rank], t->page[rank]);
}

static inline void team_start(struct team *t, int n, int64_t hang_ns)
{
    team_lead(t, n, 60 * CLOCK_S, hang_ns);
    for (int r = 1; r < n; r++)
        team_join(t, r);
    for (int r = 0; r < n; r++)
        team_assign(t, r);
}

static inline void team_end(struct team *t, int code)
{
    char path[100];
    for (int r = t->n - 1; r >= 0; r--)
        link_close(t->link[r], code, "");
    solo_leader_stop(t->lead, 10 * CLOCK_S);
    for (int r = 0; r < t->n; r++) {
        page_close(t->page[r]);
        arena_clear(&t->got[r].arena);
        page_path(t->dir, r, path, sizeof path);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/sock", t->dir);
    unlink(path);
    assert_int_equal(rmdir(t->dir), 0);
}
