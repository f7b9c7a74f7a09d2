// SPDX-License-Identifier: Apache-2.0
// Ranks of one attempt with their leader, over real sockets in this process.
//
//   team_start → the links of t.link[] do what the test is about → team_end
#pragma once
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/attempt/page.h"
#include "common/base/clock.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/unit.h"
#include "worker/local_leader.h"
#include "worker/rank/link/rank_link.h"

enum { RANKS_MAX = 4 };

struct team {
    char dir[TEMP_FOLDER_MAX];
    unsigned char key[32];
    int n;
    Weft__Rank__Assign plan;
    struct local_leader lead;
    pthread_t thread;
    int fd[RANKS_MAX];            // of who has not joined; −1: it has
    struct link *link[RANKS_MAX]; // null: not joined, or gone
    struct progress_page *page[RANKS_MAX];
    struct assignment got[RANKS_MAX];
};

static inline int64_t soon(void)
{
    return clock_mono_ns() + 60 * CLOCK_S; // a watchdog: nothing here takes that long
}

static inline void *team_run_leader(void *arg)
{
    struct local_leader *l = arg;
    while (local_leader_is_open(l))
        local_leader_turn(l, 20);
    return NULL;
}

// Nobody has joined yet.
static inline void team_lead(struct team *t, int n, int64_t join_ns, int64_t hang_ns)
{
    static char id[] = "00112233445566778899aabbccddeeff";
    memset(t, 0, sizeof *t);
    assert_int_equal(temp_folder_make(t->dir, "link"), 0);
    t->n = n;
    memset(t->key, 7, sizeof t->key);
    Weft__Rank__Assign *p = &t->plan;
    weft__rank__assign__init(p);
    p->attempt = 3;
    p->job_text = frame_text("name: x\n");
    p->base_dir = frame_text("/");
    p->job_hash = frame_text("h");
    p->job_id = p->cluster_id = p->attempt_id = p->run_id = id;
    p->key.data = t->key;
    p->key.len = sizeof t->key;
    p->store = frame_text("/ckpt");
    p->restore = frame_text("step-00000004.a2");
    p->restore_step = 4;
    p->hang_after_ns = hang_ns;
    struct leader_config c = {.ranks = n, .hang_after_ns = hang_ns, .join_ns = join_ns, .keep = 2};
    local_leader_init(&t->lead, &c, p, t->dir);
    local_leader_fence(&t->lead, NULL, 0);
    for (int r = 0; r < n; r++)
        t->fd[r] = local_leader_connect(&t->lead, r);
    assert_int_equal(pthread_create(&t->thread, NULL, team_run_leader, &t->lead), 0);
}

static inline void team_join(struct team *t, int rank)
{
    assert_int_equal(link_open(t->fd[rank], &t->link[rank], NULL), 0);
    t->fd[rank] = -1;
}

static inline void team_assign(struct team *t, int rank)
{
    char path[100];
    assert_int_equal(link_assign(t->link[rank], &t->got[rank], soon(), NULL), 0);
    page_path(t->dir, rank, path, sizeof path);
    assert_int_equal(page_create(path, rank, &t->page[rank], NULL), 0);
}

static inline void team_start(struct team *t, int n, int64_t hang_ns)
{
    team_lead(t, n, 60 * CLOCK_S, hang_ns);
    for (int r = 0; r < n; r++)
        team_join(t, r);
    for (int r = 0; r < n; r++)
        team_assign(t, r);
}

static inline void team_end(struct team *t, int code)
{
    for (int r = t->n - 1; r >= 0; r--) {
        link_close(t->link[r], code, "");
        if (t->fd[r] >= 0)
            close(t->fd[r]);
    }
    pthread_join(t->thread, NULL);
    local_leader_clear(&t->lead);
    for (int r = 0; r < t->n; r++) {
        page_close(t->page[r]);
        arena_clear(&t->got[r].arena);
    }
    assert_int_equal(temp_folder_remove(t->dir), 0);
}
