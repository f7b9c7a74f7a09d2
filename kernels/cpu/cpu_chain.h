// SPDX-License-Identifier: Apache-2.0
// Elementwise steps over an output, walked in memory order. See cpu_chain.c.
// Inside kernels/cpu/ only.
#pragma once
#include "common/op/chain.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/loops.h"

struct chain_walk {
    const struct op_chain *chain;
    const struct op_call *call;
    const struct vec *vec;
    struct loops loops;                    // input registers, then the output
    const struct tensor *in[CHAIN_INPUTS]; // what the input registers are
    bool gather[CHAIN_INPUTS];             // brought to a buffer first
    int8_t home[CHAIN_STEPS];              // the output a step writes straight to; −1: a buffer
    bool whole;                            // no buffer at all: runs need no blocks
};

// Prepares the walk of a CHAIN, of a LINEAR (whose product lies in `product` when the walk runs),
// or of a single step. Returns 0 or the call's error.
int chain_walk_init(struct chain_walk *w, const struct vec *vec, const struct op_call *c,
                    const struct op_chain *chain, const struct tensor *product, struct err *e);
// Makes elements [begin, end) of the output, counted in memory order.
void chain_walk_run(const struct chain_walk *w, int64_t begin, int64_t end);
