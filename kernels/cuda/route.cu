// SPDX-License-Identifier: Apache-2.0
// TOPK and its gradient; SLOTS: which tokens each expert gets.
//
// TOPK: a warp has a row and takes its greatest elements one after the other: k passes over a row
// of one number an expert, which stays in L1. SLOTS: a block has a group, since a token's place
// depends on all before it. It sorts the tokens by key, stably, DIGIT_BITS bits a pass, each thread
// with a stretch of neighbours; then a warp has some experts, walks all choices in order, a lane for
// each, and numbers its own by votes. 8 bytes a choice are read once for TOGETHER experts from L1,
// the slots written once. No atomics: bits do not depend on what is scheduled when.
#include <string.h>

#include "common/op/route.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/team.h"

enum {
    THREADS = 256,
    MOST_BLOCKS = 0x7fffffff,
    KEY_BITS = 13,
    DIGIT_BITS = 4,
    DIGITS = 1 << DIGIT_BITS,
    PITCH = THREADS + 1, // of a digit's counts: those who add up digits meet different banks
    TOGETHER = 8         // experts whose choices a warp numbers in one walk
};

// ---- TOPK --------------------------------------------------------------------------------------

struct top_rows {
    const float *x, *by;
    const int32_t *ids; // of the gradient
    float *out;
    int32_t *places;
    int64_t rows, n, k;
};

KERNEL(THREADS) topk_kernel(struct top_rows c)
{
    kernel_begin();
    const int lane = threadIdx.x % WARP;
    for (int64_t row = team_row(WARP); row < c.rows; row += team_step(WARP)) {
        const float *x = c.by + row * c.n; // what is compared
        int last = -1;
        float last_x = 0;
        for (int64_t j = 0; j < c.k; j++) {
            int best = -1;
            float best_x = 0;
            for (int i = lane; i < c.n; i += WARP)
                if ((last < 0 || route_before(last_x, last, x[i], i)) &&
                    (best < 0 || route_before(x[i], i, best_x, best))) {
                    best = i;
                    best_x = x[i];
                }
            for (int by = WARP / 2; by; by /= 2) {
                const int other = __shfl_xor_sync(WARP_ALL, best, by);
                const float other_x = __shfl_xor_sync(WARP_ALL, best_x, by);
                if (other >= 0 && (best < 0 || route_before(other_x, other, best_x, best))) {
                    best = other;
                    best_x = other_x;
                }
            }
            if (lane == 0) {
                c.out[row * c.k + j] = c.x[row * c.n + best];
                c.places[row * c.k + j] = best;
            }
            last = best;
            last_x = best_x;
        }
    }
}

KERNEL(THREADS) topk_grad_kernel(struct top_rows c)
{
    kernel_begin();
    const int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < c.rows * c.n; i += step) {
        const int64_t row = i / c.n, at = i % c.n;
        float sum = 0;
        for (int64_t j = row * c.k; j < (row + 1) * c.k; j++)
            sum += c.ids[j] == at ? c.x[j] : 0;
        c.out[i] = sum;
    }
}

int op_topk(struct stream_q *q, const struct op_call *c, struct err *e)
{
    struct topk_call t;
    struct top_rows r;
    int rc = op_check_topk(c, &t, e);
    if (rc)
        return rc;
    memset(&r, 0, sizeof r);
    r.x = (const float *)t.x->data;
    r.by = (const float *)c->in[c->nin > 1].data;
    r.ids = (const int32_t *)t.ids->data;
    r.out = (float *)c->out[0].data;
    r.places = (int32_t *)t.ids->data;
    r.n = t.n;
    r.k = t.k;
    r.rows = t.rows;
    if (t.grad)
        LAUNCH(topk_grad_kernel, launch_blocks(r.rows * r.n, THREADS, MOST_BLOCKS), THREADS, 0, q,
               r);
    else
        LAUNCH(topk_kernel, launch_blocks(r.rows, THREADS / WARP, MOST_BLOCKS), THREADS, 0, q, r);
    return op_launched(q, c, e);
}

// ---- BALANCE -----------------------------------------------------------------------------------

// Changes the biases in one thread: there are as many as experts, once a step. The loads are summed
// in the CPU's order.
KERNEL(1)
balance_kernel(const float *p, const float *load, const float *clip, float *out, int64_t n,
               float scale)
{
    kernel_begin();
    // Whole numbers: a load that is the mean is found equal, as on the CPU.
    double all = 0;
    for (int64_t i = 0; i < n; i++)
        all += (double)load[i];
    for (int64_t i = 0; i < n; i++) {
        const double times = (double)n * (double)load[i];
        const int sign = (all > times) - (all < times);
        out[i] = p[i] + (clip[CLIP_SKIP] == 0 ? scale * (float)sign : 0);
    }
}

int op_balance(struct stream_q *q, const struct op_call *c, struct err *e)
{
    const int64_t n = shape_count(&c->in[0].shape);
    int rc = op_check_balance(c, e);
    if (rc)
        return rc;
    LAUNCH(balance_kernel, 1, 1, 0, q, (const float *)c->in[0].data,
           (const float *)c->in[1].data + c->attr->start, (const float *)c->in[2].data,
           (float *)c->out[0].data, n, c->attr->scale);
    return op_launched(q, c, e);
}

// ---- SLOTS -------------------------------------------------------------------------------------

struct dealing {
    struct route route;
    const int32_t *ids, *positions;
    const float *weights;
    int32_t *slots, *scratch;
    float *chosen;
};

// Turns the counts of each thread's tokens of each digit into how many tokens come before them.
DEVICE void add_counts(unsigned count[DIGITS][PITCH], unsigned total[DIGITS])
{
    const unsigned digit = threadIdx.x;
    if (digit < DIGITS) {
        total[digit] = 0;
        for (int i = 0; i < THREADS; i++)
            total[digit] += count[digit][i];
    }
    __syncthreads();
    if (digit < DIGITS) {
        unsigned before = 0;
        for (unsigned d = 0; d < digit; d++)
            before += total[d];
        for (int i = 0; i < THREADS; i++) {
            const unsigned n = count[digit][i];
            count[digit][i] = before;
            before += n;
        }
    }
    __syncthreads();
}

// Sorts the tokens of a group by DIGIT_BITS bits of their keys. `weights` are the group's.
DEVICE void sort_pass(const struct route *r, const float *weights, const int32_t *from, int32_t *to,
                      int shift)
{
    __shared__ unsigned count[DIGITS][PITCH];
    __shared__ unsigned total[DIGITS];
    const int64_t each = (r->tokens + THREADS - 1) / THREADS, begin = each * threadIdx.x;
    const int64_t end = begin + each < r->tokens ? begin + each : r->tokens;
    for (int d = 0; d < DIGITS; d++)
        count[d][threadIdx.x] = 0;
    for (int64_t i = begin; i < end; i++)
        count[route_key(weights[from[i] * r->choices]) >> shift & (DIGITS - 1)][threadIdx.x]++;
    __syncthreads();
    add_counts(count, total);
    for (int64_t i = begin; i < end; i++) {
        const int digit = route_key(weights[from[i] * r->choices]) >> shift & (DIGITS - 1);
        to[count[digit][threadIdx.x]++] = from[i];
    }
    __syncthreads();
}

// Gives the places of TOGETHER experts, `expert` and those behind it, to those that chose them;
// taken: how many did. All lanes of the warp must call.
DEVICE void number_choices(const struct dealing *c, int64_t first, const int32_t *order, int expert,
                           int taken[TOGETHER])
{
    const struct route *r = &c->route;
    const int lane = threadIdx.x % WARP;
    UNROLL
    for (int e = 0; e < TOGETHER; e++)
        taken[e] = 0;
    for (int64_t j = 0; j < r->choices; j++)
        for (int64_t i = lane; i - lane < r->tokens; i += WARP) {
            const int64_t at = i < r->tokens ? (first + order[i]) * r->choices + j : -1;
            const int mine = at < 0 ? -1 : c->ids[at] - expert;
            int place = 0;
            UNROLL
            for (int e = 0; e < TOGETHER; e++) {
                const unsigned all = __ballot_sync(WARP_ALL, mine == e);
                place = mine == e ? taken[e] + __popc(all & lanes_below()) : place;
                taken[e] += __popc(all);
            }
            if (mine >= 0 && mine < TOGETHER)
                c->slots[at] =
                    place < r->capacity ? (expert + mine) * (int)r->capacity + place : -1;
        }
}

KERNEL(THREADS) slots_kernel(struct dealing c)
{
    kernel_begin();
    const struct route *r = &c.route;
    const int64_t group = blockIdx.x, first = group * r->tokens;
    int32_t *order = c.scratch + group * 2 * r->tokens, *other = order + r->tokens;
    for (int64_t t = threadIdx.x; t < r->tokens; t += THREADS)
        order[t / r->seq * r->seq + c.positions[first + t] % r->seq] = (int32_t)t;
    __syncthreads();
    for (int shift = 0; shift < KEY_BITS; shift += DIGIT_BITS) {
        int32_t *was = order;
        sort_pass(r, c.weights + first * r->choices, order, other, shift);
        order = other;
        other = was;
    }
    for (int64_t x = threadIdx.x / WARP * TOGETHER; x < r->experts;
         x += (int64_t)THREADS / WARP * TOGETHER) {
        int taken[TOGETHER];
        number_choices(&c, first, order, (int)x, taken);
        UNROLL
        for (int e = 0; e < TOGETHER; e++)
            for (int64_t s = threadIdx.x % WARP; s < r->samples && x + e < r->experts; s += WARP)
                c.chosen[(group * r->samples + s) * r->experts + x + e] = (float)taken[e];
    }
}

int op_slots(struct stream_q *q, const struct op_call *c, struct err *e)
{
    struct dealing d;
    memset(&d, 0, sizeof d);
    if (!route_of(c, &d.route))
        return op_refuse(c, e, "operands disagree about the groups");
    d.ids = (const int32_t *)c->in[0].data;
    d.weights = (const float *)c->in[1].data;
    d.positions = (const int32_t *)c->in[2].data;
    d.slots = (int32_t *)c->out[0].data;
    d.chosen = (float *)c->out[1].data;
    d.scratch = (int32_t *)c->workspace;
    if (d.route.groups)
        LAUNCH(slots_kernel, (unsigned)d.route.groups, THREADS, 0, q, d);
    return op_launched(q, c, e);
}
