// SPDX-License-Identifier: Apache-2.0
// How a device carries out one step of a reshard: its block is brought into the order of the
// group's coordinates, since collectives know slices of a message only, and what comes out is
// brought into the order of the dimension. Pure geometry on local shapes.
#pragma once
#include "common/compile/layout/reshard.h"

struct transfer {
    int64_t message;        // elements that the collective works on; 0: a slice, nothing is sent
    struct op_block pack;   // input → message; a slice: input → output
    int64_t pack_from;      // elements further in the input, or in the message, for each place of
    int64_t pack_to;        // the rank in the group
    bool packed;            // the input is the message already
    struct op_block unpack; // message → output
    int64_t unpack_from;    // elements further in the message for each place
    bool unpacked;          // the message is the output already
};

// `in`: the local shape of the input. Not for ALL_REDUCE, which works in place.
struct transfer transfer_of(const struct reshard_step *step, const struct mesh *m,
                            const struct shape *in);
