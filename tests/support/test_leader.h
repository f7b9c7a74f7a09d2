// SPDX-License-Identifier: Apache-2.0
// Leads the ranks of one attempt in a test, without a coordinator: the leader of common/attempt over a
// socket pair for each rank, as an agent's rank has it.
//
//   test_leader_init → test_leader_connect for each rank → test_leader_turn … → test_leader_clear
//
// A rank is a link of this process, or a process of its own whose pid is set with
// test_leader_watch(): then the caller reaps it and says so with test_leader_ended(). When the leader
// names a culprit all ranks get Lost. Everything belongs to one thread.
#pragma once
#include <sys/types.h>

#include "common/attempt/frame.h"
#include "common/attempt/leader.h"

enum { TEST_RANKS_MAX = 64 };

struct test_rank {
    struct frame_conn conn;
    bool open;
    pid_t pid; // 0: a link of this process
    const struct progress_page *page;
    bool greeted;
    int exit_code, unreached; // of its Exit frame; −1: none came
    char why[1000];
    Weft__Rank__Assign assign;
};
struct test_leader {
    int n;
    int64_t steps; // of the job; 0: not known
    const char *page_dir;
    struct leader *leader;
    struct test_rank ranks[TEST_RANKS_MAX];
    int64_t ticked_ns;
    int64_t stepped, committed; // the newest step that was reported, saved; −1: none
    bool failed;                // culprit has who it is
    struct culprit culprit;
};

// c, assign and what it points to are borrowed for as long as it leads: every rank gets a copy of
// `assign` with its number, rank 0 alone with metrics. What is this rank's own may be set in
// ranks[r].assign before the rank is connected.
void test_leader_init(struct test_leader *l, const struct leader_config *c,
                      const Weft__Rank__Assign *assign, const char *page_dir);
void test_leader_fence(struct test_leader *l, const struct store_entry *scan, int nscan);
int test_leader_connect(struct test_leader *l, int rank); // the rank's end of its socket pair
void test_leader_watch(struct test_leader *l, int rank, pid_t pid);
// Waits up to timeout_ms for ranks to speak, hears all that they say, looks at their pages and ticks.
void test_leader_turn(struct test_leader *l, int timeout_ms);
// Its process was reaped, after what it said last was heard.
void test_leader_ended(struct test_leader *l, int rank, int code, int signal);
void test_leader_stop(struct test_leader *l, const char *reason);
void test_leader_send(struct test_leader *l, int rank, const Weft__Rank__Frame *f); // −1: to all
void test_leader_hang_up(struct test_leader *l, int rank);
bool test_leader_is_open(const struct test_leader *l); // some rank has not hung up
void test_leader_clear(struct test_leader *l);
