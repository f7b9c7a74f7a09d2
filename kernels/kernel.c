// SPDX-License-Identifier: Apache-2.0
// The checks that refuse calls which no kernel serves. See kernel.h.
#include "kernels/kernel.h"

#include <string.h>

#include "common/op/rotary.h"
#include "common/op/slots.h"

int op_refuse(const struct op_call *c, struct err *e, const char *what)
{
    return err_set(e, ERR_UNSUPPORTED, "%s: %s", op_name(c->op), what);
}

int op_check(const struct op_call *c, struct err *e)
{
    enum dtype t[OP_MAX_IN + OP_MAX_OUT];
    if (c->accumulate && !op_is(c->op, OP_ACCUMULATES))
        return op_refuse(c, e, "adds to nothing");
    if (c->accumulate && c->out[op_first_sum(c->op)].dtype == DT_BF16)
        return op_refuse(c, e, "adds to f32 alone");
    for (int k = 0; k < c->nin + c->nout; k++)
        t[k] = k < c->nin ? c->in[k].dtype : c->out[k - c->nin].dtype;
    const int bad = op_find_misfit(c->op, c->nin, c->nout, t);
    if (bad < 0)
        return 0;
    if (bad == OP_WRONG_NUMBER)
        return op_refuse(c, e, "has a number of operands that the op does not have");
    return err_set(e, ERR_UNSUPPORTED, "%s: %s %d is %s, which the op does not take there",
                   op_name(c->op), bad < c->nin ? "input" : "output",
                   1 + (bad < c->nin ? bad : bad - c->nin), dtype_name(t[bad]));
}

// ---- extents -----------------------------------------------------------------------------------

int op_check_update(const struct op_call *c, struct err *e)
{
    int64_t n = shape_count(&c->in[0].shape);
    for (int k = 0; k < c->nin - 2; k++)
        if (shape_count(&c->in[k].shape) != n)
            return op_refuse(c, e, "operands differ in size");
    for (int k = 0; k < c->nout; k++)
        if (shape_count(&c->out[k].shape) != n)
            return op_refuse(c, e, "results differ in size");
    if (shape_count(&c->in[c->nin - 2].shape) < CLIP_SLOTS ||
        shape_count(&c->in[c->nin - 1].shape) < HYPER_SLOTS)
        return op_refuse(c, e, "clip or hyper vector is too short");
    return 0;
}

int op_check_metrics(const struct op_call *c, struct err *e)
{
    int64_t left = shape_count(&c->out[0].shape);
    for (int k = 0; k < c->nin; k++)
        left -= shape_count(&c->in[k].shape);
    if (!left)
        return 0;
    return op_refuse(c, e,
                     left < 0 ? "more metrics than the output holds"
                              : "fewer metrics than the output holds");
}

int op_check_clip(const struct op_call *c, struct err *e)
{
    if (shape_count(&c->in[0].shape) < METRIC_PARTS || shape_count(&c->out[0].shape) != CLIP_SLOTS)
        return op_refuse(c, e, "the metrics are too few, or the output is no clip vector");
    return 0;
}

int op_check_balance(const struct op_call *c, struct err *e)
{
    int64_t n = shape_count(&c->in[0].shape);
    if (c->attr->start < 0 || c->attr->start + n > shape_count(&c->in[1].shape))
        return op_refuse(c, e, "the experts' loads lie outside the metrics");
    if (shape_count(&c->in[2].shape) < CLIP_SLOTS)
        return op_refuse(c, e, "the clip vector is too short");
    return shape_count(&c->out[0].shape) == n ? 0 : op_refuse(c, e, "results differ in size");
}

int64_t op_embed_width(const struct shape *table)
{
    int64_t n = 1;
    for (int d = 1; d < table->n; d++)
        n *= table->dim[d];
    return n;
}

int op_check_embed(const struct op_call *c, struct err *e)
{
    const bool grad = c->op == OP_EMBED_GRAD;
    const struct tensor *table = grad ? &c->out[0] : &c->in[1];
    const struct tensor *rows = grad ? &c->in[1] : &c->out[0];
    if (table->shape.n < 1 || (grad && table->shape.n != 2) ||
        shape_count(&rows->shape) != shape_count(&c->in[0].shape) * op_embed_width(&table->shape))
        return op_refuse(c, e, "operands disagree about an extent");
    return 0;
}

int op_check_rotary(const struct op_call *c, struct err *e)
{
    const struct shape *x = &c->in[0].shape;
    if (x->n < 2 || x->dim[x->n - 1] % 2 || x->dim[x->n - 1] / 2 > ROTARY_PAIRS_MAX)
        return op_refuse(c, e, "a head has an even number of elements, at most 1024");
    if (!rotary_row_of(c).heads || !shape_equal(x, &c->out[0].shape))
        return op_refuse(c, e, "operands disagree about an extent");
    return 0;
}

int op_check_pieces(const struct op_call *c, struct err *e)
{
    const bool split = op_is(c->op, OP_MAKES_PIECES);
    const struct tensor *whole = split ? &c->in[0] : &c->out[0], *piece = split ? c->out : c->in;
    int pieces = split ? c->nout : c->nin;
    for (int k = 0; k < pieces; k++)
        if (shape_count(&piece[k].shape) * pieces != shape_count(&whole->shape))
            return op_refuse(c, e, "operands disagree about an extent");
    return 0;
}

int op_check_draw(const struct op_call *c, struct err *e)
{
    const struct shape *s = &c->out[0].shape;
    const int place = c->attr->draw.place - 1, at = c->op == OP_DROPOUT ? 2 : 1;
    if (s->n < 1 || s->n != c->attr->draw.n)
        return op_refuse(c, e, "attr.draw has other dimensions than the output");
    if (c->nin > at) {
        const struct shape *p = &c->in[at].shape;
        if (place < 0 || place >= s->n - 1 || p->n < 1 || p->dim[p->n - 1] != s->dim[place])
            return op_refuse(c, e, "the positions are not one for each place of the sequence");
    }
    return 0;
}

int op_check_pad(const struct op_call *c, struct pad_place *p, struct err *e)
{
    const struct shape *s = &c->out[0].shape;
    if (!shape_equal(&c->in[0].shape, s) || c->attr->along < 0 || c->attr->along >= s->n)
        return op_refuse(c, e, "the operand is not like the output, or has not the dimension");
    *p = (struct pad_place){.outer = 1, .n = s->dim[c->attr->along], .inner = 1};
    for (int d = 0; d < s->n; d++) {
        p->outer *= d < c->attr->along ? s->dim[d] : 1;
        p->inner *= d > c->attr->along ? s->dim[d] : 1;
    }
    p->left = op_unpadded(c, p->n);
    return 0;
}

int op_check_dropout(const struct op_call *c, struct err *e)
{
    const struct shape *s = &c->out[0].shape;
    int rc = op_check_draw(c, e);
    if (rc)
        return rc;
    if (!shape_equal(&c->in[0].shape, s) ||
        memcmp(c->attr->label[0], c->attr->label[c->nin], sizeof c->attr->label[0]) != 0)
        return op_refuse(c, e, "the operand is not laid out as the output");
    return 0;
}

int op_check_attention(const struct op_call *c, struct attention_operands *o, struct err *e)
{
    if (attention_operands(c->op, c->nin, o))
        return op_refuse(c, e, "has a number of inputs that the op does not have");
    if (c->nout != (o->dy < 0 ? ATTENTION_OUTPUTS : o->dy))
        return op_refuse(c, e, "has a number of outputs that the op does not have");
    if (!attention_takes(c, o))
        return op_refuse(c, e, "an operand has a dtype that the op does not take there");
    if (!attention_fits(c, o))
        return op_refuse(c, e, "operands disagree about an extent");
    int64_t heads = attention_place(c, o, ATTENTION_Q).heads, group = c->attr->group;
    if (group < 1 || c->attr->start < 0 ||
        (c->attr->start + heads - 1) / group >= attention_place(c, o, ATTENTION_K).heads)
        return op_refuse(c, e, "query heads without a key head");
    return 0;
}

int op_check_topk(const struct op_call *c, struct topk_call *t, struct err *e)
{
    const bool grad = c->op == OP_TOPK_GRAD;
    const struct shape *wide = grad ? &c->out[0].shape : &c->in[0].shape;
    const struct shape *narrow = grad ? &c->in[1].shape : &c->out[0].shape;
    t->grad = grad;
    t->x = grad ? &c->in[1] : &c->in[0];
    t->ids = grad ? &c->in[0] : &c->out[1];
    t->n = wide->n ? wide->dim[wide->n - 1] : 0;
    t->k = narrow->n ? narrow->dim[narrow->n - 1] : 0;
    // Each row of `narrow` can hold k of the n elements of a row of `wide`.
    if (t->n <= 0 || t->k <= 0 || t->k > t->n ||
        shape_count(wide) / t->n * t->k != shape_count(narrow) ||
        shape_count(&t->ids->shape) != shape_count(narrow) ||
        (!grad && c->nin > 1 && !shape_equal(&c->in[1].shape, wide)))
        return op_refuse(c, e, "operands disagree about an extent");
    t->rows = shape_count(wide) / t->n;
    return 0;
}

int op_check_cache(const struct op_call *c, struct cache_call *w, struct err *e)
{
    const bool append = c->op == OP_APPEND;
    const struct shape *cache = &c->out[0].shape, *rows = append ? &c->in[1].shape : cache;
    const struct shape *last = &c->in[append ? 3 : 0].shape;
    bool fits = cache->n >= 2 && rows->n == cache->n && rows->dim[0] == cache->dim[0] &&
                shape_count(last) == cache->dim[0];
    *w = (struct cache_call){.bytes = dtype_size(c->out[0].dtype)};
    for (int d = 2; d < cache->n && fits; d++) {
        fits = rows->dim[d] == cache->dim[d];
        w->bytes *= (size_t)cache->dim[d];
    }
    if (append)
        fits = fits && shape_equal(&c->in[0].shape, cache) && rows->dim[1] <= cache->dim[1] &&
               shape_count(&c->in[2].shape) == rows->dim[0] * rows->dim[1];
    else
        fits = fits && cache->n == 2;
    if (!fits)
        return op_refuse(c, e, "operands disagree about an extent");
    w->batch = cache->dim[0];
    w->places = cache->dim[1];
    w->rows = rows->dim[1];
    return 0;
}

int op_check_dispatch(const struct op_call *c, struct dispatch_call *d, struct err *e)
{
    const bool dot = c->op == OP_SLOT_DOT, fill = c->op == OP_DISPATCH;
    d->tokens = fill ? &c->in[0] : dot ? &c->in[2] : &c->out[0];
    d->places = fill ? &c->out[0] : &c->in[0];
    d->weights = !dot && c->nin > 2 ? &c->in[2] : NULL;
    const struct shape *x = &d->tokens->shape, *y = &d->places->shape, *slots = &c->in[1].shape;
    const struct tensor *each = dot ? &c->out[0] : d->weights; // one a choice
    if (x->n != 3 || y->n != 4 || slots->n != 3 || c->attr->slots.group <= 0 ||
        c->attr->slots.capacity <= 0 || x->dim[0] != y->dim[0] * c->attr->slots.group ||
        x->dim[0] != slots->dim[0] || x->dim[1] != slots->dim[1] || x->dim[2] != y->dim[3] ||
        (each && !shape_equal(&each->shape, slots)))
        return op_refuse(c, e, "operands disagree about an extent");
    return 0;
}

int op_check_places(const struct op_call *c, struct places_call *p, struct err *e)
{
    const struct shape *a = &c->in[0].shape, *b = &c->in[1].shape, *chosen = &c->in[2].shape,
                       *out = &c->out[0].shape;
    const struct op_slots *s = &c->attr->slots;
    if (a->n != 4 || b->n < 1 || out->n != 4 || chosen->n != 2 || s->group <= 0 ||
        a->dim[0] != b->dim[0] || memcmp(a->dim, out->dim, 3 * sizeof *a->dim) != 0 ||
        chosen->dim[0] != a->dim[1] * s->group || s->first.expert + a->dim[0] > chosen->dim[1])
        return op_refuse(c, e, "operands disagree about an extent");
    *p = (struct places_call){a->dim[0], a->dim[1], a->dim[2], s->group, c->in[2].data};
    return 0;
}

int64_t op_unpadded(const struct op_call *c, int64_t n)
{
    int64_t left = c->attr->limit - c->attr->start;
    if (!c->attr->limit || left >= n)
        return n;
    return left > 0 ? left : 0;
}
