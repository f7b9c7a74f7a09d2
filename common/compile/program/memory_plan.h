// SPDX-License-Identifier: Apache-2.0
// The memory plan: every buffer of every program of a job gets an offset in one arena.
//
// What lives for the job comes first, in a fixed order, shared by the programs that know it by
// name (train and eval read the same parameters). Then come the temporaries, placed by lifetime:
// largest first (of very many, what lives long before that), at the lowest offset where nothing
// that lives at the same time lies. The programs' temporaries overlay each other; the arena is as
// large as the largest needs. `memory` is what `weft plan` shows and what the rank allocates, to
// the byte.
#pragma once
#include "common/compile/program/program.h"

enum { PLAN_ALIGN = 256 };

struct memory {
    uint64_t params, grads, optimizer, copies, stash, transient, workspace;
    uint64_t arena; // = the sum of the above = private + shared
    uint64_t region[REGION_COUNT];
};

// `programs`: of one device, a kind each.
int plan_memory(struct program *const *programs, int n, struct arena *scratch, struct memory *out,
                struct err *e);
