// SPDX-License-Identifier: Apache-2.0
// ATTENTION and its gradient, made of GEMMs over blocks of query rows.
//
// A block's scores lie in the workspace, side by side for the spans of keys that the block may see:
// only those are multiplied (op/mask.h), so causal attention costs half. Which key a query sees is
// told by positions, so rows and keys may come in any order. The gradient makes the scores again.
//   forward   S = scale·Q·Kᵀ, P = softmax(S), O = P·V
//   backward  dP = dO·Vᵀ, dS = P∘(dP − Σ P∘dP)·scale, dQ = dS·K, dK += dSᵀ·Q, dV += Pᵀ·dO
// With dropout D (attr.draw), O = (P∘D)·V, dP is that of P∘D times D, and dV is made of P∘D; D is
// drawn where it is needed and never kept.
// A part of the work is one sample and key head with all query heads that share it: it alone writes
// its dk and dv. Parts are dealt out over ATTENTION_SLOTS blocks of the workspace, whatever the
// threads, and no part meets another: threads never change a bit.
#include "kernels/cpu/cpu_device.h"

#include <string.h>

#include "common/op/mask.h"

struct work {
    const struct op_call *call;
    const struct vec *vec;
    int64_t batch, queries, keys, heads, kv_heads, d;
    int64_t parts, slots, block; // block: floats of the workspace a slot has
    const float *q, *k, *v, *dy;
    const int32_t *at_q, *at_k;
    float *out, *dk, *dv; // out: y or dq
    bool drops;
    struct vec_draw draw;
    _Atomic int status;
};

// A block of query rows of one head.
struct rows {
    int64_t q, k; // offsets of its first row, and of its head's keys
    int64_t n, keys;
    const int32_t *at_q, *at_k; // at_k: of the keys that are computed, side by side
    struct mask mask;
    uint64_t drawn; // of batch and head, among those of the whole step
};

static int64_t q_stride(const struct work *w)
{
    return w->heads * w->d;
}

static int64_t k_stride(const struct work *w)
{
    return w->kv_heads * w->d;
}

// Returns the key head that query head h reads; both count from the first of this rank's.
static int64_t key_head(const struct work *w, int64_t h)
{
    return (w->call->attr->start + h) / w->call->attr->group;
}

// Returns the positions of the keys of all spans. Several spans are gathered in `room`.
static const int32_t *positions_of(const struct mask *m, const int32_t *at_k, int32_t *room)
{
    int32_t *to = room;
    if (m->n == 1)
        return at_k + m->span[0].first;
    for (int i = 0; i < m->n; to += m->span[i++].n)
        memcpy(to, at_k + m->span[i].first, (size_t)m->span[i].n * sizeof *to);
    return room;
}

static struct rows rows_of(const struct work *w, int64_t b, int64_t h, int64_t first, int32_t *room)
{
    struct rows r = {.at_q = w->at_q + b * w->queries + first};
    r.n = mask_rows(r.at_q, w->queries - first, ATTENTION_ROWS);
    mask_keys(&r.mask, r.at_q, r.n, w->at_k + b * w->keys, w->keys);
    r.keys = r.mask.keys;
    r.at_k = positions_of(&r.mask, w->at_k + b * w->keys, room);
    r.q = (b * w->queries + first) * q_stride(w) + h * w->d;
    r.k = b * w->keys * k_stride(w) + key_head(w, h) * w->d;
    const struct op_draw *d = &w->call->attr->draw;
    r.drawn = (uint64_t)((d->from[0] + b) * d->extent[1] + d->from[1] + h);
    return r;
}

static void run_gemm(struct work *w, bool ta, bool tb, const struct gemm *g, float alpha,
                     const float *a, const float *b, float beta, float *c)
{
    int rc = gemm_serial(ta, tb, g, alpha, a, b, beta, c);
    if (rc)
        w->status = rc;
}

// rows [n, d] × keysᵀ → [n, keys]
static void multiply_by_keys(struct work *w, const struct rows *r, float alpha, const float *a,
                             const float *b, float *out)
{
    for (int i = 0; i < r->mask.n; out += r->mask.span[i++].n) {
        const struct mask_span *s = &r->mask.span[i];
        const struct gemm g = {.m = r->n,
                               .n = s->n,
                               .k = w->d,
                               .lda = q_stride(w),
                               .ldb = k_stride(w),
                               .ldc = r->keys};
        run_gemm(w, false, true, &g, alpha, a + r->q, b + r->k + s->first * k_stride(w), 0, out);
    }
}

// [n, keys] × keys → rows [n, d]
static void multiply_by_rows(struct work *w, const struct rows *r, const float *p, const float *b,
                             float *out)
{
    for (int i = 0; i < r->mask.n; p += r->mask.span[i++].n) {
        const struct mask_span *s = &r->mask.span[i];
        const struct gemm g = {.m = r->n,
                               .n = w->d,
                               .k = s->n,
                               .lda = r->keys,
                               .ldb = k_stride(w),
                               .ldc = q_stride(w)};
        run_gemm(w, false, false, &g, 1, p, b + r->k + s->first * k_stride(w), i ? 1 : 0,
                 out + r->q);
    }
}

// [n, keys]ᵀ × rows, added to keys [keys, d]
static void add_onto_keys(struct work *w, const struct rows *r, const float *p, const float *a,
                          float *out)
{
    for (int i = 0; i < r->mask.n; p += r->mask.span[i++].n) {
        const struct mask_span *s = &r->mask.span[i];
        const struct gemm g = {.m = s->n,
                               .n = w->d,
                               .k = r->n,
                               .lda = r->keys,
                               .ldb = q_stride(w),
                               .ldc = k_stride(w)};
        run_gemm(w, true, false, &g, 1, p, a + r->q, 1, out + r->k + s->first * k_stride(w));
    }
}

static void make_scores(struct work *w, const struct rows *r, float *p)
{
    multiply_by_keys(w, r, w->call->attr->scale, w->q, w->k, p);
    for (int64_t i = 0; i < r->n; i++)
        w->vec->softmax(p + i * r->keys, r->at_k, r->at_q[i], r->keys);
}

// A row's draws lie in the order of its keys' positions, which come in runs.
static void drop_weights(const struct work *w, const struct rows *r, float *p)
{
    const struct op_draw *d = &w->call->attr->draw;
    for (int64_t i = 0; i < r->n && w->drops; i++) {
        uint64_t row =
            (r->drawn * (uint64_t)d->extent[2] + (uint64_t)r->at_q[i]) * (uint64_t)d->extent[3];
        float *x = p + i * r->keys;
        for (int64_t t = 0, n; t < r->keys; t += n) {
            for (n = 1; t + n < r->keys && r->at_k[t + n] == r->at_k[t] + n;)
                n++;
            w->vec->dropout(x + t, x + t, n, &w->draw, row + (uint64_t)r->at_k[t]);
        }
    }
}

static void run_forward(struct work *w, const struct rows *r, float *block)
{
    make_scores(w, r, block);
    drop_weights(w, r, block);
    multiply_by_rows(w, r, block, w->v, w->out);
}

static void run_backward(struct work *w, const struct rows *r, float *block)
{
    float *p = block, *ds = block + ATTENTION_ROWS * w->keys;
    make_scores(w, r, p);
    multiply_by_keys(w, r, 1, w->dy, w->v, ds);
    drop_weights(w, r, ds);
    for (int64_t i = 0; i < r->n; i++)
        w->vec->softmax_grad(ds + i * r->keys, p + i * r->keys, r->keys, w->call->attr->scale);
    drop_weights(w, r, p);
    add_onto_keys(w, r, p, w->dy, w->dv);
    multiply_by_rows(w, r, ds, w->k, w->out);
    add_onto_keys(w, r, ds, w->q, w->dk);
}

static void zero_keys(const struct work *w, int64_t b, int64_t g)
{
    for (int64_t t = 0; t < w->keys; t++) {
        int64_t at = (b * w->keys + t) * k_stride(w) + g * w->d;
        memset(w->dk + at, 0, (size_t)w->d * sizeof *w->dk);
        memset(w->dv + at, 0, (size_t)w->d * sizeof *w->dv);
    }
}

// The positions of a block's keys lie behind its scores.
static int64_t count_scores(const struct work *w)
{
    return (w->dk ? 2 : 1) * ATTENTION_ROWS * w->keys;
}

static void run_part(struct work *w, int64_t b, int64_t g, float *block)
{
    int32_t *room = (int32_t *)(void *)(block + count_scores(w));
    if (w->dk)
        zero_keys(w, b, g);
    for (int64_t h = 0; h < w->heads; h++) {
        if (key_head(w, h) != g)
            continue;
        for (int64_t first = 0, n; first < w->queries; first += n) {
            struct rows r = rows_of(w, b, h, first, room);
            n = r.n;
            if (w->dk)
                run_backward(w, &r, block);
            else
                run_forward(w, &r, block);
        }
    }
}

static void run_slots(void *arg, int64_t begin, int64_t end)
{
    struct work *w = arg;
    for (int64_t s = begin; s < end; s++)
        for (int64_t i = s * w->parts / w->slots; i < (s + 1) * w->parts / w->slots; i++)
            run_part(w, i / w->kv_heads, i % w->kv_heads,
                     (float *)w->call->workspace + s * w->block);
}

static int check_call(const struct work *w, struct err *e)
{
    const struct op_call *c = w->call;
    bool grad = c->op == OP_ATTENTION_GRAD;
    const struct shape *q = &c->in[0].shape, *k = &c->in[1].shape;
    int positions = attention_positions(c->op), rc = 0;
    for (int i = 0; i < c->nin && !rc; i++)
        rc = op_want(c, &c->in[i], i < positions ? DT_F32 : DT_I32, e);
    if (rc)
        return rc;
    bool fit = q->n == 4 && k->n == 4 && shape_equal(k, &c->in[2].shape) && k->dim[0] == w->batch &&
               k->dim[3] == w->d && shape_equal(q, &c->out[0].shape) &&
               (!grad || (shape_equal(q, &c->in[3].shape) && shape_equal(k, &c->out[1].shape) &&
                          shape_equal(k, &c->out[2].shape))) &&
               shape_count(&c->in[positions].shape) == w->batch * w->queries &&
               shape_count(&c->in[positions + 1].shape) == w->batch * w->keys;
    return fit ? 0 : op_refuse(c, e, "operands disagree about an extent");
}

int op_attention(struct stream_q *q, const struct op_call *c, struct err *e)
{
    if (widen_wanted(c))
        return widen_run(q, c, op_attention, e);
    bool grad = c->op == OP_ATTENTION_GRAD;
    int positions = attention_positions(c->op);
    const int64_t *dim = c->in[0].shape.dim, *key_dim = c->in[1].shape.dim;
    struct work w = {.call = c,
                     .vec = q->device->vec,
                     .batch = dim[0],
                     .queries = dim[1],
                     .keys = key_dim[1],
                     .heads = dim[2],
                     .kv_heads = key_dim[2],
                     .d = dim[3],
                     .q = c->in[0].data,
                     .k = c->in[1].data,
                     .v = c->in[2].data,
                     .dy = grad ? c->in[3].data : NULL,
                     .at_q = c->in[positions].data,
                     .at_k = c->in[positions + 1].data,
                     .out = c->out[0].data,
                     .dk = grad ? c->out[1].data : NULL,
                     .dv = grad ? c->out[2].data : NULL};
    int rc = check_call(&w, e);
    if (rc)
        return rc;
    w.drops = c->nin > positions + 2;
    if (w.drops)
        w.draw = draw_site(c, &c->in[positions + 2]);
    if (c->attr->group < 1 || key_head(&w, w.heads - 1) >= w.kv_heads)
        return op_refuse(c, e, "query heads without a key head");
    w.parts = w.batch * w.kv_heads;
    w.slots = w.parts < ATTENTION_SLOTS ? w.parts : ATTENTION_SLOTS;
    w.block = count_scores(&w) + w.keys;
    PRE((size_t)(w.slots * w.block) * sizeof(float) <= c->workspace_bytes);
    pool_for(q->device->pool, w.slots, 1, run_slots, &w);
    return w.status ? err_set(e, ERR_DEVICE, "cpu: %s: onednn status %d", op_name(c->op), w.status)
                    : 0;
}
