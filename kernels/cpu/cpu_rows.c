// SPDX-License-Identifier: Apache-2.0
// Ops over rows: softmax, the parts of cross-entropy, and the pick of the right answer.
//
// Rows are dealt out over the threads; what is one value a row (a maximum, an id) may have the row
// dimensions in any order, or lack some. Ids count from attr.start; one outside the row picks 0 and
// is given no gradient: in a cut vocabulary it belongs to another rank.
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/loops.h"

#include <math.h>
#include <string.h>

struct rows_work {
    const struct op_call *call;
    const struct vec *vec;
    struct loops rows; // operands: inputs, then outputs
    int64_t n;         // of a row, padding left out
    int64_t whole;     // of a row
    void (*row)(const struct rows_work *w, int64_t r);
};

static const float *f32_in(const struct rows_work *w, int k, int64_t r)
{
    return (const float *)w->call->in[k].data + loops_offset(&w->rows, w->rows.n, k, r);
}

static int32_t id_in(const struct rows_work *w, int k, int64_t r)
{
    return ((const int32_t *)w->call->in[k].data)[loops_offset(&w->rows, w->rows.n, k, r)];
}

static void *out_at(const struct rows_work *w, int k, int64_t r)
{
    // Outputs have 4 bytes an element, i32 or f32.
    return (float *)w->call->out[k].data + loops_offset(&w->rows, w->rows.n, w->call->nin + k, r);
}

static void row_max(const struct rows_work *w, int64_t r)
{
    *(float *)out_at(w, 0, r) = w->vec->row_max(f32_in(w, 0, r), w->n);
}

static void row_sum_exp(const struct rows_work *w, int64_t r)
{
    *(float *)out_at(w, 0, r) = w->vec->row_sum_exp(f32_in(w, 0, r), w->n, *f32_in(w, 1, r));
}

static void row_exp_mul(const struct rows_work *w, int64_t r)
{
    float *to = out_at(w, 0, r);
    w->vec->row_exp_mul(to, f32_in(w, 0, r), w->n, *f32_in(w, 1, r), *f32_in(w, 2, r));
    memset(to + w->n, 0, (size_t)(w->whole - w->n) * sizeof *to);
}

static void pick_row(const struct rows_work *w, int64_t r)
{
    int64_t id = id_in(w, 1, r) - w->call->attr->start;
    *(float *)out_at(w, 0, r) = id >= 0 && id < w->n ? f32_in(w, 0, r)[id] : 0;
}

static void pick_grad_row(const struct rows_work *w, int64_t r)
{
    int64_t id = id_in(w, 0, r) - w->call->attr->start;
    float *row = out_at(w, 0, r);
    memset(row, 0, (size_t)w->n * sizeof *row);
    if (id >= 0 && id < w->n)
        row[id] = *f32_in(w, 1, r);
}

static void row_loss(const struct rows_work *w, int64_t r)
{
    const float *x = f32_in(w, 0, r);
    int64_t id = id_in(w, 1, r) - w->call->attr->start;
    w->vec->row_max_sum_exp(x, w->n, out_at(w, 0, r), out_at(w, 1, r));
    *(float *)out_at(w, 2, r) = id >= 0 && id < w->whole ? x[id] : 0;
}

// The output may be x itself.
static void row_loss_grad(const struct rows_work *w, int64_t r)
{
    int64_t id = id_in(w, 3, r) - w->call->attr->start;
    row_exp_mul(w, r);
    if (id >= 0 && id < w->whole)
        ((float *)out_at(w, 0, r))[id] += *f32_in(w, 4, r);
}

// The last output may be x itself, which is in the cache when it is read the second time.
static void row_loss_both(const struct rows_work *w, int64_t r)
{
    const float *x = f32_in(w, 0, r);
    float c = w->call->attr->scale * *f32_in(w, 2, r), *to = out_at(w, 3, r);
    int64_t id = id_in(w, 1, r) - w->call->attr->start;
    row_loss(w, r);
    w->vec->row_exp_mul(to, x, w->n, *(float *)out_at(w, 0, r), c / *(float *)out_at(w, 1, r));
    memset(to + w->n, 0, (size_t)(w->whole - w->n) * sizeof *to);
    if (id >= 0 && id < w->whole)
        to[id] -= c;
}

// The output may be x itself. A row of −∞ alone sums up to nothing.
static void softmax_row(const struct rows_work *w, int64_t r)
{
    const float *x = f32_in(w, 0, r);
    float *to = out_at(w, 0, r), max = w->vec->row_max(x, w->n);
    max = max == -INFINITY ? 0 : max;
    float sum = w->vec->row_sum_exp(x, w->n, max);
    w->vec->row_exp_mul(to, x, w->n, max, sum == 0 ? 0 : 1 / sum);
    memset(to + w->n, 0, (size_t)(w->whole - w->n) * sizeof *to);
}

// The output may be dy itself.
static void softmax_grad_row(const struct rows_work *w, int64_t r)
{
    const float *dy = f32_in(w, 0, r), *y = f32_in(w, 1, r);
    float *to = out_at(w, 0, r);
    if (to != dy)
        memcpy(to, dy, (size_t)w->whole * sizeof *to);
    w->vec->softmax_grad(to, y, w->vec->dot(y, to, w->whole), w->whole, 1);
}

// A row of NaN alone has no maximum: 0.
static void row_argmax(const struct rows_work *w, int64_t r)
{
    const float *x = f32_in(w, 0, r);
    float max = w->vec->row_max(x, w->n);
    int32_t at = 0;
    for (int64_t i = w->n - 1; i >= 0; i--)
        at = x[i] == max ? (int32_t)i : at;
    *(int32_t *)out_at(w, 0, r) = at;
}

// Which operand has whole rows.
static const struct rows_op {
    void (*row)(const struct rows_work *w, int64_t r);
    int wide;
} table[OP_COUNT] = {
    [OP_ROW_MAX] = {row_max, 0},
    [OP_ROW_SUM_EXP] = {row_sum_exp, 0},
    [OP_ROW_EXP_MUL] = {row_exp_mul, 0},
    [OP_PICK] = {pick_row, 0},
    [OP_PICK_GRAD] = {pick_grad_row, 2},
    [OP_SOFTMAX] = {softmax_row, 0},
    [OP_SOFTMAX_GRAD] = {softmax_grad_row, 0},
    [OP_ROW_ARGMAX] = {row_argmax, 0},
    [OP_ROW_LOSS] = {row_loss, 0},
    [OP_ROW_LOSS_GRAD] = {row_loss_grad, 0},
    [OP_ROW_LOSS_BOTH] = {row_loss_both, 0},
};

static void run_slice(void *arg, int64_t begin, int64_t end)
{
    const struct rows_work *w = arg;
    for (int64_t r = begin; r < end; r++)
        w->row(w, r);
}

int op_rows(struct stream_q *q, const struct op_call *c, struct err *e)
{
    const struct rows_op *op = &table[c->op];
    const struct shape *wide = &loops_tensor(c, op->wide)->shape;
    const int index[MAX_OPERANDS] = {0, 1, 2, 3, 4, 5, 6};
    if (wide->n < 1)
        return op_refuse(c, e, "a scalar has no rows");
    int64_t n = wide->dim[wide->n - 1];
    struct rows_work w = {
        .call = c, .vec = q->device->vec, .n = op_unpadded(c, n), .whole = n, .row = op->row};
    bool fits = loops_over(c, op->wide, wide->n - 1, -1, index, c->nin + c->nout, &w.rows);
    for (int k = 0; k < c->nin + c->nout && fits; k++) { // whole rows, or one value a row
        int64_t count = shape_count(&loops_tensor(c, k)->shape);
        fits = w.rows.covered[k] == count || w.rows.covered[k] * n == count;
    }
    if (!fits)
        return op_refuse(c, e, "operands disagree about the rows");
    int64_t grain = n < GRAIN / 4 ? GRAIN / 4 / n : 1;
    pool_for(q->device->pool, loops_count(&w.rows, w.rows.n), grain, run_slice, &w);
    return 0;
}
