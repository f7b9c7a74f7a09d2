// SPDX-License-Identifier: Apache-2.0
// Attention on tiles of rows: products, and which query sees which key. Inside kernels/cuda/ only.
#pragma once
#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/philox.h"

// ---- products ----------------------------------------------------------------------------------

DEVICE float4 four_at(const float *p)
{
    return *(const float4 *)(const void *)p;
}

DEVICE float add_dot(float to, float4 u, float4 v)
{
    return mad(u.w, v.w, mad(u.z, v.z, mad(u.y, v.y, mad(u.x, v.x, to))));
}

// out[i][j] = row 4·down + i of x · row across + 16·j of y.
DEVICE void products(float out[4][4], struct room *room, const struct head_rows *x,
                     const struct head_rows *y)
{
    UNROLL
    for (int i = 0; i < 16; i++)
        out[i / 4][i % 4] = 0;
    for (int64_t from = 0; from < rows_width(x); from += SLICE) {
        __syncthreads();
        load_tile(room->u.slice[0], SLICE_PITCH, SLICE, x, from);
        load_tile(room->u.slice[1], SLICE_PITCH, SLICE, y, from);
        __syncthreads();
        UNROLL_NOT
        for (int k = 0; k < SLICE; k += 4) {
            float4 u[4], v[4];
            UNROLL
            for (int i = 0; i < 4; i++) {
                u[i] = four_at(&room->u.slice[0][(4 * down() + i) * SLICE_PITCH + k]);
                v[i] = four_at(&room->u.slice[1][(across() + ACROSS * i) * SLICE_PITCH + k]);
            }
            UNROLL
            for (int i = 0; i < 4; i++)
                UNROLL
            for (int j = 0; j < 4; j++)
                out[i][j] = add_dot(out[i][j], u[i], v[j]);
        }
    }
}

DEVICE void pairs_store(struct room *room, float x[4][4])
{
    UNROLL
    for (int i = 0; i < 4; i++)
        UNROLL
    for (int j = 0; j < 4; j++)
        room->pairs[(4 * down() + i) * PITCH + across() + ACROSS * j] = x[i][j];
}

DEVICE void add_scaled(float to[4], float by, float4 x)
{
    to[0] = mad(by, x.x, to[0]);
    to[1] = mad(by, x.y, to[1]);
    to[2] = mad(by, x.z, to[2]);
    to[3] = mad(by, x.w, to[3]);
}

// Adds pairs · y. to[p][i][j] belongs to the block's own row 4·down + i and to element
// 64·p + 4·across + j of the head.
DEVICE void add_pairs(float to[MOST_PANELS][4][4], const int panels, struct room *room,
                      const struct head_rows *y)
{
    UNROLL
    for (int p = 0; p < panels; p++) {
        if ((int64_t)p * PANEL >= rows_width(y))
            break;
        __syncthreads();
        load_tile(room->u.panel, PITCH, PANEL, y, (int64_t)p * PANEL);
        __syncthreads();
        UNROLL_NOT
        for (int k = 0; k < TILE; k += 4) {
            float4 w[4], v[4];
            UNROLL
            for (int i = 0; i < 4; i++) {
                w[i] = four_at(&room->pairs[(4 * down() + i) * PITCH + k]);
                v[i] = four_at(&room->u.panel[(k + i) * PITCH + 4 * across()]);
            }
            UNROLL
            for (int i = 0; i < 4; i++) {
                add_scaled(to[p][i], w[i].x, v[0]);
                add_scaled(to[p][i], w[i].y, v[1]);
                add_scaled(to[p][i], w[i].z, v[2]);
                add_scaled(to[p][i], w[i].w, v[3]);
            }
        }
    }
}

DEVICE void panels_scale(float x[MOST_PANELS][4][4], const int panels, int i, float by)
{
    UNROLL
    for (int p = 0; p < panels; p++)
        UNROLL
    for (int j = 0; j < 4; j++)
        x[p][i][j] *= by;
}

DEVICE void panels_clear(float x[MOST_PANELS][4][4], const int panels)
{
    UNROLL
    for (int p = 0; p < panels; p++)
        UNROLL
    for (int i = 0; i < 16; i++)
        x[p][i / 4][i % 4] = 0;
}

DEVICE void panels_store(const struct head_rows *to, float v[MOST_PANELS][4][4], const int panels)
{
    UNROLL
    for (int p = 0; p < panels; p++)
        UNROLL
    for (int i = 0; i < 16; i++) {
        int row = 4 * down() + i / 4, col = p * PANEL + 4 * across() + i % 4;
        if (row < to->n && col < rows_width(to))
            rows_store(to, row, col, v[p][i / 4][i % 4]);
    }
}

// Reductions over the threads that hold one row.
DEVICE float row_most(float x)
{
    for (int lane = ACROSS / 2; lane; lane /= 2)
        x = max_nan(x, __shfl_xor_sync(WARP_ALL, x, lane));
    return x;
}

DEVICE float row_sum(float x)
{
    for (int lane = ACROSS / 2; lane; lane /= 2)
        x += __shfl_xor_sync(WARP_ALL, x, lane);
    return x;
}

// ---- which query sees which key ----------------------------------------------------------------

DEVICE bool sees(const struct attention *a, int32_t query, int32_t key)
{
    int64_t ahead = (int64_t)key - query;
    return ahead >= -a->back && ahead <= a->ahead;
}

// Loads the positions of a block's own rows, which are queries or keys, and finds their reach.
DEVICE void own_load(struct room *room, const struct attention *a, const int32_t *at, int64_t first,
                     int n, bool queries)
{
    int t = (int)threadIdx.x;
    if (t < TILE)
        room->own[t] = at[first + (t < n ? t : 0)];
    __syncthreads();
    if (t == 0) {
        int32_t least = room->own[0], most = least;
        for (int i = 1; i < n; i++) {
            least = room->own[i] < least ? room->own[i] : least;
            most = room->own[i] > most ? room->own[i] : most;
        }
        room->reach_first = least - (queries ? a->back : a->ahead);
        room->reach_last = most + (queries ? a->ahead : a->back);
    }
}

// Loads the positions of the other side's next tile. Returns whether any of them is in reach.
DEVICE bool other_load(struct room *room, const int32_t *at, int64_t first, int n)
{
    int t = (int)threadIdx.x;
    __syncthreads();
    if (t < TILE) {
        int32_t p = at[first + (t < n ? t : 0)];
        bool met = t < n && p >= room->reach_first && p <= room->reach_last;
        unsigned all = __ballot_sync(WARP_ALL, met);
        room->other[t] = p;
        if (t % WARP == 0)
            room->seen[t / WARP] = all;
    }
    __syncthreads();
    return (room->seen[0] | room->seen[1]) != 0;
}

// Returns the score of a query and a key whose product is s.
DEVICE float score_of(const struct attention *a, float s)
{
    float t = s * a->scale;
    return a->cap == 0 ? t : a->cap * tanhf(t / a->cap);
}

// Returns the derivative of a capped score with respect to the score before its cap.
DEVICE float cap_slope(const struct attention *a, float score)
{
    float t = a->cap == 0 ? 0 : score / a->cap;
    return 1 - t * t;
}

// Returns dropout's factor for the weight of a pair: 0, or the scale of the weights that stay.
DEVICE float drop_factor(const struct attention *a, const struct block_place *at, unsigned step,
                         int32_t query, int32_t key)
{
    uint64_t head = (uint64_t)((a->from[0] + at->b) * a->extent[1] + a->from[1] + at->h);
    uint64_t i =
        (head * (uint64_t)a->extent[2] + (uint64_t)query) * (uint64_t)a->extent[3] + (uint64_t)key;
    uint4 block = draw_block(a->seed, a->stream, step, i >> 2);
    return draw_word(block, (unsigned)(i & 3)) >> 8 >= a->threshold ? a->drop_scale : 0;
}
