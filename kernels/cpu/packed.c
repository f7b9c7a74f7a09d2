// SPDX-License-Identifier: Apache-2.0
// Products from packed operands. See packed.h. Compiled with -DVEC_ISA=avx2|avx512|avx512bf16.
//
// A tile of results stays in registers, beside a broadcast of a and two vectors of b, while a block
// of k passes. It has 6 × 16 results on AVX2: 12 independent sums, for two units that take four
// cycles each. On AVX-512, with twice the registers, it has 12 × 32. For this a is packed into
// panels of a tile's rows and b into panels of a tile's columns, in the order of k and however each
// is stored. So all four kinds of product run alike, and rows that are a multiple of 2 KB apart
// conflict in the caches only while they are packed.
//
//   b: PACKED_WIDTH columns × PACKED_DEPTH, packed at their first use, then read from L2 or L3; if
//      all rows of a are one block, no panel is needed again: only GROUP of them are kept, in L2
//   a: PACKED_HEIGHT rows × PACKED_DEPTH, in L2; every panel of b passes over it from L1
//
// Where all rows of a are one block and b's rows lie across its panels, the first tile that needs a
// panel packs it, and its multiply-adds hide that work. The tiles after it fetch what the next
// panel is made of. Otherwise packing takes a tenth of the time with 128 rows. With more blocks of
// a there is nothing to gain.
//
// With AVX512-BF16 a lane of a panel holds two elements that follow each other along k, in bf16, and
// one instruction multiplies both pairs of a lane and adds the two products to its sum: half the
// instructions and half the bytes. A last element without a second one is paired with 0.
#include "kernels/cpu/packed.h"

#include "kernels/cpu/packed_lanes.h"

// ---- packing -----------------------------------------------------------------------------------

// Lane (i, j), where i goes along k and j across the panels, is packed to out[j / width · stride +
// i · width + j % width]. Columns that the last panel lacks are 0. A row of a panel of a is written
// as VL lanes, more than it has, and the next row overwrites the surplus; so rows are written in
// order, and there is a gap behind each panel.
struct packing {
    float *out;
    int64_t stride; // from panel to panel
    const void *x;
    bool half; // x is in bf16
    int64_t ld;
    int64_t count, k, depth; // elements across the panels; elements and lanes along k
};

// Packs rows of a panel from `i0` on, a lane at a time; columns that it lacks are 0.
VFN void pack_slowly(const struct packing *p, int width, int64_t j0, int64_t i0, bool along,
                     bool half)
{
    float *out = p->out + j0 / width * p->stride;
    int64_t along_k = along ? 1 : p->ld, across = along ? p->ld : 1;
    for (int64_t i = i0; i < p->depth; i++)
        for (int64_t j = 0; j < width; j++) {
            int64_t at = i * EACH * along_k + (j0 + j) * across;
            int64_t next = i * EACH + 1 < p->k ? along_k : 0;
            uint32_t lane = j0 + j < p->count ? load_one(p->x, at, next, half) : 0;
            memcpy(out + i * width + j, &lane, sizeof lane);
        }
}

// Packs a panel from `count` rows of x, which lie along k.
VFN void pack_panel_along(const struct packing *p, int width, int64_t j, int64_t count, bool half)
{
    float *out = p->out + j / width * p->stride;
    int64_t i = 0;
    for (; i + VL <= p->k / EACH; i += VL) {
        for (int side = 0; side < width; side += VL) {
            vf r[VL];
#pragma GCC unroll 16
            for (int l = 0; l < VL; l++) {
                r[l] = (vf){0};
                if (side + l >= width || side + l >= count)
                    continue;
                int64_t at = (j + side + l) * p->ld + i * EACH;
                __builtin_prefetch(find_element(p->x, half, at + AHEAD), 0, 2);
                r[l] = load_along(p->x, at, half);
            }
            transpose(r);
#pragma GCC unroll 16
            for (int l = 0; l < VL; l++)
                v_store(out + (i + l) * width + side, r[l]);
        }
    }
    pack_slowly(p, width, j, i, true, half);
}

// Packs from rows that lie along k: x[j · ld + i].
VFN void pack_along(const struct packing *p, int width, bool half)
{
    int64_t j = 0;
    for (; j + width <= p->count; j += width)
        pack_panel_along(p, width, j, width, half);
    if (j < p->count)
        pack_panel_along(p, width, j, p->count - j, half);
}

// Packs the last panel, which lacks some of its width, from rows across the panels. By whole
// vectors if it has only such.
VFN void pack_rest_across(const struct packing *p, int width, int64_t j0, bool half)
{
    int64_t whole = (p->count - j0) / VL * VL;
    if (width % VL || !whole || j0 + whole < p->count) {
        pack_slowly(p, width, j0, 0, false, half);
        return;
    }
    float *out = p->out + j0 / width * p->stride;
    int64_t rows = p->k / EACH;
    for (int64_t i = 0; i < rows; i++)
        for (int side = 0; side < width; side += VL) {
            int64_t at = i * EACH * p->ld + j0 + side;
            v_store(out + i * width + side,
                    side < whole ? load_across(p->x, at, p->ld, half) : (vf){0});
        }
    pack_slowly(p, width, j0, rows, false, half);
}

// Packs from rows that lie across the panels: x[i · ld + j]. A row of a panel of a is no whole
// number of cache lines, so all of a's panels are packed at once: then each line is read once.
VFN void pack_across(const struct packing *p, int width, bool half)
{
    int64_t whole = p->count / width * width, rows = p->k / EACH;
    int64_t size = half ? 2 : 4, step = p->ld * size;
    rows -= rows && width % VL; // behind the last row's end there may be no VL lanes to load
    const int64_t group = width % VL ? whole : (int64_t)GROUP * width;
    for (int64_t j0 = 0; j0 < whole; j0 += group) {
        int64_t end = min_i64(j0 + group, whole);
        for (int64_t i = 0; i < rows; i++) {
            for (int64_t j = j0; j < end; j += width) {
                float *out = p->out + j / width * p->stride + i * width;
                const void *row = find_element(p->x, half, i * EACH * p->ld + j);
                if (i + FETCHED < rows)
                    fetch_row((const char *)row + FETCHED * EACH * step, step, width * size);
                for (int side = 0; side < width; side += VL)
                    v_store(out + side, load_across(row, side, p->ld, half));
            }
        }
        for (int64_t j = j0; j < end; j += width)
            pack_slowly(p, width, j, rows, false, half);
    }
    if (whole < p->count)
        pack_rest_across(p, width, whole, half);
}

// Packs rows of a or columns of b: width and dtype are constants in each call, so that each gets code
// of its own.
#define PACK(p, width, across)            \
    do {                                  \
        if ((across) && (p)->half)        \
            pack_across(p, width, true);  \
        else if (across)                  \
            pack_across(p, width, false); \
        else if ((p)->half)               \
            pack_along(p, width, true);   \
        else                              \
            pack_along(p, width, false);  \
    } while (0)

void PASTE(pack_rows_, VEC_ISA)(const struct rows_packing *r)
{
    const struct packed_product *p = r->p;
    int64_t at = p->trans_a ? r->at * p->lda + r->i : r->i * p->lda + r->at;
    struct packing k = {.out = r->out,
                        .stride = r->stride,
                        .x = find_element(p->a, p->half, at),
                        .half = p->half,
                        .ld = p->lda,
                        .count = r->rows,
                        .k = r->k,
                        .depth = (r->k + EACH - 1) / EACH};
    PACK(&k, ROWS, p->trans_a);
}

// ---- tiles -------------------------------------------------------------------------------------

// What a panel of b is packed from: element (i, j) of b, i along k, is x[i · ld + j].
struct source {
    const void *x;
    int64_t ld;
    bool half;
};

// c (+)= the first `rows` rows of a panel of a · the first `vectors` vectors of a panel of b. With
// `packs` it also packs the panel of b, from `from`. rows, vectors, packs and half are constants
// wherever this is called.
VFN void multiply(int rows, int vectors, bool packs, bool half, const struct source *from,
                  int64_t depth, const float *a, float *b, float *c, int64_t ldc, bool add)
{
    vf sum[ROWS][2] = {{{0}}};
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) {
        for (int line = 0; line < vectors * VL; line += LINE)
            __builtin_prefetch(c + i * ldc + line, 1);
        __builtin_prefetch(c + i * ldc + vectors * VL - 1, 1);
    }
    const char *x = packs ? from->x : NULL;
    const int64_t size = half ? 2 : 4, ld = packs ? from->ld : 0, step = ld * size;
#pragma GCC unroll 4
    for (int64_t p = 0; p < depth; p++) {
        float *row = b + p * COLUMNS;
        vf y[2] = {{0}};
        if (packs)
            fetch_row(x + FETCHED * EACH * step, step, COLUMNS * size);
#pragma GCC unroll 2
        for (int j = 0; j < vectors; j++) {
            y[j] = packs ? load_across(x, j * VL, ld, half) : v_load(row + j * VL);
            if (packs)
                v_store(row + j * VL, y[j]);
        }
        if (packs)
            x += EACH * step;
#pragma GCC unroll 12
        for (int i = 0; i < rows; i++) {
            vf z = load_everywhere(a + p * ROWS + i);
#pragma GCC unroll 2
            for (int j = 0; j < vectors; j++)
                sum[i][j] = multiply_add(z, y[j], sum[i][j]);
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int j = 0; j < vectors; j++) {
            float *to = c + i * ldc + j * VL;
            v_store(to, add ? v_load(to) + sum[i][j] : sum[i][j]);
        }
}

// Multiplies a tile of rows × columns at the lower or the right edge of the result.
static void multiply_edge(int64_t depth, const float *a, float *b, float *c, int64_t ldc, bool add,
                          int64_t rows, int64_t columns)
{
    float tile[ROWS * COLUMNS];
    if (columns <= VL)
        multiply(ROWS, 1, false, false, NULL, depth, a, b, tile, COLUMNS, false);
    else
        multiply(ROWS, 2, false, false, NULL, depth, a, b, tile, COLUMNS, false);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            float *to = c + i * ldc + j, x = tile[i * COLUMNS + j];
            *to = add ? *to + x : x;
        }
}

// Multiplies a tile of rows × columns. The sizes listed need no detour through a buffer; when an
// even number of rows is cut evenly, the last tile mostly has an even number too.
static void multiply_any(int64_t depth, const float *a, float *b, float *c, int64_t ldc, bool add,
                         int64_t rows, int64_t columns)
{
#define WHOLE(rows, vectors)                                                   \
    case (rows)*COLUMNS + (vectors)*VL:                                        \
        multiply(rows, vectors, false, false, NULL, depth, a, b, c, ldc, add); \
        return;
    switch (rows * COLUMNS + columns) {
        WHOLE(ROWS, 2)
        WHOLE(ROWS, 1)
        WHOLE(4, 2)
        WHOLE(3, 2)
        WHOLE(2, 2)
        WHOLE(1, 2)
#if defined(__AVX512F__)
        WHOLE(10, 2)
        WHOLE(8, 2)
        WHOLE(6, 2)
#endif
    default:
        multiply_edge(depth, a, b, c, ldc, add, rows, columns);
    }
#undef WHOLE
}

// ---- blocks ------------------------------------------------------------------------------------

struct product_block {
    const struct packed_product *p;
    int64_t i, rows, j, columns, at, k;
    int64_t depth; // lanes along k
    float *a, *b;
    int64_t stride_a, stride_b; // from panel to panel
    bool once;                  // a has one block: no other one reads the panels of b
};

// Returns the packed panel of b at column j of the block.
static float *find_panel(const struct product_block *w, int64_t j)
{
    int64_t panel = j / COLUMNS;
    return w->b + (w->once ? panel % GROUP : panel) * w->stride_b;
}

static const void *find_source(const struct product_block *w, int64_t j)
{
    const struct packed_product *p = w->p;
    j += w->j;
    return find_element(p->b, p->half, p->trans_b ? j * p->ldb + w->at : w->at * p->ldb + j);
}

static void pack_b(const struct product_block *w, int64_t first, int64_t columns)
{
    const struct packed_product *p = w->p;
    struct packing k = {.out = find_panel(w, first),
                        .stride = w->stride_b,
                        .x = find_source(w, first),
                        .half = p->half,
                        .ld = p->ldb,
                        .count = columns,
                        .k = w->k,
                        .depth = w->depth};
    PACK(&k, COLUMNS, !p->trans_b);
}

// Prefetches into L2 tile i's share of the rows from which the panel behind `from` will be packed.
VFN void fetch_next(const struct product_block *w, const struct source *from, int64_t i)
{
    int64_t tiles = w->rows / ROWS, each = (w->k + tiles - 1) / tiles;
    int64_t size = from->half ? 2 : 4, end = min_i64((i + 1) * each, w->k);
    const char *next = (const char *)from->x + COLUMNS * size;
    for (int64_t row = i * each; row < end; row++)
        for (int64_t at = 0; at < COLUMNS * size; at += LINE * 4)
            __builtin_prefetch(next + row * from->ld * size + at, 0, 2);
}

// Multiplies the panel of b at column j of the block with all panels of a. With `from` it also
// packs the panel of b.
static void multiply_panel(const struct product_block *w, int64_t j, const struct source *from)
{
    const struct packed_product *p = w->p;
    float *b = find_panel(w, j);
    int64_t columns = min_i64(w->columns - j, COLUMNS);
    bool add = p->add || w->at;
    for (int64_t i = 0; i < w->rows; i += ROWS) {
        const float *a = w->a + i / ROWS * w->stride_a;
        float *c = p->c + (w->i + i) * p->ldc + w->j + j;
        if (from)
            fetch_next(w, from, i / ROWS);
        if (from && i == 0 && from->half)
            multiply(ROWS, 2, true, true, from, w->depth, a, b, c, p->ldc, add);
        else if (from && i == 0)
            multiply(ROWS, 2, true, false, from, w->depth, a, b, c, p->ldc, add);
        else
            multiply_any(w->depth, a, b, c, p->ldc, add, min_i64(w->rows - i, ROWS), columns);
    }
}

// Multiplies GROUP panels of b from column `first` of the block on, or those that are left.
static void multiply_group(const struct product_block *w, int64_t first)
{
    const struct packed_product *p = w->p;
    int64_t columns = min_i64(w->columns - first, GROUP * COLUMNS);
    bool packs_b =
        w->once && !p->trans_b && columns % COLUMNS == 0 && w->rows >= ROWS && w->k % EACH == 0;
    if (w->i == 0 && !packs_b)
        pack_b(w, first, columns);
    for (int64_t j = first; j < first + columns; j += COLUMNS) {
        struct source from = {find_source(w, j), p->ldb, p->half};
        multiply_panel(w, j, packs_b ? &from : NULL);
    }
}

// ---- the product -------------------------------------------------------------------------------

void PASTE(packed_multiply_, VEC_ISA)(const struct packed_product *p)
{
    if (p->streams) {
        PASTE(streamed_multiply_, VEC_ISA)(p);
        return;
    }
    int64_t height = cut_evenly(p->m, PACKED_HEIGHT, ROWS);
    int64_t width = cut_evenly(p->n, PACKED_WIDTH, COLUMNS);
    struct product_block w = {.p = p, .b = p->room, .once = p->m <= height};
    for (w.j = 0; w.j < p->n; w.j += width)
        for (w.at = 0; w.at < p->k; w.at += PACKED_DEPTH * EACH)
            for (w.i = 0; w.i < p->m; w.i += height) {
                w.columns = min_i64(p->n - w.j, width);
                w.k = min_i64(p->k - w.at, PACKED_DEPTH * EACH);
                w.depth = (w.k + EACH - 1) / EACH;
                w.rows = min_i64(p->m - w.i, height);
                w.stride_a = w.depth * ROWS + PACKED_GAP;
                w.stride_b = w.depth * COLUMNS + PACKED_GAP;
                w.a = p->room + (PACKED_WIDTH / COLUMNS) * (PACKED_DEPTH * COLUMNS + PACKED_GAP);
                PASTE(pack_rows_, VEC_ISA)
                (&(struct rows_packing){p, w.i, w.rows, w.at, w.k, w.a, w.stride_a});
                for (int64_t first = 0; first < w.columns; first += (int64_t)GROUP * COLUMNS)
                    multiply_group(&w, first);
            }
}
