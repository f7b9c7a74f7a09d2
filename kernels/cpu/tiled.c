// SPDX-License-Identifier: Apache-2.0
// Products of two operands in bf16 by AMX, in the calling thread. See packed.h. Compiled with
// -DVEC_ISA=amx.
//
// A tile holds 16 × 16 lanes of 32 bits: sums, or pairs of elements that follow each other along k. One
// instruction multiplies a tile of a, 16 rows of 16 pairs, with a tile of b, 16 pairs of 16 columns,
// and adds the products to 16 × 16 sums. Both operands are packed into such tiles:
//
//   a: at most HEIGHT rows × a block along k, in L2
//   b: a block along k × COLUMNS, with which all of a's rows are multiplied while it is in L1
//
// With few rows the time is that in which b comes from memory, so it is read in long runs: the block is
// one tile deep where b's rows lie across, and fetches what lies below it; else as deep as its room is.
//
// The sums stay in tiles during a block and lie in c between blocks. So an element is one chain of sums
// over k, 32 elements a link: its bits depend on k alone, wherever blocks and slices end.
#include <immintrin.h>

#include "kernels/cpu/packed_lanes.h"

enum {
    SIDE = 16,       // lanes of a tile's row, and rows
    TILE = 256,      // lanes of a tile
    LINK = 2 * SIDE, // elements along k of a tile
    HEIGHT = 512,    // rows of a that are packed at a time
    MOST_A = HEIGHT * PACKED_DEPTH / 2,
    MOST_B = COLUMNS * PACKED_DEPTH // lanes of a block of b
};
_Static_assert(VL == 16 && MOST_A + MOST_B <= PACKED_FLOATS, "the room holds both");

// Tiles 0 to 3 are sums, 4 and 5 of a, 6 and 7 of b. As LDTILECFG reads it.
static const struct {
    uint8_t palette, start_row, zero[14];
    uint16_t bytes[SIDE]; // of a row of each tile
    uint8_t rows[SIDE];
} whole_tiles = {.palette = 1,
                 .bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                 .rows = {SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE}};

// ---- packing -----------------------------------------------------------------------------------

// One operand of a block. Of a its rows are counted across k, of b its columns.
struct operand {
    const uint16_t *x;
    int64_t ld;
    bool along;    // elements along k lie beside each other; else those across
    bool turns;    // the tile has lanes along k as rows
    int64_t ahead; // elements to what is fetched
};

// The pairs of 16 elements across k of two rows, of which `k` are there.
VFN vf load_pairs(const struct operand *o, const uint16_t *x, __mmask16 across, int64_t k)
{
    __m512i first = {0}, second = {0};
    if (k > 0)
        first = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(across, x));
    if (k > 1)
        second = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(across, x + o->ld));
    return (vf)_mm512_or_si512(first, _mm512_slli_epi32(second, 16));
}

// Packs a tile from element (i, j) on, i along k and j across it; what lies behind k or count is 0.
VFN void pack_tile(const struct operand *o, bool along, bool turns, float *out, int64_t i,
                   int64_t k, int64_t j, int64_t count)
{
    const __mmask32 in_k = k >= LINK ? ~0U : (1U << k) - 1;
    const __mmask16 across = (__mmask16)(count >= SIDE ? 0xffff : (1U << count) - 1);
    vf r[SIDE];
#pragma GCC unroll 16
    for (int l = 0; l < SIDE; l++) {
        const uint16_t *x = o->x + (along ? (j + l) * o->ld + i : (i + 2 * l) * o->ld + j);
        if (along)
            r[l] = l < count ? (vf)_mm512_maskz_loadu_epi16(in_k, x) : (vf){0};
        else
            r[l] = load_pairs(o, x, across, k - 2 * l);
        __builtin_prefetch(x + o->ahead, 0, 2);
        if (!along)
            __builtin_prefetch(x + o->ld + o->ahead, 0, 2);
    }
    if (turns)
        transpose(r);
#pragma GCC unroll 16
    for (int l = 0; l < SIDE; l++)
        v_store(out + l * SIDE, r[l]);
}

// Packs tiles of k × count elements from element (0, j) on, those along k one behind the other.
static void pack_tiles(const struct operand *o, float *out, int64_t k, int64_t j, int64_t count)
{
    for (const int64_t end = j + count; j < end; j += SIDE)
        for (int64_t i = 0; i < k; i += LINK, out += TILE) {
            const bool whole = k - i >= LINK && end - j >= SIDE;
            if (o->along && o->turns)
                pack_tile(o, true, true, out, i, k - i, j, end - j);
            else if (o->along)
                pack_tile(o, true, false, out, i, k - i, j, end - j);
            else if (o->turns)
                pack_tile(o, false, true, out, i, k - i, j, end - j);
            else if (whole)
                pack_tile(o, false, false, out, i, LINK, j, SIDE);
            else
                pack_tile(o, false, false, out, i, k - i, j, end - j);
        }
}

// ---- tiles -------------------------------------------------------------------------------------

// c (+)= one or two tiles of rows of a · one or two tiles of columns of b, `links` tiles along k. down
// and right are constants wherever this is called.
VFN void multiply_tiles(int down, int right, const float *a, const float *b, int64_t links,
                        float *c, int64_t ldc, bool add)
{
    const int64_t next = links * TILE, row = ldc * 4;
    __asm__ volatile("" ::: "memory"); // tiles are loaded behind the compiler's back
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    if (add) {
        _tile_loadd(0, c, row);
        if (right > 1)
            _tile_loadd(1, c + SIDE, row);
        if (down > 1)
            _tile_loadd(2, c + SIDE * ldc, row);
        if (down > 1 && right > 1)
            _tile_loadd(3, c + SIDE * ldc + SIDE, row);
    }
    for (int64_t i = 0; i < next; i += TILE) {
        _tile_loadd(4, a + i, 64);
        _tile_loadd(6, b + i, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (right > 1) {
            _tile_loadd(7, b + next + i, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (down > 1) {
            _tile_loadd(5, a + next + i, 64);
            _tile_dpbf16ps(2, 5, 6);
        }
        if (down > 1 && right > 1)
            _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, row);
    if (right > 1)
        _tile_stored(1, c + SIDE, row);
    if (down > 1)
        _tile_stored(2, c + SIDE * ldc, row);
    if (down > 1 && right > 1)
        _tile_stored(3, c + SIDE * ldc + SIDE, row);
    __asm__ volatile("" ::: "memory");
}

static void multiply_any(int64_t rows, int64_t columns, const float *a, const float *b,
                         int64_t links, float *c, int64_t ldc, bool add)
{
    if (rows > SIDE && columns > SIDE)
        multiply_tiles(2, 2, a, b, links, c, ldc, add);
    else if (rows > SIDE)
        multiply_tiles(2, 1, a, b, links, c, ldc, add);
    else if (columns > SIDE)
        multiply_tiles(1, 2, a, b, links, c, ldc, add);
    else
        multiply_tiles(1, 1, a, b, links, c, ldc, add);
}

// Copies rows × columns numbers.
static void copy_sums(float *to, int64_t ld_to, const float *from, int64_t ld_from, int64_t rows,
                      int64_t columns)
{
    for (int64_t i = 0; i < rows; i++)
        memcpy(to + i * ld_to, from + i * ld_from, (size_t)columns * sizeof *to);
}

// As multiply_any, also where tiles end behind c's last row or column.
static void multiply_edges(int64_t rows, int64_t columns, const float *a, const float *b,
                           int64_t links, float *c, int64_t ldc, bool add)
{
    _Alignas(64) float edge[COLUMNS * COLUMNS] = {0};
    if (rows % SIDE == 0 && columns % SIDE == 0) {
        multiply_any(rows, columns, a, b, links, c, ldc, add);
        return;
    }
    if (add)
        copy_sums(edge, COLUMNS, c, ldc, rows, columns);
    multiply_any(rows, columns, a, b, links, edge, COLUMNS, add);
    copy_sums(c, ldc, edge, COLUMNS, rows, columns);
}

// ---- the product -------------------------------------------------------------------------------

void tiled_multiply_amx(const struct packed_product *p)
{
    const bool few = p->m <= STREAMED_HEIGHT;
    const int64_t depth = few ? p->trans_b ? 2 * PACKED_DEPTH : LINK : PACKED_DEPTH;
    const int64_t height = cut_evenly(p->m, HEIGHT, 2 * SIDE);
    float *const packed_a = p->room, *const packed_b = p->room + MOST_A;
    _tile_loadconfig(&whole_tiles);
    for (int64_t i0 = 0; i0 < p->m; i0 += height)
        for (int64_t at = 0; at < p->k; at += depth) {
            const int64_t k = min_i64(p->k - at, depth), links = (k + LINK - 1) / LINK;
            const int64_t rows = min_i64(p->m - i0, height);
            const uint16_t *from_a = p->a, *from_b = p->b;
            const struct operand a = {.x = from_a +
                                           (p->trans_a ? at * p->lda + i0 : i0 * p->lda + at),
                                      .ld = p->lda,
                                      .along = !p->trans_a,
                                      .turns = p->trans_a};
            const struct operand b = {.x = from_b + (p->trans_b ? at : at * p->ldb),
                                      .ld = p->ldb,
                                      .along = p->trans_b,
                                      .turns = p->trans_b,
                                      .ahead = p->trans_b ? COLUMNS * p->ldb
                                               : few      ? LINK * p->ldb
                                                          : COLUMNS};
            pack_tiles(&a, packed_a, k, 0, rows);
            for (int64_t j = 0; j < p->n; j += COLUMNS) {
                const int64_t columns = min_i64(p->n - j, COLUMNS);
                pack_tiles(&b, packed_b, k, j, columns);
                for (int64_t i = 0; i < rows; i += (int64_t)2 * SIDE)
                    multiply_edges(min_i64(rows - i, 2 * SIDE), columns,
                                   packed_a + i / SIDE * links * TILE, packed_b, links,
                                   p->c + (i0 + i) * p->ldc + j, p->ldc, p->add || at);
            }
        }
    _tile_release();
}
