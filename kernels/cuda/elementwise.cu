// SPDX-License-Identifier: Apache-2.0
// Elementwise ops, CAST to EQUAL in ops.def, CHAIN, and the steps behind a LINEAR's product: each
// is a chain of steps on registers, most of a single one.
//
// Every operand is read once and every output written once: bytes moved are the sum of their
// sizes (an input that two steps read comes from cache the second time); 1 to some 20 FLOPs an
// element and step. All of it is bound by memory, so one kernel that interprets the steps does for
// all: what to do next is the same for all threads, and decided once for the 4 or 8 elements that a
// thread has in registers (lanes.h). Between two steps that follow each other a value stays there;
// one that is wanted later waits in shared memory, each thread's in columns of its own, so no
// barrier is needed and no bank is fought over.
//
// The output is walked in memory order, in groups of lanes within the innermost loop. In that loop
// an input moves by one element (read 16 bytes at a time), by none (one value for all), or by a
// stride (gathered). A group's inputs are all read before its outputs are written: an output may
// lie over an input that is read in the same order.
#include "kernels/cuda/cuda_chain.h"
#include "kernels/cuda/lanes.h"
#include "kernels/cuda/walk.h"

#include <string.h>

enum {
    THREADS = 128,
    BLOCKS_EACH =
        16, // for each multiprocessor, at most: twice the 8 for which it has registers (64)
};

// ---- a kernel's arguments -----------------------------------------------------------------------

// Where a step or an output takes a value from: the number of an input; FROM_LAST, the result of
// the step before; or FROM_KEPT + n, place n in shared memory.
enum { FROM_LAST = -1, FROM_KEPT = CHAIN_INPUTS };

struct plan_step {
    enum op op;
    int from[2];
    int keep; // place in shared memory; −1: none
    float scale;
};
struct plan_output {
    void *to;
    enum dtype dtype;
    int from;
};
struct chain_plan {
    struct loops loops;  // over the output; operands: the inputs
    int outer;           // the number of loops outside of the innermost
    int64_t row, groups; // the innermost loop's extent: in elements, in groups of lanes
    int64_t all;         // groups in the whole output
    int steps, outputs, kept;
    const void *in[CHAIN_INPUTS];
    enum dtype dtype[CHAIN_INPUTS];
    struct plan_step step[CHAIN_STEPS];
    struct plan_output out[CHAIN_OUTPUTS];
};

// ---- one step -----------------------------------------------------------------------------------

// A NaN stays a NaN.
DEVICE float clamped(float x, float low, float high)
{
    return x < low ? low : x > high ? high : x;
}

DEVICE float logistic(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

// GELU is x·σ(2u), where u is the argument of its tanh: so the cancellation of 1 + tanh where x is
// negative is avoided.
DEVICE float gelu_twice_u(float x)
{
    return x * 1.59576912f * (1.0f + 0.044715f * x * x);
}

// Beyond ±10 the slope is 1 or 0 in f32; clamping keeps its terms finite.
DEVICE float gelu_slope(float x)
{
    float c = clamped(x, -10, 10), u2 = gelu_twice_u(c);
    float gate = logistic(u2), rest = logistic(-u2); // rest: 1 − gate
    return gate + c * gate * rest * 1.59576912f * (1.0f + 3 * 0.044715f * c * c);
}

// Beyond ±80 the slope is 1 or 0 in f32, as above.
DEVICE float silu_slope(float x)
{
    float c = clamped(x, -80, 80), gate = logistic(c);
    return gate + c * gate * logistic(-c);
}

// max(x, 0) would lose a NaN, but the second term has it too.
DEVICE float softplus(float x)
{
    return fmaxf(x, 0) + log1pf(expf(-fabsf(x)));
}

// `a` and `b` are an element of each input.
#define MAP(name, expr)                                    \
    DEVICE float map_##name(float a, float b, float scale) \
    {                                                      \
        (void)b;                                           \
        (void)scale;                                       \
        return (expr);                                     \
    }

MAP(add, a + b)
MAP(sub, a - b)
MAP(mul, a *b)
MAP(div, a / b)
MAP(scale, a *scale)
MAP(log, logf(a))
MAP(exp, expf(a))
MAP(softplus, softplus(a))
MAP(softplus_grad, b / (1.0f + expf(-a)))
MAP(tanh, tanhf(a))
MAP(tanh_grad, b *(1.0f - a * a))
MAP(gelu, a *logistic(gelu_twice_u(a)))
MAP(gelu_grad, b *gelu_slope(a))
MAP(relu, a < 0 ? 0 : a) // NaN stays: it must reach the skip flag
MAP(relu_grad, a > 0 ? b : 0)
MAP(silu, a / (1.0f + expf(-a)))
MAP(silu_grad, b *silu_slope(a))
MAP(sigmoid, logistic(a))
MAP(sigmoid_grad, b *a *(1.0f - a))
MAP(equal, __float_as_int(a) == __float_as_int(b) ? 1.0f : 0.0f) // the bits of two i32
#undef MAP

#define EACH(id, name)                              \
    case OP_##id:                                   \
        for (int k = 0; k < wide; k++)              \
            out[k] = map_##name(x[k], y[k], scale); \
        break;

DEVICE void run_step(const struct plan_step *s, int wide, const float x[LANES],
                     const float y[LANES], float out[LANES])
{
    float scale = s->scale;
    switch (s->op) {
#define OP(id, name, nin, nout, dtypes, kernel, whole, order, traits)
#define STEP(id, name, nin, slope, of) EACH(id, name)
#include "common/op/ops.def"
        EACH(CAST, scale)
        EACH(SCALE, scale)
        EACH(EQUAL, equal)
    default:
        break;
    }
}
#undef EACH

// ---- all steps of a group -----------------------------------------------------------------------

struct lane_group {
    int64_t row, at; // which row of the innermost loop, which element of it
    int lanes;
};

DEVICE struct lane_group group_of(const struct chain_plan *p, int wide, int64_t index)
{
    struct lane_group g;
    g.row = walk_divide(index, p->groups, &g.at);
    g.at *= wide;
    g.lanes = lanes_left(p->row, g.at, wide);
    return g;
}

DEVICE float *kept_at(float *kept, int place, int wide, int lane)
{
    return kept + (place * wide + lane) * THREADS + threadIdx.x;
}

DEVICE void read_value(const struct chain_plan *p, const struct lane_group *g, int from, int wide,
                       float *kept, const float last[LANES], float v[LANES])
{
    if (from == FROM_LAST) {
        for (int k = 0; k < wide; k++)
            v[k] = last[k];
    } else if (from >= FROM_KEPT) {
        for (int k = 0; k < wide; k++)
            v[k] = *kept_at(kept, from - FROM_KEPT, wide, k);
    } else {
        int64_t stride = walk_step(&p->loops, from);
        int64_t at = walk_offset(&p->loops, p->outer, from, g->row) + g->at * stride;
        lanes_load(p->in[from], p->dtype[from], at, stride, g->lanes, wide, v);
    }
}

DEVICE void run_group(const struct chain_plan *p, const struct lane_group *g, int wide, float *kept)
{
    float last[LANES] = {0}, x[LANES], y[LANES];
    for (int s = 0; s < p->steps; s++) {
        const struct plan_step *step = &p->step[s];
        read_value(p, g, step->from[0], wide, kept, last, x);
        read_value(p, g, step->from[1], wide, kept, last, y);
        run_step(step, wide, x, y, last);
        for (int k = 0; k < wide && step->keep >= 0; k++)
            *kept_at(kept, step->keep, wide, k) = last[k];
    }
    for (int k = 0; k < p->outputs; k++) {
        read_value(p, g, p->out[k].from, wide, kept, last, x);
        lanes_store(p->out[k].to, p->out[k].dtype, g->row * p->row + g->at, g->lanes, wide, x);
    }
}

DEVICE void run_chain(const struct chain_plan *p, int wide, float *kept)
{
    int64_t stride = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < p->all; i += stride) {
        struct lane_group g = group_of(p, wide, i);
        run_group(p, &g, wide, kept);
    }
}

KERNEL(THREADS) chain4_kernel(struct chain_plan p)
{
    kernel_begin();
    SHARED(float, kept);
    run_chain(&p, 4, kept);
}

KERNEL(THREADS) chain8_kernel(struct chain_plan p)
{
    kernel_begin();
    SHARED(float, kept);
    run_chain(&p, 8, kept);
}

// ---- a call as a plan ---------------------------------------------------------------------------

// Returns the last step that reads a register; `steps` if an output does, −1 if nothing does.
static int find_last_use(const struct op_chain *c, int nout, int reg)
{
    int last = -1;
    for (int s = 0; s < c->steps; s++)
        for (int i = 0; i < op_inputs(c->step[s].op); i++)
            if (c->step[s].in[i] == reg)
                last = s;
    for (int k = 0; k < nout; k++)
        if (c->out[k] == reg)
            last = c->steps;
    return last;
}

// Returns where a step finds a register: an input, the step just before it, or shared memory.
static int find_source(const struct chain_plan *p, const struct op_chain *c, int reg, int step)
{
    if (reg < c->inputs)
        return reg;
    if (reg - c->inputs == step - 1)
        return FROM_LAST;
    return FROM_KEPT + p->step[reg - c->inputs].keep;
}

// The result of a step gets a place if a later step than the next one reads it; the place is free
// again from the step on that reads it last.
static void plan_steps(const struct op_chain *c, int nout, struct chain_plan *p)
{
    int until[CHAIN_STEPS];
    for (int i = 0; i < CHAIN_STEPS; i++)
        until[i] = -1;
    p->steps = c->steps;
    for (int s = 0; s < c->steps; s++) {
        const struct op_step *from = &c->step[s];
        struct plan_step *to = &p->step[s];
        bool pair = op_inputs(from->op) > 1;
        to->op = from->op;
        to->scale = from->scale;
        to->from[0] = find_source(p, c, from->in[0], s);
        to->from[1] = pair ? find_source(p, c, from->in[1], s) : FROM_LAST;
        to->keep = -1;
        const int last = find_last_use(c, nout, c->inputs + s);
        if (last > s + 1) {
            for (to->keep = 0; until[to->keep] > s;)
                to->keep++;
            until[to->keep] = last;
        }
        p->kept = to->keep < p->kept ? p->kept : to->keep + 1;
    }
}

// Outputs that are an input unchanged come first. A LINEAR's product is such an input, and another
// output may be written to the memory in which it lies.
static void plan_outputs(const struct op_call *call, const struct op_chain *c, struct chain_plan *p)
{
    for (int product = 1; product >= 0; product--)
        for (int k = 0; k < call->nout; k++) {
            if ((c->out[k] < c->inputs) != product)
                continue;
            struct plan_output *o = &p->out[p->outputs++];
            o->to = call->out[k].data;
            o->dtype = call->out[k].dtype;
            o->from = find_source(p, c, c->out[k], c->steps);
        }
}

static int plan_inputs(const struct op_call *call, const struct tensor *product, int n,
                       struct chain_plan *p, struct err *e)
{
    int index[CHAIN_INPUTS];
    const struct tensor *in[CHAIN_INPUTS];
    for (int k = 0; k < n; k++) {
        int operand = chain_operand(call->op, k);
        index[k] = operand < 0 ? call->nin : operand; // the product has the output's labels
        in[k] = operand < 0 ? product : &call->in[operand];
    }
    for (int k = 0; k < call->nout; k++)
        if (!shape_equal(&call->out[k].shape, &call->out[0].shape))
            return op_refuse(call, e, "outputs differ in shape");
    if (!loops_over(call, call->nin, call->out[0].shape.n, -1, index, n, &p->loops))
        return op_refuse(call, e, "operands disagree about an extent");
    for (int k = 0; k < n; k++) {
        if (p->loops.covered[k] != shape_count(&in[k]->shape))
            return op_refuse(call, e, "an operand has a dimension that the output lacks");
        p->in[k] = in[k]->data;
        p->dtype[k] = op_is(call->op, OP_ON_IDS) ? DT_F32 : in[k]->dtype; // ids: the bits
    }
    return 0;
}

// Chooses eight lanes if every operand that is walked in order is bf16, else four.
static int choose_lanes(const struct op_call *call, const struct chain_plan *p, int inputs)
{
    bool bf16 = true;
    for (int k = 0; k < inputs; k++)
        bf16 = bf16 && (p->dtype[k] == DT_BF16 || walk_step(&p->loops, k) != 1);
    for (int k = 0; k < call->nout; k++)
        bf16 = bf16 && call->out[k].dtype == DT_BF16;
    return bf16 ? 8 : 4;
}

static int launch_steps(struct stream_q *q, const struct op_call *call, const struct op_chain *c,
                        const struct tensor *product, struct err *e)
{
    struct chain_plan p;
    int64_t n = shape_count(&call->out[0].shape);
    memset(&p, 0, sizeof p);
    int rc = plan_inputs(call, product, c->inputs, &p, e);
    if (rc || !n)
        return rc;
    plan_steps(c, call->nout, &p);
    plan_outputs(call, c, &p);
    int wide = choose_lanes(call, &p, c->inputs);
    p.outer = p.loops.n ? p.loops.n - 1 : 0;
    p.row = p.loops.n ? p.loops.extent[p.outer] : 1;
    p.groups = lanes_groups(p.row, wide);
    p.all = n / p.row * p.groups;
    size_t kept = (size_t)(p.kept * wide * THREADS) * sizeof(float);
    unsigned blocks = launch_blocks(p.all, THREADS, (int64_t)q->device->processors * BLOCKS_EACH);
    if (wide == 4)
        LAUNCH(chain4_kernel, blocks, THREADS, kept, q, p);
    else
        LAUNCH(chain8_kernel, blocks, THREADS, kept, q, p);
    return op_launched(q, call, e);
}

// ---- the ops ------------------------------------------------------------------------------------

int op_elementwise(struct stream_q *q, const struct op_call *c, struct err *e)
{
    struct op_chain one;
    if (c->op == OP_CHAIN)
        return chain_apply(q, c, NULL, e);
    memset(&one, 0, sizeof one);
    one.inputs = c->nin;
    one.steps = 1;
    one.step[0].op = c->op;
    one.step[0].in[1] = (int8_t)(c->nin > 1 ? 1 : -1);
    one.step[0].scale = c->attr->scale;
    one.out[0] = (int8_t)c->nin;
    return launch_steps(q, c, &one, NULL, e);
}

int chain_apply(struct stream_q *q, const struct op_call *c, const struct tensor *product,
                struct err *e)
{
    const char *fault = chain_fault(c->op, c->attr->chain, c->nin, c->nout);
    return fault ? op_refuse(c, e, fault) : launch_steps(q, c, c->attr->chain, product, e);
}
