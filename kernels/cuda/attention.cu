// SPDX-License-Identifier: Apache-2.0
// ATTENTION and its gradient by tiles of queries and keys, for any positions, heads of up to 256
// elements, windows, caps, a second pair of scores, and dropout. These kernels serve what cuDNN
// does not (sdpa.c), and are the reference that cuDNN's results are compared with.
//
//   forward   T = scale·(Q·Kᵀ + Qr·Krᵀ), S = cap·tanh(T / cap), L = ln Σ e^S, P = e^(S − L),
//             O = (P∘D)·V; D: dropout's factors (attr.draw), or 1
//   backward  dP = D∘(dO·Vᵀ), m = Σ O∘dO, dT = P∘(dP − m)·scale·(1 − (S / cap)²); dQ = dT·K,
//             dK = dTᵀ·Q, dV = (P∘D)ᵀ·dO; L and O are the forward's
//
// The second pair is read as more elements of the same head: Q beside Qr, K beside Kr. All heads
// share Kr, so the gradient leaves what each key head adds to dKr in the workspace, and a third
// kernel adds that up in the order of the heads.
//
// Forward, a block owns a tile of queries of one head and walks over the keys with an online
// softmax. The gradient takes two kernels. In the first, a block owns a tile of queries, leaves m of
// each row in the workspace and walks over the keys for dQ. In the second, a block owns a tile of
// keys and walks over the queries of all heads that share it, for dK and dV. So no memory grows with
// the square of the sequence, each sum is made by one block, and two runs give the same bits. Tiles
// in which no query sees a key are skipped, so causal attention costs half and a window what it
// holds. The output of a query that sees no key is zero.
//
// Forward takes 4·s·t·d FLOPs a head, backward 14·s·t·d (it would be 10 if nothing were computed
// again), in f32 and without tensor cores. For each tile that it walks over, a block reads that
// tile once and its own again, mostly from L2. Operands pass through shared memory in slices of a
// head, so 37 KB are enough for any size of head. A thread holds 4 × 4 scores and, for every 64
// elements of a head, 4 × 4 results; only for these registers are the kernels compiled by size (64,
// 128, 256).
//
// One simple version serves every case. Speed with tensor cores is left to cuDNN.
#include "common/op/cache.h"
#include "kernels/cuda/attention_tile.h"

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
            bool seen = key < n && sees(a, room->own[4 * down() + i], room->other[key]);
            s[i][j] = seen ? score_of(a, s[i][j]) : -INFINITY;
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
                 const struct block_place *at, unsigned step)
{
    UNROLL
    for (int i = 0; i < 4; i++)
        UNROLL
    for (int j = 0; j < 4; j++)
        s[i][j] *=
            drop_factor(a, at, step, room->own[4 * down() + i], room->other[across() + ACROSS * j]);
}

// Returns a block's place. Later tiles see more keys, so they begin first.
DEVICE struct block_place query_place(const struct attention *a)
{
    struct block_place at;
    int64_t tiles = (a->queries + TILE - 1) / TILE, i = blockIdx.x;
    at.first = (tiles - 1 - i % tiles) * TILE;
    at.h = i / tiles % a->heads;
    at.b = i / tiles / a->heads;
    at.g = (a->start + at.h) / a->group;
    return at;
}

// Returns where the number of a row lies in [batch, heads, queries].
DEVICE int64_t row_of(const struct attention *a, const struct block_place *at, int64_t query)
{
    return (at->b * a->heads + at->h) * a->queries + query;
}

DEVICE void forward(const struct attention *a, const int panels, struct room *room)
{
    struct block_place at = query_place(a);
    struct head_rows q = query_rows(a, a->q, a->qr, &at, at.first);
    struct head_rows y = output_rows(a, a->out, &at, at.first);
    struct softmax m;
    float to[MOST_PANELS][4][4], s[4][4], fix[4];
    unsigned step = a->step ? *a->step : 0;
    own_load(room, a, a->at_q, at.b * a->queries + at.first, q.n, true);
    softmax_clear(&m);
    panels_clear(to, panels);
    for (int64_t first = 0; first < a->keys; first += TILE) {
        struct head_rows k = key_rows(a, &at, first), v = value_rows(a, a->v, &at, first);
        if (!other_load(room, a->at_k, at.b * a->keys + first, k.n))
            continue;
        // What lies in a place without a row may be NaN, which a weight of 0 does not take away.
        while (k.n > 1 && room->other[k.n - 1] == CACHE_UNUSED)
            k.n--;
        v.n = k.n;
        products(s, room, &q, &k);
        weigh(&m, s, fix, room, a, k.n);
        if (a->step)
            drop(s, room, a, &at, step);
        pairs_store(room, s);
        UNROLL
        for (int i = 0; i < 4; i++)
            panels_scale(to, panels, i, fix[i]);
        add_pairs(to, panels, room, &v);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        float sum = row_sum(m.sum[i]);
        int row = 4 * down() + i;
        if (across() == 0 && row < q.n)
            a->lse[row_of(a, &at, at.first + row)] = m.most[i] + logf(sum);
        panels_scale(to, panels, i, share_of(sum));
    }
    panels_store(&y, to, panels);
}

// Reads the log-sum-exp of the block's rows and makes their Σ y·dy, which it leaves in `means` too.
DEVICE void find_stats(struct room *room, const struct attention *a, float *means,
                       const struct block_place *at, const struct head_rows *dy)
{
    struct head_rows y = output_rows(a, a->y, at, at->first);
    UNROLL
    for (int i = 0; i < 4; i++) {
        int row = 4 * down() + i;
        int64_t number = row_of(a, at, at->first + row);
        float sum = 0;
        for (int64_t col = across(); col < a->e && row < y.n; col += ACROSS)
            sum = mad(rows_load(&y, row, col), rows_load(dy, row, col), sum);
        sum = row_sum(sum);
        if (across() == 0) {
            room->row[ROW_MEAN][row] = sum;
            room->row[ROW_LSE][row] = row < y.n ? a->lse[number] : 0;
            if (row < y.n)
                means[number] = sum;
        }
    }
}

// Returns the gradient of s, the product of a query and a key; dp is the gradient of its weight.
DEVICE float product_grad(const struct attention *a, float s, float dp, float lse, float mean)
{
    float score = score_of(a, s);
    return expf(score - lse) * (dp - mean) * a->scale * cap_slope(a, score);
}

DEVICE void grad_queries(const struct attention *a, const int panels, float *means,
                         struct room *room)
{
    struct block_place at = query_place(a);
    struct head_rows q = query_rows(a, a->q, a->qr, &at, at.first);
    struct head_rows dq = query_rows(a, a->out, a->dqr, &at, at.first);
    struct head_rows dy = output_rows(a, a->dy, &at, at.first);
    float to[MOST_PANELS][4][4], s[4][4], dp[4][4];
    unsigned step = a->step ? *a->step : 0;
    own_load(room, a, a->at_q, at.b * a->queries + at.first, q.n, true);
    find_stats(room, a, means, &at, &dy);
    panels_clear(to, panels);
    for (int64_t first = 0; first < a->keys; first += TILE) {
        struct head_rows k = key_rows(a, &at, first), v = value_rows(a, a->v, &at, first);
        if (!other_load(room, a->at_k, at.b * a->keys + first, k.n))
            continue;
        products(s, room, &q, &k);
        products(dp, room, &dy, &v);
        if (a->step)
            drop(dp, room, a, &at, step);
        UNROLL
        for (int i = 0; i < 4; i++)
            UNROLL
        for (int j = 0; j < 4; j++) {
            int key = across() + ACROSS * j, query = 4 * down() + i;
            bool seen = key < k.n && sees(a, room->own[query], room->other[key]);
            s[i][j] = seen ? product_grad(a, s[i][j], dp[i][j], room->row[ROW_LSE][query],
                                          room->row[ROW_MEAN][query])
                           : 0;
        }
        pairs_store(room, s);
        add_pairs(to, panels, room, &k);
    }
    panels_store(&dq, to, panels);
}

// ---- blocks that own keys ----------------------------------------------------------------------

// Returns a block's place. Earlier tiles are seen by more queries, so they begin first.
DEVICE struct block_place key_place(const struct attention *a)
{
    struct block_place at;
    int64_t tiles = (a->keys + TILE - 1) / TILE, i = blockIdx.x;
    at.first = i % tiles * TILE;
    at.g = i / tiles % a->kv_heads;
    at.b = i / tiles / a->kv_heads;
    at.h = 0;
    return at;
}

DEVICE void stats_load(struct room *room, const struct attention *a, const float *means,
                       const struct block_place *at, int64_t first, int n)
{
    int t = (int)threadIdx.x;
    if (t < n) {
        int64_t number = row_of(a, at, first + t);
        room->row[ROW_LSE][t] = a->lse[number];
        room->row[ROW_MEAN][t] = means[number];
    }
}

// Dropout's factor, kept in the sign of a weight, which is never below 0: another array would take
// 16 registers more than a thread has. A weight of 0 has no gradient, whatever its factor is.
DEVICE float kept_factor(const struct attention *a, float w)
{
    return w < 0 ? 0 : a->step ? a->drop_scale : 1;
}

// Returns the gradient of the product of a query and a key from that of its weight w. The score is
// found again from the weight: it would take 16 more registers.
DEVICE float product_grad_of(const struct attention *a, float w, float dp, float lse, float mean)
{
    if (w == 0)
        return 0;
    float score = a->cap == 0 ? 0 : logf(w) + lse;
    return w * (dp - mean) * a->scale * cap_slope(a, score);
}

// Adds what a tile of queries makes of the gradients of the block's keys and values.
DEVICE void add_queries(float dk[MOST_PANELS][4][4], float dv[MOST_PANELS][4][4], const int panels,
                        struct room *room, const struct attention *a, const struct block_place *at,
                        const struct head_rows *k, const struct head_rows *v, int64_t first)
{
    struct head_rows q = query_rows(a, a->q, a->qr, at, first);
    struct head_rows dy = output_rows(a, a->dy, at, first);
    float s[4][4], dp[4][4];
    unsigned step = a->step ? *a->step : 0;
    products(s, room, k, &q);
    // s holds the products, and after the loop the attention's weights: below 0 where dropout takes
    // them away.
    UNROLL
    for (int i = 0; i < 4; i++)
        UNROLL
    for (int j = 0; j < 4; j++) {
        int key = 4 * down() + i, query = across() + ACROSS * j;
        bool seen = key < k->n && query < q.n && sees(a, room->other[query], room->own[key]);
        s[i][j] = seen ? expf(score_of(a, s[i][j]) - room->row[ROW_LSE][query]) : 0;
        if (a->step && seen && drop_factor(a, at, step, room->other[query], room->own[key]) == 0)
            s[i][j] = -s[i][j];
        dp[i][j] = fabsf(s[i][j]) * kept_factor(a, s[i][j]);
    }
    pairs_store(room, dp);
    add_pairs(dv, panels, room, &dy);
    products(dp, room, v, &dy);
    UNROLL
    for (int i = 0; i < 4; i++)
        UNROLL
    for (int j = 0; j < 4; j++) {
        int query = across() + ACROSS * j;
        s[i][j] = product_grad_of(a, fabsf(s[i][j]), dp[i][j] * kept_factor(a, s[i][j]),
                                  room->row[ROW_LSE][query], room->row[ROW_MEAN][query]);
    }
    pairs_store(room, s);
    add_pairs(dk, panels, room, &q);
}

// dkr gets what each key head adds to the gradient of kr.
DEVICE void grad_keys(const struct attention *a, const int panels, const float *means, float *dkr,
                      struct room *room)
{
    struct block_place at = key_place(a);
    struct head_rows k = key_rows(a, &at, at.first), v = value_rows(a, a->v, &at, at.first);
    struct head_rows to_k = key_grad_rows(a, dkr, &at), to_v = value_rows(a, a->dv, &at, at.first);
    float dk[MOST_PANELS][4][4], dv[MOST_PANELS][4][4];
    own_load(room, a, a->at_k, at.b * a->keys + at.first, k.n, false);
    panels_clear(dk, panels);
    panels_clear(dv, panels);
    for (at.h = 0; at.h < a->heads; at.h++) {
        if ((a->start + at.h) / a->group != at.g)
            continue;
        for (int64_t first = 0; first < a->queries; first += TILE) {
            int n = rows_left(a->queries, first);
            if (!other_load(room, a->at_q, at.b * a->queries + first, n))
                continue;
            stats_load(room, a, means, &at, first, n);
            add_queries(dk, dv, panels, room, a, &at, &k, &v, first);
        }
    }
    panels_store(&to_k, dk, panels);
    panels_store(&to_v, dv, panels);
}

// Adds up dkr [b, t, g, r] over g to the gradient of kr [b, t, r]; a thread makes one element.
KERNEL(THREADS) attention_grad_shared(struct attention a, const float *dkr)
{
    kernel_begin();
    int64_t n = a.batch * a.keys * a.r, step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step) {
        float sum = 0;
        for (int64_t g = 0; g < a.kv_heads; g++)
            sum += dkr[(i / a.r * a.kv_heads + g) * a.r + i % a.r];
        store_f32(a.dkr, a.dtype, i, sum);
    }
}

// ---- the three sizes of a head -----------------------------------------------------------------

#define KERNELS(panels, forward_beside, grad_beside)                                 \
    KERNEL_BESIDE(THREADS, forward_beside) attention_##panels(struct attention a)    \
    {                                                                                \
        kernel_begin();                                                              \
        __shared__ struct room room;                                                 \
        forward(&a, panels, &room);                                                  \
    }                                                                                \
    KERNEL_BESIDE(THREADS, grad_beside)                                              \
    attention_grad_queries_##panels(struct attention a, float *means)                \
    {                                                                                \
        kernel_begin();                                                              \
        __shared__ struct room room;                                                 \
        grad_queries(&a, panels, means, &room);                                      \
    }                                                                                \
    KERNEL_BESIDE(THREADS, grad_beside)                                              \
    attention_grad_keys_##panels(struct attention a, const float *means, float *dkr) \
    {                                                                                \
        kernel_begin();                                                              \
        __shared__ struct room room;                                                 \
        grad_keys(&a, panels, means, dkr, &room);                                    \
    }

KERNELS(1, 2, 2)
KERNELS(2, 2, 1)
KERNELS(4, 1, 1)

static int64_t tiles_of(int64_t rows)
{
    return (rows + TILE - 1) / TILE;
}

int attention_own(struct stream_q *q, const struct op_call *c, const struct attention *a,
                  struct err *e)
{
    int64_t of_queries = tiles_of(a->queries) * a->heads * a->batch;
    int64_t of_keys = tiles_of(a->keys) * a->kv_heads * a->batch;
    int64_t wide = a->d + a->r > a->e ? a->d + a->r : a->e;
    float *means = (float *)c->workspace;
    float *dkr = means + a->batch * a->heads * a->queries;
    if (of_queries > INT32_MAX || of_keys > INT32_MAX)
        return op_refuse(c, e, "more tiles than a grid has blocks");
    if (attention_own_bytes(c) > c->workspace_bytes)
        return op_refuse(c, e, "the workspace does not hold a number a row");
#define RUN(panels)                                                                              \
    if (!a->dy) {                                                                                \
        LAUNCH(attention_##panels, (unsigned)of_queries, THREADS, 0, q, *a);                     \
    } else {                                                                                     \
        LAUNCH(attention_grad_queries_##panels, (unsigned)of_queries, THREADS, 0, q, *a, means); \
        LAUNCH(attention_grad_keys_##panels, (unsigned)of_keys, THREADS, 0, q, *a, means, dkr);  \
    }
    if (wide <= PANEL) {
        RUN(1)
    } else if (wide <= 2 * PANEL) {
        RUN(2)
    } else {
        RUN(4)
    }
    if (a->dkr)
        LAUNCH(attention_grad_shared, launch_blocks(a->batch * a->keys * a->r, THREADS, BLOCKS),
               THREADS, 0, q, *a, dkr);
    return op_launched(q, c, e);
}
