// SPDX-License-Identifier: Apache-2.0
// Attention's scratch on CUDA. See attention.h.
#include "common/op/attention.h"

enum { BATCH, SEQ, HEADS, HEAD_DIM };

// Covers the alignment of the scratch's parts and the few bytes that an engine needs at any shape.
enum { SLACK = 16 << 10 };

static size_t round_up(int64_t n, int64_t unit)
{
    return (size_t)((n + unit - 1) / unit * unit);
}

size_t attention_own_bytes(const struct op_call *c)
{
    const int64_t *q = c->in[0].shape.dim;
    return c->op == OP_ATTENTION
               ? 0
               : sizeof(float) * ATTENTION_ROW_STATS * (size_t)(q[BATCH] * q[HEADS] * q[SEQ]);
}

size_t attention_library_bytes(const struct op_call *c)
{
    const int64_t *q = c->in[0].shape.dim, *k = c->in[1].shape.dim;
    bool drops = c->nin > attention_positions(c->op) + 2;
    if (!c->attr->in_order || drops || q[SEQ] != k[SEQ])
        return 0;
    size_t heads = (size_t)(q[BATCH] * q[HEADS]), seq = (size_t)q[SEQ], d = (size_t)q[HEAD_DIM];
    if (c->op == OP_ATTENTION)
        return heads * seq * sizeof(float) + SLACK;
    size_t pairs = 2 * round_up(q[SEQ], 64) * round_up(q[SEQ], 128);
    size_t sums = 2 * sizeof(float) * seq * d; // of dq, where they are added in no order
    size_t shared = k[HEADS] < q[HEADS] ? 4 * seq * d : 0;
    size_t head = 2 * seq * (sizeof(float) + d) + (pairs > sums ? pairs : sums) + shared;
    if (head > ATTENTION_HEAD_BYTES)
        return 0;
    size_t all = heads * head;
    size_t most = head > ATTENTION_LIBRARY_BYTES ? head : ATTENTION_LIBRARY_BYTES;
    return (all < most ? all : most) + SLACK;
}
