// SPDX-License-Identifier: Apache-2.0
// DISPATCH, COMBINE, SLOT_DOT: rows between tokens and the places of experts.
//
// Bound by memory: DISPATCH writes every place once with zeros and the filled ones again, COMBINE
// reads a row for each choice that has a place and writes each token once, SLOT_DOT reads both
// sides of a choice. A place has one token at most, so nothing is added by two threads; a token's
// rows are added in the order of its choices. A slot is looked up by each pack of its row: it is in
// L1 after the first. Experts and places that are not here are other ranks'.
#include <string.h>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/team.h"

enum { THREADS = 256, MOST_BLOCKS = 0x7fffffff };

struct dealt {
    struct op_slots attr;
    enum dtype type;      // of rows
    const int32_t *slots; // of each choice: expert and place as one number
    const float *weights; // of each choice; null: all are 1
    const void *tokens, *places;
    void *out;
    int64_t choices, seq, each, width; // choices in all, and of each token
    int64_t experts, here;             // on this rank: experts, places of each
    int64_t rows;                      // of all places on this rank
};

// Returns the row of a choice's place on this rank; −1 if its place is not here.
DEVICE int64_t row_of(const struct dealt *c, int64_t at)
{
    const int64_t slot = c->slots[at], group = at / c->each / c->seq / c->attr.group;
    const int64_t expert = slot / c->attr.capacity - c->attr.first.expert;
    const int64_t place = slot % c->attr.capacity - c->attr.first.place;
    const bool inside =
        slot >= 0 && expert >= 0 && expert < c->experts && place >= 0 && place < c->here;
    return inside ? (group * c->experts + expert) * c->here + place : -1;
}

DEVICE float weight_of(const struct dealt *c, int64_t at)
{
    return c->weights ? c->weights[at] : 1.0f;
}

// A thread's packs of `rows` rows, one after the other.
#define EACH_ROW_PACK(c, p, i, rows)                              \
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; \
         i < (rows) * ((c)->width / (p).wide); i += (int64_t)gridDim.x * THREADS)

DEVICE void clear_places(const struct dealt *c, struct pack p)
{
    EACH_ROW_PACK(c, p, i, c->rows)
    {
        float v[LANES] = {0};
        pack_store(c->out, pack_type(p, c->type), i * p.wide, p.wide, v);
    }
}

DEVICE void fill_places(const struct dealt *c, struct pack p)
{
    const int64_t packs = c->width / p.wide;
    EACH_ROW_PACK(c, p, i, c->choices)
    {
        const int64_t at = i / packs, column = i % packs * p.wide, row = row_of(c, at);
        float v[LANES];
        if (row < 0)
            continue;
        const float weight = weight_of(c, at);
        pack_load(v, c->tokens, pack_type(p, c->type), at / c->each * c->width + column, p.wide);
        for (int k = 0; k < p.wide; k++)
            v[k] *= weight;
        pack_store(c->out, pack_type(p, c->type), row * c->width + column, p.wide, v);
    }
}

DEVICE void gather_rows(const struct dealt *c, struct pack p)
{
    const int64_t packs = c->width / p.wide;
    EACH_ROW_PACK(c, p, i, c->choices / c->each)
    {
        const int64_t token = i / packs, column = i % packs * p.wide;
        float v[LANES], sum[LANES] = {0};
        for (int64_t at = token * c->each; at < (token + 1) * c->each; at++) {
            const int64_t row = row_of(c, at);
            if (row < 0)
                continue;
            const float weight = weight_of(c, at);
            pack_load(v, c->places, pack_type(p, c->type), row * c->width + column, p.wide);
            for (int k = 0; k < p.wide; k++)
                sum[k] += weight * v[k];
        }
        pack_store(c->out, pack_type(p, c->type), token * c->width + column, p.wide, sum);
    }
}

// A warp has a choice.
DEVICE void dot_rows(const struct dealt *c, struct pack p)
{
    for (int64_t at = team_row(WARP); at < c->choices; at += team_step(WARP)) {
        const int64_t row = row_of(c, at), token = at / c->each;
        double sum = 0;
        for (int64_t i = threadIdx.x % WARP * p.wide; row >= 0 && i < c->width;
             i += WARP * p.wide) {
            float x[LANES], y[LANES];
            pack_load(x, c->tokens, pack_type(p, c->type), token * c->width + i, p.wide);
            pack_load(y, c->places, pack_type(p, c->type), row * c->width + i, p.wide);
            for (int k = 0; k < p.wide; k++)
                sum += (double)x[k] * (double)y[k];
        }
        sum = warp_sum_f64(sum);
        if (threadIdx.x % WARP == 0)
            ((float *)c->out)[at] = (float)sum;
    }
}

VARIANTS(THREADS, clear_places, dealt)
VARIANTS_BESIDE(THREADS, 4, fill_places, dealt)
VARIANTS_BESIDE(THREADS, 4, gather_rows, dealt)
VARIANTS(THREADS, dot_rows, dealt)

int op_dispatch(struct stream_q *q, const struct op_call *c, struct err *e)
{
    struct dispatch_call call;
    struct dealt d;
    int rc = op_check_dispatch(c, &call, e);
    if (rc)
        return rc;
    const struct tensor *tokens = call.tokens, *places = call.places;
    memset(&d, 0, sizeof d);
    d.attr = c->attr->slots;
    d.type = tokens->dtype;
    d.slots = (const int32_t *)c->in[1].data;
    d.weights = call.weights ? (const float *)call.weights->data : NULL;
    d.tokens = tokens->data;
    d.places = places->data;
    d.out = c->out[0].data;
    d.each = c->in[1].shape.dim[2];
    d.seq = tokens->shape.dim[1];
    d.choices = shape_count(&c->in[1].shape);
    d.width = tokens->shape.dim[2];
    d.experts = places->shape.dim[1];
    d.here = places->shape.dim[2];
    d.rows = shape_count(&places->shape) / d.width;
    int wide =
        pack_aligned(tokens->data) && pack_aligned(places->data) ? pack_wide(d.type, d.width) : 1;
    const int64_t packs = d.width / wide;
    const unsigned all = launch_blocks(d.rows * packs, THREADS, MOST_BLOCKS);
    const unsigned per_choice = launch_blocks(d.choices * packs, THREADS, MOST_BLOCKS);
    const unsigned per_token = launch_blocks(d.choices / d.each * packs, THREADS, MOST_BLOCKS);
    const unsigned warp_each = launch_blocks(d.choices, THREADS / WARP, MOST_BLOCKS);
    if (c->op == OP_DISPATCH) {
        launch_clear_places(q, wide, all, THREADS, &d);
        launch_fill_places(q, wide, per_choice, THREADS, &d);
    } else if (c->op == OP_COMBINE) {
        launch_gather_rows(q, wide, per_token, THREADS, &d);
    } else {
        launch_dot_rows(q, wide, warp_each, THREADS, &d);
    }
    return op_launched(q, c, e);
}
