// SPDX-License-Identifier: Apache-2.0
// Zig-zag order: where a sequence's positions lie when attention is causal and cuts it.
//
// Late positions see many keys, early ones few. So the sequence is dealt out as 2n chunks, n the
// parts, and part r holds chunks r and 2n − 1 − r: all parts have the same work. Specs cut the
// columns contiguously, as always; only data is read in this order, and whoever asks for a position
// gets the logical one. With one part columns are positions.
//
//   n = 2, 8 positions:   column    0 1 2 3 | 4 5 6 7
//                         position  0 1 6 7 | 2 3 4 5
//
// What is shown or stored is in the order of positions.
#pragma once
#include <stdint.h>

struct zigzag {
    int64_t seq; // columns; 2 · parts divides it unless parts is 1
    int parts;   // at least 1
};

int64_t zigzag_position(const struct zigzag *z, int64_t column);
// How many columns from `column` on hold positions that follow each other in the same chunk.
int64_t zigzag_run(const struct zigzag *z, int64_t column);
