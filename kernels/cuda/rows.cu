// SPDX-License-Identifier: Apache-2.0
// Ops over rows: SOFTMAX and its gradient; the parts of cross-entropy, one by one (ROW_MAX,
// ROW_SUM_EXP, ROW_EXP_MUL, PICK, PICK_GRAD, ROW_ARGMAX) and fused (ROW_LOSS, ROW_LOSS_GRAD,
// ROW_LOSS_BOTH).
//
// Each reads its row of logits once, and those whose result is a row write it once. That is 2 or 4
// bytes for at most one exponential, so they are bound by memory as long as little else is computed
// for an element. A row of up to 1,024 elements belongs to a warp, a longer one to a block. Sums of
// more than eight elements are made in double.
//
// ROW_LOSS reads once what ROW_MAX, ROW_SUM_EXP and PICK would read three times: a thread keeps the
// maximum so far and the sum of exponentials relative to it, and scales the sum again whenever the
// maximum grows. ROW_LOSS_BOTH then goes over the same row again, from its end, and overwrites it
// with the gradient. A row of GPT-2's logits is 100 KB in bf16, and one or two rows are under way on
// a processor, so they are still in its caches: memory sees each logit once and its gradient once.
//
// An operand with one value a row may have the row dimensions in any order, or lack some. Ids count
// from attr.start; an id outside the row picks 0 and gets no gradient.
#include <string.h>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/team.h"
#include "kernels/cuda/walk.h"

enum { THREADS = 256, WARP_ROWS = 1024, MOST_BLOCKS = 0x7fffffff, NOWHERE = 0x7fffffff };
enum { MOST_WHOLE = 1 << 30 }; // elements of a row, at most: a thread's next index is an int, too
enum { LOSS_THREADS = 512 };   // for a row: many, so that few rows are under way at once

struct rows {
    struct loops at; // where each row of each operand is: inputs, then outputs
    int64_t count;   // rows
    int64_t start;   // the id that the row's first element has
    int whole;       // elements of a row
    int team;        // threads that work on a row
    int n;           // elements of a row that are not padding
    int nin;
    const void *in[5];
    enum dtype in_type[5];
    void *out[4];
    enum dtype out_type[4];
    float scale;
};

// Loops over the rows of a thread's team.
#define EACH_ROW(c, row) \
    for (int64_t row = team_row((c)->team); row < (c)->count; row += team_step((c)->team))
// Loops over a thread's packs of a row of n elements.
#define EACH_PACK(c, p, at, n) \
    for (int at = (int)threadIdx.x % (c)->team * (p).wide; at < (n); at += (c)->team * (p).wide)

DEVICE int64_t find_row(const struct rows *c, int operand, int64_t row)
{
    return walk_offset(&c->at, c->at.n, operand, row);
}

DEVICE float load_value(const struct rows *c, int k, int64_t row)
{
    return load_f32(c->in[k], c->in_type[k], find_row(c, k, row));
}

// Stores output k's value for the row; the first thread of its team does.
DEVICE void put_value(const struct rows *c, int k, int64_t row, float x)
{
    if (threadIdx.x % c->team == 0)
        store_f32(c->out[k], c->out_type[k], find_row(c, c->nin + k, row), x);
}

// Returns the element of a row that its id, in input k, names; −1 if the row has no such element.
DEVICE int64_t find_element(const struct rows *c, int k, int64_t row)
{
    int64_t at = (int64_t)((const int32_t *)c->in[k])[find_row(c, k, row)] - c->start;
    return at >= 0 && at < c->whole ? at : -1;
}

DEVICE float load_picked(const struct rows *c, int64_t row, int64_t base)
{
    int64_t at = find_element(c, 1, row);
    return at < 0 ? 0 : load_f32(c->in[0], c->in_type[0], base + at);
}

// Loads a pack of input 0, with −∞ in place of padding.
DEVICE void load_logits(const struct rows *c, struct pack p, float v[LANES], int64_t base, int at)
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

// How exp(x − max) is computed for the elements of a row. For bf16 it is the quick form,
// 2^(x·log2 e − max·log2 e), whose error is a thousandth of the rounding of the elements themselves.
struct row_exp {
    float max, scaled;
    bool quick;
};

static const float LOG2_E = 1.44269504f;

DEVICE struct row_exp make_row_exp(const struct rows *c, struct pack p, float max)
{
    struct row_exp r;
    r.max = max;
    r.scaled = max * LOG2_E;
    r.quick = pack_type(p, c->in_type[0]) == DT_BF16;
    return r;
}

DEVICE float compute_exp(const struct row_exp *r, float x)
{
    return r->quick ? exp2_fast(mad(x, LOG2_E, -r->scaled)) : expf(x - r->max);
}

// ---- one value a row ---------------------------------------------------------------------------

DEVICE void row_max(const struct rows *c, struct pack p)
{
    __shared__ float part[WARP];
    EACH_ROW(c, row)
    {
        const int64_t base = find_row(c, 0, row);
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
        const int64_t base = find_row(c, 0, row);
        const struct row_exp of = make_row_exp(c, p, load_value(c, 1, row));
        double sum = 0;
        EACH_PACK(c, p, at, c->n)
        {
            float v[LANES];
            load_logits(c, p, v, base, at);
            for (int k = 0; k < p.wide; k++)
                v[k] = at + k < c->n ? compute_exp(&of, v[k]) : 0;
            sum += (double)pack_sum(v, p.wide);
        }
        put_value(c, 0, row, (float)team_sum_f64(sum, c->team, part));
    }
}

DEVICE void pick(const struct rows *c, struct pack p)
{
    (void)p; // a single element of a row is read
    EACH_ROW(c, row)
    {
        put_value(c, 0, row, load_picked(c, row, find_row(c, 0, row)));
    }
}

// Returns the least x of a row's team.
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

// A row of nothing but NaN has no maximum; its result is 0.
DEVICE void row_argmax(const struct rows *c, struct pack p)
{
    __shared__ float part[WARP];
    __shared__ int part_at[WARP];
    EACH_ROW(c, row)
    {
        const int64_t base = find_row(c, 0, row);
        float most = -INFINITY;
        int first = NOWHERE;
        EACH_PACK(c, p, at, c->n)
        {
            float v[LANES];
            load_logits(c, p, v, base, at);
            for (int k = 0; k < p.wide; k++)
                if (at + k < c->n && (v[k] > most || (v[k] == most && first == NOWHERE))) {
                    most = v[k];
                    first = at + k;
                }
        }
        float max = team_max(most, c->team, part);
        first = team_min(most == max ? first : NOWHERE, c->team, part_at);
        if (threadIdx.x % c->team == 0)
            ((int32_t *)c->out[0])[find_row(c, 1, row)] = first == NOWHERE ? 0 : first;
    }
}

VARIANTS(THREADS, row_max, rows)
VARIANTS(THREADS, row_sum_exp, rows)
VARIANTS(THREADS, pick, rows)
VARIANTS(THREADS, row_argmax, rows)

// ---- a row of values ---------------------------------------------------------------------------

DEVICE void row_exp_mul(const struct rows *c, struct pack p)
{
    EACH_ROW(c, row)
    {
        const int64_t base = find_row(c, 0, row), to = find_row(c, 3, row);
        const struct row_exp of = make_row_exp(c, p, load_value(c, 1, row));
        const float g = load_value(c, 2, row);
        EACH_PACK(c, p, at, c->whole)
        {
            float v[LANES];
            load_logits(c, p, v, base, at);
            for (int k = 0; k < p.wide; k++)
                v[k] = at + k < c->n ? compute_exp(&of, v[k]) * g : 0;
            store_row(c, p, to + at, v);
        }
    }
}

DEVICE void pick_grad(const struct rows *c, struct pack p)
{
    EACH_ROW(c, row)
    {
        const int64_t to = find_row(c, 2, row), id = find_element(c, 0, row);
        const float g = load_value(c, 1, row);
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

// Packs that a thread loads before it waits for any of them.
enum { AHEAD = 4 };

// Loads a thread's next AHEAD packs of a row, from element `at` on, with −∞ for padding and for what
// lies beyond the row. Where all of them are there nothing is asked between two loads.
DEVICE void load_ahead(const struct rows *c, struct pack p, float v[AHEAD][LANES], int64_t base,
                       int at)
{
    const int step = c->team * p.wide;
    if (p.wide > 1 && at + (AHEAD - 1) * step + p.wide <= c->n) {
        UNROLL
        for (int i = 0; i < AHEAD; i++)
            pack_load(v[i], c->in[0], pack_type(p, c->in_type[0]), base + at + i * step, p.wide);
        return;
    }
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

// Adds packs to the sum, and replaces them by their exponentials. As long as the maximum is −∞ the
// elements add nothing, since exp(−∞ − −∞) would be NaN; but a NaN among them is added.
DEVICE void add_exps(const struct rows *c, struct pack p, struct exps *s, float v[AHEAD][LANES])
{
    float max = s->max;
    UNROLL
    for (int i = 0; i < AHEAD; i++)
        max = pack_max(v[i], p.wide, max);
    const struct row_exp of = make_row_exp(c, p, max);
    if (max > s->max)
        s->sum *= (double)compute_exp(&of, s->max);
    s->max = max;
    if (max > -INFINITY) { // asked once, not for each element
        UNROLL
        for (int i = 0; i < AHEAD; i++)
            for (int k = 0; k < p.wide; k++)
                v[i][k] = compute_exp(&of, v[i][k]);
    } else {
        UNROLL
        for (int i = 0; i < AHEAD; i++)
            for (int k = 0; k < p.wide; k++)
                v[i][k] = isnan(v[i][k]) ? v[i][k] : 0;
    }
    UNROLL
    for (int i = 0; i < AHEAD; i++)
        s->sum += (double)pack_sum(v[i], p.wide);
}

// Returns maximum and sum over a thread's share of the row at `base`.
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

// What the first pass over a row finds.
struct loss_row {
    float max, sum;
};

DEVICE struct loss_row scan_loss(const struct rows *c, struct pack p, int64_t row, int64_t base)
{
    __shared__ float part[WARP];
    __shared__ double part_sum[WARP];
    const float picked = threadIdx.x % c->team ? 0 : load_picked(c, row, base);
    struct loss_row l;
    const struct exps s = scan_exps(c, p, base);
    l.max = team_max(s.max, c->team, part);
    const struct row_exp of = make_row_exp(c, p, l.max);
    // The sum of a row of nothing but −∞ is NaN, as exp(x − max) is for each of its elements; that
    // of a row that is all padding is 0.
    double sum = c->n ? s.sum * (double)compute_exp(&of, s.max) : 0;
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
        scan_loss(c, p, row, find_row(c, 0, row));
    }
}

// The gradient of a row: exp(x − max) · g for each element, and h more for element `id` (−1: none).
struct loss_grad {
    float max, g, h;
    int id;
};

// Writes a row's gradient to output k. It begins at the row's end, which was read last and is the
// likeliest to be in a cache.
DEVICE void store_grad(const struct rows *c, struct pack p, const struct loss_grad *l, int64_t base,
                       int k, int64_t to)
{
    const int first = (int)threadIdx.x % c->team * p.wide, step = c->team * p.wide;
    const struct row_exp of = make_row_exp(c, p, l->max);
    const int chunk = AHEAD * step, chunks = (c->whole + chunk - 1) / chunk;
    for (int at = first + (chunks - 1) * chunk; at >= 0; at -= chunk) {
        float v[AHEAD][LANES];
        load_ahead(c, p, v, base, at);
        UNROLL
        for (int i = 0; i < AHEAD; i++) {
            const int here = at + i * step;
            if (here >= c->whole)
                break;
            for (int j = 0; j < p.wide; j++) // 0 for padding, which is −∞
                v[i][j] = compute_exp(&of, v[i][j]) * l->g;
            if ((unsigned)(l->id - here) < (unsigned)p.wide)
                for (int j = 0; j < p.wide; j++) // rounded, as by ROW_EXP_MUL, PICK_GRAD and ADD
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
        l.id = (int)find_element(c, 3, row);
        l.max = load_value(c, 1, row);
        l.g = load_value(c, 2, row);
        l.h = load_value(c, 4, row);
        store_grad(c, p, &l, find_row(c, 0, row), 0, find_row(c, 5, row));
    }
}

DEVICE void row_loss_both(const struct rows *c, struct pack p)
{
    EACH_ROW(c, row)
    {
        const int64_t base = find_row(c, 0, row);
        const float cotangent = c->scale * load_value(c, 2, row);
        const struct loss_row loss = scan_loss(c, p, row, base);
        struct loss_grad l;
        l.id = (int)find_element(c, 1, row);
        l.max = loss.max;
        l.g = cotangent / loss.sum;
        l.h = -cotangent;
        store_grad(c, p, &l, base, 3, find_row(c, 6, row));
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
        const int64_t base = find_row(c, 0, row), to = find_row(c, 1, row);
        const struct exps s = scan_exps(c, p, base);
        const float max = team_max(s.max, c->team, part);
        const struct row_exp of = make_row_exp(c, p, max == -INFINITY ? 0 : max);
        const float sum =
            (float)team_sum_f64(s.sum * (double)compute_exp(&of, s.max), c->team, part_sum);
        const float share = sum == 0 ? 0 : 1 / sum; // a row of −∞ alone sums up to nothing
        EACH_PACK(c, p, at, c->whole)
        {
            float v[LANES];
            load_logits(c, p, v, base, at);
            for (int k = 0; k < p.wide; k++) // padding is −∞
                v[k] = compute_exp(&of, v[k]) * share;
            store_row(c, p, to + at, v);
        }
    }
}

DEVICE void softmax_grad(const struct rows *c, struct pack p)
{
    __shared__ double part[WARP];
    EACH_ROW(c, row)
    {
        const int64_t base = find_row(c, 0, row), of_y = find_row(c, 1, row);
        const int64_t to = find_row(c, 2, row);
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

static const struct rows_op {
    enum op op;
    int wide;    // the operand that has whole rows, counted inputs first
    int threads; // of a block
    void (*launch)(const struct stream_q *q, int wide, unsigned grid, unsigned block,
                   const struct rows *c);
} table[] = {
    {OP_ROW_MAX, 0, THREADS, launch_row_max},
    {OP_ROW_SUM_EXP, 0, THREADS, launch_row_sum_exp},
    {OP_ROW_EXP_MUL, 0, THREADS, launch_row_exp_mul},
    {OP_PICK, 0, THREADS, launch_pick},
    {OP_PICK_GRAD, 2, THREADS, launch_pick_grad},
    {OP_ROW_ARGMAX, 0, THREADS, launch_row_argmax},
    {OP_ROW_LOSS, 0, LOSS_THREADS, launch_row_loss},
    {OP_ROW_LOSS_GRAD, 0, LOSS_THREADS, launch_row_loss_grad},
    {OP_ROW_LOSS_BOTH, 0, LOSS_THREADS, launch_row_loss_both},
    {OP_SOFTMAX, 0, THREADS, launch_softmax},
    {OP_SOFTMAX_GRAD, 0, THREADS, launch_softmax_grad},
};

// Whether every operand has either a whole row or one value for each row. Finds how wide a pack can
// be for all operands that have whole rows: one element if their dtypes differ.
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

int op_rows(struct stream_q *q, const struct op_call *c, struct err *e)
{
    static const int index[MAX_OPERANDS] = {0, 1, 2, 3, 4, 5, 6};
    const struct rows_op *op = table;
    struct rows r;
    int wide = 0;
    while (op->op != c->op)
        op++;
    const struct shape *shape = &loops_tensor(c, op->wide)->shape;
    if (shape->n < 1)
        return op_refuse(c, e, "a scalar has no rows");
    memset(&r, 0, sizeof r);
    if (shape->dim[shape->n - 1] > MOST_WHOLE)
        return op_refuse(c, e, "has rows of over 2^30 elements");
    r.whole = (int)shape->dim[shape->n - 1];
    r.n = (int)op_unpadded(c, r.whole);
    r.start = c->attr->start;
    r.nin = c->nin;
    r.scale = c->attr->scale;
    if (!loops_over(c, op->wide, shape->n - 1, -1, index, c->nin + c->nout, &r.at) ||
        !covers_operands(c, &r, &wide))
        return op_refuse(c, e, "operands disagree about the rows");
    r.count = loops_count(&r.at, r.at.n);
    r.team = r.whole <= WARP_ROWS ? (int)WARP : op->threads;
    if (c->op == OP_PICK)
        r.team = 1;
    for (int k = 0; k < c->nin; k++) {
        r.in[k] = c->in[k].data;
        r.in_type[k] = c->in[k].dtype;
    }
    for (int k = 0; k < c->nout; k++) {
        r.out[k] = c->out[k].data;
        r.out_type[k] = c->out[k].dtype;
    }
    op->launch(q, wide, launch_blocks(r.count, op->threads / r.team, MOST_BLOCKS), op->threads, &r);
    return op_launched(q, c, e);
}
