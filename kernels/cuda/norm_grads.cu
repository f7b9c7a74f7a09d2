// SPDX-License-Identifier: Apache-2.0
// NORM_GRADS: the gradient of a norm's input, added to the residual's where there is one (behind the
// last norm there is none), the gradients of its weight and bias, and the sum of the new residual's
// gradient, which is the gradient of the bias before it.
//
// One pass reads c (the residual's gradient), x and dy and writes the new gradient: four tensors
// cross the memory bus. As ops of their own, NORM_GRAD_ADD moves these four, NORM_WEIGHT_GRAD reads
// two of them again and each SUM one, in seven launches; here there are two, whatever sums are
// wanted. Without c it is a tensor less in both cases. With its dozen FLOPs more an element the
// kernel is still bound by memory.
//
// A team of threads works on a row, each on OWN elements of it, and these are the same columns in
// every row: so a thread holds its columns' sums in registers from the first row to the last, and
// its weights in shared memory. Rows are cut in parts as parts_of_norm() says, a block for each;
// several teams share a block where rows are short. A block leaves a row of partial sums for each
// result, and reduce_parts() adds up those of all blocks. The order of all additions depends on
// shapes alone.
//
// Rows of 768 (GPT-2 124M) have blocks of 192 threads and 512 parts. With REGISTERS of them four
// blocks fit on a processor: all parts are there at once on 132, and eight rows a processor are
// under way. Two rows a thread at once took 125 registers: two blocks, so 1.94 turns.
//
// Rows of more than OWN · THREADS elements are left to the ops themselves.
#include <string.h>

#include "common/op/parts.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/team.h"

enum {
    OWN = 8,        // elements of a row that a thread works on
    REGISTERS = 80, // of a thread, at most
    PORTION = 2,    // rows one behind the other that are a team's
    THREADS = 512,  // of a block at most
    SHARED = 256,   // of a block that several teams share, at most
    WARPS = THREADS / WARP,
    SUMS = 3 // of dy · y, of dy, of the gradient
};

struct norm_grads {
    const void *before, *x, *dy, *weight; // before: null where nothing is added
    void *out;
    float *partial; // [sums][parts][n]
    enum dtype type, weight_type;
    int64_t rows;
    int n;    // elements of a row
    int sums; // how many of SUMS are wanted: the first ones
    int team; // threads that work on one row
    float eps;
    bool center;
};

// Where a thread is in its block.
struct member {
    int lane;         // in its team
    int group;        // which team
    int first, warps; // its team's warps
};

// What a thread holds of a row; elements beyond its end are 0.
struct own {
    float x[OWN], dy[OWN], before[OWN]; // x becomes the normed x
};

DEVICE struct member find_member(const struct norm_grads *c)
{
    struct member m;
    m.lane = (int)threadIdx.x % c->team;
    m.group = (int)threadIdx.x / c->team;
    m.warps = c->team / WARP;
    m.first = m.group * m.warps;
    return m;
}

// The first element of a thread's pack number k.
DEVICE int own_at(const struct norm_grads *c, struct pack p, const struct member *m, int k)
{
    return (k * c->team + m->lane) * p.wide;
}

// Loads a thread's elements of the row at `base`; zeros where the row is not `there`.
DEVICE void load_own(const struct norm_grads *c, struct pack p, const struct member *m, float *v,
                     const void *from, enum dtype own, int64_t base, bool there)
{
    UNROLL
    for (int k = 0; k < OWN / p.wide; k++) {
        const int at = own_at(c, p, m, k);
        if (there && at < c->n)
            pack_load(v + k * p.wide, from, pack_type(p, own), base + at, p.wide);
        else
            for (int i = 0; i < p.wide; i++)
                v[k * p.wide + i] = 0;
    }
}

// Adds up each of n numbers over the team, in the order of its warps. All threads of the block must
// call. `part` is n · WARPS floats. It is free again only behind the next call's barrier, so two
// calls in a row need different ones.
DEVICE void sum_team(const struct member *m, float *v, int n, float *part)
{
    UNROLL
    for (int i = 0; i < n; i++) {
        v[i] = warp_sum(v[i]);
        if (threadIdx.x % WARP == 0)
            part[i * WARPS + (int)threadIdx.x / WARP] = v[i];
    }
    __syncthreads();
    UNROLL
    for (int i = 0; i < n; i++) {
        v[i] = 0;
        for (int w = 0; w < m->warps; w++)
            v[i] += part[i * WARPS + m->first + w];
    }
}

DEVICE float sum_own(struct pack p, const float *v)
{
    float sum = 0;
    UNROLL
    for (int k = 0; k < OWN / p.wide; k++)
        sum += pack_sum(v + k * p.wide, p.wide);
    return sum;
}

// Turns the row's x into its norm y, and returns its scale.
DEVICE float norm_own(const struct norm_grads *c, struct pack p, const struct member *m, float *x)
{
    __shared__ float sums[WARPS], squares[WARPS];
    float mean = c->center ? sum_own(p, x) : 0, square[OWN];
    if (c->center)
        sum_team(m, &mean, 1, sums);
    mean /= (float)c->n;
    UNROLL
    for (int i = 0; i < OWN; i++) {
        x[i] -= mean;
        square[i] = own_at(c, p, m, i / p.wide) < c->n ? x[i] * x[i] : 0;
    }
    float scale = sum_own(p, square);
    sum_team(m, &scale, 1, squares);
    scale = 1 / sqrtf(scale / (float)c->n + c->eps);
    UNROLL
    for (int i = 0; i < OWN; i++)
        x[i] *= scale;
    return scale;
}

// With y the normed x and g = dy · weight: mean(g·y) and mean(g) of the row.
DEVICE void find_means(const struct norm_grads *c, struct pack p, const struct member *m,
                       const struct own *row, const float *weight, float mean[2])
{
    __shared__ float part[2 * WARPS];
    float g[OWN], dot[OWN];
    UNROLL
    for (int i = 0; i < OWN; i++) {
        g[i] = row->dy[i] * weight[i * THREADS];
        dot[i] = g[i] * row->x[i];
    }
    mean[0] = sum_own(p, dot);
    mean[1] = sum_own(p, g);
    sum_team(m, mean, 2, part);
    mean[0] /= (float)c->n;
    mean[1] = c->center ? mean[1] / (float)c->n : 0;
}

// Works on one row: dx = scale · (g − mean(g) − y · mean(g·y)), added to what came before and stored;
// and the row's share of the sums. The gradient is summed before it is rounded to its dtype. Teams
// whose row is not `there` come too: the barriers are the block's.
DEVICE void take_row(const struct norm_grads *c, struct pack p, const struct member *m,
                     const float *weight, int64_t number, bool there, float sum[SUMS][OWN])
{
    struct own row;
    float mean[2];
    const int64_t base = number * c->n;
    load_own(c, p, m, row.x, c->x, c->type, base, there);
    load_own(c, p, m, row.dy, c->dy, c->type, base, there);
    load_own(c, p, m, row.before, c->before, c->type, base, there && c->before);
    const float scale = norm_own(c, p, m, row.x);
    find_means(c, p, m, &row, weight, mean);
    if (!there)
        return;
    UNROLL
    for (int i = 0; i < OWN; i++) {
        const float y = row.x[i], dy = row.dy[i];
        const float dx = row.before[i] + scale * (dy * weight[i * THREADS] - mean[1] - y * mean[0]);
        sum[0][i] += dy * y;
        sum[1][i] += dy;
        sum[2][i] += dx;
        row.before[i] = dx;
    }
    UNROLL
    for (int k = 0; k < OWN / p.wide; k++) {
        const int at = own_at(c, p, m, k);
        if (at < c->n)
            pack_store(c->out, pack_type(p, c->type), base + at, p.wide, row.before + k * p.wide);
    }
}

// Adds up the sums of a block's teams in the order of their numbers; the last holds the whole.
DEVICE void add_teams(const struct norm_grads *c, const struct member *m, float sum[SUMS][OWN])
{
    __shared__ float shared[SUMS * OWN * SHARED / 2];
    const int teams = (int)blockDim.x / c->team;
    for (int g = 0; g < teams && teams > 1; g++) {
        if (g == m->group) {
            UNROLL
            for (int k = 0; k < SUMS * OWN; k++) {
                float *at = &shared[k * c->team + m->lane];
                sum[k / OWN][k % OWN] += g ? *at : 0;
                *at = sum[k / OWN][k % OWN];
            }
        }
        __syncthreads();
    }
}

DEVICE void norm_grads(const struct norm_grads *c, struct pack p)
{
    const struct member m = find_member(c);
    const int teams = (int)blockDim.x / c->team;
    const int64_t begin = blockIdx.x * c->rows / gridDim.x;
    const int64_t end = (blockIdx.x + 1) * c->rows / gridDim.x;
    __shared__ float weights[OWN * THREADS];
    float own[OWN], sum[SUMS][OWN], *weight = weights + threadIdx.x;
    load_own(c, p, &m, own, c->weight, c->weight_type, 0, true);
    UNROLL
    for (int i = 0; i < OWN; i++)
        weight[i * THREADS] = own[i];
    UNROLL
    for (int k = 0; k < SUMS * OWN; k++)
        sum[k / OWN][k % OWN] = 0;
    for (int64_t first = begin; first < end; first += teams * PORTION)
        for (int r = 0; r < PORTION; r++) {
            const int64_t row = first + m.group * PORTION + r;
            take_row(c, p, &m, weight, row, row < end, sum);
        }
    add_teams(c, &m, sum);
    UNROLL
    for (int k = 0; k < SUMS * (OWN / p.wide); k++) {
        const int which = k / (OWN / p.wide), pack = k % (OWN / p.wide);
        const int at = own_at(c, p, &m, pack);
        if (which < c->sums && at < c->n && m.group == teams - 1)
            pack_store(c->partial, DT_F32, ((int64_t)which * gridDim.x + blockIdx.x) * c->n + at,
                       p.wide, sum[which] + pack * p.wide);
    }
}

VARIANTS_HELD(THREADS, REGISTERS, norm_grads, norm_grads)

// ---- the op ------------------------------------------------------------------------------------

// Refuses a call unless all inputs but the last, and the first output, have the same shape, and the
// others are one row of it. Finds how wide a pack can be for all of them.
static int check_operands(const struct op_call *c, const struct norm_grads *g, int *wide,
                          struct err *e)
{
    *wide = pack_wide(g->type, g->n);
    for (int k = 0; k < c->nin + c->nout; k++) {
        const struct tensor *t = k < c->nin ? &c->in[k] : &c->out[k - c->nin];
        const bool sum = k > c->nin, row = sum || k == c->nin - 1;
        if (shape_count(&t->shape) != (row ? 1 : g->rows) * g->n)
            return op_refuse(c, e, "operands disagree about an extent");
        if (!sum && (!pack_aligned(t->data) || t->dtype != g->type))
            *wide = 1;
    }
    return 0;
}

int op_norm_grads(struct stream_q *q, const struct op_call *c, struct err *e)
{
    const struct shape *x = &c->in[0].shape; // or of what is added to the gradient: they are alike
    struct norm_grads g;
    if (c->nin < 3 || c->nin > 4 || c->nout < 2 || c->nout > 1 + SUMS)
        return op_refuse(c, e, "has a number of operands that the op does not have");
    if (x->n < 1)
        return op_refuse(c, e, "a scalar has no rows");
    if (x->dim[x->n - 1] > OWN * THREADS)
        return op_norm_grads_unfused(q, c, e);
    memset(&g, 0, sizeof g);
    g.type = c->in[0].dtype;
    g.n = (int)x->dim[x->n - 1];
    g.rows = shape_count(x) / g.n;
    int wide, rc = check_operands(c, &g, &wide, e);
    if (rc)
        return rc;
    const struct tensor *first = &c->in[c->nin - 3];
    g.before = c->nin == 4 ? c->in[0].data : NULL;
    g.x = first[0].data;
    g.dy = first[1].data;
    g.weight = first[2].data;
    g.weight_type = first[2].dtype;
    g.out = c->out[0].data;
    g.partial = (float *)c->workspace;
    g.sums = c->nout - 1;
    g.eps = c->attr->eps;
    g.center = c->attr->center;
    g.team = (g.n + OWN * WARP - 1) / (OWN * WARP) * WARP;
    const int teams = g.team < SHARED ? SHARED / g.team : 1;
    const unsigned parts = (unsigned)parts_of_norm(g.rows, g.n);
    PRE(sizeof(float) * (size_t)g.sums * parts * (size_t)g.n <= c->workspace_bytes);
    launch_norm_grads(q, wide, parts, (unsigned)(teams * g.team), &g);
    rc = op_launched(q, c, e);
    return rc ? rc : reduce_parts(q, c, 1, g.partial, parts, g.n, e);
}
