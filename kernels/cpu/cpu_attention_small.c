// SPDX-License-Identifier: Apache-2.0
// The products of a small attention: so few keys, of so few elements, that what a part reads of them
// fits into L2 and a block's scores into L1.
//
// Keys and values are packed once for all blocks of a part, in rows with a gap (heads lie a multiple
// of 2 KB apart in memory, where they would take each other's place in the cache), and transposed
// where a product needs them so. Gradients of both are added up there too, and written once. A
// block is 16 rows, so that causal attention computes little that is hidden. The second pair of
// scores is packed beside the first: one product makes the sum of both. The gap of a row may hold
// anything: it is multiplied with the rest of a tile, but the result ends in the gap of another
// row.
//
// An element of a product is summed over k in order by one thread (vec_product.c): its bits depend
// on the instruction set alone.
#include "kernels/cpu/cpu_attention.h"

#include <string.h>

// Copies `n` rows of `width` numbers, `from` and `to` so many floats apart.
static void copy_rows(float *to, int64_t ld_to, const float *from, int64_t ld_from, int64_t n,
                      int64_t width)
{
    for (int64_t i = 0; i < n; i++)
        memcpy(to + i * ld_to, from + i * ld_from, (size_t)width * sizeof *to);
}

// Packs the rows of one or two operands side by side.
static void pack_rows(float *to, int64_t ld, const float *first, const struct side *a,
                      const float *second, const struct side *b, int64_t n)
{
    copy_rows(to, ld, first, stride_of(a), n, a->width);
    if (b && b->width)
        copy_rows(to + a->width, ld, second, stride_of(b), n, b->width);
}

static void place_part(const struct attention_work *w, float *at, struct small_part *p)
{
    const struct attention_room *r = &w->room;
    const int64_t width = w->k.width + w->kr.width, keys = w->keys;
    *p = (struct small_part){.q = at + r->blocks * r->rows * r->keys};
    p->y = p->q + r->rows * r->wide;
    p->keys_transposed = p->y + r->rows * r->values;
    if (w->grad) {
        p->values_transposed = p->keys_transposed + width * r->keys;
        p->keys = p->values_transposed + w->v.width * r->keys;
        p->dkeys = p->keys + keys * r->wide;
        p->dvalues = p->dkeys + keys * r->wide;
    } else {
        p->values = p->keys_transposed + width * r->keys;
    }
}

void attention_small_begin(const struct attention_work *w, int64_t b, int64_t g, float *scores,
                           struct small_part *part)
{
    const struct attention_room *r = &w->room;
    const int64_t keys = count_keys(w, b);
    const float *k = w->k.data + offset_of(&w->k, b, 0, g), *kr = NULL;
    const float *v = w->v.data + offset_of(&w->v, b, 0, g);
    place_part(w, scores, part);
    w->vec->transpose(part->keys_transposed, r->keys, k, stride_of(&w->k), keys, w->k.width);
    if (w->kr.width) {
        kr = w->kr.data + offset_of(&w->kr, b, 0, g);
        w->vec->transpose(part->keys_transposed + w->k.width * r->keys, r->keys, kr,
                          stride_of(&w->kr), keys, w->kr.width);
    }
    if (!w->grad) {
        pack_rows(part->values, r->values, v, &w->v, NULL, NULL, keys);
        return;
    }
    w->vec->transpose(part->values_transposed, r->keys, v, stride_of(&w->v), keys, w->v.width);
    pack_rows(part->keys, r->wide, k, &w->k, kr, &w->kr, keys);
    memset(part->dkeys, 0, (size_t)(w->keys * r->wide) * sizeof *part->dkeys);
    memset(part->dvalues, 0, (size_t)(w->keys * r->values) * sizeof *part->dvalues);
}

void attention_small_rows(const struct attention_work *w, const struct query_rows *r)
{
    const float *q = w->q.data + row_offset(r, &w->q);
    const float *qr = w->qr.width ? w->qr.data + row_offset(r, &w->qr) : NULL;
    pack_rows(r->part->q, w->room.wide, q, &w->q, qr, &w->qr, r->n);
    if (w->grad)
        pack_rows(r->part->y, w->room.values, w->dy + row_offset(r, &w->y), &w->y, NULL, NULL,
                  r->n);
}

void attention_small_end(const struct attention_work *w, int64_t b, int64_t g, float *dkr,
                         const struct small_part *part)
{
    const struct attention_room *r = &w->room;
    copy_rows(w->k.grad + offset_of(&w->k, b, 0, g), stride_of(&w->k), part->dkeys, r->wide,
              w->keys, w->k.width);
    copy_rows(dkr, w->kr.width, part->dkeys + w->k.width, r->wide, w->keys, w->kr.width);
    copy_rows(w->v.grad + offset_of(&w->v, b, 0, g), stride_of(&w->v), part->dvalues, r->values,
              w->keys, w->v.width);
}

// ---- products ----------------------------------------------------------------------------------

// c = scale · (rows of the block, `ld` apart, of `width`) · (transposed rows of the keys it sees)
static void multiply_by_transposed(const struct attention_work *w, const struct query_rows *r,
                                   const float *rows, int64_t ld, int64_t width,
                                   const float *transposed, float scale, float *c)
{
    w->vec->multiply(&(struct vec_product){.m = r->n,
                                           .n = r->keys,
                                           .k = width,
                                           .a = rows,
                                           .a_row = ld,
                                           .a_k = 1,
                                           .b = transposed + r->mask.span[0].first,
                                           .ldb = w->room.keys,
                                           .c = c,
                                           .ldc = r->stride,
                                           .scale = scale});
}

// rows of the block = p · (rows of the keys it sees); both `ld` apart
static void multiply_by_packed(const struct attention_work *w, const struct query_rows *r,
                               const float *p, const float *packed, int64_t ld, int64_t width,
                               float *rows)
{
    w->vec->multiply(&(struct vec_product){.m = r->n,
                                           .n = width,
                                           .k = r->keys,
                                           .a = p,
                                           .a_row = r->stride,
                                           .a_k = 1,
                                           .b = packed + r->mask.span[0].first * ld,
                                           .ldb = ld,
                                           .c = rows,
                                           .ldc = ld,
                                           .scale = 1});
}

// (rows of the keys it sees) += pᵀ · rows of the block; both `ld` apart
static void add_to_packed(const struct attention_work *w, const struct query_rows *r,
                          const float *p, const float *rows, int64_t ld, int64_t width,
                          float *packed)
{
    w->vec->multiply(&(struct vec_product){.m = r->keys,
                                           .n = width,
                                           .k = r->n,
                                           .a = p,
                                           .a_row = 1,
                                           .a_k = r->stride,
                                           .b = rows,
                                           .ldb = ld,
                                           .c = packed + r->mask.span[0].first * ld,
                                           .ldc = ld,
                                           .scale = 1,
                                           .add = true});
}

static void make_scores(struct attention_work *w, const struct query_rows *r, float scale, float *p)
{
    multiply_by_transposed(w, r, r->part->q, w->room.wide, w->q.width + w->qr.width,
                           r->part->keys_transposed, scale, p);
}

static void weigh_values(struct attention_work *w, const struct query_rows *r, const float *p)
{
    multiply_by_packed(w, r, p, r->part->values, w->room.values, w->v.width, r->part->y);
    copy_rows(w->y.grad + row_offset(r, &w->y), stride_of(&w->y), r->part->y, w->room.values, r->n,
              w->y.width);
}

static void take_weights_grad(struct attention_work *w, const struct query_rows *r, float *dp)
{
    multiply_by_transposed(w, r, r->part->y, w->room.values, w->v.width, r->part->values_transposed,
                           1, dp);
}

static void add_values_grad(struct attention_work *w, const struct query_rows *r, const float *p)
{
    add_to_packed(w, r, p, r->part->y, w->room.values, w->v.width, r->part->dvalues);
}

// The rows' gradient comes last, in the place of the rows.
static void spread_scores_grad(struct attention_work *w, const struct query_rows *r,
                               const float *ds)
{
    const int64_t ld = w->room.wide, width = w->q.width + w->qr.width;
    float *q = r->part->q;
    add_to_packed(w, r, ds, q, ld, width, r->part->dkeys);
    multiply_by_packed(w, r, ds, r->part->keys, ld, width, q);
    copy_rows(w->q.grad + row_offset(r, &w->q), stride_of(&w->q), q, ld, r->n, w->q.width);
    if (w->qr.width)
        copy_rows(w->qr.grad + row_offset(r, &w->qr), stride_of(&w->qr), q + w->q.width, ld, r->n,
                  w->qr.width);
}

const struct attention_products attention_small = {.make_scores = make_scores,
                                                   .weigh_values = weigh_values,
                                                   .take_weights_grad = take_weights_grad,
                                                   .add_values_grad = add_values_grad,
                                                   .spread_scores_grad = spread_scores_grad};
