// SPDX-License-Identifier: Apache-2.0
// Scratch and chunks of bf16 operands. See widen.h.
#include "common/op/widen.h"

#include "common/op/attention.h"

enum { CHUNK_ELEMENTS = 1 << 22 }; // 16 MiB of f32 a chunk, unless one row has more

static const struct tensor *get_operand(const struct op_call *c, int k)
{
    return k < c->nin ? &c->in[k] : &c->out[k - c->nin];
}

// How many of the first n labels of `base` operand k begins with; −1: it has one elsewhere.
static int count_prefix(const struct op_call *c, int base, int k, int n)
{
    const struct tensor *t = get_operand(c, k);
    int same = 0;
    while (same < n && same < t->shape.n && c->attr->label[k][same] == c->attr->label[base][same])
        same++;
    for (int d = same; d < t->shape.n; d++)
        for (int i = 0; i < n; i++)
            if (c->attr->label[k][d] == c->attr->label[base][i])
                return -1;
    return same;
}

// Whether every operand begins with the n leading labels or has none of them. An output with none
// must be one that the op can add to.
static bool can_lead(const struct op_call *c, int base, int n)
{
    for (int k = 0; k < c->nin + c->nout; k++) {
        int same = count_prefix(c, base, k, n);
        if (same != n && (same != 0 || (k >= c->nin && !op_is(c->op, OP_ACCUMULATES))))
            return false;
    }
    return true;
}

// The keys and values of a decoder's attention, whose queries see a part of them: the kernel widens
// that. Not of others: oneDNN's bits follow how far apart rows lie.
static bool is_taken(const struct op_call *c, int k)
{
    struct attention_operands o;
    return attention_widens(c) && !attention_operands(c->op, c->nin, &o) && (k == o.k || k == o.v);
}

void widen_of(const struct op_call *c, struct widen *w)
{
    int base = -1; // the largest operand in bf16
    int64_t most = -1, row = 0;
    *w = (struct widen){.rows = 1, .chunk = 1};
    for (int k = 0; k < c->nin + c->nout; k++) {
        const struct tensor *t = get_operand(c, k);
        if (t->dtype != DT_BF16 || shape_count(&t->shape) <= most)
            continue;
        most = shape_count(&t->shape);
        base = k;
    }
    if (base < 0 || !op_whole(c->op))
        return;
    const struct shape *s = &get_operand(c, base)->shape;
    while (w->lead < s->n - (op_whole(c->op) - 1) && can_lead(c, base, w->lead + 1))
        w->lead++;
    for (int d = 0; d < w->lead; d++)
        w->rows *= s->dim[d];
    for (int k = 0; k < c->nin + c->nout; k++) {
        struct widen_operand *o = &w->operand[k];
        o->wide = get_operand(c, k)->dtype == DT_BF16 && !is_taken(c, k);
        o->chunked = w->lead && count_prefix(c, base, k, w->lead) == w->lead;
        o->each = shape_count(&get_operand(c, k)->shape) / (o->chunked ? w->rows : 1);
        row += o->wide && o->chunked ? o->each : 0;
    }
    w->chunk = row ? CHUNK_ELEMENTS / row : w->rows;
    w->chunk = w->chunk < 1 ? 1 : w->chunk > w->rows ? w->rows : w->chunk;
    for (int k = 0; k < c->nin + c->nout; k++) {
        struct widen_operand *o = &w->operand[k];
        size_t bytes = sizeof(float) * (size_t)(o->each * (o->chunked ? w->chunk : 1));
        o->at = w->bytes;
        w->bytes +=
            o->wide ? (bytes + OP_SCRATCH_ALIGN - 1) / OP_SCRATCH_ALIGN * OP_SCRATCH_ALIGN : 0;
    }
}
