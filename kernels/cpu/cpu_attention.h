// SPDX-License-Identifier: Apache-2.0
// An attention at work: what the files that compute it share. Inside kernels/cpu/ only.
#pragma once
#include <stdatomic.h>

#include "common/op/cache.h"
#include "common/op/mask.h"
#include "kernels/cpu/cpu_device.h"

// An operand that lies as [batch, rows, heads, width], or beside others in their rows, and its
// gradient.
struct side {
    const float *data;
    float *grad;
    int64_t rows, heads, width, pitch; // pitch: elements from a row to the next
};

struct attention_products;

struct attention_work {
    const struct op_call *call;
    const struct attention_products *products;
    const struct vec *vec;
    int64_t batch, queries, keys, heads, kv_heads;
    struct attention_room room;
    struct side q, k, v, y; // y.grad is the output of a forward, y.data that of a gradient's
    struct side qr, kr;     // of no width where the call has no second pair
    const float *dy;
    float *lse; // [batch, heads, queries]: written by a forward, read by a gradient
    const int32_t *at_q, *at_k;
    bool grad, drops;
    struct vec_draw draw;
    _Atomic int *status;
};

struct small_part;

// How many keys of a sample are read at all: of a cache those that its places hold.
static inline int64_t count_keys(const struct attention_work *w, int64_t b)
{
    return cache_filled(w->at_k + b * w->keys, w->keys);
}

// A block of query rows of one head.
struct query_rows {
    int64_t b, h, first, n, keys; // first: of the rows
    int64_t stride;               // floats from row to row of its scores
    const int32_t *at_q, *at_k;   // at_k: of the keys that are computed, side by side
    struct mask mask;
    uint64_t drawn;                // of batch and head, among those of the whole step
    float *dkr;                    // what its part adds to the gradient of kr
    const struct small_part *part; // of a small attention
};

static inline int64_t stride_of(const struct side *s)
{
    return s->pitch;
}

// The offset of one head's row `row` of sample b.
static inline int64_t offset_of(const struct side *s, int64_t b, int64_t row, int64_t head)
{
    return (b * s->rows + row) * s->pitch + (s->heads > 1 ? head : 0) * s->width;
}

// Returns the key head that query head h reads; both count from the first of this rank's.
static inline int64_t key_head(const struct attention_work *w, int64_t h)
{
    return (w->call->attr->start + h) / w->call->attr->group;
}

// The offset of a block's first row.
static inline int64_t row_offset(const struct query_rows *r, const struct side *s)
{
    return offset_of(s, r->b, r->first, r->h);
}

// The products of a block. Its scores, and what has their shape, are n rows of `keys` numbers.
struct attention_products {
    // p = scale · (q·kᵀ + qr·krᵀ)
    void (*make_scores)(struct attention_work *w, const struct query_rows *r, float scale,
                        float *p);
    // y = p·v
    void (*weigh_values)(struct attention_work *w, const struct query_rows *r, const float *p);
    // dp = dy·vᵀ
    void (*take_weights_grad)(struct attention_work *w, const struct query_rows *r, float *dp);
    // dv += pᵀ·dy
    void (*add_values_grad)(struct attention_work *w, const struct query_rows *r, const float *p);
    // dq = ds·k, dk += dsᵀ·q, and the same of the second pair
    void (*spread_scores_grad)(struct attention_work *w, const struct query_rows *r,
                               const float *ds);
};

// ---- cpu_attention_small.c ----

// What is packed of one part, behind the scores of its slot; see struct attention_room.
struct small_part {
    float *q, *y;             // a block's rows: both pairs of queries; y, or its gradient
    float *keys_transposed;   // [width][room.keys]
    float *values_transposed; // of a gradient, [width][room.keys]
    float *keys;              // of a gradient, [keys][room.wide]
    float *values;            // of a forward, [keys][room.values]
    float *dkeys, *dvalues;   // of a gradient, as keys and values lie
};

extern const struct attention_products attention_small;
// Packs the keys and values of sample b and key head g behind `scores`, the begin of a slot.
void attention_small_begin(const struct attention_work *w, int64_t b, int64_t g, float *scores,
                           struct small_part *part);
// Packs what a block needs of its rows.
void attention_small_rows(const struct attention_work *w, const struct query_rows *r);
// Brings the gradients of the keys and values to where they belong.
void attention_small_end(const struct attention_work *w, int64_t b, int64_t g, float *dkr,
                         const struct small_part *part);
