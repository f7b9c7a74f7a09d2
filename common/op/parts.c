// SPDX-License-Identifier: Apache-2.0
// Parts of long reductions. See parts.h.
#include "common/op/parts.h"

// Enough parts to keep a large device busy, each of so many rows that what it leaves is little
// beside what it reads, and 8 MiB left in all at most.
enum { PART_ROWS = 128, NORM_ROWS = 32, PARTS_MOST = 512, PARTS_ELEMENTS = 1 << 21 };

static int64_t count_parts(int64_t rows, int64_t least, int64_t cols)
{
    int64_t most = PARTS_ELEMENTS / cols, n = rows / least;
    most = most < PARTS_MOST ? most : PARTS_MOST;
    n = n < most ? n : most;
    return n > 1 ? n : 1;
}

int64_t parts_of_rows(int64_t rows, int64_t cols)
{
    return count_parts(rows, PART_ROWS, cols);
}

int64_t parts_of_norm(int64_t rows, int64_t cols)
{
    return count_parts(rows, NORM_ROWS, cols);
}

size_t parts_bytes(int64_t rows, int64_t cols)
{
    int64_t n = parts_of_rows(rows, cols);
    return n > 1 ? sizeof(float) * (size_t)(n * cols) : 0;
}

static int64_t divide_up(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

static size_t take_place(struct embed_parts *p, int64_t elements)
{
    size_t at = p->bytes;
    p->bytes += (sizeof(float) * (size_t)elements + OP_SCRATCH_ALIGN - 1) / OP_SCRATCH_ALIGN *
                OP_SCRATCH_ALIGN;
    return at;
}

struct embed_parts embed_parts_of(int64_t ids, int64_t rows, int64_t width)
{
    struct embed_parts p = {.chunks = divide_up(ids, SORT_CHUNK)};
    int bits = 1;
    while (rows >> bits)
        bits++;
    p.passes = (int)divide_up(bits, SORT_BITS);
    p.bits = (int)divide_up(bits, p.passes);
    p.tile = divide_up(ids, EMBED_TILES);
    p.tile = p.tile < EMBED_TILE ? EMBED_TILE : p.tile;
    p.tiles = divide_up(ids, p.tile);
    for (int k = 0; k < 2; k++) {
        p.keys[k] = take_place(&p, ids);
        p.places[k] = take_place(&p, ids);
    }
    p.counts = take_place(&p, p.chunks << p.bits);
    p.totals = take_place(&p, (int64_t)1 << p.bits);
    p.partials = take_place(&p, p.tiles * width);
    return p;
}
