// SPDX-License-Identifier: Apache-2.0
// Leads the ranks of one attempt on this host without a coordinator: the leader of common/attempt over
// a socket pair for each rank, as an agent's rank has it. For ranks that are asked and train nothing,
// of which no other process needs to know (coordinator/cli/local_ranks.h), and for tests.
//
//   local_leader_init → local_leader_start for each rank → local_leader_turn … → local_leader_clear
//
// A rank is a process, which the caller reaps and says so with local_leader_ended(); or, of a test, a
// link of this process (local_leader_connect). When the leader names a culprit all ranks get Lost.
// Everything belongs to one thread.
#pragma once
#include <sys/types.h>

#include "common/attempt/frame.h"
#include "common/attempt/leader.h"

enum { LOCAL_RANKS_MAX = 64 };

struct local_rank {
    struct frame_conn conn;
    bool open;
    pid_t pid; // 0: a link of this process
    const struct progress_page *page;
    int exit_code, unreached; // of its Exit frame; −1: none came
    char why[1000];
    Weft__Rank__Assign assign;
};
struct local_leader {
    int n;
    int64_t steps; // of the job; 0: not known
    const char *page_dir;
    struct leader *leader;
    bool ready; // all ranks are, and their plans agree
    void (*answered)(void *ctx, const Weft__Rank__Answer *a); // by one rank; null: nobody asks
    void *ctx;
    struct local_rank ranks[LOCAL_RANKS_MAX];
    int64_t ticked_ns;
    int64_t stepped, committed; // the newest step that was reported, saved; −1: none
    bool failed;                // culprit has who it is
    struct culprit culprit;
};

// c, assign and what it points to are borrowed for as long as it leads: every rank gets a copy of
// `assign` with its number, rank 0 alone with metrics. What is this rank's own may be set in
// ranks[r].assign before the rank is connected.
void local_leader_init(struct local_leader *l, const struct leader_config *c,
                       const Weft__Rank__Assign *assign, const char *page_dir);
void local_leader_fence(struct local_leader *l, const struct store_entry *scan, int nscan);
// The rank's end of its socket pair; −1, with errno: it cannot be made.
int local_leader_connect(struct local_leader *l, int rank);
// Starts a rank as a process of its own. It dies with the thread that calls this.
struct local_start {
    const char *program;     // path of weft-rank
    const char *host, *kind; // its flags; ranks of one host share memory
    int log;                 // descriptor for what it prints
};
int local_leader_start(struct local_leader *l, int rank, const struct local_start *s,
                       struct err *e);
// Waits up to timeout_ms for ranks to speak, hears all that they say, looks at their pages and ticks.
void local_leader_turn(struct local_leader *l, int timeout_ms);
// Its process was reaped, after what it said last was heard.
void local_leader_ended(struct local_leader *l, int rank, int code, int signal);
void local_leader_stop(struct local_leader *l, const char *reason);
void local_leader_send(struct local_leader *l, int rank, const Weft__Rank__Frame *f); // −1: to all
void local_leader_hang_up(struct local_leader *l, int rank);
bool local_leader_is_open(const struct local_leader *l); // some rank has not hung up
void local_leader_clear(struct local_leader *l);
