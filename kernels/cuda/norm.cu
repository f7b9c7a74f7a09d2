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
    HELD = 32, // elements of a row that a thread holds
    THREADS = 512,
    MIDDLE = 128,
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
    bool center;
};

// ---- a row in registers ------------------------------------------------------------------------

// A thread's packs: number k begins at held_at(k). What is not there is 0. Packs of one element are
// not held: their addresses alone would take the registers.
struct held {
    float v[HELD];
};

DEVICE int held_packs(struct pack p)
{
    return p.wide == 1 ? 0 : HELD / p.wide;
}

DEVICE int held_at(const struct norm *c, struct pack p, int k)
{
    return c->window + (k * c->team + (int)threadIdx.x % c->team) * p.wide;
}

// Whether the pack at `at` is one that some thread holds.
DEVICE bool is_held(const struct norm *c, struct pack p, int at)
{
    return p.wide > 1 && at >= c->window && at < c->window + HELD * c->team;
}

DEVICE void load_lanes(const struct norm *c, struct pack p, float *v, const void *from, int64_t i)
{
    pack_load(v, from, pack_type(p, c->type), i, p.wide);
}

// What is normed: x, or the sum before it is rounded.
DEVICE void load_x(const struct norm *c, struct pack p, float *v, int64_t i)
{
    load_lanes(c, p, v, c->x, i);
    if (c->sum) {
        float b[LANES];
        load_lanes(c, p, b, c->plus, i);
        for (int k = 0; k < p.wide; k++)
            v[k] += b[k];
    }
}

DEVICE void hold_x(const struct norm *c, struct pack p, struct held *h, int64_t base)
{
    UNROLL
    for (int k = 0; k < held_packs(p); k++) {
        int at = held_at(c, p, k);
        if (at < c->n)
            load_x(c, p, h->v + k * p.wide, base + at);
        else
            for (int i = 0; i < p.wide; i++)
                h->v[k * p.wide + i] = 0;
    }
}

DEVICE void hold_dy(const struct norm *c, struct pack p, struct held *h, int64_t base)
{
    UNROLL
    for (int k = 0; k < held_packs(p); k++) {
        int at = held_at(c, p, k);
        if (at < c->n)
            load_lanes(c, p, h->v + k * p.wide, c->dy, base + at);
        else
            for (int i = 0; i < p.wide; i++)
                h->v[k * p.wide + i] = 0;
    }
}

// Does `use` with each pack of x that the thread reads again because nobody holds it.
#define REREAD(c, p, base, at, v, use)                                      \
    if ((p).wide == 1 || (c)->n > HELD * (c)->team)                         \
        for (int at = (int)threadIdx.x % (c)->team * (p).wide; at < (c)->n; \
             at += (c)->team * (p).wide)                                    \
            if (!is_held(c, p, at)) {                                       \
                float v[LANES] = {0};                                       \
                load_x(c, p, v, (base) + at);                               \
                use;                                                        \
            }

DEVICE float squares(const float *v, int wide, float mean)
{
    float d[LANES] = {0};
    for (int k = 0; k < wide; k++)
        d[k] = (v[k] - mean) * (v[k] - mean);
    return pack_sum(d, wide);
}

struct stats {
    float mean, scale;
};

DEVICE struct stats stats_of(const struct norm *c, struct pack p, const struct held *h,
                             int64_t base, float *part)
{
    struct stats s;
    float square = 0;
    s.mean = 0;
    if (c->center) {
        float sum = 0;
        UNROLL
        for (int k = 0; k < held_packs(p); k++)
            sum += pack_sum(h->v + k * p.wide, p.wide);
        REREAD(c, p, base, at, v, sum += pack_sum(v, p.wide));
        s.mean = team_sum(sum, c->team, part) / (float)c->n;
    }
    UNROLL
    for (int k = 0; k < held_packs(p); k++)
        if (held_at(c, p, k) < c->n)
            square += squares(h->v + k * p.wide, p.wide, s.mean);
    REREAD(c, p, base, at, v, square += squares(v, p.wide, s.mean));
    square = team_sum(square, c->team, part);
    s.scale = 1 / sqrtf(square / (float)c->n + c->eps);
    return s;
}

// A pack of weight or bias.
DEVICE void load_one(struct pack p, float *w, const void *from, enum dtype own, int at)
{
    pack_load(w, from, pack_type(p, own), at, p.wide);
}

DEVICE void store_lanes(const struct norm *c, struct pack p, void *to, int64_t i, const float *v)
{
    pack_store(to, pack_type(p, c->type), i, p.wide, v);
}

// ---- NORM, ADD_NORM ----------------------------------------------------------------------------

DEVICE void norm_pack(const struct norm *c, struct pack p, const float *x, struct stats s,
                      int64_t base, int at)
{
    float y[LANES], w[LANES];
    if (c->sum)
        store_lanes(c, p, c->sum, base + at, x);
    for (int k = 0; k < p.wide; k++)
        y[k] = (x[k] - s.mean) * s.scale;
    if (c->weight) {
        load_one(p, w, c->weight, c->weight_type, at);
        for (int k = 0; k < p.wide; k++)
            y[k] *= w[k];
    }
    if (c->bias) {
        load_one(p, w, c->bias, c->bias_type, at);
        for (int k = 0; k < p.wide; k++)
            y[k] += w[k];
    }
    store_lanes(c, p, c->out, base + at, y);
}

DEVICE void norm(const struct norm *c, struct pack p)
{
    __shared__ float part[WARP];
    for (int64_t row = team_row(c->team); row < c->rows; row += team_step(c->team)) {
        const int64_t base = row * c->n;
        struct held x;
        hold_x(c, p, &x, base);
        const struct stats s = stats_of(c, p, &x, base, part);
        UNROLL
        for (int k = 0; k < held_packs(p); k++)
            if (held_at(c, p, k) < c->n)
                norm_pack(c, p, x.v + k * p.wide, s, base, held_at(c, p, k));
        REREAD(c, p, base, at, v, norm_pack(c, p, v, s, base, at));
    }
}

VARIANTS_BESIDE(THREADS, 1, norm, norm)

// ---- NORM_GRAD, NORM_GRAD_ADD ------------------------------------------------------------------

// With y the norm and g = dy · weight: dx = scale · (g − mean g − y · mean(g·y)).
struct means {
    float g, dot;
};

// dy becomes g.
DEVICE void weigh_lanes(const struct norm *c, struct pack p, float *g, int at)
{
    if (c->weight) {
        float w[LANES];
        load_one(p, w, c->weight, c->weight_type, at);
        for (int k = 0; k < p.wide; k++)
            g[k] *= w[k];
    }
}

// x becomes y, its norm.
DEVICE void norm_lanes(float *x, int wide, struct stats s)
{
    for (int k = 0; k < wide; k++)
        x[k] = (x[k] - s.mean) * s.scale;
}

DEVICE void add_means(struct means *m, const float *y, const float *g, int wide)
{
    float dot[LANES] = {0};
    for (int k = 0; k < wide; k++)
        dot[k] = g[k] * y[k];
    m->g += pack_sum(g, wide);
    m->dot += pack_sum(dot, wide);
}

DEVICE void grad_pack(const struct norm *c, struct pack p, const float *y, const float *g,
                      struct stats s, struct means m, int64_t i)
{
    float dx[LANES];
    for (int k = 0; k < p.wide; k++)
        dx[k] = s.scale * (g[k] - m.g - y[k] * m.dot);
    if (c->plus) {
        float before[LANES];
        load_lanes(c, p, before, c->plus, i);
        for (int k = 0; k < p.wide; k++) // with the bits of NORM_GRAD and ADD: not fused
            dx[k] = __fadd_rn(before[k], dx[k]);
    }
    store_lanes(c, p, c->out, i, dx);
}

// y, from x, and g of a pack that nobody holds.
DEVICE void grad_reread(const struct norm *c, struct pack p, float *x, float *g, struct stats s,
                        int64_t base, int at)
{
    load_lanes(c, p, g, c->dy, base + at);
    weigh_lanes(c, p, g, at);
    norm_lanes(x, p.wide, s);
}

DEVICE void norm_grad(const struct norm *c, struct pack p)
{
    __shared__ float part[WARP];
    for (int64_t row = team_row(c->team); row < c->rows; row += team_step(c->team)) {
        const int64_t base = row * c->n;
        struct held x, g;
        struct means m;
        float other[LANES];
        hold_x(c, p, &x, base);
        hold_dy(c, p, &g, base);
        const struct stats s = stats_of(c, p, &x, base, part);
        m.g = m.dot = 0;
        UNROLL
        for (int k = 0; k < held_packs(p); k++)
            if (held_at(c, p, k) < c->n) {
                weigh_lanes(c, p, g.v + k * p.wide, held_at(c, p, k));
                norm_lanes(x.v + k * p.wide, p.wide, s);
                add_means(&m, x.v + k * p.wide, g.v + k * p.wide, p.wide);
            }
        REREAD(c, p, base, at, v, {
            grad_reread(c, p, v, other, s, base, at);
            add_means(&m, v, other, p.wide);
        });
        m.dot = team_sum(m.dot, c->team, part) / (float)c->n;
        m.g = c->center ? team_sum(m.g, c->team, part) / (float)c->n : 0;
        UNROLL
        for (int k = 0; k < held_packs(p); k++)
            if (held_at(c, p, k) < c->n)
                grad_pack(c, p, x.v + k * p.wide, g.v + k * p.wide, s, m, base + held_at(c, p, k));
        REREAD(c, p, base, at, v, {
            grad_reread(c, p, v, other, s, base, at);
            grad_pack(c, p, v, other, s, m, base + at);
        });
    }
}

VARIANTS(THREADS, norm_grad, norm)

// ---- NORM_WEIGHT_GRAD --------------------------------------------------------------------------

DEVICE void add_weights(const struct norm *c, struct pack p, struct held *sum, const struct held *x,
                        struct stats s, int64_t base)
{
    UNROLL
    for (int k = 0; k < HELD / p.wide; k++)
        if (held_at(c, p, k) < c->n) {
            float dy[LANES], again[LANES];
            load_lanes(c, p, dy, c->dy, base + held_at(c, p, k));
            if (k >= held_packs(p))
                load_x(c, p, again, base + held_at(c, p, k));
            const float *v = k < held_packs(p) ? x->v + k * p.wide : again;
            for (int i = 0; i < p.wide; i++)
                sum->v[k * p.wide + i] += dy[i] * ((v[i] - s.mean) * s.scale);
        }
}

// A block's warps have rows of their own: their sums are added up in the warps' order.
DEVICE void weight_share(struct held *sum, int warp, int warps)
{
    __shared__ float shared[HELD * WARP];
    for (int i = 0; i < warps; i++) {
        if (i == warp)
            UNROLL
        for (int k = 0; k < HELD; k++) {
            float *at = &shared[k * WARP + threadIdx.x % WARP]; // a bank for each lane
            sum->v[k] += i ? *at : 0;
            *at = sum->v[k];
        }
        __syncthreads();
    }
}

// Part blockIdx.x of the rows, the columns from c.window on that the threads of a row hold. The
// result is a row of f32.
DEVICE void weight_grad(const struct norm *c, struct pack p)
{
    __shared__ float part[WARP];
    const int group = (int)threadIdx.x / c->team, groups = (int)blockDim.x / c->team;
    const int64_t end = (blockIdx.x + 1) * c->rows / gridDim.x;
    struct held sum;
    UNROLL
    for (int k = 0; k < HELD; k++)
        sum.v[k] = 0;
    for (int64_t row = blockIdx.x * c->rows / gridDim.x + group; row < end; row += groups) {
        struct held x;
        hold_x(c, p, &x, row * c->n);
        const struct stats s = stats_of(c, p, &x, row * c->n, part);
        add_weights(c, p, &sum, &x, s, row * c->n);
    }
    if (groups > 1)
        weight_share(&sum, group, groups);
    if (group == groups - 1) {
        UNROLL
        for (int k = 0; k < HELD / p.wide; k++) {
            int at = held_at(c, p, k);
            if (at < c->n)
                pack_store(c->out, DT_F32, (int64_t)blockIdx.x * c->n + at, p.wide,
                           sum.v + k * p.wide);
        }
    }
}

VARIANTS(THREADS, weight_grad, norm)

// ---- launches ----------------------------------------------------------------------------------

static int launch_weight_grad(struct stream_q *q, const struct op_call *call, struct norm *c,
                              int wide, struct err *e)
{
    const unsigned parts = (unsigned)parts_of_rows(c->rows, c->n);
    const unsigned threads = c->team == WARP ? (unsigned)THREADS : (unsigned)c->team;
    float *partial = (float *)call->workspace;
    if (call->accumulate && call->out[0].dtype == DT_BF16)
        return op_refuse(call, e, "adds to f32 alone");
    PRE((size_t)parts * (size_t)c->n * sizeof(float) <= call->workspace_bytes);
    c->out = partial;
    for (; c->window < c->n; c->window += HELD * c->team)
        LAUNCH_VARIANT(weight_grad, wide, parts, threads, q->stream, *c);
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

static const void *input_of(const struct op_call *c, int k)
{
    return k >= 0 && k < c->nin ? c->in[k].data : NULL;
}

// Operands are rows like x, all of one dtype, or one row. A pack is of all that are read.
static int check_operands(const struct op_call *c, const struct norm_op *op, const struct norm *r,
                          int *wide, struct err *e)
{
    *wide = pack_wide(r->type, r->n);
    for (int k = 0; k < c->nin + c->nout; k++) {
        const struct tensor *t = k < c->nin ? &c->in[k] : &c->out[k - c->nin];
        bool row = k < c->nin ? k >= op->rows : c->op == OP_NORM_WEIGHT_GRAD;
        int rc = row ? op_want_float(c, t, e) : op_want(c, t, r->type, e);
        if (rc)
            return rc;
        if (shape_count(&t->shape) != (row ? 1 : r->rows) * r->n)
            return op_refuse(c, e, "operands disagree about an extent");
        if (!pack_aligned(t->data) || (t->dtype != r->type && k < c->nin))
            *wide = 1;
    }
    return 0;
}

static void set_operands(const struct op_call *c, const struct norm_op *op, struct norm *r)
{
    r->x = input_of(c, op->x);
    r->plus = input_of(c, op->plus);
    r->dy = input_of(c, op->dy);
    r->weight = input_of(c, op->weight);
    r->bias = input_of(c, op->bias);
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
    int wide, rc = op_want_float(c, &c->in[op->x], e);
    rc = rc ? rc : check_operands(c, op, &r, &wide, e);
    if (rc)
        return rc;
    set_operands(c, op, &r);
    r.team = THREADS;
    if (r.n <= WARP * HELD)
        r.team = WARP;
    else if (r.n <= MIDDLE * HELD)
        r.team = MIDDLE;
    if (c->op == OP_NORM_WEIGHT_GRAD)
        return launch_weight_grad(q, c, &r, wide, e);
    const unsigned threads = r.team == WARP ? (unsigned)MIDDLE : (unsigned)r.team;
    const unsigned grid = launch_blocks(r.rows, threads / r.team, MOST_BLOCKS);
    if (r.dy)
        LAUNCH_VARIANT(norm_grad, wide, grid, threads, q->stream, r);
    else
        LAUNCH_VARIANT(norm, wide, grid, threads, q->stream, r);
    return op_launched(q, c, e);
}
