// SPDX-License-Identifier: Apache-2.0
// What the checks remember. Shared by sim_check.c and sim_check_disk.c.
#pragma once
#include "tests/sim/sim_check.h"

struct seen_ckpt {
    struct seen_ckpt *next;
    struct store_entry id;
    unsigned shards;                      // a bit a rank that reported its own synced
    bool named;                           // has its final name now
    bool ordered, acknowledged, deleting; // rows
    int answer;                           // heard by ranks: 1 committed, 2 aborted
    int written;                          // the writer's answer: 1 done, 2 failed
    uint64_t digest;                      // of its files when it was named
};
struct seen_fence {
    struct seen_fence *next;
    uint64_t attempt;
    char attempt_id[40];
};
struct seen_job {
    struct seen_job *next;
    char id[33], path[300];
    const struct variant *kind;
    enum job_state state;
    uint64_t attempt; // of the row
    uint64_t started; // greatest assigned
    uint64_t fenced;  // greatest answered by a fence
    bool durably_fenced, exists;
    uint64_t once_fenced; // the greatest attempt whose fence was ever durable
    struct seen_ckpt *ckpts;
    struct seen_fence *fences;
};
struct seen_reaped {
    struct seen_reaped *next;
    struct proc *agent;
    char job[33];
    uint64_t attempt;
};
struct seen_fenced {
    struct seen_fenced *next;
    char incarnation[33];
};
struct check {
    struct seen_job *jobs;
    struct seen_reaped *reaped;
    struct seen_fenced *fenced;
    int rank_ends;
};

struct seen_job *seen_job(struct world *w, const char *id);
struct seen_ckpt *seen_ckpt(struct world *w, const char *job, int64_t attempt, int64_t step);
