// SPDX-License-Identifier: Apache-2.0
// ROTARY: rotates by angles that follow from positions. The angles of a row are made once, in
// double, for all heads that turn alike. The gradient is the same op with scale −1: it turns back.
#include "kernels/cpu/cpu_device.h"

#include <math.h>
#include <string.h>

#include "common/op/rotary.h"

struct rotary_work {
    const struct op_call *call;
    const struct vec *vec;
    int64_t heads, pitch, n; // of a row: heads that turn, elements in all; elements of a head
    struct rotary_series series;
    double speed[ROTARY_PAIRS_MAX]; // where all heads turn alike
};

static void fill_speeds(const struct rotary_work *w, int64_t first, double *speed)
{
    for (int64_t i = 0; i < w->n / 2; i++)
        speed[i] = rotary_speed(&w->series, first + i);
}

// Turns the heads from `first` to `last` of some rows, which turn alike.
static void rotate_heads(const struct rotary_work *w, const double *speed, int64_t begin,
                         int64_t end, int64_t first, int64_t last)
{
    const struct op_call *c = w->call;
    const struct op_rotary *r = &c->attr->rotary;
    const int32_t *position = c->in[1].data;
    const double gain = r->gain != 0 ? (double)r->gain : 1;
    float cosine[ROTARY_PAIRS_MAX], sine[ROTARY_PAIRS_MAX];
    void (*rotate)(float *, const float *, const float *, const float *, int64_t) =
        r->pairs ? w->vec->rotate_pairs : w->vec->rotate;
    for (int64_t row = begin; row < end; row++) {
        const double at = (double)c->attr->scale * (double)(position[row] + r->offset);
        for (int64_t i = 0; i < w->n / 2; i++) {
            cosine[i] = (float)(gain * cos(at * speed[i]));
            sine[i] = (float)(gain * sin(at * speed[i]));
        }
        for (int64_t h = first; h < last; h++) {
            int64_t i = row * w->pitch + h * w->n;
            rotate((float *)c->out[0].data + i, (const float *)c->in[0].data + i, cosine, sine,
                   w->n);
        }
    }
}

static void rotate_rows(void *arg, int64_t begin, int64_t end)
{
    const struct rotary_work *w = arg;
    const float *from = w->call->in[0].data;
    float *to = w->call->out[0].data;
    const int64_t turned = w->heads * w->n; // what lies behind is copied
    double speed[ROTARY_PAIRS_MAX];
    for (int64_t row = begin; row < end && from != to; row++)
        memcpy(to + row * w->pitch + turned, from + row * w->pitch + turned,
               (size_t)(w->pitch - turned) * sizeof *to);
    if (!w->call->attr->rotary.sweep)
        rotate_heads(w, w->speed, begin, end, 0, w->heads);
    for (int64_t h = 0; h < w->heads && w->call->attr->rotary.sweep; h++) {
        fill_speeds(w, (w->call->attr->start + h) * (w->n / 2), speed);
        rotate_heads(w, speed, begin, end, h, h + 1);
    }
}

int op_rotary(struct stream_q *q, const struct op_call *c, struct err *e)
{
    const struct shape *x = &c->in[0].shape, *positions = &c->in[1].shape;
    struct rotary_work w = {.call = c, .vec = q->device->vec};
    int rc = op_check_rotary(c, e);
    if (rc)
        return rc;
    w.n = x->dim[x->n - 1];
    const struct rotary_row row = rotary_row_of(c);
    int64_t count = shape_count(positions);
    w.heads = row.heads;
    w.pitch = row.pitch;
    w.series = rotary_series_of(&c->attr->rotary, w.n);
    fill_speeds(&w, 0, w.speed);
    pool_for(q->device->pool, count, GRAIN / w.pitch + 1, rotate_rows, &w);
    return 0;
}
