// SPDX-License-Identifier: Apache-2.0
// TOPK and its gradient; SLOTS: which tokens each expert gets.
//
// Rows of a TOPK are dealt out over the threads, groups of SLOTS as well: what a group decides is
// one thread's work, two counting sorts whose time is that of reading the ids. A NaN comes before
// every number, so that it reaches what is made of the weights.
#include "common/op/route.h"
#include "kernels/cpu/cpu_device.h"

#include <math.h>
#include <string.h>

// ---- TOPK --------------------------------------------------------------------------------------

struct topk_rows {
    const float *x, *by;
    const int32_t *ids; // of TOPK_GRAD
    float *out;
    int32_t *places;
    int64_t n, k; // of a row
};

static void topk_slice(void *arg, int64_t begin, int64_t end)
{
    const struct topk_rows *w = arg;
    for (int64_t r = begin; r < end; r++) {
        const float *x = w->x + r * w->n, *by = w->by + r * w->n;
        int64_t last = -1;
        for (int64_t j = 0; j < w->k; j++) {
            int64_t best = -1;
            for (int64_t i = 0; i < w->n; i++)
                if ((last < 0 || route_before(by[last], last, by[i], i)) &&
                    (best < 0 || route_before(by[i], i, by[best], best)))
                    best = i;
            w->out[r * w->k + j] = x[best];
            w->places[r * w->k + j] = (int32_t)best;
            last = best;
        }
    }
}

static void topk_grad_slice(void *arg, int64_t begin, int64_t end)
{
    const struct topk_rows *w = arg;
    memset(w->out + begin * w->n, 0, (size_t)((end - begin) * w->n) * sizeof *w->out);
    for (int64_t i = begin * w->k; i < end * w->k; i++)
        if (w->ids[i] >= 0 && w->ids[i] < w->n)
            w->out[i / w->k * w->n + w->ids[i]] += w->x[i];
}

int op_topk(struct stream_q *q, const struct op_call *c, struct err *e)
{
    struct topk_call t;
    int rc = op_check_topk(c, &t, e);
    if (rc)
        return rc;
    struct topk_rows w = {.x = t.x->data,
                          .by = c->in[c->nin > 1].data,
                          .ids = t.ids->data,
                          .out = c->out[0].data,
                          .places = t.ids->data,
                          .n = t.n,
                          .k = t.k};
    pool_for(q->device->pool, t.rows, GRAIN / t.n + 1, t.grad ? topk_grad_slice : topk_slice, &w);
    return 0;
}

// ---- BALANCE -----------------------------------------------------------------------------------

int op_balance(struct stream_q *q, const struct op_call *c, struct err *e)
{
    const float *p = c->in[0].data, *clip = c->in[2].data;
    const float *load = (const float *)c->in[1].data + c->attr->start;
    float *out = c->out[0].data;
    int64_t n = shape_count(&c->in[0].shape);
    double all = 0;
    int rc = op_check_balance(c, e);
    if (rc)
        return rc;
    (void)q;
    for (int64_t i = 0; i < n; i++)
        all += (double)load[i];
    for (int64_t i = 0; i < n; i++) { // whole numbers: a load that is the mean is found equal
        const double times = (double)n * (double)load[i];
        int sign = (all > times) - (all < times);
        out[i] = p[i] + (clip[CLIP_SKIP] == 0 ? c->attr->scale * (float)sign : 0);
    }
    return 0;
}

// ---- SLOTS -------------------------------------------------------------------------------------

struct dealing {
    struct route route;
    const int32_t *ids, *positions;
    const float *weights;
    int32_t *slots, *scratch;
    float *chosen;
    int64_t each; // of scratch, for a group
};

// Orders the tokens `from` by the weight of their first choice, greatest first; equals stay in order.
static void order_by_key(const struct dealing *w, int64_t first, const int32_t *from,
                         int32_t *count, int32_t *order)
{
    const struct route *r = &w->route;
    memset(count, 0, (ROUTE_KEYS + 1) * sizeof *count);
    for (int64_t t = 0; t < r->tokens; t++)
        count[route_key(w->weights[(first + t) * r->choices]) + 1]++;
    for (int key = 0; key < ROUTE_KEYS; key++)
        count[key + 1] += count[key];
    for (int64_t i = 0; i < r->tokens; i++)
        order[count[route_key(w->weights[(first + from[i]) * r->choices])]++] = from[i];
}

static void deal_group(const struct dealing *w, int64_t group, int32_t *scratch)
{
    const struct route *r = &w->route;
    int64_t first = group * r->tokens;
    int32_t *count = scratch, *order = count + ROUTE_KEYS + 1, *before = order + r->tokens;
    for (int64_t t = 0; t < r->tokens; t++) // by sample and position: the keys are all unlike
        before[t / r->seq * r->seq + w->positions[first + t] % r->seq] = (int32_t)t;
    order_by_key(w, first, before, count, order);
    int32_t *taken = before; // of each expert's places; the earlier order is read no more
    memset(taken, 0, (size_t)r->experts * sizeof *taken);
    for (int64_t j = 0; j < r->choices; j++)
        for (int64_t i = 0; i < r->tokens; i++) {
            int64_t at = (first + order[i]) * r->choices + j;
            int32_t expert = w->ids[at], place = taken[expert]++;
            w->slots[at] = place < r->capacity ? expert * (int32_t)r->capacity + place : -1;
        }
    for (int64_t s = 0; s < r->samples; s++)
        for (int64_t x = 0; x < r->experts; x++)
            w->chosen[(group * r->samples + s) * r->experts + x] = (float)taken[x];
}

static void deal_slice(void *arg, int64_t begin, int64_t end)
{
    const struct dealing *w = arg;
    for (int64_t g = begin; g < end; g++)
        deal_group(w, g, w->scratch + g * w->each);
}

int op_slots(struct stream_q *q, const struct op_call *c, struct err *e)
{
    struct dealing w = {.ids = c->in[0].data,
                        .weights = c->in[1].data,
                        .positions = c->in[2].data,
                        .slots = c->out[0].data,
                        .chosen = c->out[1].data,
                        .scratch = c->workspace};
    if (!route_of(c, &w.route))
        return op_refuse(c, e, "operands disagree about the groups");
    w.each = (int64_t)(route_scratch_cpu(&w.route) / sizeof *w.scratch);
    PRE((size_t)w.route.groups * (size_t)w.each * sizeof *w.scratch <= c->workspace_bytes);
    pool_for(q->device->pool, w.route.groups, GRAIN / w.route.tokens + 1, deal_slice, &w);
    return 0;
}
