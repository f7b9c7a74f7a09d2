// SPDX-License-Identifier: Apache-2.0
// Products of few rows. See packed.h. Compiled as packed.c is.
//
// What a decoder's step takes is the time in which its weights come from memory. So b is read once, in
// long runs, and all rows of a pass over what has come while it is in L1. Their sums over a block of k
// lie in L2, those of a tile in registers while a piece of the block passes:
//
//   b [k][n]: a piece is 16 lanes along k, each a row of b from the first column to the last; the tiles
//             of a piece fetch those of the next one
//   b [n][k]: a piece is 64 lanes along k of two vectors of columns, which are turned first
//
// An element is summed in order within a block of PACKED_DEPTH lanes, and the blocks' sums are added in
// order: these are packed.c's bits.
#include "kernels/cpu/packed_lanes.h"

enum {
    ALONG = 16, // lanes of a piece
    TURNED = 64,
    WIDE = 8 * VL,    // columns of a tile of b [k][n]; of the other COLUMNS
    SUMS = 16 * 1024, // at most
    PIECE = TURNED * COLUMNS > ALONG *EACH *WIDE ? TURNED *COLUMNS : ALONG *EACH *WIDE
};
_Static_assert(SUMS >= STREAMED_HEIGHT * WIDE && TURNED % VL == 0, "a tile has room");

struct streamed {
    const struct packed_product *p;
    int64_t at, k;            // the block: elements along k
    int64_t j, columns, wide; // what its sums are of, and the columns of a tile
    float *a, *sums, *piece;  // a: the block's panels; piece: a tile that was copied or turned
    int64_t stride_a, stride; // of a, from panel to panel; of sums, from row to row
};

// A tile of a piece. As it lies in b, or in lanes.
struct tile {
    const void *x;
    int64_t row, pair; // elements from lane to lane along k; to the second element of a lane
    int64_t ahead;     // elements to what is fetched
    int64_t depth;     // lanes
    int64_t stride;    // of sums
};

// Adds `rows` rows of a panel of a · the tile to sums. rows, wide (in vectors) and half are constants
// wherever this is called.
VFN void stream_rows(const struct tile *t, int rows, int wide, bool half, const float *a,
                     float *sums)
{
    enum { MOST = VL == 16 ? 24 : 12 }; // sums in registers
    const int some = rows * 8 <= MOST ? 8 : rows * 4 <= MOST ? 4 : 2;
    const int vectors = some < wide ? some : wide;
    const int64_t size = half ? 2 : 4;
    for (int first = 0; first < wide; first += vectors) {
        vf sum[ROWS][8];
#pragma GCC unroll 12
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
            for (int j = 0; j < vectors; j++)
                sum[i][j] = v_load(sums + i * t->stride + (first + j) * VL);
        for (int64_t p = 0; p < t->depth; p++) {
            const int64_t at = p * t->row + first * VL;
            vf y[8];
            if (wide * VL == WIDE)
                fetch_row(find_element(t->x, half, at + t->ahead), t->pair * size,
                          vectors * VL * size);
#pragma GCC unroll 8
            for (int j = 0; j < vectors; j++)
                y[j] = load_across(t->x, at + j * VL, t->pair, half);
#pragma GCC unroll 12
            for (int i = 0; i < rows; i++) {
                vf z = load_everywhere(a + p * ROWS + i);
#pragma GCC unroll 8
                for (int j = 0; j < vectors; j++)
                    sum[i][j] = multiply_add(z, y[j], sum[i][j]);
            }
        }
#pragma GCC unroll 12
        for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
            for (int j = 0; j < vectors; j++)
                v_store(sums + i * t->stride + (first + j) * VL, sum[i][j]);
    }
}

// turned: the tile is lanes of COLUMNS.
VFN void stream_any(const struct tile *t, int64_t rows, bool turned, bool half, const float *a,
                    float *sums)
{
#define STREAM(n)                                                         \
    case n:                                                               \
        stream_rows(t, n, (turned ? COLUMNS : WIDE) / VL, half, a, sums); \
        break;
    switch (rows) {
        STREAM(1)
        STREAM(2)
        STREAM(3)
        STREAM(4)
        STREAM(5)
        STREAM(6)
#if defined(__AVX512F__)
        STREAM(7)
        STREAM(8)
        STREAM(9)
        STREAM(10)
        STREAM(11)
        STREAM(12)
#endif
    default:
        break;
    }
#undef STREAM
}

// ---- tiles -------------------------------------------------------------------------------------

// Copies `rows` rows of `columns` elements of b; what the tile lacks, at b's right edge or behind its
// last row, is 0.
static void copy_tile(const struct streamed *s, struct tile *t, int64_t rows, int64_t columns)
{
    const int64_t size = s->p->half ? 2 : 4;
    char *to = (char *)s->piece;
    memset(to, 0, (size_t)(t->depth * EACH * WIDE * size));
    for (int64_t i = 0; i < rows; i++)
        memcpy(to + i * WIDE * size, (const char *)t->x + i * s->p->ldb * size,
               (size_t)(columns * size));
    t->x = to;
    t->row = (int64_t)EACH * WIDE;
    t->pair = WIDE;
    t->ahead = 0;
}

// Turns `columns` rows of b of k elements; what the tile lacks is 0. half is a constant, and columns of a
// whole tile.
VFN void turn(const struct streamed *s, const struct tile *t, int64_t k, int64_t columns, bool half)
{
    const int64_t ldb = s->p->ldb;
    int64_t i = 0;
    for (; i + VL <= k / EACH; i += VL)
        for (int side = 0; side < COLUMNS; side += VL) {
            vf r[VL];
#pragma GCC unroll 16
            for (int l = 0; l < VL; l++) {
                r[l] = (vf){0};
                if (side + l >= columns)
                    continue;
                const int64_t at = (side + l) * ldb + i * EACH;
                __builtin_prefetch(find_element(t->x, half, at + t->ahead), 0, 2);
                r[l] = load_along(t->x, at, half);
            }
            transpose(r);
#pragma GCC unroll 16
            for (int l = 0; l < VL; l++)
                v_store(s->piece + (i + l) * COLUMNS + side, r[l]);
        }
    for (; i < t->depth; i++)
        for (int64_t j = 0; j < COLUMNS; j++) {
            uint32_t lane =
                j < columns ? load_one(t->x, j * ldb + i * EACH, i * EACH + 1 < k, half) : 0;
            memcpy(s->piece + i * COLUMNS + j, &lane, sizeof lane);
        }
}

static void turn_tile(const struct streamed *s, struct tile *t, int64_t k, int64_t columns)
{
    const bool half = s->p->half, whole = columns == COLUMNS;
    if (half && whole)
        turn(s, t, k, COLUMNS, true);
    else if (half)
        turn(s, t, k, columns, true);
    else if (whole)
        turn(s, t, k, COLUMNS, false);
    else
        turn(s, t, k, columns, false);
    t->x = s->piece;
    t->row = COLUMNS;
}

// Adds the product with `k` elements along k, from `at` of the block on, to the sums of the tile at
// column j.
static void add_tile(const struct streamed *s, int64_t at, int64_t k, int64_t j)
{
    const struct packed_product *p = s->p;
    const int64_t first = s->at + at, column = s->j + j, columns = min_i64(s->columns - j, s->wide);
    struct tile t = {
        .row = EACH * p->ldb, .pair = p->ldb, .depth = (k + EACH - 1) / EACH, .stride = s->stride};
    if (p->trans_b) {
        t.x = find_element(p->b, p->half, column * p->ldb + first);
        // Behind the block's end come the rows of the next tile.
        t.ahead = at + k < s->k ? TURNED * EACH : COLUMNS * p->ldb - at;
        turn_tile(s, &t, k, columns);
    } else {
        t.x = find_element(p->b, p->half, first * p->ldb + column);
        t.ahead = ALONG * EACH * p->ldb;
        if (columns < WIDE || k % EACH)
            copy_tile(s, &t, k, columns);
    }
    for (int64_t i = 0; i < p->m; i += ROWS, t.ahead = 0) {
        const float *a = s->a + i / ROWS * s->stride_a + at / EACH * ROWS;
        float *sums = s->sums + i * s->stride + j;
        const int64_t rows = min_i64(p->m - i, ROWS);
        if (p->trans_b)
            stream_any(&t, rows, true, false, a, sums);
        else if (p->half)
            stream_any(&t, rows, false, true, a, sums);
        else
            stream_any(&t, rows, false, false, a, sums);
    }
}

// Brings the block's sums to the result.
static void take_sums(const struct streamed *s)
{
    const struct packed_product *p = s->p;
    const bool add = p->add || s->at;
    for (int64_t i = 0; i < p->m; i++) {
        const float *from = s->sums + i * s->stride;
        float *to = p->c + i * p->ldc + s->j;
        int64_t j = 0;
        for (; j + VL <= s->columns; j += VL)
            v_store(to + j, add ? v_load(to + j) + v_load(from + j) : v_load(from + j));
        for (; j < s->columns; j++)
            to[j] = add ? to[j] + from[j] : from[j];
    }
}

void PASTE(streamed_multiply_, VEC_ISA)(const struct packed_product *p)
{
    const int64_t wide = p->trans_b ? COLUMNS : WIDE;
    const int64_t most = p->trans_b ? COLUMNS : SUMS / p->m / WIDE * WIDE;
    const int64_t each = EACH * (p->trans_b ? TURNED : ALONG);
    struct streamed s = {.p = p, .wide = wide, .sums = p->room, .piece = p->room + SUMS};
    s.a = s.piece + PIECE;
    for (s.at = 0; s.at < p->k; s.at += PACKED_DEPTH * EACH) {
        s.k = min_i64(p->k - s.at, PACKED_DEPTH * EACH);
        s.stride_a = (s.k + EACH - 1) / EACH * ROWS + PACKED_GAP;
        PASTE(pack_rows_, VEC_ISA)
        (&(struct rows_packing){p, 0, p->m, s.at, s.k, s.a, s.stride_a});
        for (s.j = 0; s.j < p->n; s.j += most) {
            s.columns = min_i64(p->n - s.j, most);
            s.stride = (s.columns + wide - 1) / wide * wide;
            memset(s.sums, 0, (size_t)(p->m * s.stride) * sizeof *s.sums);
            for (int64_t at = 0; at < s.k; at += each)
                for (int64_t j = 0; j < s.columns; j += wide)
                    add_tile(&s, at, min_i64(s.k - at, each), j);
            take_sums(&s);
        }
    }
}
