// SPDX-License-Identifier: Apache-2.0
// Job texts are read, and submitted jobs planned as `weft plan` would, before the decider sees them, in
// processes of their own (planner_process.h): a plan may take long, need much memory or meet a bug,
// and hosts must not lose their leases for it, nor other people wait for it.
// Inside coordinator/ only.
//
//   put ──► waiting ──► read by a process, text by text ──► done ──► next
//              │            │  a text's time is over, or the process dies: it is refused
//              └── cancel ──┴─► forgotten (the process is killed)
//
// A user has one request read at a time, and PLANNER_USER_MAX that wait: users take turns, and jobs of
// one user leave in the order they came. A request that is put again while it waits or is planned is
// not planned twice: its calls share the plan. What a worker found after a lost database is a request
// of many texts, which are only read, and one such request at a time: people who submit do not wait for
// it. All functions are the owner's.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/rpc/rpc.h"
#include "proto/planner.pb-c.h"
#include "proto/weft.pb-c.h"

enum {
    PLANNER_MAX = 64,      // jobs that wait or are planned
    PLANNER_USER_MAX = 32, // of them, of one user
    PLANNER_CALLS_MAX = 8, // that share a plan
    PLANNER_PROCESSES = 4, // at a time; after the first they are started when they are needed
    PLANNER_TIME_S = 60,   // of one plan
    PLANNER_READ_S = 5,    // of a text that was found and is only read
    PLANNER_MEMORY_MIB = 2048,
};

struct planner_options {
    const char *program; // weft-coordinator, which plans when called with --planner
    int64_t time_ns;     // 0: PLANNER_TIME_S
    int64_t memory;      // bytes; 0: PLANNER_MEMORY_MIB
};

struct planned {
    uint64_t calls[PLANNER_CALLS_MAX];
    int ncalls;
    char who[RPC_NAME_MAX], role[16];
    Weft__V1__SubmitRequest *submit; // null: the jobs that
    Weft__V1__Up *found;             // an answer to FIND lists,
    uint64_t conn;                   // which came on this stream
    char *before;                    // the text that the submitted job continues; may be null
    int threads_before;
    struct err refused;           // of what is submitted; code 0: it would run
    Weft__Plan__JobFacts **facts; // [planned_texts]
};

int planned_texts(const struct planned *job); // 1, or as many as were found
void planned_clear(struct planned *job);      // whoever takes one calls it
// Takes the call from those that wait for the job's plan; false if it was not among them.
bool planned_forget_call(struct planned *job, uint64_t call);

struct planner;
int planner_open(const struct planner_options *o, struct planner **out, struct err *e);
void planner_close(struct planner *p);   // waits for nothing; null is fine
int planner_fd(const struct planner *p); // readable when planner_next may have something
// Queues a job of one call, or what was found, and takes it, also with an error. ERR_LIMIT names what
// is full; what was found always finds room.
int planner_put(struct planner *p, struct planned *job, struct err *e);
// Call this when the client of this call has gone. When the last client of a plan goes, the plan is
// dropped.
void planner_cancel(struct planner *p, uint64_t call);
bool planner_next(struct planner *p, struct planned *out);
