// SPDX-License-Identifier: Apache-2.0
// NORM and its gradients, alone and fused with the addition beside them: layer norm (attr.center)
// and RMS norm, with weight and bias or without.
//
// A row is read once and held in registers (up to 32 elements a thread) while its mean and variance
// are made, one after the other: a warp has rows up to 1024 elements, a block of 128 or 512 threads
// the longer ones; what is beyond 16384 elements is read again, from the caches. So every operand
// and result crosses the memory bus once, a dozen FLOPs an element: bound by memory.
//
// The backward makes mean and scale again from x, which it reads anyway. NORM_WEIGHT_GRAD goes
// through the rows once too: a block adds its rows into registers, a column held by one thread, and
// leaves a row of partial sums (parts_of_rows), which reduce_parts adds up.
#include <string.h>

#include "common/op/parts.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/team.h"

enum {
    HELD = 4, // packs of a row that a thread holds
    THREADS = 512,
    MIDDLE = 128,
    WARP_ROWS = WARP * HELD * LANES,
    MOST_BLOCKS = 0x7fffffff,
    MOST = 1 << 30
};

struct norm {
    const void *x, *plus, *dy, *weight, *bias; // plus: added to x before, or to what comes out
    void *out, *sum;                           // sum: x + plus; null: not wanted
    enum dtype type;                           // of all that are rows
    enum dtype weight_type, bias_type;
    int64_t rows;
    int n, window; // of a row; the first element that is held
    int team;
    float eps;
    bool center, whole;  // whole: all of a row is held
    bool fits, fits_one; // fits_one: weight and bias, whose dtypes may be others
};

// The usual calls have kernels of their own, in which it is known that a row is held whole, lies on
// packs and has the weight's dtype: half the registers, twice the threads side by side.
#define VARIANT(name, is_usual, its_type)                    \
    KERNEL(THREADS) name##_##its_type(struct norm c)         \
    {                                                        \
        __shared__ float part[WARP];                         \
        if (is_usual) {                                      \
            c.whole = c.fits = c.fits_one = true;            \
            c.type = c.weight_type = c.bias_type = its_type; \
        }                                                    \
        name##_rows(&c, part);                               \
    }
#define VARIANTS(name)           \
    VARIANT(name, true, DT_F32)  \
    VARIANT(name, true, DT_BF16) \
    VARIANT(name, false, DT_NONE)

// A thread's packs of a row: number k begins at held_at(k). What is not there is 0.
struct held {
    float v[HELD][LANES];
};

DEVICE int held_at(const struct norm *c, int lane, int k)
{
    return c->window + (k * c->team + lane) * LANES;
}

// Whether the pack at `at` is one that some thread holds.
DEVICE bool is_held(const struct norm *c, int at)
{
    return at >= c->window && at < c->window + HELD * LANES * c->team;
}

// How many elements of a row there are from `at` on: a whole pack, or fewer count.
DEVICE int left_of(const struct norm *c, int at)
{
    return c->fits ? (int)LANES : c->n - at;
}

DEVICE void load(const struct norm *c, float v[LANES], const void *p, int64_t base, int at)
{
    pack_load(v, p, c->type, base + at, left_of(c, at), c->fits, 0);
}

// What is normed: x, or the sum before it is rounded.
DEVICE void load_x(const struct norm *c, float v[LANES], int64_t base, int at)
{
    load(c, v, c->x, base, at);
    if (c->sum) {
        float b[LANES];
        load(c, b, c->plus, base, at);
        for (int k = 0; k < LANES; k++)
            v[k] += b[k];
    }
}

DEVICE void hold_x(const struct norm *c, struct held *h, int64_t base, int lane)
{
    UNROLL
    for (int k = 0; k < HELD; k++) {
        int at = held_at(c, lane, k);
        if (at < c->n)
            load_x(c, h->v[k], base, at);
        else
            for (int i = 0; i < LANES; i++)
                h->v[k][i] = 0;
    }
}

DEVICE void hold_dy(const struct norm *c, struct held *h, int64_t base, int lane)
{
    UNROLL
    for (int k = 0; k < HELD; k++) {
        int at = held_at(c, lane, k);
        if (at < c->n)
            load(c, h->v[k], c->dy, base, at);
        else
            for (int i = 0; i < LANES; i++)
                h->v[k][i] = 0;
    }
}

// Calls `use` for each pack that the thread reads again because nobody holds it: v is of x.
#define REREAD(c, lane, base, at, v, use)                                 \
    if (!(c)->whole)                                                      \
        for (int at = (lane)*LANES; at < (c)->n; at += (c)->team * LANES) \
            if (!is_held(c, at)) {                                        \
                float v[LANES];                                           \
                load_x(c, v, base, at);                                   \
                use;                                                      \
            }

DEVICE float squares(const struct norm *c, const float v[LANES], int at, float mean)
{
    float d[LANES];
    if (at >= c->n)
        return 0;
    for (int k = 0; k < LANES; k++) {
        d[k] = k < left_of(c, at) ? v[k] - mean : 0;
        d[k] *= d[k];
    }
    return pack_sum(d);
}

struct stats {
    float mean, scale;
};

DEVICE struct stats stats_of(const struct norm *c, const struct held *h, int64_t base, int lane,
                             float *part)
{
    struct stats s;
    float square = 0;
    s.mean = 0;
    if (c->center) {
        float sum = 0;
        UNROLL
        for (int k = 0; k < HELD; k++)
            sum += pack_sum(h->v[k]);
        REREAD(c, lane, base, at, v, sum += pack_sum(v));
        s.mean = team_sum(sum, c->team, part) / (float)c->n;
    }
    UNROLL
    for (int k = 0; k < HELD; k++)
        square += squares(c, h->v[k], held_at(c, lane, k), s.mean);
    REREAD(c, lane, base, at, v, square += squares(c, v, at, s.mean));
    square = team_sum(square, c->team, part);
    s.scale = 1 / sqrtf(square / (float)c->n + c->eps);
    return s;
}

// ---- NORM, ADD_NORM ----------------------------------------------------------------------------

DEVICE void norm_pack(const struct norm *c, const float x[LANES], struct stats s, int64_t base,
                      int at)
{
    float y[LANES], w[LANES];
    if (c->sum)
        pack_store(c->sum, c->type, base + at, left_of(c, at), c->fits, x);
    for (int k = 0; k < LANES; k++)
        y[k] = (x[k] - s.mean) * s.scale;
    if (c->weight) {
        pack_load(w, c->weight, c->weight_type, at, left_of(c, at), c->fits_one, 0);
        for (int k = 0; k < LANES; k++)
            y[k] *= w[k];
    }
    if (c->bias) {
        pack_load(w, c->bias, c->bias_type, at, left_of(c, at), c->fits_one, 0);
        for (int k = 0; k < LANES; k++)
            y[k] += w[k];
    }
    pack_store(c->out, c->type, base + at, left_of(c, at), c->fits, y);
}

DEVICE void norm_rows(const struct norm *c, float *part)
{
    const int lane = threadIdx.x % c->team;
    for (int64_t row = team_row(c->team); row < c->rows; row += team_step(c->team)) {
        const int64_t base = row * c->n;
        struct held x;
        hold_x(c, &x, base, lane);
        const struct stats s = stats_of(c, &x, base, lane, part);
        UNROLL
        for (int k = 0; k < HELD; k++)
            if (held_at(c, lane, k) < c->n)
                norm_pack(c, x.v[k], s, base, held_at(c, lane, k));
        REREAD(c, lane, base, at, v, norm_pack(c, v, s, base, at));
    }
}

VARIANTS(norm)

// ---- NORM_GRAD, NORM_GRAD_ADD ------------------------------------------------------------------

// With y the norm and g = dy · weight: dx = scale · (g − mean g − y · mean(g·y)).
struct means {
    float g, dot;
};

// dy becomes g.
DEVICE void weigh(const struct norm *c, float g[LANES], int at)
{
    if (c->weight) {
        float w[LANES];
        pack_load(w, c->weight, c->weight_type, at, left_of(c, at), c->fits_one, 0);
        for (int k = 0; k < LANES; k++)
            g[k] *= w[k];
    }
}

// x becomes y, its norm.
DEVICE void normed(float x[LANES], struct stats s)
{
    for (int k = 0; k < LANES; k++)
        x[k] = (x[k] - s.mean) * s.scale;
}

DEVICE void means_add(struct means *m, const float y[LANES], const float g[LANES])
{
    float dot[LANES];
    for (int k = 0; k < LANES; k++)
        dot[k] = g[k] * y[k];
    m->g += pack_sum(g);
    m->dot += pack_sum(dot);
}

DEVICE void grad_pack(const struct norm *c, const float y[LANES], const float g[LANES],
                      struct stats s, struct means m, int64_t base, int at)
{
    float dx[LANES];
    for (int k = 0; k < LANES; k++)
        dx[k] = s.scale * (g[k] - m.g - y[k] * m.dot);
    if (c->plus) {
        float before[LANES];
        load(c, before, c->plus, base, at);
        for (int k = 0; k < LANES; k++) // with the bits of NORM_GRAD and ADD: not fused
            dx[k] = __fadd_rn(before[k], dx[k]);
    }
    pack_store(c->out, c->type, base + at, left_of(c, at), c->fits, dx);
}

// y and g of a pack that nobody holds.
DEVICE void grad_reread(const struct norm *c, float x[LANES], float g[LANES], struct stats s,
                        int64_t base, int at)
{
    load(c, g, c->dy, base, at);
    weigh(c, g, at);
    normed(x, s);
}

DEVICE void norm_grad_rows(const struct norm *c, float *part)
{
    const int lane = threadIdx.x % c->team;
    for (int64_t row = team_row(c->team); row < c->rows; row += team_step(c->team)) {
        const int64_t base = row * c->n;
        struct held x, g;
        struct means m;
        float other[LANES];
        hold_x(c, &x, base, lane);
        hold_dy(c, &g, base, lane);
        const struct stats s = stats_of(c, &x, base, lane, part);
        m.g = m.dot = 0;
        UNROLL
        for (int k = 0; k < HELD; k++)
            if (held_at(c, lane, k) < c->n) {
                weigh(c, g.v[k], held_at(c, lane, k));
                normed(x.v[k], s);
                means_add(&m, x.v[k], g.v[k]);
            }
        REREAD(c, lane, base, at, v,
               (grad_reread(c, v, other, s, base, at), means_add(&m, v, other)));
        m.dot = team_sum(m.dot, c->team, part) / (float)c->n;
        m.g = c->center ? team_sum(m.g, c->team, part) / (float)c->n : 0;
        UNROLL
        for (int k = 0; k < HELD; k++)
            if (held_at(c, lane, k) < c->n)
                grad_pack(c, x.v[k], g.v[k], s, m, base, held_at(c, lane, k));
        REREAD(c, lane, base, at, v,
               (grad_reread(c, v, other, s, base, at), grad_pack(c, v, other, s, m, base, at)));
    }
}

VARIANTS(norm_grad)

// ---- NORM_WEIGHT_GRAD --------------------------------------------------------------------------

DEVICE void weight_add(const struct norm *c, struct held *sum, const struct held *x, struct stats s,
                       int64_t base, int lane)
{
    UNROLL
    for (int k = 0; k < HELD; k++) {
        int at = held_at(c, lane, k);
        if (at < c->n) {
            float dy[LANES];
            load(c, dy, c->dy, base, at);
            for (int i = 0; i < LANES; i++)
                sum->v[k][i] += dy[i] * ((x->v[k][i] - s.mean) * s.scale);
        }
    }
}

// A block's warps have rows of their own: their sums are added up in the warps' order.
DEVICE void weight_share(const struct norm *c, struct held *sum, int lane, float *shared)
{
    const int mine = threadIdx.x / c->team, all = blockDim.x / c->team;
    for (int i = 0; i < all; i++) {
        if (i == mine)
            UNROLL
        for (int k = 0; k < HELD * LANES; k++) {
            float *at = &shared[k * WARP + lane]; // no two lanes in one bank
            sum->v[k / LANES][k % LANES] += i ? *at : 0;
            *at = sum->v[k / LANES][k % LANES];
        }
        __syncthreads();
    }
}

// Part blockIdx.x of the rows, the columns from c.window on that the threads of a row hold.
DEVICE void weight_rows(const struct norm *c, float *part)
{
    __shared__ float shared[WARP * HELD * LANES];
    const int lane = threadIdx.x % c->team, group = threadIdx.x / c->team;
    const int groups = blockDim.x / c->team;
    const int64_t end = (blockIdx.x + 1) * c->rows / gridDim.x;
    struct held sum;
    UNROLL
    for (int k = 0; k < HELD; k++)
        for (int i = 0; i < LANES; i++)
            sum.v[k][i] = 0;
    for (int64_t row = blockIdx.x * c->rows / gridDim.x + group; row < end; row += groups) {
        struct held x;
        hold_x(c, &x, row * c->n, lane);
        const struct stats s = stats_of(c, &x, row * c->n, lane, part);
        weight_add(c, &sum, &x, s, row * c->n, lane);
    }
    if (groups > 1)
        weight_share(c, &sum, lane, shared);
    if (group == groups - 1) {
        UNROLL
        for (int k = 0; k < HELD; k++) {
            int at = held_at(c, lane, k);
            if (at < c->n)
                pack_store(c->out, DT_F32, (int64_t)blockIdx.x * c->n + at, left_of(c, at),
                           c->n % LANES == 0, sum.v[k]);
        }
    }
}

VARIANTS(weight)

// ---- launches ----------------------------------------------------------------------------------

// Of the three of a name, the one that serves the call.
#define LAUNCH_VARIANT(name, grid, threads, stream, c)           \
    do {                                                         \
        if (!usual(&(c)))                                        \
            LAUNCH(name##_DT_NONE, grid, threads, 0, stream, c); \
        else if ((c).type == DT_F32)                             \
            LAUNCH(name##_DT_F32, grid, threads, 0, stream, c);  \
        else                                                     \
            LAUNCH(name##_DT_BF16, grid, threads, 0, stream, c); \
    } while (0)

static bool usual(const struct norm *c)
{
    return c->whole && c->fits && c->fits_one && (!c->weight || c->weight_type == c->type) &&
           (!c->bias || c->bias_type == c->type);
}

static int weight_grad(struct stream_q *q, const struct op_call *call, struct norm *c,
                       struct err *e)
{
    const unsigned parts = (unsigned)parts_of_rows(c->rows, c->n);
    const unsigned threads = c->team == WARP ? (unsigned)THREADS : (unsigned)c->team;
    float *partial = (float *)call->workspace;
    if (call->accumulate && call->out[0].dtype == DT_BF16)
        return op_refuse(call, e, "adds to f32 alone");
    PRE((size_t)parts * (size_t)c->n * sizeof(float) <= call->workspace_bytes);
    c->out = partial;
    for (; c->window < c->n; c->window += HELD * LANES * c->team)
        LAUNCH_VARIANT(weight, parts, threads, q->stream, *c);
    int rc = op_launched(q, call, e);
    return rc ? rc : reduce_parts(q, call, partial, parts, c->n, e);
}

// ---- the ops -----------------------------------------------------------------------------------

// Where an op's operands are: positions among the inputs, −1: has none. The inputs before `rows`
// are rows like x, the others one row.
static const struct norm_op {
    enum op op;
    int x, plus, dy, weight, bias, rows;
} table[] = {
    {OP_NORM, 0, -1, -1, 1, 2, 1},
    {OP_ADD_NORM, 0, 1, -1, 2, 3, 2},
    {OP_NORM_GRAD, 0, -1, 1, 2, -1, 2},
    {OP_NORM_GRAD_ADD, 1, 0, 2, 3, -1, 3},
    {OP_NORM_WEIGHT_GRAD, 0, -1, 1, -1, -1, 2},
};

static const void *input(const struct op_call *c, int k)
{
    return k >= 0 && k < c->nin ? c->in[k].data : NULL;
}

// Operands are rows like x, all of one dtype, or one row.
static int check(const struct op_call *c, const struct norm_op *op, struct norm *r, struct err *e)
{
    for (int k = 0; k < c->nin + c->nout; k++) {
        const struct tensor *t = k < c->nin ? &c->in[k] : &c->out[k - c->nin];
        bool row = k < c->nin ? k >= op->rows : c->op == OP_NORM_WEIGHT_GRAD;
        int rc = row ? op_want_float(c, t, e) : op_want(c, t, r->type, e);
        if (rc)
            return rc;
        if (shape_count(&t->shape) != (row ? 1 : r->rows) * r->n)
            return op_refuse(c, e, "operands disagree about an extent");
        if (row)
            r->fits_one = r->fits_one && pack_fits(t->data, r->n);
        else
            r->fits = r->fits && pack_fits(t->data, r->n);
    }
    return 0;
}

static void operands(const struct op_call *c, const struct norm_op *op, struct norm *r)
{
    r->x = input(c, op->x);
    r->plus = input(c, op->plus);
    r->dy = input(c, op->dy);
    r->weight = input(c, op->weight);
    r->bias = input(c, op->bias);
    r->weight_type = r->weight ? c->in[op->weight].dtype : DT_NONE;
    r->bias_type = r->bias ? c->in[op->bias].dtype : DT_NONE;
    r->out = c->out[c->nout - 1].data;
    r->sum = c->op == OP_ADD_NORM ? c->out[0].data : NULL;
}

int op_norm(struct stream_q *q, const struct op_call *c, struct err *e)
{
    const struct norm_op *op = table;
    struct norm r;
    while (op->op != c->op)
        op++;
    const struct shape *x = &c->in[op->x].shape;
    if (x->n < 1)
        return op_refuse(c, e, "a scalar has no rows");
    memset(&r, 0, sizeof r);
    r.type = c->in[op->x].dtype;
    if (x->dim[x->n - 1] > MOST)
        return op_refuse(c, e, "a row has at most 2^30 elements");
    r.n = (int)x->dim[x->n - 1];
    r.rows = shape_count(x) / r.n;
    r.eps = c->attr->eps;
    r.center = c->attr->center;
    r.fits = r.fits_one = true;
    int rc = op_want_float(c, &c->in[op->x], e);
    rc = rc ? rc : check(c, op, &r, e);
    if (rc)
        return rc;
    operands(c, op, &r);
    r.team = THREADS;
    if (r.n <= WARP_ROWS)
        r.team = WARP;
    else if (r.n <= MIDDLE * HELD * LANES)
        r.team = MIDDLE;
    r.whole = r.n <= r.team * HELD * LANES;
    if (c->op == OP_NORM_WEIGHT_GRAD)
        return weight_grad(q, c, &r, e);
    unsigned threads = r.team == WARP ? (unsigned)MIDDLE : (unsigned)r.team;
    unsigned grid = launch_blocks(r.rows, threads / r.team, MOST_BLOCKS);
    if (r.dy)
        LAUNCH_VARIANT(norm_grad, grid, threads, q->stream, r);
    else
        LAUNCH_VARIANT(norm, grid, threads, q->stream, r);
    return op_launched(q, c, e);
}
