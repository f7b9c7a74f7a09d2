// SPDX-License-Identifier: Apache-2.0
// Attention's operands, sight and scratch. See attention.h.
#include "common/op/attention.h"

#include "common/base/err.h"

enum { BATCH, SEQ, HEADS, WIDTH };

int attention_operands(enum op op, int nin, struct attention_operands *out)
{
    bool grad = op == OP_ATTENTION_GRAD;
    int more = nin - (grad ? 8 : 5); // a pair and a step are what a call may have or lack
    if (more < 0 || more > 3)
        return ERR_INTERNAL;
    int at = 3, none = -1;
    *out = (struct attention_operands){.q = 0, .k = 1, .v = 2};
    out->qr = more > 1 ? at++ : none;
    out->kr = more > 1 ? at++ : none;
    out->dy = grad ? at++ : none;
    out->y = grad ? at++ : none;
    out->lse = grad ? at++ : none;
    out->at_q = at++;
    out->at_k = at++;
    out->step = at < nin ? at : none;
    return 0;
}

struct attention_sight attention_sight(const struct op_attr *a, int32_t query)
{
    int64_t reach = a->window ? a->window - 1 : INT32_MAX;
    int64_t first = query - reach, last = a->ahead ? query + reach : query;
    return (struct attention_sight){(int32_t)(first > INT32_MIN ? first : INT32_MIN),
                                    (int32_t)(last < INT32_MAX ? last : INT32_MAX)};
}

// Of the first window - 1 queries the window reaches over the sequence's begin: they see half of it
// on average. With what lies ahead the same is so at the end.
double attention_seen(const struct op_attr *a, int64_t keys)
{
    double n = (double)keys, w = a->window && a->window < keys ? (double)a->window : n;
    double back = w - w * w / (2 * n);
    return a->ahead ? 2 * back : back;
}

static int64_t padded(int64_t n)
{
    return (n + 15) / 16 * 16 + ATTENTION_SMALL_PAD;
}

// What a slot of a small attention packs, in floats: a block's rows of q and y, the keys turned; of a
// forward the values; of a gradient the values turned, the keys, and the gradients of both.
static int64_t count_packed(const struct attention_room *r, bool grad, int64_t keys, int64_t width,
                            int64_t values)
{
    int64_t both = r->rows * (r->wide + r->values) + width * r->keys;
    return both + (grad ? values * r->keys + keys * (2 * r->wide + r->values) : keys * r->values);
}

struct attention_room attention_room(const struct op_call *c)
{
    bool grad = c->op == OP_ATTENTION_GRAD;
    struct attention_operands o;
    PRE(!attention_operands(c->op, c->nin, &o));
    const int64_t *q = c->in[o.q].shape.dim, *k = c->in[o.k].shape.dim;
    const int64_t second = o.kr >= 0 ? c->in[o.kr].shape.dim[2] : 0;
    const int64_t keys = k[SEQ], width = q[WIDTH] + second, values = c->in[o.v].shape.dim[WIDTH];
    struct attention_room r = {.parts = k[BATCH] * k[HEADS], .rows = ATTENTION_ROWS};
    r.small = keys <= ATTENTION_SMALL_KEYS && q[SEQ] >= ATTENTION_SMALL_ROWS &&
              width <= ATTENTION_SMALL_WIDTH && values <= ATTENTION_SMALL_WIDTH;
    r.slots = r.parts < ATTENTION_SLOTS ? r.parts : ATTENTION_SLOTS;
    r.blocks = !grad ? 1 : c->attr->cap != 0 ? 3 : 2;
    r.slot = (r.blocks * ATTENTION_ROWS + 1) * keys;
    if (r.small) {
        r.rows = ATTENTION_SMALL_ROWS;
        r.keys = padded(keys);
        r.wide = padded(width);
        r.values = padded(values);
        r.slot = r.blocks * r.rows * r.keys + count_packed(&r, grad, keys, width, values);
    }
    r.kr = grad ? keys * second : 0;
    r.floats = r.slots * r.slot + r.parts * r.kr;
    return r;
}

// Covers the alignment of the scratch's parts and the few bytes that an engine needs at any shape.
enum { SLACK = 16 << 10 };

static size_t round_up(int64_t n, int64_t unit)
{
    return (size_t)((n + unit - 1) / unit * unit);
}

size_t attention_own_bytes(const struct op_call *c)
{
    struct attention_operands o;
    PRE(!attention_operands(c->op, c->nin, &o));
    const int64_t *q = c->in[o.q].shape.dim, *k = c->in[o.k].shape.dim;
    if (c->op == OP_ATTENTION)
        return 0;
    int64_t means = q[BATCH] * q[HEADS] * q[SEQ];
    int64_t kr = o.kr < 0 ? 0 : k[BATCH] * k[SEQ] * k[HEADS] * c->in[o.kr].shape.dim[2];
    return sizeof(float) * (size_t)(means + kr);
}

size_t attention_library_bytes(const struct op_call *c)
{
    struct attention_operands o;
    PRE(!attention_operands(c->op, c->nin, &o));
    const int64_t *q = c->in[o.q].shape.dim, *k = c->in[o.k].shape.dim;
    if (!c->attr->in_order || o.step >= 0 || o.kr >= 0 || q[SEQ] != k[SEQ])
        return 0;
    size_t heads = (size_t)(q[BATCH] * q[HEADS]), seq = (size_t)q[SEQ];
    size_t d = (size_t)q[WIDTH], e = (size_t)c->in[o.v].shape.dim[WIDTH];
    if (c->op == OP_ATTENTION)
        return SLACK;
    size_t pairs = 2 * round_up(q[SEQ], 64) * round_up(q[SEQ], 128);
    size_t sums = 2 * sizeof(float) * seq * d; // of dq, where they are added in no order
    size_t shared = k[HEADS] < q[HEADS] ? 2 * seq * (d + e) : 0;
    size_t head = seq * sizeof(float) + (pairs > sums ? pairs : sums) + shared;
    if (head > ATTENTION_HEAD_BYTES)
        return 0;
    size_t all = heads * head;
    size_t most = c->attr->scratch ? (size_t)c->attr->scratch : ATTENTION_LIBRARY_BYTES;
    most = head > most ? head : most;
    return (all < most ? all : most) + SLACK;
}
