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

#include "kernels/cpu/simd.h"

_Static_assert(VL == 8 || VL == 16, "made for AVX2 and AVX-512");
enum {
    ROWS = VL == 8 ? 6 : 12, // of a tile
    COLUMNS = 2 * VL,
    LINE = 16,            // floats of a cache line
    GROUP = 64 / COLUMNS, // panels of b that are packed together, so that whole lines are read
    FETCHED = 8,          // how many rows ahead b is prefetched
    AHEAD = 4 * VL,       // how many elements ahead along a row
#if defined(__AVX512BF16__)
    EACH = 2 // elements along k in a lane of a panel
#else
    EACH = 1
#endif
};

#define PASTE_(a, b) a##b
#define PASTE(a, b)  PASTE_(a, b)

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

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

// The lane that starts at element i; its second element, if there is one, is `next` behind that.
VFN uint32_t load_one(const void *x, int64_t i, int64_t next, bool half)
{
    uint32_t bits;
    if (!half) {
        memcpy(&bits, (const float *)x + i, sizeof bits);
        return bits;
    }
    bits = ((const uint16_t *)x)[i];
    if (EACH == 1)
        return bits << 16;
    return next ? bits | (uint32_t)((const uint16_t *)x)[i + next] << 16 : bits;
}

#if defined(__AVX512F__)
VFN vu load_bf16(const uint16_t *x)
{
    __m256i bits;
    memcpy(&bits, x, sizeof bits);
    return (vu)_mm512_cvtepu16_epi32(bits);
}
#else
VFN vu load_bf16(const uint16_t *x)
{
    __m128i bits;
    memcpy(&bits, x, sizeof bits);
    return (vu)_mm256_cvtepu16_epi32(bits);
}
#endif

// VL lanes beside each other across the panels, from element i on; rows along k are ld apart.
VFN vf load_across(const void *x, int64_t i, int64_t ld, bool half)
{
    const uint16_t *first = (const uint16_t *)x + i;
    if (!half)
        return v_load((const float *)x + i);
    if (EACH == 1)
        return (vf)(load_bf16(first) << 16);
    return (vf)(load_bf16(first) | load_bf16(first + ld) << 16);
}

// VL lanes that follow each other along k, from element i on.
VFN vf load_along(const void *x, int64_t i, bool half)
{
    vf lanes;
    if (half && EACH == 1)
        return load_across(x, i, 0, true);
    memcpy(&lanes, find_element(x, half, i), sizeof lanes); // pairs lie at a multiple of 2 bytes
    return lanes;
}

// Fetches that much of each of the rows, `step` bytes apart, that a row of lanes is made of.
VFN void fetch_row(const char *row, int64_t step, int64_t bytes)
{
    for (int each = 0; each < EACH; each++)
        for (int64_t at = 0; at < bytes; at += LINE * 4)
            __builtin_prefetch(row + each * step + at);
}

#if defined(__AVX512F__)
#define LOW(a, b)         (vf) _mm512_unpacklo_ps((__m512)(a), (__m512)(b))
#define HIGH(a, b)        (vf) _mm512_unpackhi_ps((__m512)(a), (__m512)(b))
#define PAIRS(a, b, k)    (vf) _mm512_shuffle_ps((__m512)(a), (__m512)(b), k)
#define QUARTERS(a, b, k) (vf) _mm512_shuffle_f32x4((__m512)(a), (__m512)(b), k)
#else
#define LOW(a, b)       (vf) _mm256_unpacklo_ps((__m256)(a), (__m256)(b))
#define HIGH(a, b)      (vf) _mm256_unpackhi_ps((__m256)(a), (__m256)(b))
#define PAIRS(a, b, k)  (vf) _mm256_shuffle_ps((__m256)(a), (__m256)(b), k)
#define HALVES(a, b, k) (vf) _mm256_permute2f128_ps((__m256)(a), (__m256)(b), k)
#endif

// Transposes the 4 × 4 squares within each 128 bits of the vectors, then moves the squares.
VFN void transpose(vf r[VL])
{
    vf s[VL], t[VL];
    for (int i = 0; i < VL; i += 2) {
        s[i] = LOW(r[i], r[i + 1]);
        s[i + 1] = HIGH(r[i], r[i + 1]);
    }
    for (int i = 0; i < VL; i += 4)
        for (int j = 0; j < 2; j++) {
            t[i + 2 * j] = PAIRS(s[i + j], s[i + j + 2], 0x44);
            t[i + 2 * j + 1] = PAIRS(s[i + j], s[i + j + 2], 0xee);
        }
    for (int i = 0; i < 4; i++) {
#if defined(__AVX512F__)
        vf even[2], odd[2]; // quarters of rows i, i + 4; i + 8, i + 12
        for (int j = 0; j < 2; j++) {
            even[j] = QUARTERS(t[i + 8 * j], t[i + 8 * j + 4], 0x88);
            odd[j] = QUARTERS(t[i + 8 * j], t[i + 8 * j + 4], 0xdd);
        }
        r[i] = QUARTERS(even[0], even[1], 0x88);
        r[i + 4] = QUARTERS(odd[0], odd[1], 0x88);
        r[i + 8] = QUARTERS(even[0], even[1], 0xdd);
        r[i + 12] = QUARTERS(odd[0], odd[1], 0xdd);
#else
        r[i] = HALVES(t[i], t[i + 4], 0x20);
        r[i + 4] = HALVES(t[i], t[i + 4], 0x31);
#endif
    }
}

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

// ---- tiles -------------------------------------------------------------------------------------

// What a panel of b is packed from: element (i, j) of b, i along k, is x[i · ld + j].
struct source {
    const void *x;
    int64_t ld;
    bool half;
};

VFN vf load_everywhere(const float *x)
{
#if defined(__AVX512F__)
    return (vf)_mm512_set1_ps(*x);
#else
    return (vf)_mm256_broadcast_ss(x);
#endif
}

// a · b, lane by lane, added to c.
VFN vf multiply_add(vf a, vf b, vf c)
{
#if defined(__AVX512BF16__)
    return (vf)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
#else
    return v_fma(a, b, c);
#endif
}

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
        WHOLE(2, 2)
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

static void pack_a(const struct product_block *w)
{
    const struct packed_product *p = w->p;
    int64_t at = p->trans_a ? w->at * p->lda + w->i : w->i * p->lda + w->at;
    struct packing k = {.out = w->a,
                        .stride = w->stride_a,
                        .x = find_element(p->a, p->half, at),
                        .half = p->half,
                        .ld = p->lda,
                        .count = w->rows,
                        .k = w->k,
                        .depth = w->depth};
    PACK(&k, ROWS, p->trans_a);
}

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

void PASTE(packed_multiply_, VEC_ISA)(const struct packed_product *p)
{
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
                pack_a(&w);
                for (int64_t first = 0; first < w.columns; first += (int64_t)GROUP * COLUMNS)
                    multiply_group(&w, first);
            }
}
