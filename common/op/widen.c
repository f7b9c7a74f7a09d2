// SPDX-License-Identifier: Apache-2.0
// Scratch and turns of bf16 operands. See widen.h.
#include "common/op/widen.h"

enum { ALIGN = 64, TURN_ELEMENTS = 1 << 22 }; // 16 MiB of f32 a turn, unless one row has more

// Ops whose kernels are f32's; `whole`: 1 + the last dimensions of the largest operand that the
// kernel must see whole.
static const int whole[OP_COUNT] = {
    [OP_MATMUL] = 1,        [OP_SUM] = 1,       [OP_ROW_MAX] = 2,        [OP_ROW_SUM_EXP] = 2,
    [OP_ROW_EXP_MUL] = 2,   [OP_PICK] = 2,      [OP_PICK_GRAD] = 2,      [OP_ROW_ARGMAX] = 2,
    [OP_EMBED_GRAD] = 2,    [OP_NORM] = 2,      [OP_NORM_GRAD] = 2,      [OP_NORM_WEIGHT_GRAD] = 2,
    [OP_ROTARY] = 3,        [OP_ATTENTION] = 4, [OP_ATTENTION_GRAD] = 4, [OP_ADD_NORM] = 2,
    [OP_NORM_GRAD_ADD] = 2, [OP_ROW_LOSS] = 2,  [OP_ROW_LOSS_GRAD] = 2,
};

static const struct tensor *operand(const struct op_call *c, int k)
{
    return k < c->nin ? &c->in[k] : &c->out[k - c->nin];
}

static bool adds(enum op op)
{
    return op == OP_MATMUL || op == OP_SUM || op == OP_EMBED_GRAD || op == OP_NORM_WEIGHT_GRAD;
}

static int largest(const struct op_call *c)
{
    int best = -1;
    for (int k = 0; k < c->nin + c->nout; k++) {
        const struct tensor *t = operand(c, k);
        if (t->dtype == DT_BF16 &&
            (best < 0 || shape_count(&t->shape) > shape_count(&operand(c, best)->shape)))
            best = k;
    }
    return best;
}

// How many of the first n labels of `base` operand k begins with; −1: it has one elsewhere.
static int prefix(const struct op_call *c, int base, int k, int n)
{
    const struct tensor *t = operand(c, k);
    int same = 0;
    while (same < n && same < t->shape.n && c->attr->label[k][same] == c->attr->label[base][same])
        same++;
    for (int d = same; d < t->shape.n; d++)
        for (int i = 0; i < n; i++)
            if (c->attr->label[k][d] == c->attr->label[base][i])
                return -1;
    return same;
}

// Every operand begins with the n labels or has none of them; an output that has none is added to.
static bool can_lead(const struct op_call *c, int base, int n)
{
    for (int k = 0; k < c->nin + c->nout; k++) {
        int same = prefix(c, base, k, n);
        if (same != n && (same != 0 || (k >= c->nin && !adds(c->op))))
            return false;
    }
    return true;
}

static int64_t leading(const struct shape *s, int n)
{
    int64_t rows = 1;
    for (int d = 0; d < n; d++)
        rows *= s->dim[d];
    return rows;
}

static void turns_choose(const struct op_call *c, int base, struct widen *w)
{
    const struct shape *s = &operand(c, base)->shape;
    int64_t row = 0;
    while (w->lead < s->n - (whole[c->op] - 1) && can_lead(c, base, w->lead + 1))
        w->lead++;
    w->rows = leading(s, w->lead);
    for (int k = 0; k < c->nin + c->nout; k++) {
        struct widen_operand *o = &w->operand[k];
        o->wide = operand(c, k)->dtype == DT_BF16;
        o->turns = w->lead && prefix(c, base, k, w->lead) == w->lead;
        o->each = shape_count(&operand(c, k)->shape) / (o->turns ? w->rows : 1);
        row += o->wide && o->turns ? o->each : 0;
    }
    w->turn = row ? TURN_ELEMENTS / row : w->rows;
    w->turn = w->turn < 1 ? 1 : w->turn > w->rows ? w->rows : w->turn;
}

void widen_of(const struct op_call *c, struct widen *w)
{
    int base = largest(c);
    *w = (struct widen){.rows = 1, .turn = 1};
    if (base < 0 || !whole[c->op])
        return;
    turns_choose(c, base, w);
    for (int k = 0; k < c->nin + c->nout; k++) {
        struct widen_operand *o = &w->operand[k];
        size_t bytes = sizeof(float) * (size_t)(o->each * (o->turns ? w->turn : 1));
        o->at = w->bytes;
        w->bytes += o->wide ? (bytes + ALIGN - 1) / ALIGN * ALIGN : 0;
    }
}
