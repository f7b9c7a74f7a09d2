// SPDX-License-Identifier: Apache-2.0
// Submitted jobs are parsed and planned before the decider sees them, as `weft plan` would, on a
// thread of their own: the largest plans take seconds, and hosts must not lose their leases for
// them. Jobs leave in the order they came. All functions are the owner's.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/rpc/rpc.h"
#include "proto/weft.pb-c.h"

enum { PLANNER_MAX = 64 }; // jobs that wait

struct planned {
    uint64_t call;
    char who[RPC_NAME_MAX], role[16];
    Weft__V1__SubmitRequest *submit; // the taker's: free_unpacked
    struct err refused;              // code 0: it would run
};

struct planner;
int planner_open(struct planner **out, struct err *e); // its thread has every signal blocked
void planner_close(struct planner *p);                 // waits for the plan at hand; null is fine
int planner_fd(const struct planner *p);               // readable when planner_next has something
// Takes p->submit. ERR_LIMIT: too many wait; it is freed.
int planner_put(struct planner *p, const struct planned *job);
bool planner_next(struct planner *p, struct planned *out);
