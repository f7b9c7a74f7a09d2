// SPDX-License-Identifier: Apache-2.0
// Ops over rows: SOFTMAX and its gradient; the parts of cross-entropy, one by one (ROW_MAX, ROW_SUM_EXP, ROW_EXP_MUL, PICK,
// PICK_GRAD, ROW_ARGMAX) and fused (ROW_LOSS, ROW_LOSS_GRAD, ROW_LOSS_BOTH).
//
// Each reads a row of logits once, 2 or 4 bytes for an exponential at most, and those that make
// rows write it once: bound by memory, if little more than an exponential is computed for them. A row belongs to a warp, or to a block from 1024 elements
// on. ROW_LOSS reads once what its three parts would read thrice: a thread keeps the maximum so far
// and the sum of exponentials beside it, scaled again whenever the maximum grows. ROW_LOSS_BOTH goes
// back over the row at once, from its end, and writes the gradient in its place: what a processor's
// one or two blocks have just read, 100 KB of bf16 a row of GPT-2's, lies in its caches still, so
// that memory sees each logit once and its gradient once. Sums are in double from eight elements on. What is one value a row may have the row dimensions in any order,
// or lack some. Ids count from attr.start; one outside the row picks 0 and is given no gradient.
#include <string.h>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/team.h"
#include "kernels/cuda/walk.h"

enum { THREADS = 256, WARP_ROWS = 1024, MOST_BLOCKS = 0x7fffffff, NOWHERE = 0x7fffffff };
enum { LOSS_THREADS = 512 }; // many for a row, so that few rows are under way at once

struct rows {
    struct loops at;                // operands: inputs, then outputs
    int64_t count, n, whole, start; // n: of a row, padding left out
    int team;
    const void *in[5];
    enum dtype in_type[5];
    void *out[4];
    enum dtype out_type[4];
    int nin;
    float scale;
};

// Rows of a thread's team, one after the other.
#define EACH_ROW(c, row) \
    for (int64_t row = team_row((c)->team); row < (c)->count; row += team_step((c)->team))
// A thread's packs of a row of n elements.
#define EACH_PACK(c, p, at, n) \
    for (int64_t at = threadIdx.x % (c)->team * (p).wide; at < (n); at += (c)->team * (p).wide)

DEVICE int64_t place_of(const struct rows *c, int operand, int64_t row)
{
    return walk_offset(&c->at, c->at.n, operand, row);
}

DEVICE float value_of(const struct rows *c, int k, int64_t row)
{
    return load_f32(c->in[k], c->in_type[k], place_of(c, k, row));
}

// By the first thread of the row.
DEVICE void put_value(const struct rows *c, int k, int64_t row, float x)
{
    if (threadIdx.x % c->team == 0)
        store_f32(c->out[k], c->out_type[k], place_of(c, c->nin + k, row), x);
}

// Of the row, the element that its id names; −1: none here.
DEVICE int64_t element_of(const struct rows *c, int k, int64_t row)
{
    int64_t at = (int64_t)((const int32_t *)c->in[k])[place_of(c, k, row)] - c->start;
    return at >= 0 && at < c->whole ? at : -1;
}

DEVICE float pick_of(const struct rows *c, int64_t row, int64_t base)
{
    int64_t at = element_of(c, 1, row);
    return at < 0 ? 0 : load_f32(c->in[0], c->in_type[0], base + at);
}

// A pack of input 0; −∞ for what is padding.
DEVICE void load_logits(const struct rows *c, struct pack p, float v[LANES], int64_t base,
                        int64_t at)
{
    pack_load(v, c->in[0], pack_type(p, c->in_type[0]), base + at, p.wide);
    if (at + p.wide > c->n)
        for (int k = 0; k < p.wide; k++)
            v[k] = at + k < c->n ? v[k] : -INFINITY;
}

DEVICE void store_row(const struct rows *c, struct pack p, int64_t at, const float v[LANES])
{
    pack_store(c->out[0], pack_type(p, c->out_type[0]), at, p.wide, v);
}

// What turns a row's elements into exp(x − max). Where the elements are bf16, their own rounding is
// a thousand times coarser than that of the quick way: 2^(x·log2 e − max·log2 e).
struct row_exp {
    float max, scaled;
    bool quick;
};

static const float LOG2_E = 1.44269504f;

DEVICE struct row_exp row_exp_of(const struct rows *c, struct pack p, float max)
{
    struct row_exp r;
    r.max = max;
    r.scaled = max * LOG2_E;
    r.quick = pack_type(p, c->in_type[0]) == DT_BF16;
    return r;
}

DEVICE float exp_of(const struct row_exp *r, float x)
{
    return r->quick ? exp2_fast(mad(x, LOG2_E, -r->scaled)) : expf(x - r->max);
}

// ---- one value a row ---------------------------------------------------------------------------

DEVICE void row_max(const struct rows *c, struct pack p)
{
    __shared__ float part[WARP];
    EACH_ROW(c, row)
    {
        const int64_t base = place_of(c, 0, row);
        float m = -INFINITY, v[LANES];
        EACH_PACK(c, p, at, c->n)
        {
            load_logits(c, p, v, base, at);
            m = pack_max(v, p.wide, m);
        }
        put_value(c, 0, row, team_max(m, c->team, part));
    }
}

DEVICE void row_sum_exp(const struct rows *c, struct pack p)
{
    __shared__ double part[WARP];
    EACH_ROW(c, row)
    {
        const int64_t base = place_of(c, 0, row);
        const struct row_exp of = row_exp_of(c, p, value_of(c, 1, row));
        double sum = 0;
        EACH_PACK(c, p, at, c->n)
        {
            float v[LANES];
            load_logits(c, p, v, base, at);
            for (int k = 0; k < p.wide; k++)
                v[k] = at + k < c->n ? exp_of(&of, v[k]) : 0;
            sum += (double)pack_sum(v, p.wide);
        }
        put_value(c, 0, row, (float)team_sum_f64(sum, c->team, part));
    }
}

KERNEL(THREADS) pick(struct rows c)
{
    const int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t row = (int64_t)blockIdx.x * THREADS + threadIdx.x; row < c.count; row += step)
        store_f32(c.out[0], c.out_type[0], place_of(&c, 2, row),
                  pick_of(&c, row, place_of(&c, 0, row)));
}

// The least of the threads of a row.
DEVICE int team_min(int x, int team, int *part)
{
    for (int lane = WARP / 2; lane; lane /= 2) {
        int other = __shfl_xor_sync(WARP_ALL, x, lane);
        x = other < x ? other : x;
    }
    if (team == WARP)
        return x;
    __syncthreads();
    if (threadIdx.x % WARP == 0)
        part[threadIdx.x / WARP] = x;
    __syncthreads();
    for (int i = 0; i < team / WARP; i++)
        x = part[i] < x ? part[i] : x;
    return x;
}

// A row of NaN alone has no maximum: 0.
DEVICE void row_argmax(const struct rows *c, struct pack p)
{
    __shared__ float part[WARP];
    __shared__ int part_at[WARP];
    EACH_ROW(c, row)
    {
        const int64_t base = place_of(c, 0, row);
        float most = -INFINITY;
        int first = NOWHERE;
        EACH_PACK(c, p, at, c->n)
        {
            float v[LANES];
            load_logits(c, p, v, base, at);
            for (int k = 0; k < p.wide; k++)
                if (at + k < c->n && (v[k] > most || (v[k] == most && first == NOWHERE))) {
                    most = v[k];
                    first = (int)at + k;
                }
        }
        float max = team_max(most, c->team, part);
        first = team_min(most == max ? first : NOWHERE, c->team, part_at);
        if (threadIdx.x % c->team == 0)
            ((int32_t *)c->out[0])[place_of(c, 1, row)] = first == NOWHERE ? 0 : first;
    }
}

VARIANTS(THREADS, row_max, rows)
VARIANTS(THREADS, row_sum_exp, rows)
VARIANTS(THREADS, row_argmax, rows)

// ---- rows --------------------------------------------------------------------------------------

DEVICE void row_exp_mul(const struct rows *c, struct pack p)
{
    EACH_ROW(c, row)
    {
        const int64_t base = place_of(c, 0, row), to = place_of(c, 3, row);
        const struct row_exp of = row_exp_of(c, p, value_of(c, 1, row));
        const float g = value_of(c, 2, row);
        EACH_PACK(c, p, at, c->whole)
        {
            float v[LANES];
            load_logits(c, p, v, base, at);
            for (int k = 0; k < p.wide; k++)
                v[k] = at + k < c->n ? exp_of(&of, v[k]) * g : 0;
            store_row(c, p, to + at, v);
        }
    }
}

DEVICE void pick_grad(const struct rows *c, struct pack p)
{
    EACH_ROW(c, row)
    {
        const int64_t to = place_of(c, 2, row), id = element_of(c, 0, row);
        const float g = value_of(c, 1, row);
        EACH_PACK(c, p, at, c->whole)
        {
            float v[LANES];
            for (int k = 0; k < p.wide; k++)
                v[k] = at + k == id ? g : 0;
            store_row(c, p, to + at, v);
        }
    }
}

VARIANTS(THREADS, row_exp_mul, rows)
VARIANTS(THREADS, pick_grad, rows)

// ---- the loss in one pass ----------------------------------------------------------------------

// Packs that a thread has under way at once: it waits once for all of them.
enum { AHEAD = 4 };

// A thread's next packs of a row, from element `at` on: −∞ for padding and beyond the row.
DEVICE void load_ahead(const struct rows *c, struct pack p, float v[AHEAD][LANES], int64_t base,
                       int at)
{
    const int step = c->team * p.wide;
    UNROLL
    for (int i = 0; i < AHEAD; i++, at += step)
        if (at + p.wide <= c->n)
            pack_load(v[i], c->in[0], pack_type(p, c->in_type[0]), base + at, p.wide);
        else if (at < c->n)
            load_logits(c, p, v[i], base, at);
        else
            for (int k = 0; k < p.wide; k++)
                v[i][k] = -INFINITY;
}

struct exps {
    float max;
    double sum; // of exp(x − max)
};

// Takes packs in. While all there is is −∞, exp(−∞ − −∞) is no term yet; a NaN is.
DEVICE void add_exps(const struct rows *c, struct pack p, struct exps *s, float v[AHEAD][LANES])
{
    float max = s->max;
    UNROLL
    for (int i = 0; i < AHEAD; i++)
        max = pack_max(v[i], p.wide, max);
    const struct row_exp of = row_exp_of(c, p, max);
    if (max > s->max)
        s->sum *= (double)exp_of(&of, s->max);
    s->max = max;
    UNROLL
    for (int i = 0; i < AHEAD; i++) {
        for (int k = 0; k < p.wide; k++)
            v[i][k] = max > -INFINITY ? exp_of(&of, v[i][k]) : isnan(v[i][k]) ? v[i][k] : 0;
        s->sum += (double)pack_sum(v[i], p.wide);
    }
}

// A thread's share of the row at `base`.
DEVICE struct exps scan_exps(const struct rows *c, struct pack p, int64_t base)
{
    const int first = (int)threadIdx.x % c->team * p.wide, step = c->team * p.wide;
    struct exps s;
    s.max = -INFINITY;
    s.sum = 0;
    for (int at = first; at < c->n; at += AHEAD * step) {
        float v[AHEAD][LANES];
        load_ahead(c, p, v, base, at);
        add_exps(c, p, &s, v);
    }
    return s;
}

// What the first pass over a row finds; the first thread of the row puts it down.
struct loss_row {
    float max, sum;
};

DEVICE struct loss_row loss_of(const struct rows *c, struct pack p, int64_t row, int64_t base)
{
    __shared__ float part[WARP];
    __shared__ double part_sum[WARP];
    const float picked = threadIdx.x % c->team ? 0 : pick_of(c, row, base);
    struct loss_row l;
    const struct exps s = scan_exps(c, p, base);
    l.max = team_max(s.max, c->team, part);
    const struct row_exp of = row_exp_of(c, p, l.max);
    // Nothing but −∞ is NaN, as exp(x − max) of each would be; no element at all is 0.
    double sum = c->n ? s.sum * (double)exp_of(&of, s.max) : 0;
    l.sum = (float)team_sum_f64(sum, c->team, part_sum);
    put_value(c, 0, row, l.max);
    put_value(c, 1, row, l.sum);
    put_value(c, 2, row, picked);
    return l;
}

DEVICE void row_loss(const struct rows *c, struct pack p)
{
    EACH_ROW(c, row)
    {
        loss_of(c, p, row, place_of(c, 0, row));
    }
}

struct loss_grad {
    float max, g, h; // e^(x − max)·g, and h more at the id
    int id;          // −1: none
};

// A row's gradient to output k, from its end: that is what was read last.
DEVICE void grad_of(const struct rows *c, struct pack p, const struct loss_grad *l, int64_t base,
                    int k, int64_t to)
{
    const int first = (int)threadIdx.x % c->team * p.wide, step = c->team * p.wide;
    const struct row_exp of = row_exp_of(c, p, l->max);
    const int turn = AHEAD * step, turns = ((int)c->whole + turn - 1) / turn;
    for (int at = first + (turns - 1) * turn; at >= 0; at -= turn) {
        float v[AHEAD][LANES];
        load_ahead(c, p, v, base, at);
        UNROLL
        for (int i = 0; i < AHEAD; i++) {
            const int here = at + i * step;
            if (here >= c->whole)
                break;
            for (int j = 0; j < p.wide; j++) // padding is −∞: it gets no gradient
                v[i][j] = exp_of(&of, v[i][j]) * l->g;
            if ((unsigned)(l->id - here) < (unsigned)p.wide)
                for (int j = 0; j < p.wide; j++) // rounded as the parts apart are
                    v[i][j] = here + j == l->id ? __fadd_rn(v[i][j], l->h) : v[i][j];
            pack_store(c->out[k], pack_type(p, c->out_type[k]), to + here, p.wide, v[i]);
        }
    }
}

DEVICE void row_loss_grad(const struct rows *c, struct pack p)
{
    EACH_ROW(c, row)
    {
        struct loss_grad l;
        l.id = (int)element_of(c, 3, row);
        l.max = value_of(c, 1, row);
        l.g = value_of(c, 2, row);
        l.h = value_of(c, 4, row);
        grad_of(c, p, &l, place_of(c, 0, row), 0, place_of(c, 5, row));
    }
}

DEVICE void row_loss_both(const struct rows *c, struct pack p)
{
    EACH_ROW(c, row)
    {
        const int64_t base = place_of(c, 0, row);
        const float cotangent = c->scale * value_of(c, 2, row);
        const struct loss_row loss = loss_of(c, p, row, base);
        struct loss_grad l;
        l.id = (int)element_of(c, 1, row);
        l.max = loss.max;
        l.g = cotangent / loss.sum;
        l.h = -cotangent;
        grad_of(c, p, &l, base, 3, place_of(c, 6, row));
    }
}

VARIANTS_BESIDE(LOSS_THREADS, 2, row_loss, rows)
VARIANTS_BESIDE(LOSS_THREADS, 2, row_loss_grad, rows)
VARIANTS_BESIDE(LOSS_THREADS, 2, row_loss_both, rows)

// ---- softmax -----------------------------------------------------------------------------------

DEVICE void softmax(const struct rows *c, struct pack p)
{
    __shared__ float part[WARP];
    __shared__ double part_sum[WARP];
    EACH_ROW(c, row)
    {
        const int64_t base = place_of(c, 0, row), to = place_of(c, 1, row);
        const struct exps s = scan_exps(c, p, base);
        const float max = team_max(s.max, c->team, part);
        const struct row_exp of = row_exp_of(c, p, max == -INFINITY ? 0 : max);
        const float sum =
            (float)team_sum_f64(s.sum * (double)exp_of(&of, s.max), c->team, part_sum);
        const float share = sum == 0 ? 0 : 1 / sum; // a row of −∞ alone sums up to nothing
        EACH_PACK(c, p, at, c->whole)
        {
            float v[LANES];
            load_logits(c, p, v, base, at);
            for (int k = 0; k < p.wide; k++) // padding is −∞
                v[k] = exp_of(&of, v[k]) * share;
            store_row(c, p, to + at, v);
        }
    }
}

DEVICE void softmax_grad(const struct rows *c, struct pack p)
{
    __shared__ double part[WARP];
    EACH_ROW(c, row)
    {
        const int64_t base = place_of(c, 0, row), of_y = place_of(c, 1, row);
        const int64_t to = place_of(c, 2, row);
        const enum dtype type = pack_type(p, c->in_type[0]), y_type = pack_type(p, c->in_type[1]);
        float dy[LANES], y[LANES], both[LANES];
        double sum = 0;
        EACH_PACK(c, p, at, c->whole)
        {
            pack_load(dy, c->in[0], type, base + at, p.wide);
            pack_load(y, c->in[1], y_type, of_y + at, p.wide);
            for (int k = 0; k < p.wide; k++)
                both[k] = dy[k] * y[k];
            sum += (double)pack_sum(both, p.wide);
        }
        const float mean = (float)team_sum_f64(sum, c->team, part);
        EACH_PACK(c, p, at, c->whole)
        {
            pack_load(dy, c->in[0], type, base + at, p.wide);
            pack_load(y, c->in[1], y_type, of_y + at, p.wide);
            for (int k = 0; k < p.wide; k++)
                dy[k] = y[k] * (dy[k] - mean);
            store_row(c, p, to + at, dy);
        }
    }
}

VARIANTS(THREADS, softmax, rows)
VARIANTS(THREADS, softmax_grad, rows)

// ---- the ops -----------------------------------------------------------------------------------

static int threads_of(enum op op)
{
    bool loss = op == OP_ROW_LOSS || op == OP_ROW_LOSS_GRAD || op == OP_ROW_LOSS_BOTH;
    return loss ? (int)LOSS_THREADS : (int)THREADS;
}

static void launch_rows(cudaStream_t stream, enum op op, int wide, const struct rows *c)
{
    const unsigned grid = launch_blocks(c->count, threads_of(op) / c->team, MOST_BLOCKS);
    if (op == OP_ROW_MAX)
        LAUNCH_VARIANT(row_max, wide, grid, THREADS, stream, *c);
    else if (op == OP_ROW_SUM_EXP)
        LAUNCH_VARIANT(row_sum_exp, wide, grid, THREADS, stream, *c);
    else if (op == OP_ROW_EXP_MUL)
        LAUNCH_VARIANT(row_exp_mul, wide, grid, THREADS, stream, *c);
    else if (op == OP_PICK)
        LAUNCH(pick, launch_blocks(c->count, THREADS, MOST_BLOCKS), THREADS, 0, stream, *c);
    else if (op == OP_PICK_GRAD)
        LAUNCH_VARIANT(pick_grad, wide, grid, THREADS, stream, *c);
    else if (op == OP_ROW_ARGMAX)
        LAUNCH_VARIANT(row_argmax, wide, grid, THREADS, stream, *c);
    else if (op == OP_SOFTMAX)
        LAUNCH_VARIANT(softmax, wide, grid, THREADS, stream, *c);
    else if (op == OP_SOFTMAX_GRAD)
        LAUNCH_VARIANT(softmax_grad, wide, grid, THREADS, stream, *c);
    else if (op == OP_ROW_LOSS)
        LAUNCH_VARIANT(row_loss, wide, grid, LOSS_THREADS, stream, *c);
    else if (op == OP_ROW_LOSS_GRAD)
        LAUNCH_VARIANT(row_loss_grad, wide, grid, LOSS_THREADS, stream, *c);
    else
        LAUNCH_VARIANT(row_loss_both, wide, grid, LOSS_THREADS, stream, *c);
}

// Which operand has whole rows, which input is ids (−1: none).
static const struct rows_op {
    enum op op;
    int wide, ids;
} table[] = {
    {OP_ROW_MAX, 0, -1},      {OP_ROW_SUM_EXP, 0, -1},  {OP_ROW_EXP_MUL, 0, -1},
    {OP_PICK, 0, 1},          {OP_PICK_GRAD, 2, 0},     {OP_ROW_ARGMAX, 0, -1},
    {OP_ROW_LOSS, 0, 1},      {OP_ROW_LOSS_GRAD, 0, 3}, {OP_SOFTMAX, 0, -1},
    {OP_SOFTMAX_GRAD, 0, -1}, {OP_ROW_LOSS_BOTH, 0, 1},
};

static int want_dtypes(const struct op_call *c, const struct rows_op *op, struct err *e)
{
    int rc = 0;
    for (int k = 0; k < c->nin && !rc; k++)
        rc = k == op->ids ? op_want(c, &c->in[k], DT_I32, e) : op_want_float(c, &c->in[k], e);
    for (int k = 0; k < c->nout && !rc; k++)
        rc = c->op == OP_ROW_ARGMAX ? op_want(c, &c->out[k], DT_I32, e)
                                    : op_want_float(c, &c->out[k], e);
    return rc;
}

// Every operand is reached row by row: whole rows, or one value a row. A pack is of all operands
// that are rows, so these have one dtype, or it is an element.
static bool covers_operands(const struct op_call *c, const struct rows *r, int *wide)
{
    enum dtype type = DT_NONE;
    for (int k = 0; k < c->nin + c->nout; k++) {
        const struct tensor *t = loops_tensor(c, k);
        int64_t count = shape_count(&t->shape);
        if (r->at.covered[k] == count)
            continue;
        if (r->at.covered[k] * r->whole != count)
            return false;
        bool alike = pack_aligned(t->data) && (type == DT_NONE || type == t->dtype);
        *wide = alike && *wide != 1 ? pack_wide(t->dtype, r->whole) : 1;
        type = t->dtype;
    }
    return true;
}

// Of a row's n elements from attr.start on, those below attr.limit.
static int64_t not_padding(const struct op_call *c, int64_t n)
{
    int64_t left = c->attr->limit - c->attr->start;
    if (!c->attr->limit || left >= n)
        return n;
    return left > 0 ? left : 0;
}

int op_rows(struct stream_q *q, const struct op_call *c, struct err *e)
{
    static const int index[MAX_OPERANDS] = {0, 1, 2, 3, 4, 5, 6};
    const struct rows_op *op = table;
    struct rows r;
    int wide = 0; // none that is rows: of one element
    while (op->op != c->op)
        op++;
    int rc = want_dtypes(c, op, e);
    if (rc)
        return rc;
    const struct shape *shape = &loops_tensor(c, op->wide)->shape;
    if (shape->n < 1)
        return op_refuse(c, e, "a scalar has no rows");
    memset(&r, 0, sizeof r);
    r.whole = shape->dim[shape->n - 1];
    r.n = not_padding(c, r.whole);
    r.start = c->attr->start;
    r.nin = c->nin;
    r.scale = c->attr->scale;
    if (!loops_over(c, op->wide, shape->n - 1, -1, index, c->nin + c->nout, &r.at) ||
        !covers_operands(c, &r, &wide))
        return op_refuse(c, e, "operands disagree about the rows");
    r.count = loops_count(&r.at, r.at.n);
    r.team = r.whole <= WARP_ROWS ? (int)WARP : threads_of(c->op);
    for (int k = 0; k < c->nin; k++) {
        r.in[k] = c->in[k].data;
        r.in_type[k] = c->in[k].dtype;
    }
    for (int k = 0; k < c->nout; k++) {
        r.out[k] = c->out[k].data;
        r.out_type[k] = c->out[k].dtype;
    }
    launch_rows(q->stream, c->op, wide, &r);
    return op_launched(q, c, e);
}
