// SPDX-License-Identifier: Apache-2.0
// ROTARY: positions as angles. The angles of a row are made once, in double, for all its heads.
// The gradient is the same op with scale −1: it turns back.
#include "kernels/cpu/cpu_device.h"

#include <math.h>

struct work {
    const struct op_call *call;
    const struct vec *vec;
    int64_t heads, n; // of a row; elements of a head
    double frequency[ROTARY_PAIRS_MAX];
};

static void rotate_rows(void *arg, int64_t begin, int64_t end)
{
    const struct work *w = arg;
    const struct op_call *c = w->call;
    const int32_t *position = c->in[1].data;
    float cosine[ROTARY_PAIRS_MAX], sine[ROTARY_PAIRS_MAX];
    for (int64_t r = begin; r < end; r++) {
        for (int64_t i = 0; i < w->n / 2; i++) {
            double angle = (double)c->attr->scale * position[r] * w->frequency[i];
            cosine[i] = (float)cos(angle);
            sine[i] = (float)sin(angle);
        }
        for (int64_t h = 0; h < w->heads; h++) {
            int64_t at = (r * w->heads + h) * w->n;
            w->vec->rotate((float *)c->out[0].data + at, (const float *)c->in[0].data + at, cosine,
                           sine, w->n);
        }
    }
}

int op_rotary(struct stream_q *q, const struct op_call *c, struct err *e)
{
    if (widen_wanted(c))
        return widen_run(q, c, op_rotary, e);
    const struct shape *x = &c->in[0].shape;
    struct work w = {.call = c, .vec = q->device->vec};
    int rc = op_want(c, &c->in[0], DT_F32, e);
    rc = rc ? rc : op_want(c, &c->in[1], DT_I32, e);
    if (rc)
        return rc;
    if (x->n < 2 || x->dim[x->n - 1] % 2 || x->dim[x->n - 1] / 2 > ROTARY_PAIRS_MAX)
        return op_refuse(c, e, "a head has an even number of elements, at most 1024");
    w.n = x->dim[x->n - 1];
    w.heads = x->dim[x->n - 2];
    int64_t count = shape_count(&c->in[1].shape);
    if (count * w.heads * w.n != shape_count(x) || !shape_equal(x, &c->out[0].shape))
        return op_refuse(c, e, "operands disagree about an extent");
    for (int64_t i = 0; i < w.n / 2; i++)
        w.frequency[i] = pow((double)c->attr->theta, -2.0 * (double)i / (double)w.n);
    pool_for(q->device->pool, count, GRAIN / (w.heads * w.n) + 1, rotate_rows, &w);
    return 0;
}
