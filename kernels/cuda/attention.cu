// SPDX-License-Identifier: Apache-2.0
// ATTENTION and its gradient by tiles of queries and keys, for any positions, heads of up to 256
// elements, and dropout. These kernels serve what cuDNN does not (sdpa.c), and are the reference
// that cuDNN's results are compared with.
//
//   forward   S = scale·Q·Kᵀ, P = softmax(S), O = (P∘D)·V; D: dropout's factors (attr.draw), or 1
//   backward  dP = D∘(dO·Vᵀ), m = Σ P∘dP, dS = P∘(dP − m)·scale; dQ = dS·K, dK = dSᵀ·Q,
//             dV = (P∘D)ᵀ·dO
//
// Forward, a block owns a tile of queries of one head and walks over the keys with an online
// softmax. The gradient takes two kernels. In the first, a block owns a tile of queries and walks
// over the keys twice: for the statistics of each row's softmax, which it leaves in the workspace,
// and for dQ. In the second, a block owns a tile of keys and walks over the queries of all heads
// that share it, for dK and dV. So no memory grows with the square of the sequence, each sum is
// made by one block, and two runs give the same bits. Tiles in which no query sees a key are
// skipped, so causal attention costs half. The output of a query that sees no key is zero.
//
// Forward takes 4·s·t·d FLOPs a head, backward 18·s·t·d (it would be 10 if nothing were computed
// again), in f32 and without tensor cores. For each tile that it walks over, a block reads that
// tile once and its own again, mostly from L2. Operands pass through shared memory in slices of a
// head, so 38 KB are enough for any size of head. A thread holds 4 × 4 scores and, for every 64
// elements of a head, 4 × 4 results; only for these registers are the kernels compiled by size (64,
// 128, 256).
//
// One simple version serves every case. Speed with tensor cores is left to cuDNN.
#include "kernels/cuda/cuda_attention.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/numbers.h"

// Registers cannot be indexed at run time, so loops over arrays in registers must be unrolled.
#ifdef WEFT_EMULATE
#define UNROLL
#define UNROLL_LITTLE
#else
#define UNROLL        _Pragma("unroll")
#define UNROLL_LITTLE _Pragma("unroll 2")
#endif

enum {
    TILE = 64, // queries or keys
    SLICE = 32,
    PANEL = 64, // elements of a head
    // Rows of shared memory begin 16 bytes apart modulo 128: threads that read four elements of
    // rows below each other meet different banks.
    SLICE_PITCH = SLICE + 4,
    PITCH = PANEL + 4,
    ACROSS = 16, // threads side by side; as many below each other, each has 4 rows and 4 columns
    THREADS = ACROSS * ACROSS,
    MOST_PANELS = 4,
};

// For each row the maximum and 1 / sum of its softmax, and the mean that its gradient subtracts.
enum { ROW_MOST, ROW_SHARE, ROW_MEAN, ROW_STATS = ATTENTION_ROW_STATS };

// A block's shared memory.
struct room {
    union {
        float slice[2][TILE * SLICE_PITCH];
        float panel[TILE * PITCH];
    } u;
    float pairs[TILE * PITCH];      // [own rows, others]
    int32_t own[TILE], other[TILE]; // positions
    float row[ROW_STATS][TILE];     // of the other side, which are queries
    unsigned seen[TILE / WARP];
} __attribute__((aligned(16))); // four elements are read at a time

// Up to TILE rows of one head.
struct rows {
    const void *data;
    int64_t first, stride; // of its elements
    int n;
};

// Where a block is: one sample, one head of queries and its key head, a tile of either side.
struct place {
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

DEVICE struct rows rows_at(const void *data, int64_t first_row, int64_t heads, int64_t h, int64_t d,
                           int n)
{
    struct rows r;
    r.data = data;
    r.first = (first_row * heads + h) * d;
    r.stride = heads * d;
    r.n = n;
    return r;
}

DEVICE struct rows query_rows(const struct attention *a, const void *x, const struct place *at,
                              int64_t first)
{
    return rows_at(x, at->b * a->queries + first, a->heads, at->h, a->d,
                   rows_left(a->queries, first));
}

DEVICE struct rows key_rows(const struct attention *a, const void *x, const struct place *at,
                            int64_t first)
{
    return rows_at(x, at->b * a->keys + first, a->kv_heads, at->g, a->d, rows_left(a->keys, first));
}

// Columns [from, from + wide) of the rows; zeros where there are none.
DEVICE void load_tile(float *to, int pitch, int wide, const struct attention *a,
                      const struct rows *x, int64_t from)
{
    int col = (int)threadIdx.x % wide;
    for (int r = (int)threadIdx.x / wide; r < TILE; r += THREADS / wide) {
        bool there = r < x->n && from + col < a->d;
        int64_t i = x->first + r * x->stride + from + col;
        to[r * pitch + col] = there ? load_f32(x->data, a->dtype, i) : 0;
    }
}

DEVICE float4 four_at(const float *p)
{
    return *(const float4 *)(const void *)p;
}

DEVICE float add_dot(float to, float4 u, float4 v)
{
    return mad(u.w, v.w, mad(u.z, v.z, mad(u.y, v.y, mad(u.x, v.x, to))));
}

// out[i][j] = row 4·down + i of x · row across + 16·j of y.
DEVICE void products(float out[4][4], struct room *room, const struct attention *a,
                     const struct rows *x, const struct rows *y)
{
    UNROLL
    for (int i = 0; i < 16; i++)
        out[i / 4][i % 4] = 0;
    for (int64_t from = 0; from < a->d; from += SLICE) {
        __syncthreads();
        load_tile(room->u.slice[0], SLICE_PITCH, SLICE, a, x, from);
        load_tile(room->u.slice[1], SLICE_PITCH, SLICE, a, y, from);
        __syncthreads();
        UNROLL_LITTLE
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
                      const struct attention *a, const struct rows *y)
{
    UNROLL
    for (int p = 0; p < panels; p++) {
        if ((int64_t)p * PANEL >= a->d)
            break;
        __syncthreads();
        load_tile(room->u.panel, PITCH, PANEL, a, y, (int64_t)p * PANEL);
        __syncthreads();
        UNROLL_LITTLE
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

// Stores results to the rows of `to`, which has the same layout as `x`.
DEVICE void panels_store(void *to, const struct rows *x, const struct attention *a,
                         float v[MOST_PANELS][4][4], const int panels)
{
    UNROLL
    for (int p = 0; p < panels; p++)
        UNROLL
    for (int i = 0; i < 16; i++) {
        int row = 4 * down() + i / 4, col = p * PANEL + 4 * across() + i % 4;
        if (row < x->n && col < a->d)
            store_f32(to, a->dtype, x->first + row * x->stride + col, v[p][i / 4][i % 4]);
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

// ---- who sees whom -----------------------------------------------------------------------------

// The positions of a block's own rows, and the furthest: the latest query sees most, the earliest
// key is seen by most.
DEVICE int32_t own_load(struct room *room, const int32_t *at, int64_t first, int n, bool queries)
{
    int t = (int)threadIdx.x;
    if (t < TILE)
        room->own[t] = at[first + (t < n ? t : 0)];
    __syncthreads();
    int32_t far = room->own[0];
    for (int i = 1; i < n; i++)
        if (queries ? room->own[i] > far : room->own[i] < far)
            far = room->own[i];
    return far;
}

// The positions of the tile that comes next, and whether any of it meets the block's own rows.
DEVICE bool other_load(struct room *room, const int32_t *at, int64_t first, int n, int32_t far,
                       bool queries)
{
    int t = (int)threadIdx.x;
    __syncthreads();
    if (t < TILE) {
        int32_t p = at[first + (t < n ? t : 0)];
        unsigned met = __ballot_sync(WARP_ALL, t < n && (queries ? p >= far : p <= far));
        room->other[t] = p;
        if (t % WARP == 0)
            room->seen[t / WARP] = met;
    }
    __syncthreads();
    return (room->seen[0] | room->seen[1]) != 0;
}

// Returns dropout's factor for the weight of a pair: 0, or the scale of the weights that are kept.
DEVICE float kept(const struct attention *a, const struct place *at, unsigned step, int32_t query,
                  int32_t key)
{
    uint64_t head = (uint64_t)((a->from[0] + at->b) * a->extent[1] + a->from[1] + at->h);
    uint64_t i =
        (head * (uint64_t)a->extent[2] + (uint64_t)query) * (uint64_t)a->extent[3] + (uint64_t)key;
    uint4 block = draw_block(a->seed, a->stream, step, i >> 2);
    return draw_word(block, (unsigned)(i & 3)) >> 8 >= a->threshold ? a->kept_scale : 0;
}

// ---- blocks that own queries -------------------------------------------------------------------

// The online softmax of a thread's 4 rows: the maximum so far; the sum of this thread's columns.
struct softmax {
    float most[4], sum[4];
};

// Turns s from products of queries and keys into weights not yet divided by the row's sum. A larger
// maximum changes earlier weights: the caller multiplies its results so far by `fix`.
DEVICE void weigh(struct softmax *m, float s[4][4], float fix[4], const struct room *room,
                  const struct attention *a, int n)
{
    UNROLL
    for (int i = 0; i < 4; i++) {
        float most = -INFINITY;
        UNROLL
        for (int j = 0; j < 4; j++) {
            int key = across() + ACROSS * j;
            bool sees = key < n && room->other[key] <= room->own[4 * down() + i];
            s[i][j] = sees ? s[i][j] * a->scale : -INFINITY;
            most = max_nan(most, s[i][j]);
        }
        most = max_nan(m->most[i], row_most(most));
        float base = most == -INFINITY ? 0 : most;
        fix[i] = expf(m->most[i] - base);
        m->most[i] = most;
        m->sum[i] *= fix[i];
        UNROLL
        for (int j = 0; j < 4; j++) {
            s[i][j] = s[i][j] == -INFINITY ? 0 : expf(s[i][j] - base);
            m->sum[i] += s[i][j];
        }
    }
}

DEVICE void softmax_clear(struct softmax *m)
{
    UNROLL
    for (int i = 0; i < 4; i++) {
        m->most[i] = -INFINITY;
        m->sum[i] = 0;
    }
}

// Returns 1 / sum of a row; 0 for a row that sees no key, so that its output is zero.
DEVICE float share_of(float sum)
{
    return sum == 0 ? 0 : 1 / sum;
}

DEVICE void drop(float s[4][4], const struct room *room, const struct attention *a,
                 const struct place *at, unsigned step)
{
    UNROLL
    for (int i = 0; i < 4; i++)
        UNROLL
    for (int j = 0; j < 4; j++)
        s[i][j] *= kept(a, at, step, room->own[4 * down() + i], room->other[across() + ACROSS * j]);
}

// Later tiles see more: they begin first.
DEVICE struct place query_place(const struct attention *a)
{
    struct place at;
    int64_t tiles = (a->queries + TILE - 1) / TILE, i = blockIdx.x;
    at.first = (tiles - 1 - i % tiles) * TILE;
    at.h = i / tiles % a->heads;
    at.b = i / tiles / a->heads;
    at.g = (a->start + at.h) / a->group;
    return at;
}

DEVICE void forward(const struct attention *a, const int panels, struct room *room)
{
    struct place at = query_place(a);
    struct rows q = query_rows(a, a->q, &at, at.first);
    struct softmax m;
    float to[MOST_PANELS][4][4], s[4][4], fix[4];
    unsigned step = a->step ? *a->step : 0;
    int32_t far = own_load(room, a->at_q, at.b * a->queries + at.first, q.n, true);
    softmax_clear(&m);
    panels_clear(to, panels);
    for (int64_t first = 0; first < a->keys; first += TILE) {
        struct rows k = key_rows(a, a->k, &at, first), v = key_rows(a, a->v, &at, first);
        if (!other_load(room, a->at_k, at.b * a->keys + first, k.n, far, false))
            continue;
        products(s, room, a, &q, &k);
        weigh(&m, s, fix, room, a, k.n);
        if (a->step)
            drop(s, room, a, &at, step);
        pairs_store(room, s);
        UNROLL
        for (int i = 0; i < 4; i++)
            panels_scale(to, panels, i, fix[i]);
        add_pairs(to, panels, room, a, &v);
    }
    UNROLL
    for (int i = 0; i < 4; i++)
        panels_scale(to, panels, i, share_of(row_sum(m.sum[i])));
    panels_store(a->out, &q, a, to, panels);
}

// The statistics of each of a thread's rows: see ROW_MOST above.
struct told {
    float most[4], share[4], mean[4];
};

// Walks over the keys for the rows' maximum, sum and Σ P∘dP.
DEVICE void tell(struct told *t, const struct attention *a, const struct place *at,
                 struct room *room, const struct rows *q, const struct rows *dy, int32_t far)
{
    struct softmax m;
    float s[4][4], dp[4][4], fix[4], mean[4] = {0, 0, 0, 0};
    unsigned step = a->step ? *a->step : 0;
    softmax_clear(&m);
    for (int64_t first = 0; first < a->keys; first += TILE) {
        struct rows k = key_rows(a, a->k, at, first), v = key_rows(a, a->v, at, first);
        if (!other_load(room, a->at_k, at->b * a->keys + first, k.n, far, false))
            continue;
        products(s, room, a, q, &k);
        weigh(&m, s, fix, room, a, k.n);
        products(dp, room, a, dy, &v);
        if (a->step)
            drop(dp, room, a, at, step);
        UNROLL
        for (int i = 0; i < 4; i++) {
            mean[i] *= fix[i];
            UNROLL
            for (int j = 0; j < 4; j++)
                mean[i] += s[i][j] == 0 ? 0 : s[i][j] * dp[i][j];
        }
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        t->most[i] = m.most[i] == -INFINITY ? 0 : m.most[i];
        t->share[i] = share_of(row_sum(m.sum[i]));
        t->mean[i] = row_sum(mean[i]) * t->share[i];
    }
}

// Returns where the workspace holds the statistics of row `query`.
DEVICE float *row_stats(const struct attention *a, float *stats, const struct place *at,
                        int64_t query)
{
    return stats + ((at->b * a->heads + at->h) * a->queries + query) * ROW_STATS;
}

DEVICE void told_store(const struct told *t, const struct attention *a, float *stats,
                       const struct place *at, int n)
{
    UNROLL
    for (int i = 0; i < 4; i++) {
        int row = 4 * down() + i;
        float *to = row_stats(a, stats, at, at->first + row);
        if (across() == 0 && row < n) {
            to[ROW_MOST] = t->most[i];
            to[ROW_SHARE] = t->share[i];
            to[ROW_MEAN] = t->mean[i];
        }
    }
}

// Returns the gradient of s, the product of a query and a key; dp is the gradient of its weight.
DEVICE float product_grad(const struct attention *a, float s, float dp, float most, float share,
                          float mean)
{
    return expf(s * a->scale - most) * share * (dp - mean) * a->scale;
}

DEVICE void grad_queries(const struct attention *a, const int panels, float *stats,
                         struct room *room)
{
    struct place at = query_place(a);
    struct rows q = query_rows(a, a->q, &at, at.first), dy = query_rows(a, a->dy, &at, at.first);
    struct told t;
    float to[MOST_PANELS][4][4], s[4][4], dp[4][4];
    unsigned step = a->step ? *a->step : 0;
    int32_t far = own_load(room, a->at_q, at.b * a->queries + at.first, q.n, true);
    tell(&t, a, &at, room, &q, &dy, far);
    told_store(&t, a, stats, &at, q.n);
    panels_clear(to, panels);
    for (int64_t first = 0; first < a->keys; first += TILE) {
        struct rows k = key_rows(a, a->k, &at, first), v = key_rows(a, a->v, &at, first);
        if (!other_load(room, a->at_k, at.b * a->keys + first, k.n, far, false))
            continue;
        products(s, room, a, &q, &k);
        products(dp, room, a, &dy, &v);
        if (a->step)
            drop(dp, room, a, &at, step);
        UNROLL
        for (int i = 0; i < 4; i++)
            UNROLL
        for (int j = 0; j < 4; j++) {
            int key = across() + ACROSS * j;
            bool sees = key < k.n && room->other[key] <= room->own[4 * down() + i];
            s[i][j] =
                sees ? product_grad(a, s[i][j], dp[i][j], t.most[i], t.share[i], t.mean[i]) : 0;
        }
        pairs_store(room, s);
        add_pairs(to, panels, room, a, &k);
    }
    panels_store(a->out, &q, a, to, panels);
}

// ---- blocks that own keys ----------------------------------------------------------------------

// Earlier tiles are seen by more queries: they begin first, as they are numbered.
DEVICE struct place key_place(const struct attention *a)
{
    struct place at;
    int64_t tiles = (a->keys + TILE - 1) / TILE, i = blockIdx.x;
    at.first = i % tiles * TILE;
    at.g = i / tiles % a->kv_heads;
    at.b = i / tiles / a->kv_heads;
    at.h = 0;
    return at;
}

DEVICE void stats_load(struct room *room, const struct attention *a, float *stats,
                       const struct place *at, int64_t first, int n)
{
    int t = (int)threadIdx.x;
    if (t < n) {
        const float *from = row_stats(a, stats, at, first + t);
        for (int i = 0; i < ROW_STATS; i++)
            room->row[i][t] = from[i];
    }
}

// One tile of queries: adds to the gradients of the block's keys and values.
DEVICE void meet(float dk[MOST_PANELS][4][4], float dv[MOST_PANELS][4][4], const int panels,
                 struct room *room, const struct attention *a, const struct place *at,
                 const struct rows *k, const struct rows *v, int64_t first)
{
    struct rows q = query_rows(a, a->q, at, first), dy = query_rows(a, a->dy, at, first);
    float s[4][4], dp[4][4], left[4][4];
    unsigned step = a->step ? *a->step : 0;
    products(s, room, a, k, &q);
    // s: weights; left: what dropout leaves of 1.
    UNROLL
    for (int i = 0; i < 4; i++)
        UNROLL
    for (int j = 0; j < 4; j++) {
        int key = 4 * down() + i, query = across() + ACROSS * j;
        bool sees = key < k->n && query < q.n && room->own[key] <= room->other[query];
        float most = room->row[ROW_MOST][query], share = room->row[ROW_SHARE][query];
        s[i][j] = sees ? expf(s[i][j] * a->scale - most) * share : 0;
        left[i][j] = a->step && sees ? kept(a, at, step, room->other[query], room->own[key]) : 1;
        dp[i][j] = s[i][j] * left[i][j];
    }
    pairs_store(room, dp);
    add_pairs(dv, panels, room, a, &dy);
    products(dp, room, a, v, &dy);
    UNROLL
    for (int i = 0; i < 4; i++)
        UNROLL
    for (int j = 0; j < 4; j++) {
        float mean = room->row[ROW_MEAN][across() + ACROSS * j];
        s[i][j] = s[i][j] == 0 ? 0 : s[i][j] * (dp[i][j] * left[i][j] - mean) * a->scale;
    }
    pairs_store(room, s);
    add_pairs(dk, panels, room, a, &q);
}

DEVICE void grad_keys(const struct attention *a, const int panels, float *stats, struct room *room)
{
    struct place at = key_place(a);
    struct rows k = key_rows(a, a->k, &at, at.first), v = key_rows(a, a->v, &at, at.first);
    float dk[MOST_PANELS][4][4], dv[MOST_PANELS][4][4];
    int32_t far = own_load(room, a->at_k, at.b * a->keys + at.first, k.n, false);
    panels_clear(dk, panels);
    panels_clear(dv, panels);
    for (at.h = 0; at.h < a->heads; at.h++) {
        if ((a->start + at.h) / a->group != at.g)
            continue;
        for (int64_t first = 0; first < a->queries; first += TILE) {
            int n = rows_left(a->queries, first);
            if (!other_load(room, a->at_q, at.b * a->queries + first, n, far, true))
                continue;
            stats_load(room, a, stats, &at, first, n);
            meet(dk, dv, panels, room, a, &at, &k, &v, first);
        }
    }
    panels_store(a->dk, &k, a, dk, panels);
    panels_store(a->dv, &k, a, dv, panels);
}

// ---- the three sizes of a head -----------------------------------------------------------------

#define KERNELS(panels)                                                               \
    KERNEL(THREADS) attention_##panels(struct attention a)                            \
    {                                                                                 \
        __shared__ struct room room;                                                  \
        forward(&a, panels, &room);                                                   \
    }                                                                                 \
    KERNEL(THREADS) attention_grad_queries_##panels(struct attention a, float *stats) \
    {                                                                                 \
        __shared__ struct room room;                                                  \
        grad_queries(&a, panels, stats, &room);                                       \
    }                                                                                 \
    KERNEL(THREADS) attention_grad_keys_##panels(struct attention a, float *stats)    \
    {                                                                                 \
        __shared__ struct room room;                                                  \
        grad_keys(&a, panels, stats, &room);                                          \
    }

KERNELS(1)
KERNELS(2)
KERNELS(4)

static int64_t tiles_of(int64_t rows)
{
    return (rows + TILE - 1) / TILE;
}

int attention_own(struct stream_q *q, const struct op_call *c, const struct attention *a,
                  struct err *e)
{
    int64_t of_queries = tiles_of(a->queries) * a->heads * a->batch;
    int64_t of_keys = tiles_of(a->keys) * a->kv_heads * a->batch;
    float *stats = (float *)c->workspace;
    if (of_queries > INT32_MAX || of_keys > INT32_MAX)
        return op_refuse(c, e, "more tiles than a grid has blocks");
    if (attention_own_bytes(c) > c->workspace_bytes)
        return op_refuse(c, e, "the workspace does not hold a number a row");
#define RUN(panels)                                                                                \
    if (!a->dy) {                                                                                  \
        LAUNCH(attention_##panels, (unsigned)of_queries, THREADS, 0, q->stream, *a);               \
    } else {                                                                                       \
        LAUNCH(attention_grad_queries_##panels, (unsigned)of_queries, THREADS, 0, q->stream, *a,   \
               stats);                                                                             \
        LAUNCH(attention_grad_keys_##panels, (unsigned)of_keys, THREADS, 0, q->stream, *a, stats); \
    }
    if (a->d <= PANEL) {
        RUN(1)
    } else if (a->d <= 2 * PANEL) {
        RUN(2)
    } else {
        RUN(4)
    }
    return op_launched(q, c, e);
}
