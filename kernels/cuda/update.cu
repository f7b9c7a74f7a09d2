// SPDX-License-Identifier: Apache-2.0
// The end of a step: metrics, clipping, the update of parameters.
//
// METRICS gathers some ten numbers and CLIP computes two, so a block and a thread are enough. An
// update is one pass over memory, in place, by optax's formulas in its order: ADAM reads p, g, m, v
// and writes p, m, v, 28 bytes and some 20 FLOPs an element (30 bytes with p's copy in bf16), so it
// is bound by memory. A thread has four accesses of 16 bytes under way. One launch updates up to
// RANGES tensors, each with blocks of its own, so that a small tensor needs no launch for itself.
// The kernels read the clip and hyper vectors from the device: the host never waits for the norm,
// and one captured graph serves every step.
//
// A step that is to be skipped changes no number. In place it does not even read them; otherwise it
// copies its inputs to its outputs, and p to p's copy in bf16 if there is one.
#include "common/op/average.h"
#include "kernels/cuda/lanes.h"

#include <string.h>

enum { THREADS = 256, BLOCKS_EACH = 8, WIDE = 4 };

// ---- metrics ------------------------------------------------------------------------------------

struct parts {
    const float *from[OP_MAX_IN];
    int64_t n[OP_MAX_IN];
    int parts;
};

KERNEL(THREADS) metrics_kernel(struct parts p, float *to)
{
    kernel_begin();
    for (int k = 0; k < p.parts; k++) {
        for (int64_t i = threadIdx.x; i < p.n[k]; i += THREADS)
            to[i] = p.from[k][i];
        to += p.n[k];
    }
}

int op_metrics(struct stream_q *q, const struct op_call *c, struct err *e)
{
    struct parts p;
    int rc = op_check_metrics(c, e);
    if (rc)
        return rc;
    memset(&p, 0, sizeof p);
    p.parts = c->nin;
    for (int k = 0; k < c->nin; k++) {
        p.from[k] = (const float *)c->in[k].data;
        p.n[k] = shape_count(&c->in[k].shape);
    }
    LAUNCH(metrics_kernel, 1, THREADS, 0, q, p, (float *)c->out[0].data);
    return op_launched(q, c, e);
}

// ---- clipping -----------------------------------------------------------------------------------

KERNEL(1) clip_kernel(const float *metrics, float *clip, double limit)
{
    kernel_begin();
    float loss = metrics[METRIC_LOSS], sqnorm = metrics[METRIC_SQNORM];
    double norm = sqrt((double)sqnorm);
    clip[CLIP_SCALE] = limit > 0 && norm > limit ? (float)(limit / norm) : 1;
    clip[CLIP_SKIP] = isfinite(loss) && isfinite(sqnorm) ? 0 : 1;
}

int op_clip(struct stream_q *q, const struct op_call *c, struct err *e)
{
    int rc = op_check_clip(c, e);
    if (rc)
        return rc;
    LAUNCH(clip_kernel, 1, 1, 0, q, (const float *)c->in[0].data, (float *)c->out[0].data,
           (double)c->attr->clip_norm);
    return op_launched(q, c, e);
}

// ---- updates ------------------------------------------------------------------------------------

enum { TENSORS = 3 };

struct update {
    enum op op;
    int64_t n;
    const float *g, *clip, *hyper;
    const float *from[TENSORS];   // p, then ADAM's m and v, or MOMENTUM's velocity
    float *to[TENSORS];           // where their new values go; null where the op has fewer
    uint16_t *copy;               // where p goes in bf16 as well; null: nowhere
    struct average first, second; // of ADAM's moments; `first` of MOMENTUM's velocity
    float lr_scale, eps, decay;
    bool nesterov, in_place;
};

// What the step's clip and hyper vectors hold for a tensor.
struct rates {
    float clip, lr, bias1, bias2;
};

// beta · x + more
DEVICE float average_decay(const struct average *a, float x, float more)
{
    return a->keep * x + (a->rest * x + more);
}

DEVICE float momentum(const struct update *u, const struct rates *r, float p, float g, float *m)
{
    g += u->decay * p;
    *m = average_decay(&u->first, *m, g);
    return p - r->lr * (u->nesterov ? average_decay(&u->first, *m, g) : *m);
}

DEVICE float adam(const struct update *u, const struct rates *r, float p, float g, float *m,
                  float *v)
{
    *m = average_decay(&u->first, *m, u->first.gain * g);
    *v = average_decay(&u->second, *v, u->second.gain * (g * g));
    float step = (*m * r->bias1) / (sqrtf(*v * r->bias2) + u->eps);
    return p - r->lr * (step + u->decay * p);
}

// Updates the n elements from `at` on, at most WIDE. `states` counts the tensors behind p.
DEVICE void update_lanes(const struct update *u, const struct rates *r, int states, bool skip,
                         int64_t at, int n)
{
    float p[LANES], g[LANES], m[LANES] = {0}, v[LANES] = {0};
    lanes_load(u->from[0], DT_F32, at, 1, n, WIDE, p);
    lanes_load(u->g, DT_F32, at, 1, n, WIDE, g);
    if (states > 0)
        lanes_load(u->from[1], DT_F32, at, 1, n, WIDE, m);
    if (states > 1)
        lanes_load(u->from[2], DT_F32, at, 1, n, WIDE, v);
    for (int k = 0; k < WIDE && !skip; k++) {
        float scaled = g[k] * r->clip;
        if (states == 0)
            p[k] -= r->lr * (scaled + u->decay * p[k]);
        else if (states == 1)
            p[k] = momentum(u, r, p[k], scaled, &m[k]);
        else
            p[k] = adam(u, r, p[k], scaled, &m[k], &v[k]);
    }
    lanes_store(u->to[0], DT_F32, at, n, WIDE, p);
    if (u->copy)
        lanes_store(u->copy, DT_BF16, at, n, WIDE, p);
    if (states > 0)
        lanes_store(u->to[1], DT_F32, at, n, WIDE, m);
    if (states > 1)
        lanes_store(u->to[2], DT_F32, at, n, WIDE, v);
}

// Updates the share of a tensor that falls to block `block` of `blocks`.
DEVICE void update_all(const struct update *u, int states, unsigned block, unsigned blocks)
{
    bool skip = u->clip[CLIP_SKIP] != 0;
    struct rates r;
    r.clip = u->clip[CLIP_SCALE];
    r.lr = u->hyper[HYPER_LR] * u->lr_scale;
    r.bias1 = u->hyper[HYPER_BIAS1];
    r.bias2 = u->hyper[HYPER_BIAS2];
    int64_t stride = (int64_t)blocks * THREADS * WIDE;
    int64_t first = ((int64_t)block * THREADS + threadIdx.x) * WIDE;
    for (int64_t i = skip && u->in_place && !u->copy ? u->n : first; i < u->n; i += stride)
        update_lanes(u, &r, states, skip, i, lanes_left(u->n, i, WIDE));
}

// The updates that one launch makes: several in place, or a single one that is not, whose `from` is
// in `like`. What differs between them is in their ranges, and what all have in common is in `like`.
// The blocks from range k − 1's `end` to range k's `end` update range k.
enum { RANGES = 56 };
struct update_range {
    int64_t n;
    const float *g;
    float *to[TENSORS];
    uint16_t *copy;
    float lr_scale, decay;
    unsigned end;
};
struct update_ranges {
    struct update like;
    int n;
    struct update_range range[RANGES];
};

DEVICE void update_ranges(const struct update_ranges *r, int states)
{
    int k = 0;
    while (blockIdx.x >= r->range[k].end)
        k++;
    const struct update_range *here = &r->range[k];
    unsigned first = k ? r->range[k - 1].end : 0;
    struct update u = r->like;
    u.n = here->n;
    u.g = here->g;
    u.copy = here->copy;
    u.lr_scale = here->lr_scale;
    u.decay = here->decay;
    for (int s = 0; s <= states; s++) {
        u.to[s] = here->to[s];
        u.from[s] = u.in_place ? here->to[s] : u.from[s];
    }
    update_all(&u, states, blockIdx.x - first, here->end - first);
}

KERNEL(THREADS) sgd_kernel(struct update_ranges r)
{
    kernel_begin();
    update_ranges(&r, 0);
}

KERNEL(THREADS) momentum_kernel(struct update_ranges r)
{
    kernel_begin();
    update_ranges(&r, 1);
}

KERNEL(THREADS) adam_kernel(struct update_ranges r)
{
    kernel_begin();
    update_ranges(&r, 2);
}

static void plan_update(const struct op_call *c, struct update *u)
{
    const struct op_attr *a = c->attr;
    memset(u, 0, sizeof *u);
    u->op = c->op;
    u->n = shape_count(&c->in[0].shape);
    u->g = (const float *)c->in[1].data;
    u->clip = (const float *)c->in[c->nin - 2].data;
    u->hyper = (const float *)c->in[c->nin - 1].data;
    u->in_place = true;
    int states = op_outputs(c->op);
    u->copy = c->nout > states ? (uint16_t *)c->out[states].data : NULL;
    for (int k = 0; k < states; k++) {
        u->from[k] = (const float *)c->in[k ? k + 1 : 0].data; // in[1] is the gradient
        u->to[k] = (float *)c->out[k].data;
        u->in_place = u->in_place && u->from[k] == u->to[k];
    }
    u->lr_scale = a->lr_scale;
    u->first = average_of(a->beta1);
    u->second = average_of(a->beta2);
    u->eps = a->eps;
    u->decay = a->decay;
    u->nesterov = a->nesterov;
}

static bool is_same_average(const struct average *a, const struct average *b)
{
    return a->keep == b->keep && a->rest == b->rest && a->gain == b->gain;
}

// Whether one launch can make both.
static bool can_join(const struct update *a, const struct update *b)
{
    return a->op == b->op && a->clip == b->clip && a->hyper == b->hyper &&
           is_same_average(&a->first, &b->first) && is_same_average(&a->second, &b->second) &&
           a->eps == b->eps && a->nesterov == b->nesterov && a->in_place && b->in_place;
}

static int launch_ranges(struct stream_q *q, const struct op_call *c, const struct update_ranges *r,
                         struct err *e)
{
    unsigned blocks = r->n ? r->range[r->n - 1].end : 0;
    if (!blocks)
        return 0;
    if (c->op == OP_SGD)
        LAUNCH(sgd_kernel, blocks, THREADS, 0, q, *r);
    else if (c->op == OP_MOMENTUM)
        LAUNCH(momentum_kernel, blocks, THREADS, 0, q, *r);
    else
        LAUNCH(adam_kernel, blocks, THREADS, 0, q, *r);
    return op_launched(q, c, e);
}

static void add_range(struct update_ranges *r, const struct update *u, int processors)
{
    unsigned before = r->n ? r->range[r->n - 1].end : 0;
    struct update_range *to = &r->range[r->n++];
    r->like = *u;
    to->n = u->n;
    to->g = u->g;
    memcpy(to->to, u->to, sizeof to->to);
    to->copy = u->copy;
    to->lr_scale = u->lr_scale;
    to->decay = u->decay;
    to->end =
        before + launch_blocks(u->n, (int64_t)THREADS * WIDE, (int64_t)processors * BLOCKS_EACH);
}

int op_updates(struct stream_q *q, const struct op_call *calls, int n, struct err *e)
{
    struct update_ranges r;
    int rc = 0;
    memset(&r, 0, sizeof r);
    for (int k = 0; k < n && !rc; k++) {
        struct update u;
        rc = op_check_update(&calls[k], e);
        if (rc)
            break;
        plan_update(&calls[k], &u);
        if (r.n == RANGES || (r.n && !can_join(&r.like, &u))) {
            rc = launch_ranges(q, &calls[k - 1], &r, e);
            r.n = 0;
        }
        if (u.n)
            add_range(&r, &u, q->device->processors);
    }
    return rc ? rc : launch_ranges(q, &calls[n - 1], &r, e);
}

int op_update(struct stream_q *q, const struct op_call *c, struct err *e)
{
    return op_updates(q, c, 1, e);
}
