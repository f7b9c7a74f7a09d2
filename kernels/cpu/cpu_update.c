// SPDX-License-Identifier: Apache-2.0
// The end of a step: metrics, clipping, the update of parameters.
//
// Updates are one pass over memory, in place; optax's formulas in its order. When an output is not
// its input, the input is copied first, slice by slice. The last output may be p in bf16: of each
// piece, while it is in the cache.
#include "kernels/cpu/cpu_device.h"

#include <math.h>
#include <string.h>

int op_metrics(struct stream_q *q, const struct op_call *c, struct err *e)
{
    (void)q;
    float *to = c->out[0].data;
    int rc = op_check_metrics(c, e);
    for (int k = 0; k < c->nin && !rc; k++) {
        int64_t n = shape_count(&c->in[k].shape);
        memmove(to, c->in[k].data, (size_t)n * sizeof *to);
        to += n;
    }
    return rc;
}

int op_clip(struct stream_q *q, const struct op_call *c, struct err *e)
{
    (void)q;
    int rc = op_check_clip(c, e);
    if (rc)
        return rc;
    const float *metrics = c->in[0].data;
    float *clip = c->out[0].data, loss = metrics[METRIC_LOSS], sqnorm = metrics[METRIC_SQNORM];
    double norm = sqrt((double)sqnorm), limit = (double)c->attr->clip_norm;
    bool skip = !isfinite(loss) || !isfinite(sqnorm);
    clip[CLIP_SCALE] = limit > 0 && norm > limit ? (float)(limit / norm) : 1;
    clip[CLIP_SKIP] = skip ? 1 : 0;
    return 0;
}

enum { NARROWED = 1024 }; // elements that are updated, then rounded from L1 to bf16

struct update_work {
    const struct op_call *call;
    void (*update)(const struct vec_update *u);
    struct vec_update u; // pointers are of element 0
    uint16_t *copy;      // of p in bf16, null: none is wanted
    void (*narrow)(uint16_t *out, const float *x, int64_t n);
};

static void update_piece(const struct update_work *w, int64_t begin, int64_t end)
{
    size_t bytes = (size_t)(end - begin) * sizeof(float);
    for (int k = 0; k < op_outputs(w->call->op); k++) {
        const float *from = w->call->in[k ? k + 1 : 0].data; // the gradient has no output
        float *to = w->call->out[k].data;
        PRE(from != NULL && to != NULL);
        if (from != to)
            memcpy(to + begin, from + begin, bytes);
    }
    struct vec_update u = w->u;
    u.n = end - begin;
    u.p += begin;
    u.g += begin;
    u.m = u.m ? u.m + begin : NULL;
    u.v = u.v ? u.v + begin : NULL;
    if (w->update)
        w->update(&u);
    if (w->copy)
        w->narrow(w->copy + begin, u.p, u.n);
}

static struct update_work plan_update(const struct vec *vec, const struct op_call *c)
{
    const float *clip = c->in[c->nin - 2].data, *hyper = c->in[c->nin - 1].data;
    const struct op_attr *a = c->attr;
    int states = op_outputs(c->op) - 1;
    return (struct update_work){
        .call = c,
        .copy = c->nout > states + 1 ? c->out[states + 1].data : NULL,
        .narrow = vec->narrow,
        .update = clip[CLIP_SKIP] != 0 ? NULL : vec->update[c->op],
        .u = {.p = c->out[0].data,
              .g = c->in[1].data,
              .m = states > 0 ? c->out[1].data : NULL,
              .v = states > 1 ? c->out[2].data : NULL,
              .clip = clip[CLIP_SCALE],
              .lr = hyper[HYPER_LR] * a->lr_scale,
              .first = average_of(a->beta1),
              .second = average_of(a->beta2),
              .eps = a->eps,
              .decay = a->decay,
              .bias1 = hyper[HYPER_BIAS1],
              .bias2 = hyper[HYPER_BIAS2],
              .nesterov = a->nesterov},
    };
}

struct row { // several updates as one loop: each begins at a multiple of GRAIN
    const struct op_call *calls;
    const struct vec *vec;
    int n;
};

static int64_t find_place(const struct op_call *c)
{
    return (shape_count(&c->in[0].shape) + GRAIN - 1) / GRAIN * GRAIN;
}

static void row_slice(void *arg, int64_t begin, int64_t end)
{
    const struct row *r = arg;
    int64_t at = 0;
    for (int k = 0; k < r->n && at < end; at += find_place(&r->calls[k++])) {
        int64_t stop = at + shape_count(&r->calls[k].in[0].shape);
        int64_t from = begin > at ? begin - at : 0, to = (end < stop ? end : stop) - at;
        if (from >= to)
            continue;
        struct update_work w = plan_update(r->vec, &r->calls[k]);
        int64_t piece = w.copy ? NARROWED : to - from;
        for (int64_t i = from; i < to; i += piece)
            update_piece(&w, i, to - i < piece ? to : i + piece);
    }
}

int op_updates(struct stream_q *q, const struct op_call *calls, int n, struct err *e)
{
    struct row r = {calls, q->device->vec, n};
    int64_t all = 0;
    for (int k = 0; k < n; k++) {
        int rc = op_check_update(&calls[k], e);
        if (rc)
            return rc;
        all += find_place(&calls[k]);
    }
    pool_for(q->device->pool, all, GRAIN, row_slice, &r);
    return 0;
}

int op_update(struct stream_q *q, const struct op_call *c, struct err *e)
{
    return op_updates(q, c, 1, e);
}
