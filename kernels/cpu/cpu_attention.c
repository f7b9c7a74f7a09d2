// SPDX-License-Identifier: Apache-2.0
// ATTENTION and its gradient, made of products over blocks of query rows: oneDNN's, or for a small
// attention those of cpu_attention_small.c. Which of them follows from the shapes (attention_room).
//
// A block's scores lie in the workspace, side by side for the spans of keys that the block may see:
// only those are multiplied (op/mask.h), so causal attention costs half and a window what it holds.
// A small attention has one span of all that the block sees.
// Which key a query sees follows from positions, so rows and keys may come in any order. The
// gradient makes the scores again, and from them and the forward's L the weights in one pass.
//   forward   T = scale·(Q·Kᵀ + Qr·Krᵀ), S = cap·tanh(T / cap), L = ln Σ e^S, P = e^(S − L), O = P·V
//   backward  dP = dO·Vᵀ, dS = P∘(dP − Σ O∘dO), dT = scale·dS∘(1 − tanh²), dQ = dT·K,
//             dK += dTᵀ·Q, dV += Pᵀ·dO, and dQr, dKr as dQ, dK
// With dropout D (attr.draw), O = (P∘D)·V, dP is that of P∘D times D, and dV is made of P∘D; D is
// drawn where it is needed and never kept.
// A part of the work is one sample and key head with all query heads that share it: it alone writes
// its dk and dv. All heads share kr: each part makes a gradient of it in the workspace, and these
// are added up in the order of the heads. Parts are dealt out over ATTENTION_SLOTS slots of the
// workspace, whatever the threads, and no part meets another: threads never change a bit.
#include "kernels/cpu/cpu_attention.h"

#include <string.h>

// The rows of a block, of a sample that has so many keys. The positions of its keys, where they are in
// several spans, are gathered in `room`; a small attention gathers no keys: it has one span that holds
// them all.
static struct query_rows rows_of(const struct attention_work *w, int64_t b, int64_t h,
                                 int64_t first, int64_t keys, int32_t *room)
{
    struct query_rows r = {
        .b = b, .h = h, .first = first, .at_q = w->at_q + b * w->queries + first};
    r.n = mask_rows(r.at_q, w->queries - first, w->room.rows);
    const int32_t *at_k = w->at_k + b * w->keys;
    struct mask *m = &r.mask;
    mask_keys(m, w->call->attr, r.at_q, r.n, at_k, keys);
    if (w->room.small) {
        const struct mask_span *last = &m->span[m->n - 1];
        m->keys = m->span[0].n = last->first + last->n - m->span[0].first;
        m->n = 1;
    }
    r.keys = m->keys;
    r.stride = w->room.small ? w->room.keys : r.keys;
    r.at_k = m->n == 1 ? at_k + m->span[0].first : room;
    for (int i = 0; i < m->n && m->n > 1; room += m->span[i++].n)
        memcpy(room, at_k + m->span[i].first, (size_t)m->span[i].n * sizeof *room);
    const struct op_draw *d = &w->call->attr->draw;
    r.drawn = (uint64_t)((d->from[0] + b) * d->extent[1] + d->from[1] + h);
    return r;
}

// ---- products of a block, by oneDNN ------------------------------------------------------------

static void run_gemm(struct attention_work *w, bool ta, bool tb, const struct gemm *g, float alpha,
                     const float *a, const float *b, float beta, float *c)
{
    int rc = gemm_serial(ta, tb, g, alpha, a, b, beta, c);
    if (rc)
        *w->status = rc;
}

static int64_t key_offset(const struct attention_work *w, const struct query_rows *r,
                          const struct side *s, int span)
{
    return offset_of(s, r->b, r->mask.span[span].first, key_head(w, r->h));
}

// alpha · rows [n, width] × keysᵀ + beta · out → [n, keys]
static void multiply_by_keys(struct attention_work *w, const struct query_rows *r, float alpha,
                             const struct side *rows, const float *a, const struct side *keys,
                             float beta, float *out)
{
    for (int i = 0; i < r->mask.n; out += r->mask.span[i++].n) {
        const struct gemm g = {.m = r->n,
                               .n = r->mask.span[i].n,
                               .k = rows->width,
                               .lda = stride_of(rows),
                               .ldb = stride_of(keys),
                               .ldc = r->keys};
        run_gemm(w, false, true, &g, alpha, a + row_offset(r, rows),
                 keys->data + key_offset(w, r, keys, i), beta, out);
    }
}

// [n, keys] × keys → rows [n, width]
static void multiply_by_rows(struct attention_work *w, const struct query_rows *r, const float *p,
                             const struct side *keys, const struct side *rows, float *out)
{
    for (int i = 0; i < r->mask.n; p += r->mask.span[i++].n) {
        const struct gemm g = {.m = r->n,
                               .n = rows->width,
                               .k = r->mask.span[i].n,
                               .lda = r->keys,
                               .ldb = stride_of(keys),
                               .ldc = stride_of(rows)};
        run_gemm(w, false, false, &g, 1, p, keys->data + key_offset(w, r, keys, i), i ? 1 : 0,
                 out + row_offset(r, rows));
    }
}

// [n, keys]ᵀ × rows, added to `out`, which holds keys [keys, width] with `stride` between them.
static void add_onto_keys(struct attention_work *w, const struct query_rows *r, const float *p,
                          const struct side *rows, const float *a, float *out, int64_t stride)
{
    for (int i = 0; i < r->mask.n; p += r->mask.span[i++].n) {
        const struct gemm g = {.m = r->mask.span[i].n,
                               .n = rows->width,
                               .k = r->n,
                               .lda = r->keys,
                               .ldb = stride_of(rows),
                               .ldc = stride};
        run_gemm(w, true, false, &g, 1, p, a + row_offset(r, rows), 1,
                 out + r->mask.span[i].first * stride);
    }
}

static void make_scores(struct attention_work *w, const struct query_rows *r, float scale, float *p)
{
    multiply_by_keys(w, r, scale, &w->q, w->q.data, &w->k, 0, p);
    if (w->qr.width)
        multiply_by_keys(w, r, scale, &w->qr, w->qr.data, &w->kr, 1, p);
}

static void weigh_values(struct attention_work *w, const struct query_rows *r, const float *p)
{
    multiply_by_rows(w, r, p, &w->v, &w->y, w->y.grad);
}

static void take_weights_grad(struct attention_work *w, const struct query_rows *r, float *dp)
{
    multiply_by_keys(w, r, 1, &w->y, w->dy, &w->v, 0, dp);
}

static void add_values_grad(struct attention_work *w, const struct query_rows *r, const float *p)
{
    float *dv = w->v.grad + offset_of(&w->v, r->b, 0, key_head(w, r->h));
    add_onto_keys(w, r, p, &w->y, w->dy, dv, stride_of(&w->v));
}

static void spread_scores_grad(struct attention_work *w, const struct query_rows *r,
                               const float *ds)
{
    float *dk = w->k.grad + offset_of(&w->k, r->b, 0, key_head(w, r->h));
    multiply_by_rows(w, r, ds, &w->k, &w->q, w->q.grad);
    add_onto_keys(w, r, ds, &w->q, w->q.data, dk, stride_of(&w->k));
    if (!w->qr.width)
        return;
    multiply_by_rows(w, r, ds, &w->kr, &w->qr, w->qr.grad);
    add_onto_keys(w, r, ds, &w->qr, w->qr.data, r->dkr, w->kr.width);
}

static const struct attention_products by_onednn = {.make_scores = make_scores,
                                                    .weigh_values = weigh_values,
                                                    .take_weights_grad = take_weights_grad,
                                                    .add_values_grad = add_values_grad,
                                                    .spread_scores_grad = spread_scores_grad};

// ---- a block -----------------------------------------------------------------------------------

// p and `from` may be the same.
static void run_map(const struct attention_work *w, enum op op, float *p, const float *from,
                    const float *b, int64_t n, float scale)
{
    w->vec->map[op](&(struct vec_map){
        .out = p, .a = from, .b = b, .a_step = 1, .b_step = 1, .n = n, .scale = scale});
}

// Makes the scores of a block, capped where the call has a cap; `tanhs` gets the tanh of these.
static void cap_scores(struct attention_work *w, const struct query_rows *r, float *p, float *tanhs)
{
    const struct op_attr *a = w->call->attr;
    const bool capped = a->cap != 0;
    w->products->make_scores(w, r, capped ? a->scale / a->cap : a->scale, p);
    if (capped) {
        run_map(w, OP_TANH, tanhs, p, p, r->n * r->stride, 1);
        run_map(w, OP_SCALE, p, tanhs, tanhs, r->n * r->stride, a->cap);
    }
}

// The weights from the scores, in place.
static void weigh_scores(const struct attention_work *w, const struct query_rows *r, float *p)
{
    float *lse = w->lse + (r->b * w->heads + r->h) * w->queries + r->first;
    for (int64_t i = 0; i < r->n; i++, p += r->stride) {
        struct attention_sight s = attention_sight(w->call->attr, r->at_q[i]);
        if (w->grad)
            w->vec->softmax_again(p, r->at_k, s.first, s.last, r->keys, lse[i]);
        else
            lse[i] = w->vec->softmax(p, r->at_k, s.first, s.last, r->keys);
    }
}

// A row's draws lie in the order of its keys' positions, which come in runs.
static void drop_weights(const struct attention_work *w, const struct query_rows *r, float *p)
{
    const struct op_draw *d = &w->call->attr->draw;
    for (int64_t i = 0; i < r->n && w->drops; i++) {
        uint64_t row =
            (r->drawn * (uint64_t)d->extent[2] + (uint64_t)r->at_q[i]) * (uint64_t)d->extent[3];
        float *x = p + i * r->stride;
        for (int64_t t = 0, n; t < r->keys; t += n) {
            for (n = 1; t + n < r->keys && r->at_k[t + n] == r->at_k[t] + n;)
                n++;
            w->vec->dropout(x + t, x + t, n, &w->draw, row + (uint64_t)r->at_k[t]);
        }
    }
}

static void run_backward(struct attention_work *w, const struct query_rows *r, float *block)
{
    const int64_t size = w->room.rows * (w->room.small ? w->room.keys : w->keys);
    float *p = block, *ds = p + size, *tanhs = ds + size;
    cap_scores(w, r, p, tanhs);
    weigh_scores(w, r, p);
    w->products->take_weights_grad(w, r, ds);
    drop_weights(w, r, ds);
    for (int64_t i = 0; i < r->n; i++) { // of the weights → of the scores, times scale, in place
        const int64_t row = row_offset(r, &w->y) + i * stride_of(&w->y), at = i * r->stride;
        float mean = w->vec->dot(w->y.data + row, w->dy + row, w->y.width);
        w->vec->softmax_grad(ds + at, p + at, mean, r->keys, w->call->attr->scale);
    }
    if (w->call->attr->cap != 0)
        run_map(w, OP_TANH_GRAD, ds, tanhs, ds, r->n * r->stride, 1);
    drop_weights(w, r, p);
    w->products->add_values_grad(w, r, p);
    w->products->spread_scores_grad(w, r, ds);
}

// ---- parts -------------------------------------------------------------------------------------

static void zero_keys(const struct attention_work *w, const struct side *s, int64_t b, int64_t g)
{
    for (int64_t t = 0; t < w->keys; t++)
        memset(s->grad + offset_of(s, b, t, g), 0, (size_t)s->width * sizeof *s->grad);
}

// The blocks of a part: all query heads of sample b that read key head g.
static void run_blocks(struct attention_work *w, int64_t b, int64_t g, float *block, float *dkr,
                       const struct small_part *part)
{
    // The positions of a block's keys lie behind its scores.
    const int64_t keys = count_keys(w, b);
    int32_t *positions = (int32_t *)(void *)(block + w->room.blocks * ATTENTION_ROWS * w->keys);
    for (int64_t h = 0; h < w->heads; h++) {
        if (key_head(w, h) != g)
            continue;
        for (int64_t first = 0, n; first < w->queries; first += n) {
            struct query_rows r = rows_of(w, b, h, first, keys, positions);
            n = r.n;
            r.dkr = dkr;
            r.part = part;
            if (part)
                attention_small_rows(w, &r);
            if (w->grad) {
                run_backward(w, &r, block);
                continue;
            }
            cap_scores(w, &r, block, block);
            weigh_scores(w, &r, block);
            drop_weights(w, &r, block);
            w->products->weigh_values(w, &r, block);
        }
    }
}

// The first to the last key that any query of sample b sees.
static struct mask_span find_seen(const struct attention_work *w, int64_t b)
{
    struct mask_span seen = {0};
    int32_t first = INT32_MAX, last = INT32_MIN;
    for (int64_t i = 0; i < w->queries; i++) {
        const struct attention_sight s =
            attention_sight(w->call->attr, w->at_q[b * w->queries + i]);
        first = s.first < first ? s.first : first;
        last = s.last > last ? s.last : last;
    }
    for (int64_t t = 0; t < w->keys; t++) {
        const int32_t at = w->at_k[b * w->keys + t];
        if (at < first || at > last)
            continue;
        seen.first = seen.n ? seen.first : t;
        seen.n = t + 1 - seen.first;
    }
    return seen;
}

// Widens key head g of sample b of a side in bf16. Rows that see no key read the first one, times 0
// (mask_keys): it is made a number if nobody sees it, whatever the sample before left there.
static struct side widen_side(const struct attention_work *w, const struct side *s, int64_t b,
                              int64_t g, struct mask_span seen, float *to)
{
    const uint16_t *from = (const uint16_t *)(const void *)s->data;
    if (seen.first > 0 || seen.n == 0)
        memset(to, 0, (size_t)s->width * sizeof *to);
    for (int64_t t = seen.first; t < seen.first + seen.n; t++)
        w->vec->widen(to + t * s->width, from + offset_of(s, b, t, g), s->width);
    // No rows from sample to sample: it is the only one.
    return (struct side){
        .data = to, .grad = s->grad, .heads = 1, .width = s->width, .pitch = s->width};
}

static void run_part(struct attention_work *all, int64_t i, float *block)
{
    struct attention_work own = *all, *w = &own;
    const struct attention_room *room = &w->room;
    struct small_part part;
    int64_t b = i / w->kv_heads, g = i % w->kv_heads;
    if (room->widened) {
        const struct mask_span seen = find_seen(w, b);
        float *to = block + room->slot - room->widened;
        w->k = widen_side(w, &w->k, b, g, seen, to);
        w->v = widen_side(w, &w->v, b, g, seen, to + w->keys * w->k.width);
    }
    float *dkr = (float *)w->call->workspace + room->slots * room->slot + i * room->kr;
    if (room->small) {
        attention_small_begin(w, b, g, block, &part);
        run_blocks(w, b, g, block, dkr, &part);
        if (w->grad)
            attention_small_end(w, b, g, dkr, &part);
        return;
    }
    if (w->grad) {
        zero_keys(w, &w->k, b, g);
        zero_keys(w, &w->v, b, g);
        memset(dkr, 0, (size_t)room->kr * sizeof *dkr);
    }
    run_blocks(w, b, g, block, dkr, NULL);
}

// All slots of a slice work in the room of its first one, which stays in the cache.
static void run_slots(void *arg, int64_t begin, int64_t end)
{
    struct attention_work *w = arg;
    float *block = (float *)w->call->workspace + begin * w->room.slot;
    int64_t first = begin * w->room.parts / w->room.slots;
    for (int64_t i = first; i < end * w->room.parts / w->room.slots; i++)
        run_part(w, i, block);
}

// Adds up what the parts of samples `begin` to `end` made of the gradient of kr.
static void add_parts(void *arg, int64_t begin, int64_t end)
{
    const struct attention_work *w = arg;
    int64_t n = w->room.kr;
    const float *from = (const float *)w->call->workspace + w->room.slots * w->room.slot;
    for (int64_t b = begin; b < end; b++) {
        float *to = w->kr.grad + b * n;
        memcpy(to, from + b * w->kv_heads * n, (size_t)n * sizeof *to);
        for (int64_t g = 1; g < w->kv_heads; g++)
            w->vec->add_to(to, from + (b * w->kv_heads + g) * n, n);
    }
}

// ---- the call ----------------------------------------------------------------------------------

// Output k of a gradient is that of input k.
static struct side make_side(const struct op_call *c, const struct attention_operands *o,
                             enum attention_side side)
{
    const int k = side == ATTENTION_Q ? o->q : side == ATTENTION_K ? o->k : o->v;
    const struct attention_place p = attention_place(c, o, side);
    return (struct side){.data = (const float *)c->in[k].data + p.from,
                         .grad = o->dy >= 0 ? (float *)c->out[k].data + p.from : NULL,
                         .rows = p.rows,
                         .heads = p.heads,
                         .width = p.width,
                         .pitch = p.pitch};
}

// Returns qr or kr, input k of the call; all heads share kr.
static struct side pair_side(const struct op_call *c, int k, bool grad)
{
    const struct shape *s = &c->in[k].shape;
    struct side to = {.data = c->in[k].data,
                      .grad = grad ? c->out[k].data : NULL,
                      .rows = s->dim[1],
                      .heads = s->n == 4 ? s->dim[2] : 1,
                      .width = s->dim[s->n - 1]};
    to.pitch = to.heads * to.width;
    return to;
}

static struct attention_work read_call(struct stream_q *q, const struct op_call *c,
                                       const struct attention_operands *o)
{
    bool grad = o->dy >= 0;
    struct attention_work w = {.call = c,
                               .vec = q->device->vec,
                               .room = attention_room(c),
                               .q = make_side(c, o, ATTENTION_Q),
                               .k = make_side(c, o, ATTENTION_K),
                               .v = make_side(c, o, ATTENTION_V),
                               .dy = grad ? c->in[o->dy].data : NULL,
                               .lse = grad ? c->in[o->lse].data : c->out[ATTENTION_LSE].data,
                               .at_q = c->in[o->at_q].data,
                               .at_k = c->in[o->at_k].data,
                               .grad = grad,
                               .drops = o->step >= 0};
    w.y = w.q;
    w.y.width = w.v.width;
    w.y.pitch = w.y.heads * w.y.width;
    w.y.data = grad ? c->in[o->y].data : NULL;
    w.y.grad = grad ? NULL : c->out[ATTENTION_Y].data;
    if (o->qr >= 0) {
        w.qr = pair_side(c, o->qr, grad);
        w.kr = pair_side(c, o->kr, grad);
    }
    w.products = w.room.small ? &attention_small : &by_onednn;
    w.batch = c->in[o->q].shape.dim[0];
    w.queries = w.q.rows;
    w.keys = w.k.rows;
    w.heads = w.q.heads;
    w.kv_heads = w.k.heads;
    if (w.drops)
        w.draw = draw_site(c, &c->in[o->step]);
    return w;
}

int op_attention(struct stream_q *q, const struct op_call *c, struct err *e)
{
    struct attention_operands o;
    struct op_call widened = *c; // of bf16 all but keys and values come so (widen.h)
    _Atomic int status = 0;
    if (attention_widens(c))
        widened.in[1].dtype = widened.in[2].dtype = DT_F32;
    int rc = op_check_attention(&widened, &o, e);
    if (rc)
        return rc;
    struct attention_work w = read_call(q, c, &o);
    w.status = &status;
    PRE((size_t)w.room.floats * sizeof(float) <= c->workspace_bytes);
    pool_for(q->device->pool, w.room.slots, 1, run_slots, &w);
    if (w.room.kr)
        pool_for(q->device->pool, w.batch, 1, add_parts, &w);
    return status ? err_set(e, ERR_DEVICE, "cpu: %s: onednn status %d", op_name(c->op), status) : 0;
}
