// SPDX-License-Identifier: Apache-2.0
// How long reductions are cut into parts that an accelerator makes side by side, so that their bits
// depend on shapes alone: the compiler (scratch) and the kernels (order) ask the same functions.
#pragma once
#ifdef __cplusplus
extern "C" {
#endif

#include "common/op/op.h"

// Parts in which `rows` rows of `cols` results are summed; a part leaves an f32 for each of them.
int64_t parts_of_rows(int64_t rows, int64_t cols);
size_t parts_bytes(int64_t rows, int64_t cols); // of what they leave; 0 where one part is all
// As parts_of_rows, but for NORM_GRADS, whose rows are read once for several sums and a gradient.
int64_t parts_of_norm(int64_t rows, int64_t cols);

// EMBED_GRAD: (row of the table, place) pairs are sorted by the row, then sums are made tile by
// tile of the sorted pairs. A tile leaves the sum of what belongs to a row begun before it.
enum {
    SORT_BITS = 9,      // of the row's number, at most, that one pass sorts by
    SORT_CHUNK = 2048,  // ids that one block sorts
    EMBED_TILES = 2048, // at most
    EMBED_TILE = 32     // pairs, at least
};
struct embed_parts {
    int bits, passes;                                           // bits a pass
    int64_t chunks, tile, tiles;                                // tile: pairs of one
    size_t keys[2], places[2], counts, totals, partials, bytes; // where in scratch; all of it
};
// Ids whose row is not here count as row `rows`.
struct embed_parts embed_parts_of(int64_t ids, int64_t rows, int64_t width);

#ifdef __cplusplus
}
#endif
