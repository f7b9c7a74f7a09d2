// SPDX-License-Identifier: Apache-2.0
// The schedule: the order in which a stage runs the phases of a step's microbatches. With one stage
// it is gradient accumulation: forward and backward of each microbatch in turn, then the update.
#pragma once
#include "common/base/arena.h"
#include "common/compile/program.h"

struct slot {
    enum phase phase;
    int microbatch;
};
struct schedule {
    int n;
    struct slot *slots;
    int microbatches;
};

void schedule_build(struct schedule *s, struct arena *a, enum program_kind kind, int microbatches);
// Every microbatch's phases once and in order, one update at the end.
int schedule_verify(const struct schedule *s, enum program_kind kind, struct err *e);
