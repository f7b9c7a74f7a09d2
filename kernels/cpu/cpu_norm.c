// SPDX-License-Identifier: Apache-2.0
// NORM and its gradients: layer norm (attr.center) and RMS norm, with weight and bias or without;
// and those that add something before or behind in the same pass over a row, with the same bits.
//
// Means are made again in the backward, from x: that is one pass over rows that are read anyway.
// Threads share rows; the weight's gradient has every row's mean and scale in the workspace first,
// then threads share columns, each of which adds the rows in order.
#include "kernels/cpu/cpu_device.h"

struct norm_work {
    const struct op_call *call;
    const struct vec *vec;
    int64_t rows, n; // n: of a row
};

static const float *get_input(const struct norm_work *w, int k)
{
    return k < w->call->nin ? w->call->in[k].data : NULL;
}

static void compute_stats(const struct norm_work *w, int64_t r, float stats[2])
{
    const struct op_attr *a = w->call->attr;
    w->vec->norm_stats(stats, get_input(w, 0) + r * w->n, w->n, a->eps, a->center);
}

static void norm_rows(void *arg, int64_t begin, int64_t end)
{
    const struct norm_work *w = arg;
    for (int64_t r = begin; r < end; r++) {
        float stats[2];
        compute_stats(w, r, stats);
        w->vec->norm((float *)w->call->out[0].data + r * w->n, get_input(w, 0) + r * w->n, stats,
                     get_input(w, 1), get_input(w, 2), w->n);
    }
}

static void grad_rows(void *arg, int64_t begin, int64_t end)
{
    const struct norm_work *w = arg;
    for (int64_t r = begin; r < end; r++) {
        float stats[2];
        compute_stats(w, r, stats);
        w->vec->norm_grad((float *)w->call->out[0].data + r * w->n, get_input(w, 0) + r * w->n,
                          get_input(w, 1) + r * w->n, stats, get_input(w, 2), NULL, w->n,
                          w->call->attr->center);
    }
}

static void grad_add_rows(void *arg, int64_t begin, int64_t end)
{
    const struct norm_work *w = arg;
    const struct op_attr *a = w->call->attr;
    for (int64_t r = begin; r < end; r++) {
        const float *x = get_input(w, 1) + r * w->n;
        float stats[2];
        w->vec->norm_stats(stats, x, w->n, a->eps, a->center);
        w->vec->norm_grad((float *)w->call->out[0].data + r * w->n, x, get_input(w, 2) + r * w->n,
                          stats, get_input(w, 3), get_input(w, 0) + r * w->n, w->n, a->center);
    }
}

// The sum may be written over either operand.
static void add_norm_rows(void *arg, int64_t begin, int64_t end)
{
    const struct norm_work *w = arg;
    for (int64_t r = begin; r < end; r++) {
        float *sum = (float *)w->call->out[0].data + r * w->n, stats[2];
        const struct op_attr *a = w->call->attr;
        w->vec->map[OP_ADD](&(struct vec_map){.out = sum,
                                              .a = get_input(w, 0) + r * w->n,
                                              .b = get_input(w, 1) + r * w->n,
                                              .a_step = 1,
                                              .b_step = 1,
                                              .n = w->n});
        w->vec->norm_stats(stats, sum, w->n, a->eps, a->center);
        w->vec->norm((float *)w->call->out[1].data + r * w->n, sum, stats, get_input(w, 2),
                     get_input(w, 3), w->n);
    }
}

static void stats_rows(void *arg, int64_t begin, int64_t end)
{
    const struct norm_work *w = arg;
    for (int64_t r = begin; r < end; r++)
        compute_stats(w, r, (float *)w->call->workspace + 2 * r);
}

static void weight_columns(void *arg, int64_t begin, int64_t end)
{
    const struct norm_work *w = arg;
    w->vec->norm_columns((float *)w->call->out[0].data + begin, get_input(w, 0) + begin,
                         get_input(w, 1) + begin, w->call->workspace, w->rows, w->n, end - begin,
                         w->call->accumulate);
}

// The first `wide` inputs are rows, the others vectors.
static const struct norm_op {
    int wide;
    void (*rows)(void *arg, int64_t begin, int64_t end);
} table[OP_COUNT] = {
    [OP_NORM] = {1, norm_rows},
    [OP_NORM_GRAD] = {2, grad_rows},
    [OP_NORM_WEIGHT_GRAD] = {2, stats_rows},
    [OP_ADD_NORM] = {2, add_norm_rows},
    [OP_NORM_GRAD_ADD] = {3, grad_add_rows},
};

int op_norm(struct stream_q *q, const struct op_call *c, struct err *e)
{
    const struct shape *x = &c->in[0].shape;
    struct pool *pool = q->device->pool;
    struct norm_work w = {.call = c, .vec = q->device->vec};
    if (x->n < 1)
        return op_refuse(c, e, "a scalar has no rows");
    w.n = x->dim[x->n - 1];
    w.rows = shape_count(x) / w.n;
    bool columns = c->op == OP_NORM_WEIGHT_GRAD;
    for (int k = 0; k < c->nin + c->nout; k++) { // rows like x, or one row
        const struct tensor *t = k < c->nin ? &c->in[k] : &c->out[k - c->nin];
        bool row = k < c->nin ? k >= table[c->op].wide : columns;
        if (shape_count(&t->shape) != (row ? 1 : w.rows) * w.n)
            return op_refuse(c, e, "operands disagree about an extent");
    }
    PRE(!columns || (size_t)w.rows * 2 * sizeof(float) <= c->workspace_bytes);
    pool_for(pool, w.rows, GRAIN / w.n + 1, table[c->op].rows, &w);
    if (columns)
        pool_for(pool, w.n, 16 * (GRAIN / 16 / w.rows + 1), weight_columns, &w);
    return 0;
}
