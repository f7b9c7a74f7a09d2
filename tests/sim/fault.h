// SPDX-License-Identifier: Apache-2.0
// The faults of a schedule: which there are, how often each, and the moments they wait for.
#pragma once
#include "tests/sim/sim.h"

struct world;
#define FAULTS(X)        \
    X(coordinator_crash) \
    X(coordinator_stop)  \
    X(stream)            \
    X(partition)         \
    X(worker_crash)      \
    X(host_stop)         \
    X(host_power) X(power) X(rank_crash) X(rank_stop) X(rank_error) X(db) X(client) X(term)
enum fault_kind {
#define X(name) FAULT_##name,
    FAULTS(X)
#undef X
        FAULT_KINDS
};
// A fault may wait for a moment that matters instead of a time.
enum moment {
    MOMENT_NONE,
    MOMENT_DISK,         // a call of a fiber
    MOMENT_COMMIT,       // a transaction of the coordinator begins
    MOMENT_SEND,         // it is durable, nothing has been sent
    MOMENT_ACKNOWLEDGED, // a checkpoint is
    MOMENT_REGISTER,     // a worker says Register
    MOMENT_BARRIER,      // a barrier is answered
    MOMENT_FENCED,       // a fence is done
    MOMENTS
};
struct fault_mix {
    const char *name;
    int weight[FAULT_KINDS];
    bool gentle;       // nothing that may cost an attempt
    bool blames;       // nothing that may keep the truth from who names a culprit
    enum moment often; // what its faults like to wait for
    int eio_per_mille, slow_per_mille;
};
struct trap {
    enum moment at;
    enum fiber_act act; // MOMENT_DISK
    int countdown;
    enum fault_kind fault;
};

const struct fault_mix *fault_mix_of(uint64_t seed);
void fault_plan(struct world *w);
void fault_strike(struct world *w, enum fault_kind k);
void fault_heal(struct world *w); // all are over
// Something happens that faults may wait for; `of` is whose act it is, or null.
void world_moment(struct world *w, enum moment m, struct proc *of);
