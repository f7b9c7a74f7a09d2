// SPDX-License-Identifier: Apache-2.0
// EMBED and its gradient: rows of a table by ids.
//
// Id attr.start is the table's first row. An id outside the rows of this rank's table belongs to
// another rank: its output is 0 and its gradient is dropped. EMBED only copies rows, so it is bound
// by memory.
//
// EMBED_GRAD adds up the gradients of all places that have the same id, without atomics and in an
// order that only ids and shapes decide. Ids repeat: one word may be a twentieth of a text, or all
// of it. So the pairs (row of the table, place) are first sorted by row, with a stable radix sort
// of SORT_BITS bits a pass. 128k words take two passes of 16 bytes an id each, which is little
// beside the gradient itself. Then each tile of the sorted pairs is given to one block. It reads
// the gradients of its pairs once and writes each row that begins and ends in the tile; of a row
// that began in an earlier tile it leaves a partial sum. A second kernel finishes the rows that
// cross from tile to tile: it adds the pairs of the tile where the row begins and the partial sums
// of the tiles behind it. So each row of the table is written once, and no row, however frequent
// its id, is the work of one block alone.
#include <string.h>

#include "common/op/parts.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/team.h"

enum {
    THREADS = 256,
    WARPS = THREADS / WARP,
    ROUNDS = SORT_CHUNK / THREADS, // ids of a thread in the sort
    DIGITS = 1 << SORT_BITS,
    TILE_THREADS = 128, // packs of a row, in the sums
    BATCH = 128,        // pairs whose numbers lie in shared memory
    AHEAD = 8,          // pairs that are loaded at once
    WIDE = 4,           // elements of a pack, where the alignment of rows allows packs
    MOST_BLOCKS = 0x7fffffff
};

// ---- EMBED -------------------------------------------------------------------------------------

struct embed {
    const int32_t *ids;
    const void *table;
    void *out;
    int64_t n, rows, start, width; // width: of a row, in units
};

DEVICE int64_t row_of(const int32_t *ids, int64_t i, int64_t start, int64_t rows)
{
    int64_t row = (int64_t)ids[i] - start;
    return row >= 0 && row < rows ? row : -1;
}

// A unit is as many bytes as an access moves.
#define EMBED(name, type, zero)                                                          \
    KERNEL(THREADS) name(struct embed c)                                                 \
    {                                                                                    \
        kernel_begin();                                                                  \
        const int64_t step = (int64_t)gridDim.x * THREADS;                               \
        for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < c.n * c.width; \
             i += step) {                                                                \
            const int64_t at = i / c.width, row = row_of(c.ids, at, c.start, c.rows);    \
            ((type *)c.out)[i] =                                                         \
                row < 0 ? zero : ((const type *)c.table)[row * c.width + i % c.width];   \
        }                                                                                \
    }

EMBED(embed_2, uint16_t, 0)
EMBED(embed_4, uint32_t, 0)
EMBED(embed_16, uint4, make_uint4(0, 0, 0, 0))

static int run_embed(struct stream_q *q, const struct op_call *c, struct embed *m, struct err *e)
{
    size_t size = dtype_size(c->in[1].dtype), bytes = (size_t)m->width * size;
    bool whole = bytes % 16 == 0 && (uintptr_t)m->table % 16 == 0 && (uintptr_t)m->out % 16 == 0;
    m->width = (int64_t)(bytes / (whole ? 16 : size));
    unsigned grid = launch_blocks(m->n * m->width, THREADS, MOST_BLOCKS);
    if (whole)
        LAUNCH(embed_16, grid, THREADS, 0, q, *m);
    else if (size == 4)
        LAUNCH(embed_4, grid, THREADS, 0, q, *m);
    else
        LAUNCH(embed_2, grid, THREADS, 0, q, *m);
    return op_launched(q, c, e);
}

// ---- EMBED_GRAD: sorting -----------------------------------------------------------------------

// One pass sorts by the `bits` bits of the key above bit `shift`. A block sorts one chunk of the
// ids, and each of its warps a stretch of that chunk, so that pairs of equal digits keep their
// order.
struct sort {
    const int32_t *ids; // of the first pass, which makes the pairs from them; null later
    const unsigned *keys_in, *places_in;
    unsigned *keys, *places;
    unsigned *counts, *totals; // [digit][chunk]: first counts, then sums of those before; [digit]
    int64_t n, rows, start, chunks;
    int bits, shift;
};

DEVICE unsigned key_of(const struct sort *c, int64_t i)
{
    if (!c->ids)
        return c->keys_in[i];
    int64_t row = row_of(c->ids, i, c->start, c->rows);
    return (unsigned)(row < 0 ? c->rows : row);
}

// Returns the number of the id on which a thread works in a round.
DEVICE int64_t id_of(int round)
{
    return (int64_t)blockIdx.x * SORT_CHUNK + threadIdx.x / WARP * (ROUNDS * WARP) + round * WARP +
           threadIdx.x % WARP;
}

// Returns which lanes, of those with `here`, have the same digit. All lanes of the warp must call.
DEVICE unsigned same_digit(unsigned digit, int bits, bool here)
{
    unsigned same = __ballot_sync(WARP_ALL, here);
    for (int i = 0; i < bits; i++) {
        unsigned ones = __ballot_sync(WARP_ALL, digit >> i & 1);
        same &= digit >> i & 1 ? ones : ~ones;
    }
    return same;
}

// Counts how often each digit occurs in each warp's stretch.
DEVICE void count_digits(const struct sort *c, unsigned count[WARPS][DIGITS])
{
    const int warp = threadIdx.x / WARP, digits = 1 << c->bits;
    for (int i = threadIdx.x; i < WARPS * digits; i += THREADS)
        count[i / digits][i % digits] = 0;
    __syncthreads();
    for (int round = 0; round < ROUNDS; round++) {
        const int64_t i = id_of(round);
        const bool here = i < c->n;
        const unsigned digit = here ? key_of(c, i) >> c->shift & (digits - 1) : 0;
        const unsigned same = same_digit(digit, c->bits, here);
        if (here && !(same & lanes_below()))
            count[warp][digit] += __popc(same);
        __syncwarp();
    }
    __syncthreads();
}

KERNEL(THREADS) sort_count(struct sort c)
{
    kernel_begin();
    __shared__ unsigned count[WARPS][DIGITS];
    count_digits(&c, count);
    for (int digit = threadIdx.x; digit < 1 << c.bits; digit += THREADS) {
        unsigned all = 0;
        for (int warp = 0; warp < WARPS; warp++)
            all += count[warp][digit];
        c.counts[digit * c.chunks + blockIdx.x] = all;
    }
}

// Returns the sum of x over the lanes below this one; *all: the sum over the whole warp.
DEVICE unsigned before_in_warp(unsigned x, unsigned *all)
{
    unsigned sum = x;
    for (int delta = 1; delta < WARP; delta *= 2) {
        unsigned other = __shfl_up_sync(WARP_ALL, sum, delta);
        sum += (int)(threadIdx.x % WARP) >= delta ? other : 0;
    }
    *all = __shfl_sync(WARP_ALL, sum, WARP - 1);
    return sum - x;
}

// A warp adds up one digit's chunks.
KERNEL(THREADS) sort_sum(struct sort c)
{
    kernel_begin();
    const int64_t digit = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (digit >> c.bits)
        return; // whole warps
    unsigned before = 0, all;
    for (int64_t i = threadIdx.x % WARP; i - threadIdx.x % WARP < c.chunks; i += WARP) {
        unsigned *at = &c.counts[digit * c.chunks + i];
        unsigned sum = before_in_warp(i < c.chunks ? *at : 0, &all);
        if (i < c.chunks)
            *at = before + sum;
        before += all;
    }
    if (threadIdx.x % WARP == 0)
        c.totals[digit] = before;
}

KERNEL(THREADS) sort_move(struct sort c)
{
    kernel_begin();
    __shared__ unsigned next[WARPS][DIGITS], first[DIGITS];
    const int warp = threadIdx.x / WARP, digits = 1 << c.bits;
    count_digits(&c, next);
    if (warp == 0) {
        unsigned before = 0, all;
        for (int i = threadIdx.x; i - (int)threadIdx.x < digits; i += WARP) {
            unsigned sum = before_in_warp(i < digits ? c.totals[i] : 0, &all);
            if (i < digits)
                first[i] = before + sum;
            before += all;
        }
    }
    __syncthreads();
    for (int digit = threadIdx.x; digit < digits; digit += THREADS) {
        unsigned at = first[digit] + c.counts[digit * c.chunks + blockIdx.x];
        for (int i = 0; i < WARPS; i++) {
            unsigned mine = next[i][digit];
            next[i][digit] = at;
            at += mine;
        }
    }
    __syncthreads();
    for (int round = 0; round < ROUNDS; round++) {
        const int64_t i = id_of(round);
        const bool here = i < c.n;
        const unsigned key = here ? key_of(&c, i) : 0, digit = key >> c.shift & (digits - 1);
        const unsigned same = same_digit(digit, c.bits, here);
        const unsigned to = next[warp][digit] + __popc(same & lanes_below());
        __syncwarp();
        if (here) {
            c.keys[to] = key;
            c.places[to] = c.ids ? (unsigned)i : c.places_in[i];
            if (!(same & lanes_below()))
                next[warp][digit] += __popc(same);
        }
        __syncwarp();
    }
}

// ---- EMBED_GRAD: sums --------------------------------------------------------------------------

struct sums {
    const unsigned *keys, *places; // sorted
    const void *from;
    enum dtype from_type, to_type;
    void *to;
    float *partials; // [tile][width]
    int64_t n, rows, width, tile, slices;
    bool accumulate;
};

// Finds where a key begins in [begin, end) of the sorted keys or, if `behind`, where it ends.
DEVICE int64_t find_key(const unsigned *keys, int64_t begin, int64_t end, unsigned key, bool behind)
{
    while (begin < end) {
        int64_t at = begin + (end - begin) / 2;
        bool before = behind ? keys[at] <= key : keys[at] < key;
        begin = before ? at + 1 : begin;
        end = before ? end : at;
    }
    return begin;
}

// A tile of the sorted pairs, [begin, end). Its own block sums [begin, own); the pairs from `own`
// on belong to a row that continues in the next tile. begun: the first pairs belong to a row that
// began in an earlier tile.
struct tile {
    int64_t begin, own, end;
    bool begun;
};

DEVICE struct tile tile_of(const struct sums *c, int64_t tile)
{
    struct tile t;
    t.begin = tile * c->tile;
    t.end = c->n - t.begin < c->tile ? c->n : t.begin + c->tile;
    t.own = t.end;
    t.begun = t.begin > 0 && c->keys[t.begin - 1] == c->keys[t.begin];
    const unsigned last = c->keys[t.end - 1];
    if (t.end < c->n && c->keys[t.end] == last && !(t.begun && c->keys[t.begin] == last))
        t.own = find_key(c->keys, t.begin, t.end, last, false);
    return t;
}

DEVICE void add_to(float *sum, const void *from, enum dtype t, int64_t i, int wide)
{
    float v[LANES] = {0};
    pack_load(v, from, t, i, wide);
    for (int k = 0; k < wide; k++)
        sum[k] += v[k];
}

DEVICE void put_row(const struct sums *c, int wide, int64_t row, int64_t col, float *sum)
{
    const int64_t at = row * c->width + col;
    if (c->accumulate)
        add_to(sum, c->to, c->to_type, at, wide);
    pack_store(c->to, c->to_type, at, wide, sum);
}

// Stores the sum of a row after its last pair in the tile, and begins the next row at 0.
DEVICE void end_row(const struct sums *c, int wide, bool begun, int64_t tile, unsigned key,
                    int64_t col, float *sum)
{
    if (begun && key == c->keys[tile * c->tile])
        pack_store(c->partials, DT_F32, tile * c->width + col, wide, sum);
    else
        put_row(c, wide, key, col, sum);
    for (int k = 0; k < wide; k++)
        sum[k] = 0;
}

// Adds n pairs that lie in shared memory; keys[n] is the key behind them.
DEVICE void add_batch(const struct sums *c, int wide, bool begun, int64_t tile,
                      const unsigned *keys, const unsigned *places, int n, int64_t col, float *sum)
{
    for (int i = 0; i < n; i += AHEAD) {
        float v[AHEAD][LANES] = {{0}};
        UNROLL
        for (int k = 0; k < AHEAD; k++)
            if (i + k < n)
                pack_load(v[k], c->from, c->from_type, places[i + k] * c->width + col, wide);
        UNROLL
        for (int k = 0; k < AHEAD; k++)
            if (i + k < n) {
                for (int j = 0; j < wide; j++)
                    sum[j] += v[k][j];
                if (keys[i + k] != keys[i + k + 1])
                    end_row(c, wide, begun, tile, keys[i + k], col, sum);
            }
    }
}

DEVICE void sum_tiles(const struct sums *c, int wide)
{
    __shared__ unsigned keys[BATCH + 1], places[BATCH];
    const int64_t tile = blockIdx.x / c->slices;
    const int64_t col = (blockIdx.x % c->slices * TILE_THREADS + threadIdx.x) * wide;
    const struct tile t = tile_of(c, tile);
    // The ids of other ranks have the largest key, c->rows, and so are sorted to the end.
    const int64_t end = find_key(c->keys, t.begin, t.own, (unsigned)c->rows, false);
    float sum[LANES] = {0};
    for (int64_t at = t.begin; at < end; at += BATCH) {
        const int n = end - at < BATCH ? (int)(end - at) : BATCH;
        for (int i = threadIdx.x; i < n; i += TILE_THREADS) {
            keys[i] = c->keys[at + i];
            places[i] = c->places[at + i];
        }
        if (threadIdx.x == 0) // `rows` is no row's number: it ends the last row
            keys[n] = at + n < end ? c->keys[at + n] : (unsigned)c->rows;
        __syncthreads();
        if (col < c->width)
            add_batch(c, wide, t.begun, tile, keys, places, n, col, sum);
        __syncthreads();
    }
}

// Sums a row that begins in this tile and ends in a later one. The lanes of a warp take
// neighbouring packs of the row, and the warps of the block share what is to be added.
DEVICE void sum_crossing(const struct sums *c, int wide)
{
    __shared__ float part[WARPS][WARP * WIDE];
    const int lane = threadIdx.x % WARP, share = threadIdx.x / WARP;
    const int64_t tile = blockIdx.x / c->slices;
    const int64_t col = (blockIdx.x % c->slices * WARP + lane) * wide;
    const struct tile t = tile_of(c, tile);
    const unsigned key = t.own < t.end ? c->keys[t.own] : (unsigned)c->rows;
    if (key == c->rows)
        return; // all threads of the block alike
    const int64_t end = find_key(c->keys, t.end, c->n, key, true);
    const int64_t last = tile + (end - t.end + c->tile - 1) / c->tile;
    float sum[LANES] = {0};
    for (int64_t i = t.own + share; i < t.end && col < c->width; i += WARPS)
        add_to(sum, c->from, c->from_type, c->places[i] * c->width + col, wide);
    for (int64_t i = tile + 1 + share; i <= last && col < c->width; i += WARPS)
        add_to(sum, c->partials, DT_F32, i * c->width + col, wide);
    for (int k = 0; k < wide; k++)
        part[share][k * WARP + lane] = sum[k];
    __syncthreads();
    if (share == 0 && col < c->width) {
        for (int i = 1; i < WARPS; i++)
            for (int k = 0; k < wide; k++)
                sum[k] += part[i][k * WARP + lane];
        put_row(c, wide, key, col, sum);
    }
}

#define SUMS(suffix, wide)                                 \
    KERNEL(TILE_THREADS) sum_tiles_##suffix(struct sums c) \
    {                                                      \
        kernel_begin();                                    \
        sum_tiles(&c, wide);                               \
    }                                                      \
    KERNEL(THREADS) sum_crossing_##suffix(struct sums c)   \
    {                                                      \
        kernel_begin();                                    \
        sum_crossing(&c, wide);                            \
    }

SUMS(pack, WIDE)
SUMS(element, 1)

// ---- EMBED_GRAD: launches ----------------------------------------------------------------------

static void sort_ids(struct stream_q *q, const struct embed *m, const struct embed_parts *p,
                     char *scratch)
{
    struct sort c;
    memset(&c, 0, sizeof c);
    c.ids = m->ids;
    c.n = m->n;
    c.rows = m->rows;
    c.start = m->start;
    c.chunks = p->chunks;
    c.bits = p->bits;
    c.counts = (unsigned *)(void *)(scratch + p->counts);
    c.totals = (unsigned *)(void *)(scratch + p->totals);
    for (int pass = 0; pass < p->passes; pass++) {
        c.shift = pass * p->bits;
        c.keys = (unsigned *)(void *)(scratch + p->keys[pass % 2]);
        c.places = (unsigned *)(void *)(scratch + p->places[pass % 2]);
        LAUNCH(sort_count, (unsigned)p->chunks, THREADS, 0, q, c);
        LAUNCH(sort_sum, launch_blocks((int64_t)1 << p->bits, WARPS, MOST_BLOCKS), THREADS, 0, q,
               c);
        LAUNCH(sort_move, (unsigned)p->chunks, THREADS, 0, q, c);
        c.ids = NULL;
        c.keys_in = c.keys;
        c.places_in = c.places;
    }
}

static void sum_rows(struct stream_q *q, const struct op_call *call, const struct embed *m,
                     const struct embed_parts *p, char *scratch)
{
    struct sums c;
    int last = (p->passes - 1) % 2;
    memset(&c, 0, sizeof c);
    c.keys = (const unsigned *)(void *)(scratch + p->keys[last]);
    c.places = (const unsigned *)(void *)(scratch + p->places[last]);
    c.partials = (float *)(void *)(scratch + p->partials);
    c.from = call->in[1].data;
    c.from_type = call->in[1].dtype;
    c.to = call->out[0].data;
    c.to_type = call->out[0].dtype;
    c.n = m->n;
    c.rows = m->rows;
    c.width = m->width;
    c.tile = p->tile;
    c.accumulate = call->accumulate;
    const bool packs = pack_aligned(c.from) && pack_aligned(c.to) && c.width % WIDE == 0;
    const int64_t wide = packs ? (int64_t)WIDE : 1;
    c.slices = (c.width + TILE_THREADS * wide - 1) / (TILE_THREADS * wide);
    const unsigned tiles = (unsigned)(p->tiles * c.slices);
    if (packs)
        LAUNCH(sum_tiles_pack, tiles, TILE_THREADS, 0, q, c);
    else
        LAUNCH(sum_tiles_element, tiles, TILE_THREADS, 0, q, c);
    c.slices = (c.width + WARP * wide - 1) / (WARP * wide);
    const unsigned crossings = (unsigned)(p->tiles * c.slices);
    if (packs)
        LAUNCH(sum_crossing_pack, crossings, THREADS, 0, q, c);
    else
        LAUNCH(sum_crossing_element, crossings, THREADS, 0, q, c);
}

static int run_embed_grad(struct stream_q *q, const struct op_call *c, const struct embed *m,
                          struct err *e)
{
    if (m->n > 0x7fffffff || m->rows > 0x7ffffffe)
        return op_refuse(c, e, "at most 2^31 ids and rows");
    const struct embed_parts p = embed_parts_of(m->n, m->rows, m->width);
    PRE(p.bytes <= c->workspace_bytes);
    size_t bytes = (size_t)shape_count(&c->out[0].shape) * dtype_size(c->out[0].dtype);
    int rc = 0;
    if (!c->accumulate)
        rc = CUDA(q->device, q, e, cudaMemsetAsync(c->out[0].data, 0, bytes, q->stream));
    if (rc)
        return rc;
    sort_ids(q, m, &p, (char *)c->workspace);
    sum_rows(q, c, m, &p, (char *)c->workspace);
    return op_launched(q, c, e);
}

int op_embed(struct stream_q *q, const struct op_call *c, struct err *e)
{
    const bool grad = c->op == OP_EMBED_GRAD;
    const struct tensor *table = grad ? &c->out[0] : &c->in[1];
    const struct tensor *rows = grad ? &c->in[1] : &c->out[0];
    struct embed m;
    int rc = op_check_embed(c, e);
    if (rc)
        return rc;
    m.ids = (const int32_t *)c->in[0].data;
    m.table = table->data;
    m.out = rows->data;
    m.n = shape_count(&c->in[0].shape);
    m.rows = table->shape.dim[0];
    m.width = op_embed_width(&table->shape);
    m.start = c->attr->start;
    return grad ? run_embed_grad(q, c, &m, e) : run_embed(q, c, &m, e);
}
