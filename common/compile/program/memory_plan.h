// SPDX-License-Identifier: Apache-2.0
// The memory plan: every buffer of every program of a job gets an offset in one arena.
//
// Buffers that live for the whole job come first, in a fixed order. Programs that have a buffer of
// the same name share it (train and eval read the same parameters). Then come the temporaries, the
// largest first (but where there are very many, long-lived ones before all others), each at the
// lowest offset that is free for its lifetime. Those of a flat bucket (bucket.h) are placed as one, one
// behind the other. The programs' temporaries overlay each other; the
// arena is as large as the largest needs. Caches last from run to run of the programs that have them; in a
// job with others they lie among the temporaries of those, so that they hold anything when one of those
// has run. `memory` is what `weft plan` shows and what the rank
// allocates, to the byte.
#pragma once
#include "common/compile/program/program.h"

enum { PLAN_ALIGN = 256 };

struct memory {
    uint64_t params, grads, optimizer, copies, cache, stash, transient, workspace;
    uint64_t arena; // = the sum of the above = private + shared
    uint64_t region[REGION_COUNT];
    uint64_t lasting[REGION_COUNT]; // of these: what lasts, below all temporaries
    int communicators; // of the device, if it carries the collectives itself; 0: it never does
};
struct placed_stage { // the programs of another stage, which have their places, and their memory
    struct program *const *programs;
    const struct memory *memory;
};

// `programs` are the programs of one device, one of each kind. `like`, which may be null: as many of
// another stage; programs that are like its own get the same places without a search.
int plan_memory(struct program *const *programs, int n, const struct placed_stage *like,
                struct arena *scratch, struct memory *out, struct err *e);
