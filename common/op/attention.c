// SPDX-License-Identifier: Apache-2.0
// Attention's operands, sight and scratch. See attention.h.
#include "common/op/attention.h"

#include "common/base/err.h"

bool attention_is_grad(enum op op)
{
    return op == OP_ATTENTION_GRAD || op == OP_ATTENTION_PACKED_GRAD;
}

int attention_operands(enum op op, int nin, struct attention_operands *out)
{
    bool grad = attention_is_grad(op), packed = op_is(op, OP_IS_PACKED);
    // A pair and a step are what a call may have or lack, a packed one a q of its own.
    int least = (packed ? 3 : 5) + (grad ? 3 : 0), more = nin - least;
    if (more < 0 || more > (packed ? 1 : 3))
        return ERR_INTERNAL;
    int at = packed ? 1 + more : 3, none = -1;
    *out = (struct attention_operands){.q = 0, .k = packed ? more : 1, .v = packed ? more : 2};
    more = packed ? 0 : more;
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

bool attention_widens(const struct op_call *c)
{
    return c->op == OP_ATTENTION && c->attr->streams && c->in[1].dtype == DT_BF16;
}

struct attention_place attention_place(const struct op_call *c, const struct attention_operands *o,
                                       enum attention_side side)
{
    const struct shape *s = &c->in[side == ATTENTION_Q   ? o->q
                                   : side == ATTENTION_K ? o->k
                                                         : o->v]
                                 .shape;
    int64_t pieces = s->n > 4 ? s->dim[2] : 1;
    struct attention_place p = {.batch = s->dim[0],
                                .rows = s->dim[1],
                                .heads = s->dim[s->n - 2],
                                .width = s->dim[s->n - 1]};
    p.pitch = pieces * p.heads * p.width;
    p.from = pieces > 1 ? (side - (ATTENTION_V + 1 - pieces)) * p.heads * p.width : 0;
    return p;
}

static bool is_shape(const struct tensor *t, int n, const int64_t *dim)
{
    bool same = t->shape.n == n;
    for (int d = 0; same && d < n; d++)
        same = t->shape.dim[d] == dim[d];
    return same;
}

bool attention_takes(const struct op_call *c, const struct attention_operands *o)
{
    const enum dtype t = c->in[0].dtype;
    bool takes = t == DT_F32 || t == DT_BF16;
    for (int i = 0; i < c->nin; i++)
        takes &= c->in[i].dtype == (i == o->lse ? DT_F32 : i < o->at_q ? t : DT_I32);
    for (int i = 0; i < c->nout; i++)
        takes &= c->out[i].dtype == (o->dy < 0 && i == ATTENTION_LSE ? DT_F32 : t);
    return takes;
}

bool attention_fits(const struct op_call *c, const struct attention_operands *o)
{
    const struct tensor *in = c->in;
    const struct shape *first = &in[o->q].shape, *last = &in[o->v].shape;
    const bool grad = o->dy >= 0, packed = o->k == o->v, all = packed && o->q == o->k;
    if (packed && (last->n != 5 || last->dim[2] != (all ? 3 : 2)))
        return false;
    if ((!all && first->n != 4) || (!packed && (in[o->k].shape.n != 4 || last->n != 4)))
        return false;
    const struct attention_place q = attention_place(c, o, ATTENTION_Q);
    const struct attention_place k = attention_place(c, o, ATTENTION_K);
    const struct attention_place v = attention_place(c, o, ATTENTION_V);
    const int64_t y[] = {q.batch, q.rows, q.heads, v.width}, rows[] = {q.batch, q.heads, q.rows};
    bool fit = k.batch == q.batch && v.batch == q.batch && v.rows == k.rows && v.heads == k.heads &&
               k.width == q.width && is_shape(grad ? &in[o->y] : &c->out[ATTENTION_Y], 4, y) &&
               is_shape(grad ? &in[o->lse] : &c->out[ATTENTION_LSE], 3, rows) &&
               (!grad || is_shape(&in[o->dy], 4, y)) &&
               shape_count(&in[o->at_q].shape) == q.batch * q.rows &&
               shape_count(&in[o->at_k].shape) == q.batch * k.rows;
    if (o->qr >= 0) {
        const int64_t r = in[o->kr].shape.dim[2];
        const int64_t qr[] = {q.batch, q.rows, q.heads, r}, kr[] = {q.batch, k.rows, r};
        fit = fit && is_shape(&in[o->qr], 4, qr) && is_shape(&in[o->kr], 3, kr);
    }
    for (int i = 0; i < c->nout && grad; i++) // output i is the gradient of input i
        fit = fit && shape_equal(&c->out[i].shape, &in[i].shape);
    return fit;
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

static int64_t pad_row(int64_t n)
{
    return (n + 15) / 16 * 16 + ATTENTION_SMALL_PAD;
}

struct attention_room attention_room(const struct op_call *c)
{
    bool grad = attention_is_grad(c->op);
    struct attention_operands o;
    PRE(!attention_operands(c->op, c->nin, &o));
    const struct attention_place q = attention_place(c, &o, ATTENTION_Q);
    const struct attention_place k = attention_place(c, &o, ATTENTION_K);
    const int64_t second = o.kr >= 0 ? c->in[o.kr].shape.dim[2] : 0;
    const int64_t keys = k.rows, width = q.width + second;
    const int64_t values = attention_place(c, &o, ATTENTION_V).width;
    struct attention_room r = {.parts = k.batch * k.heads, .rows = ATTENTION_ROWS};
    r.small = keys <= ATTENTION_SMALL_KEYS && q.rows >= ATTENTION_SMALL_ROWS &&
              width <= ATTENTION_SMALL_WIDTH && values <= ATTENTION_SMALL_WIDTH;
    r.slots = r.parts < ATTENTION_SLOTS ? r.parts : ATTENTION_SLOTS;
    r.blocks = !grad ? 1 : c->attr->cap != 0 ? 3 : 2;
    r.slot = (r.blocks * ATTENTION_ROWS + 1) * keys;
    if (r.small) {
        r.rows = ATTENTION_SMALL_ROWS;
        r.keys = pad_row(keys);
        r.wide = pad_row(width);
        r.values = pad_row(values);
        // Packed: a block's rows of q and y, the keys transposed; of a forward the values; of a
        // gradient the values transposed, the keys, and the gradients of both.
        r.slot = r.blocks * r.rows * r.keys + r.rows * (r.wide + r.values) + width * r.keys;
        r.slot += grad ? values * r.keys + keys * (2 * r.wide + r.values) : keys * r.values;
    }
    r.widened = attention_widens(c) ? keys * (q.width + values) : 0;
    r.slot += r.widened;
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
    struct attention_place q = attention_place(c, &o, ATTENTION_Q);
    struct attention_place k = attention_place(c, &o, ATTENTION_K);
    if (!attention_is_grad(c->op))
        return 0;
    int64_t means = q.batch * q.heads * q.rows;
    int64_t kr = o.kr < 0 ? 0 : k.batch * k.rows * k.heads * c->in[o.kr].shape.dim[2];
    return sizeof(float) * (size_t)(means + kr);
}

size_t attention_library_bytes(const struct op_call *c)
{
    struct attention_operands o;
    PRE(!attention_operands(c->op, c->nin, &o));
    struct attention_place q = attention_place(c, &o, ATTENTION_Q);
    struct attention_place k = attention_place(c, &o, ATTENTION_K);
    if (c->in[0].dtype != DT_BF16 || !c->attr->in_order || o.step >= 0 || q.rows != k.rows)
        return 0;
    size_t heads = (size_t)(q.batch * q.heads), seq = (size_t)q.rows;
    size_t r = o.kr < 0 ? 0 : (size_t)c->in[o.kr].shape.dim[2], d = (size_t)q.width + r;
    size_t e = (size_t)attention_place(c, &o, ATTENTION_V).width;
    bool grad = attention_is_grad(c->op);
    // A second pair is joined, of queries and keys, and of their gradients.
    size_t head = r ? (grad ? 2 : 1) * 2 * 2 * seq * d : 0;
    if (grad) {
        size_t pairs = 2 * round_up(q.rows, 64) * round_up(q.rows, 128);
        size_t sums = 2 * sizeof(float) * seq * d; // of dq, where they are added in no order
        head += seq * sizeof(float) + (pairs > sums ? pairs : sums) +
                (k.heads < q.heads ? 2 * seq * (d + e) : 0);
    }
    if (head > ATTENTION_HEAD_BYTES)
        return 0;
    size_t all = heads * head;
    size_t beside = grad ? seq * r * sizeof(float) : 0; // sums of kr's
    size_t most = c->attr->scratch ? (size_t)c->attr->scratch : ATTENTION_LIBRARY_BYTES;
    most = head > most ? head : most;
    return (all < most ? all : most) + beside + SLACK;
}
