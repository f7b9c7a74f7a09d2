// SPDX-License-Identifier: Apache-2.0
// DISPATCH, COMBINE, SLOT_DOT: rows between tokens and the places of experts.
//
// A place has one token at most, so no two threads write one row, and a token's rows are added in
// the order of its choices. Experts and places that are not here belong to other ranks: to DISPATCH
// they are no rows, to the others zeros. Rows are read and written in their own dtype, f32 or bf16,
// a stretch of them as f32 at a time.
#include "kernels/cpu/cpu_device.h"

#include <string.h>

enum { STRETCH = 512 };

struct dispatch_work {
    const struct vec *vec;
    const struct op_slots *attr;
    enum dtype dtype; // of rows
    size_t size;
    const int32_t *slots;
    const float *weights; // null: 1
    const char *x, *y;    // tokens; places
    char *to;
    float *dots;
    int64_t seq, choices, width, experts, places; // experts and places that are here
};

// The row of choice `at` among the places that are here; −1: none.
static int64_t find_row(const struct dispatch_work *w, int64_t at)
{
    int64_t slot = w->slots[at], group = at / w->choices / w->seq / w->attr->group;
    int64_t expert = slot / w->attr->capacity - w->attr->first.expert;
    int64_t place = slot % w->attr->capacity - w->attr->first.place;
    bool here = slot >= 0 && expert >= 0 && expert < w->experts && place >= 0 && place < w->places;
    return here ? (group * w->experts + expert) * w->places + place : -1;
}

// n elements from element i of rows at `from`, as f32: where they lie, or widened into `wide`.
static const float *read_row(const struct dispatch_work *w, const char *from, int64_t i, int64_t n,
                             float wide[STRETCH])
{
    if (w->dtype == DT_F32)
        return (const float *)(const void *)from + i;
    w->vec->widen(wide, (const uint16_t *)(const void *)from + i, n);
    return wide;
}

static void write_row(const struct dispatch_work *w, char *to, int64_t i, int64_t n,
                      const float *from)
{
    if (w->dtype == DT_F32)
        memcpy((float *)(void *)to + i, from, (size_t)n * sizeof *from);
    else
        w->vec->narrow((uint16_t *)(void *)to + i, from, n);
}

static void clear_slice(void *arg, int64_t begin, int64_t end)
{
    const struct dispatch_work *w = arg;
    memset(w->to + (size_t)(begin * w->width) * w->size, 0,
           (size_t)((end - begin) * w->width) * w->size);
}

static void dispatch_slice(void *arg, int64_t begin, int64_t end)
{
    const struct dispatch_work *w = arg;
    float wide[STRETCH], scaled[STRETCH];
    for (int64_t at = begin * w->choices; at < end * w->choices; at++) {
        int64_t row = find_row(w, at) * w->width, token = at / w->choices * w->width;
        if (row < 0)
            continue;
        if (!w->weights)
            memcpy(w->to + (size_t)row * w->size, w->x + (size_t)token * w->size,
                   (size_t)w->width * w->size);
        for (int64_t i = 0, n; i < w->width && w->weights; i += n) {
            n = w->width - i < STRETCH ? w->width - i : STRETCH;
            const float *x = read_row(w, w->x, token + i, n, wide);
            for (int64_t k = 0; k < n; k++)
                scaled[k] = w->weights[at] * x[k];
            write_row(w, w->to, row + i, n, scaled);
        }
    }
}

static void combine_slice(void *arg, int64_t begin, int64_t end)
{
    const struct dispatch_work *w = arg;
    float wide[STRETCH], sum[STRETCH];
    for (int64_t t = begin; t < end; t++)
        for (int64_t i = 0, n; i < w->width; i += n) {
            n = w->width - i < STRETCH ? w->width - i : STRETCH;
            memset(sum, 0, sizeof sum);
            for (int64_t at = t * w->choices; at < (t + 1) * w->choices; at++) {
                int64_t row = find_row(w, at);
                float weight = w->weights ? w->weights[at] : 1;
                if (row < 0)
                    continue;
                const float *y = read_row(w, w->y, row * w->width + i, n, wide);
                for (int64_t k = 0; k < n; k++)
                    sum[k] += weight * y[k];
            }
            write_row(w, w->to, t * w->width + i, n, sum);
        }
}

static void dot_slice(void *arg, int64_t begin, int64_t end)
{
    const struct dispatch_work *w = arg;
    float wide_x[STRETCH], wide_y[STRETCH];
    for (int64_t at = begin * w->choices; at < end * w->choices; at++) {
        int64_t row = find_row(w, at), token = at / w->choices;
        double sum = 0;
        for (int64_t i = 0, n; i < w->width && row >= 0; i += n) {
            n = w->width - i < STRETCH ? w->width - i : STRETCH;
            const float *x = read_row(w, w->x, token * w->width + i, n, wide_x);
            const float *y = read_row(w, w->y, row * w->width + i, n, wide_y);
            for (int64_t k = 0; k < n; k++)
                sum += (double)x[k] * (double)y[k];
        }
        w->dots[at] = (float)sum;
    }
}

static const pool_fn slice_of[OP_COUNT] = {
    [OP_DISPATCH] = dispatch_slice,
    [OP_COMBINE] = combine_slice,
    [OP_SLOT_DOT] = dot_slice,
};

int op_dispatch(struct stream_q *q, const struct op_call *c, struct err *e)
{
    struct dispatch_call call;
    int rc = op_check_dispatch(c, &call, e);
    if (rc)
        return rc;
    const struct tensor *tokens = call.tokens, *places = call.places;
    struct dispatch_work w = {.vec = q->device->vec,
                              .attr = &c->attr->slots,
                              .dtype = tokens->dtype,
                              .size = dtype_size(tokens->dtype),
                              .slots = c->in[1].data,
                              .weights = call.weights ? call.weights->data : NULL,
                              .x = tokens->data,
                              .y = places->data,
                              .to = c->out[0].data,
                              .dots = c->out[0].data,
                              .seq = tokens->shape.dim[1],
                              .choices = c->in[1].shape.dim[2],
                              .width = tokens->shape.dim[2],
                              .experts = places->shape.dim[1],
                              .places = places->shape.dim[2]};
    int64_t count = tokens->shape.dim[0] * w.seq, grain = GRAIN / w.width + 1;
    if (c->op == OP_DISPATCH)
        pool_for(q->device->pool, shape_count(&places->shape) / w.width, grain, clear_slice, &w);
    pool_for(q->device->pool, count, grain, slice_of[c->op], &w);
    return 0;
}
