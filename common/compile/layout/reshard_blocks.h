// SPDX-License-Identifier: Apache-2.0
// How a device carries out one step of a reshard: its block is packed into the order of the group's
// coordinates, since collectives know slices of their payload only, and what comes out is unpacked
// into the order of the dimension. Pure geometry on local shapes.
#pragma once
#include "common/compile/layout/reshard.h"

struct reshard_blocks {
    int64_t payload;        // elements that the collective works on; 0: a slice, nothing is sent
    struct op_block pack;   // input → payload; a slice: input → output
    int64_t pack_from;      // for each place of the rank in its group so many elements further in
    int64_t pack_to;        // the input, or in the payload
    bool packed;            // the input is the payload already
    struct op_block unpack; // payload → output
    int64_t unpack_from;    // for each place so many elements further in the payload
    bool unpacked;          // the payload is the output already
};

// `in`: the local shape of the input. Not for ALL_REDUCE, which works in place.
struct reshard_blocks reshard_blocks_of(const struct reshard_step *step, const struct mesh *m,
                                        const struct shape *in);
