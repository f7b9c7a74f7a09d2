// SPDX-License-Identifier: Apache-2.0
// Inside of a simulated rank: rank.c (its life and its steps), save.c (checkpoints), sim_attempt.c
// (what the ranks of one attempt do together, without any daemon).
#pragma once
#include "tests/sim/sim_world.h"

enum { MAX_STEPS = 64 };

// What a rank's page says of its collectives: simulated ranks have one a step.
#define SIM_COLLECTIVE "the step's all_reduce"

// All ranks of one (job, attempt): the collectives and what each was answered.
struct sim_attempt {
    struct sim_attempt *next;
    struct world *w;
    char job[33];
    uint64_t number;
    int n, begun; // begun: ranks that ever lived
    struct rank *rank[MAX_RANKS];
    int arrived[MAX_STEPS + 2];
    unsigned bits[MAX_STEPS + 2]; // of the control word
    char *value[MAX_RANKS];       // what each put
    int entered;                  // ranks at the barrier "world"
    int verdict;                  // of it: 0 none yet, 1 passed, 2 failed
};
enum { BIT_STOP = 1, BIT_NO_SAVE = 2 };

enum rank_wait { // what the training thread waits for
    WAIT_NOTHING,
    WAIT_SAVE,    // a synchronous save's answer
    WAIT_OPEN,    // the open save, before the last
    WAIT_LAST,    // the last save's answer and all its orders
    WAIT_COMPANY, // the barrier after an aborted last save
};
enum order_kind { ORDER_WRITE, ORDER_COMMIT, ORDER_REMOVE, ORDER_DELETE };
struct order {
    struct order *next;
    enum order_kind kind;
    struct store_entry id;
    struct rank *rank;
    int code, greatest;
    struct shard_report *reports; // COMMIT
    char text[200];
};
struct rank {
    struct proc proc;
    struct world *w;
    struct host *host;
    struct proc *agent; // whose child it is
    struct rank *next;  // of the host's living
    struct sim_attempt *shared;
    const struct variant *kind;
    int slot, device, rank, n;
    char job[33], run_dir[64];
    uint64_t attempt;
    const char *store, *restore;
    int64_t restore_step, step, latest_down, latest_up;
    int state; // enum rank_state
    uint64_t entered, left;
    int answers; // of the join: gets and put
    bool exiting, dying, stop, peer_lost, must_drain;
    bool struck;                 // it was stopped once
    int64_t failed_ns, ended_ns; // when it failed of its own, when it began to end; 0: it did not
    enum rank_wait wait;
    // the saver
    struct order *orders, *last_order;
    bool busy, staged, last_ok;
    int64_t open_step, opened_at, answered_step;
    int answered_code;
    char answered_text[200];
};

void rank_says(struct rank *r, const Weft__Rank__Frame *f);
void rank_exits(struct rank *r, int code, const char *why);
void rank_waited(struct rank *r); // an answer came: goes on if that was all

// save.c
bool save_busy(const struct rank *r);
void save_begin(struct rank *r, int64_t step);
void save_hears(struct rank *r, const Weft__Rank__Frame *f); // Commit, Committed, Aborted, Delete
bool save_idle(const struct rank *r);                        // nothing open, no order left

// sim_attempt.c
struct sim_attempt *sim_attempt_join(struct rank *r);
void sim_attempt_gone(struct rank *r, bool done);
void sim_attempt_arrives(struct rank *r, int64_t step, unsigned bits); // rank_stepped when all have
void rank_stepped(struct rank *r, int64_t step);
void rank_lost_peer(struct rank *r);

// The body of a shard file, and whether one is whole.
double sim_eval_loss(int64_t step); // of an evaluation after it
int shard_text(const char *job, int64_t step, int rank, char out[200]);
