// SPDX-License-Identifier: Apache-2.0
// How attention's kernels see their operands: as tiles of rows of one head, loaded into shared memory.
// Inside kernels/cuda/ only.
//
// Operands pass through shared memory in slices of a head, so 37 KB are enough for any size of head.
// A thread holds 4 × 4 scores and, for every 64 elements of a head, 4 × 4 results.
#pragma once
#include "kernels/cuda/cuda_attention.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/numbers.h"

// Loops that load from shared memory, or into it, are not unrolled: two rounds at once would not fit into
// registers beside a thread's results.
#ifdef WEFT_EMULATE
#define UNROLL_NOT
#else
#define UNROLL_NOT _Pragma("unroll 1")
#endif

enum {
    TILE = 64, // queries or keys
    SLICE = 32,
    PANEL = 64, // elements of a head
    // Rows of shared memory begin 16 bytes apart modulo 128: threads that read four elements of
    // rows below each other meet different banks.
    SLICE_PITCH = SLICE + 4,
    PITCH = PANEL + 4,
    ACROSS = 16, // threads side by side, and below each other; each has 4 rows and 4 columns
    THREADS = ACROSS * ACROSS,
    MOST_PANELS = 4,
    BLOCKS = 2048, // at most, of the kernel that adds up over heads
};

// For each row its log-sum-exp, and the mean that the gradient of its softmax subtracts.
enum { ROW_LSE, ROW_MEAN, ROW_STATS };

// A block's shared memory.
struct room {
    union {
        float slice[2][TILE * SLICE_PITCH];
        float panel[TILE * PITCH];
    } u;
    float pairs[TILE * PITCH];       // [own rows, others]
    int32_t own[TILE], other[TILE];  // positions
    float row[ROW_STATS][TILE];      // of the side that are queries
    int64_t reach_first, reach_last; // the other side's positions that any own row may meet
    unsigned seen[TILE / WARP];
} __attribute__((aligned(16))); // four elements are read at a time

// One head's elements of some rows, as an operand holds them.
struct head_elements {
    void *data;
    enum dtype type;
    int64_t first, stride, width; // of its elements
};
// Up to TILE rows of one head. With a second pair of scores its elements follow those of the first.
struct head_rows {
    struct head_elements own, more;
    int n;
};

// Where a block is: one sample, one head of queries and its key head, a tile of either side.
struct block_place {
    int64_t b, h, g, first;
};

// ---- tiles -------------------------------------------------------------------------------------

DEVICE int across(void)
{
    return (int)threadIdx.x % ACROSS;
}

DEVICE int down(void)
{
    return (int)threadIdx.x / ACROSS;
}

DEVICE int rows_left(int64_t n, int64_t first)
{
    return n - first < TILE ? (int)(n - first) : TILE;
}

// Returns head h's elements from row `first` on; `pitch`: elements from a row to the next.
DEVICE struct head_elements part_of(const void *data, enum dtype type, int64_t first, int64_t pitch,
                                    int64_t h, int64_t width)
{
    struct head_elements p;
    p.data = (void *)(uintptr_t)data;
    p.type = type;
    p.first = first * pitch + h * width;
    p.stride = pitch;
    p.width = width;
    return p;
}

// Returns rows of queries in x, followed by those in `more`: q and qr, or their gradients.
DEVICE struct head_rows query_rows(const struct attention *a, const void *x, const void *more,
                                   const struct block_place *at, int64_t first)
{
    struct head_rows r;
    int64_t row = at->b * a->queries + first;
    r.own = part_of(x, a->dtype, row, a->q_pitch, at->h, a->d);
    r.more = part_of(more, a->dtype, row, a->heads * a->r, at->h, a->r);
    r.n = rows_left(a->queries, first);
    return r;
}

DEVICE struct head_rows key_rows(const struct attention *a, const struct block_place *at,
                                 int64_t first)
{
    struct head_rows r;
    int64_t row = at->b * a->keys + first;
    r.own = part_of(a->k, a->dtype, row, a->k_pitch, at->g, a->d);
    r.more = part_of(a->kr, a->dtype, row, a->r, 0, a->r);
    r.n = rows_left(a->keys, first);
    return r;
}

// Returns where the gradients of a tile of keys go; kr's is kept for each key head.
DEVICE struct head_rows key_grad_rows(const struct attention *a, float *dkr,
                                      const struct block_place *at)
{
    struct head_rows r;
    int64_t row = at->b * a->keys + at->first;
    r.own = part_of(a->dk, a->dtype, row, a->k_pitch, at->g, a->d);
    r.more = part_of(dkr, DT_F32, row, a->kv_heads * a->r, at->g, a->r);
    r.n = rows_left(a->keys, at->first);
    return r;
}

// Rows of the output or of its gradient.
DEVICE struct head_rows output_rows(const struct attention *a, const void *x,
                                    const struct block_place *at, int64_t first)
{
    struct head_rows r;
    r.own = part_of(x, a->dtype, at->b * a->queries + first, a->heads * a->e, at->h, a->e);
    r.more = part_of(NULL, a->dtype, 0, 0, 0, 0);
    r.n = rows_left(a->queries, first);
    return r;
}

// Rows of the values or of their gradient.
DEVICE struct head_rows value_rows(const struct attention *a, const void *x,
                                   const struct block_place *at, int64_t first)
{
    struct head_rows r;
    r.own = part_of(x, a->dtype, at->b * a->keys + first, a->v_pitch, at->g, a->e);
    r.more = part_of(NULL, a->dtype, 0, 0, 0, 0);
    r.n = rows_left(a->keys, first);
    return r;
}

DEVICE int64_t rows_width(const struct head_rows *x)
{
    return x->own.width + x->more.width;
}

DEVICE float rows_load(const struct head_rows *x, int row, int64_t col)
{
    if (col < x->own.width)
        return load_f32(x->own.data, x->own.type, x->own.first + row * x->own.stride + col);
    col -= x->own.width;
    return load_f32(x->more.data, x->more.type, x->more.first + row * x->more.stride + col);
}

DEVICE void rows_store(const struct head_rows *x, int row, int64_t col, float v)
{
    if (col < x->own.width) {
        store_f32(x->own.data, x->own.type, x->own.first + row * x->own.stride + col, v);
        return;
    }
    col -= x->own.width;
    store_f32(x->more.data, x->more.type, x->more.first + row * x->more.stride + col, v);
}

// Rows that a thread loads an element of before it waits for any of them.
enum { AHEAD = 4 };

// Loads columns [from, from + wide) of the rows; zeros where there are none. A thread has one column:
// whose it is, is asked once.
DEVICE void load_tile(float *to, int pitch, int wide, const struct head_rows *x, int64_t from)
{
    const int col = (int)threadIdx.x % wide, step = THREADS / wide;
    const bool there = from + col < rows_width(x), more = there && from + col >= x->own.width;
    const enum dtype type = x->own.type; // both pairs have one
    const int64_t stride = more ? x->more.stride : x->own.stride;
    const int64_t first = (more ? x->more.first - x->own.width : x->own.first) + from + col;
    const int64_t size = type == DT_F32 ? 4 : 2, by = step * stride * size;
    int r = (int)threadIdx.x / wide;
    const char *at =
        (const char *)(more ? x->more.data : x->own.data) + (first + r * stride) * size;
    UNROLL_NOT
    for (; r < TILE; r += AHEAD * step, at += AHEAD * by) {
        unsigned bits[AHEAD];
        UNROLL
        for (int i = 0; i < AHEAD; i++) {
            bits[i] = 0;
            if (there && r + i * step < x->n)
                bits[i] = load_bits(at + i * by, type, 0);
        }
        UNROLL
        for (int i = 0; i < AHEAD; i++)
            to[(r + i * step) * pitch + col] = bits_f32(bits[i], type);
    }
}
