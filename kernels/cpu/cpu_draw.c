// SPDX-License-Identifier: Apache-2.0
// DROPOUT and NORMAL: random numbers by the index of an element in the whole step's tensor.
//
// A row here, the last dimension, is a run of indices; where it begins is said by attr.draw and,
// for a sequence that is in another order, by the positions, which are alike for all samples.
// Threads share rows: a number depends on its index alone.
#include "kernels/cpu/cpu_device.h"

#include <math.h>
#include <string.h>

struct draw_work {
    const struct op_draw *draw;
    const struct vec *vec;
    struct vec_draw site;
    const int64_t *dim; // here
    int64_t row;
    const int32_t *position; // along dimension draw->place − 1; null: all are in order
    const struct tensor *x;  // null: normals
    const struct tensor *out;
};

struct vec_draw draw_site(const struct op_call *c, const struct tensor *step)
{
    const struct op_draw *d = &c->attr->draw;
    double rate = (double)d->rate;
    return (struct vec_draw){.seed = d->seed,
                             .stream = d->stream,
                             .step = *(const uint32_t *)step->data,
                             .threshold = (uint32_t)ceil(rate * 0x1p24),
                             .scale = (float)(1 / (1 - rate))};
}

// The index at which row r of those here begins.
static uint64_t find_first(const struct draw_work *w, int64_t r)
{
    const struct op_draw *d = w->draw;
    int64_t at[DRAW_DIMS] = {0}, index = 0, left = r;
    for (int k = d->n - 2; k >= 0; k--) {
        const int64_t here = left % w->dim[k];
        at[k] = w->position && k == d->place - 1 ? w->position[here] : d->from[k] + here;
        left /= w->dim[k];
    }
    at[d->n - 1] = d->from[d->n - 1];
    for (int k = 0; k < d->n; k++)
        index = index * d->extent[k] + at[k];
    return (uint64_t)index;
}

enum { PIECE = 512 }; // of a row of bf16, widened at a time

static void draw_rows(void *arg, int64_t begin, int64_t end)
{
    const struct draw_work *w = arg;
    const bool bf16 = w->out->dtype == DT_BF16;
    float piece[PIECE];
    for (int64_t r = begin; r < end; r++) {
        const uint64_t first = find_first(w, r);
        const int64_t at = r * w->row;
        if (!w->x)
            w->vec->normals((float *)w->out->data + at, w->row, &w->site, first);
        else if (!bf16)
            w->vec->dropout((float *)w->out->data + at, (const float *)w->x->data + at, w->row,
                            &w->site, first);
        for (int64_t i = 0; i < w->row && bf16; i += PIECE) {
            int64_t n = w->row - i < PIECE ? w->row - i : PIECE;
            w->vec->widen(piece, (const uint16_t *)w->x->data + at + i, n);
            w->vec->dropout(piece, piece, n, &w->site, first + (uint64_t)i);
            w->vec->narrow((uint16_t *)w->out->data + at + i, piece, n);
        }
    }
}

// Draws all rows of the output; `step` is the operand that holds the step.
static void draw_output(struct stream_q *q, const struct op_call *c, int step)
{
    const struct shape *s = &c->out[0].shape;
    struct draw_work w = {.draw = &c->attr->draw,
                          .vec = q->device->vec,
                          .site = draw_site(c, &c->in[step]),
                          .dim = s->dim,
                          .row = s->dim[s->n - 1],
                          .position = step + 1 < c->nin ? c->in[step + 1].data : NULL,
                          .x = step > 0 ? &c->in[0] : NULL,
                          .out = &c->out[0]};
    pool_for(q->device->pool, shape_count(s) / w.row, GRAIN / w.row + 1, draw_rows, &w);
}

int op_dropout(struct stream_q *q, const struct op_call *c, struct err *e)
{
    int rc = op_check_dropout(c, e);
    if (!rc)
        draw_output(q, c, 1);
    return rc;
}

int op_normal(struct stream_q *q, const struct op_call *c, struct err *e)
{
    int rc = op_check_draw(c, e);
    if (!rc)
        draw_output(q, c, 0);
    return rc;
}
