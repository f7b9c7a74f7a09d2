// SPDX-License-Identifier: Apache-2.0
// Deals the slices that replicas share out over ranks, so that every byte of a checkpoint is
// written exactly once and the ranks write about equally much. Pure: every rank computes the same.
//
// A part is cut along its first dimension only, so what a rank writes is contiguous in the memory
// that holds the part.
#pragma once
#include "common/base/arena.h"
#include "common/base/err.h"
#include "common/ckpt/slice.h"

// One mesh shard of one tensor: which box, and the ranks that hold a replica of it.
struct deal_part {
    const char *name;
    enum dtype dtype;
    struct shape global;
    struct box box;
    int nranks;
    const int *ranks;        // ascending
    int64_t limit[MAX_DIMS]; // entries of the dimension from here on are padding; 0: none
};

struct deal_slice {
    int part;       // index into the parts
    struct box box; // in the global tensor
    uint64_t at;    // byte offset of the slice within the part's local memory
    uint64_t bytes;
};
struct deal_rank {
    int n;
    struct deal_slice *slices; // in the order of the parts
    uint64_t bytes;
};
struct deal {
    int nranks;
    struct deal_rank *rank;
};

// Fails when parts of one tensor overlap, differ in dtype or global shape, or name a wrong rank.
// A rank gets at most one slice of a tensor (a safetensors file holds a name once): a rank that
// holds two parts of one tensor is refused.
int deal_make(struct arena *a, const struct deal_part *parts, int nparts, int nranks,
              struct deal *out, struct err *e);
