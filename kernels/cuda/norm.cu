// SPDX-License-Identifier: Apache-2.0
// NORM and its gradients, alone and fused with the addition beside them: layer norm (attr.center)
// and RMS norm, with weight and bias or without.
//
// A row is read once and stays in registers, up to 32 elements a thread, while its mean is computed
// and then its variance. A warp works on a row of up to 1,024 elements, a block of 128 or 512
// threads on a longer one; of a row of more than 16,384 elements the rest is read again, from the
// caches. So every operand and result crosses the memory bus once, for a dozen FLOPs an element:
// the kernels are bound by memory.
//
// The backward computes mean and scale again from x, which it reads anyway. NORM_WEIGHT_GRAD goes
// through the rows once as well: each block sums its share of the rows in registers, with one
// thread for a column, and writes one row of partial sums. parts_of_rows() says how many shares
// there are; reduce_parts() adds up what they wrote.
#include <string.h>

#include "common/op/parts.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/team.h"

enum {
    HELD = 32,     // elements of a row that a thread keeps in registers
    THREADS = 512, // of a block for the longest rows
    MIDDLE = 128,  // of a block for rows of up to MIDDLE · HELD elements
    MOST_BLOCKS = 0x7fffffff,
    MOST = 1 << 30 // elements of a row, at most
};

struct norm {
    const void *x, *dy, *weight, *bias;
    const void *plus; // forward: added to x first; backward: added to the gradient
    void *out, *sum;  // sum: where x + plus goes; null: not wanted
    enum dtype type;  // of x, dy, plus and what is shaped as they are
    enum dtype weight_type, bias_type;
    int64_t rows;
    int n;      // elements of a row
    int window; // the first element that registers hold; they hold HELD · team from there on
    int team;   // threads that work on one row
    float eps;
    bool center;
};

// ---- a row in registers ------------------------------------------------------------------------

// What a thread holds of a row: pack number k begins at element held_at(k), and lanes beyond the
// row's end are 0. Packs of one element are not held, because their addresses alone would fill the
// registers: they are read again wherever they are needed.
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

// Loads what is normed: x, or x + plus before that sum is rounded to its dtype.
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

// Does `use` with each pack `v` of x, at element `at`, that no thread holds and that this thread
// therefore reads again.
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

DEVICE struct stats compute_stats(const struct norm *c, struct pack p, const struct held *h,
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

// Loads a pack of weight or bias, which have one row.
DEVICE void load_weights(struct pack p, float *w, const void *from, enum dtype own, int at)
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
        load_weights(p, w, c->weight, c->weight_type, at);
        for (int k = 0; k < p.wide; k++)
            y[k] *= w[k];
    }
    if (c->bias) {
        load_weights(p, w, c->bias, c->bias_type, at);
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
        const struct stats s = compute_stats(c, p, &x, base, part);
        UNROLL
        for (int k = 0; k < held_packs(p); k++)
            if (held_at(c, p, k) < c->n)
                norm_pack(c, p, x.v + k * p.wide, s, base, held_at(c, p, k));
        REREAD(c, p, base, at, v, norm_pack(c, p, v, s, base, at));
    }
}

VARIANTS_BESIDE(THREADS, 1, norm, norm)

// ---- NORM_GRAD, NORM_GRAD_ADD ------------------------------------------------------------------

// With y the normed x and g = dy · weight: dx = scale · (g − mean(g) − y · mean(g·y)).
struct means {
    float g, dot;
};

// Turns dy into g.
DEVICE void weigh_lanes(const struct norm *c, struct pack p, float *g, int at)
{
    if (c->weight) {
        float w[LANES];
        load_weights(p, w, c->weight, c->weight_type, at);
        for (int k = 0; k < p.wide; k++)
            g[k] *= w[k];
    }
}

// Turns x into y.
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
        // A rounded sum, so that the bits are those of NORM_GRAD and then ADD.
        for (int k = 0; k < p.wide; k++)
            dx[k] = __fadd_rn(before[k], dx[k]);
    }
    store_lanes(c, p, c->out, i, dx);
}

// Makes y of a pack `x` that nobody holds, and loads its g.
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
        const struct stats s = compute_stats(c, p, &x, base, part);
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

// Adds up the sums of a block's teams, which worked on different rows, in the order of their
// numbers. The last team holds the whole sum at the end.
DEVICE void add_teams(struct held *sum, int warp, int warps)
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

// Sums dy · y over share blockIdx.x of the rows, for the columns from c.window on that a team's
// registers hold. The result is a row of f32.
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
        const struct stats s = compute_stats(c, p, &x, row * c->n, part);
        add_weights(c, p, &sum, &x, s, row * c->n);
    }
    if (groups > 1)
        add_teams(&sum, group, groups);
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

static int sum_weight_grad(struct stream_q *q, const struct op_call *call, struct norm *c, int wide,
                           struct err *e)
{
    const unsigned parts = (unsigned)parts_of_rows(c->rows, c->n);
    const unsigned threads = c->team == WARP ? (unsigned)THREADS : (unsigned)c->team;
    float *partial = (float *)call->workspace;
    PRE((size_t)parts * (size_t)c->n * sizeof(float) <= call->workspace_bytes);
    c->out = partial;
    for (; c->window < c->n; c->window += HELD * c->team)
        launch_weight_grad(q, wide, parts, threads, c);
    int rc = op_launched(q, call, e);
    return rc ? rc : reduce_parts(q, call, 0, partial, parts, c->n, e);
}

// ---- the ops -----------------------------------------------------------------------------------

// Where an op's operands are: positions among its inputs, −1 where it has no such operand. Inputs
// before number `rows` are shaped as x, the others as one row of it.
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

static const void *find_input(const struct op_call *c, int k)
{
    return k >= 0 && k < c->nin ? c->in[k].data : NULL;
}

// Refuses a call unless each operand is shaped as x or as one row of it. Finds how
// wide a pack can be for all of them.
static int check_operands(const struct op_call *c, const struct norm_op *op, const struct norm *r,
                          int *wide, struct err *e)
{
    *wide = pack_wide(r->type, r->n);
    for (int k = 0; k < c->nin + c->nout; k++) {
        const struct tensor *t = k < c->nin ? &c->in[k] : &c->out[k - c->nin];
        bool row = k < c->nin ? k >= op->rows : c->op == OP_NORM_WEIGHT_GRAD;
        if (shape_count(&t->shape) != (row ? 1 : r->rows) * r->n)
            return op_refuse(c, e, "operands disagree about an extent");
        if (!pack_aligned(t->data) || (t->dtype != r->type && k < c->nin))
            *wide = 1;
    }
    return 0;
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
    int wide, rc = check_operands(c, op, &r, &wide, e);
    if (rc)
        return rc;
    r.x = find_input(c, op->x);
    r.plus = find_input(c, op->plus);
    r.dy = find_input(c, op->dy);
    r.weight = find_input(c, op->weight);
    r.bias = find_input(c, op->bias);
    r.weight_type = r.weight ? c->in[op->weight].dtype : DT_NONE;
    r.bias_type = r.bias ? c->in[op->bias].dtype : DT_NONE;
    r.out = c->out[c->nout - 1].data;
    r.sum = c->op == OP_ADD_NORM ? c->out[0].data : NULL;
    r.team = THREADS;
    if (r.n <= WARP * HELD)
        r.team = WARP;
    else if (r.n <= MIDDLE * HELD)
        r.team = MIDDLE;
    if (c->op == OP_NORM_WEIGHT_GRAD)
        return sum_weight_grad(q, c, &r, wide, e);
    const unsigned threads = r.team == WARP ? (unsigned)MIDDLE : (unsigned)r.team;
    const unsigned grid = launch_blocks(r.rows, threads / r.team, MOST_BLOCKS);
    if (r.dy)
        launch_norm_grad(q, wide, grid, threads, &r);
    else
        launch_norm(q, wide, grid, threads, &r);
    return op_launched(q, c, e);
}
