// SPDX-License-Identifier: Apache-2.0
// Elementwise ops, CAST to EQUAL in ops.def, and CHAIN: any of them is a chain of steps, most of a
// single one.
//
// The output is walked in memory order, cut into slices of whole cache lines. In the innermost loop
// an operand usually moves by one element (same labels, or a bias) or by none (one value a row):
// then the vector loop reads it where it lies. Anything else (a transposed operand, integers to be
// cast, bf16) is gathered into a buffer in L1 first; what is bf16 is rounded from one. Of several
// steps each runs over a block that stays in L1 before the next one does: memory is touched once.
//
// An output may lie over an input that is read in the same order: a step writes there directly only
// when no later step reads that input.
#include "kernels/cpu/cpu_chain.h"

#include <string.h>

enum { BLOCK = 512 }; // elements a buffer holds

// Gathers n elements of an input, from `offset` on in steps of `stride`. Those of 4 bytes are
// copied as they are, all others are converted to f32.
static void gather_input(const struct chain_walk *w, int k, int64_t offset, int64_t stride,
                         int64_t n, float *to)
{
    const struct tensor *t = w->in[k];
    const float *f32 = (const float *)t->data + offset;
    const int32_t *i32 = (const int32_t *)t->data + offset;
    const uint8_t *u8 = (const uint8_t *)t->data + offset;
    const uint16_t *bf16 = (const uint16_t *)t->data + offset;
    if (t->dtype == DT_U8 && stride == 1)
        w->vec->from_u8(to, u8, n);
    else if (t->dtype == DT_U8)
        for (int64_t i = 0; i < n; i++)
            to[i] = u8[i * stride];
    else if (t->dtype == DT_BF16)
        for (int64_t i = 0; i < n; i += stride == 1 ? n : 1)
            w->vec->widen(to + i, bf16 + i * stride, stride == 1 ? n : 1);
    else if (t->dtype == DT_I32 && op_is(w->call->op, OP_FROM_INTS))
        for (int64_t i = 0; i < n; i++)
            to[i] = (float)i32[i * stride];
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = f32[i * stride];
}

// Registers of one block: where each is, and whether it moves.
struct chain_block {
    const float *reg[CHAIN_REGISTERS];
    int step[CHAIN_REGISTERS];
    float buffer[CHAIN_REGISTERS][BLOCK];
};

static void read_inputs(const struct chain_walk *w, struct chain_block *b, const int64_t *offset,
                        int64_t at, int64_t n)
{
    const struct loops *l = &w->loops;
    for (int k = 0; k < w->chain->inputs; k++) {
        int64_t stride = l->n ? l->stride[k][l->n - 1] : 0;
        int64_t from = offset[k] + at * stride;
        b->reg[k] = (const float *)w->in[k]->data + from;
        b->step[k] = stride != 0;
        if (!w->gather[k])
            continue;
        gather_input(w, k, from, stride, stride ? n : 1, b->buffer[k]);
        b->reg[k] = b->buffer[k];
    }
}

static void run_steps(const struct chain_walk *w, struct chain_block *b, int64_t to, int64_t n)
{
    const struct op_chain *c = w->chain;
    for (int s = 0; s < c->steps; s++) {
        const struct op_step *step = &c->step[s];
        int x = step->in[0], y = step->in[1] < 0 ? x : step->in[1], r = c->inputs + s,
            home = w->home[s];
        float *out = home < 0 ? b->buffer[r] : (float *)w->call->out[home].data + to;
        w->vec->map[step->op](&(struct vec_map){.out = out,
                                                .a = b->reg[x],
                                                .b = b->reg[y],
                                                .a_step = b->step[x],
                                                .b_step = b->step[y],
                                                .n = n,
                                                .scale = step->scale});
        b->reg[r] = out;
        b->step[r] = 1;
    }
}

// Copies or rounds the outputs that no step has written to their place already.
static void write_outputs(const struct chain_walk *w, const struct chain_block *b, int64_t to,
                          int64_t n)
{
    for (int k = 0; k < w->call->nout; k++) {
        const struct tensor *t = &w->call->out[k];
        const float *from = b->reg[w->chain->out[k]];
        if (t->dtype == DT_BF16)
            w->vec->narrow((uint16_t *)t->data + to, from, n);
        else if (from != (float *)t->data + to)
            memcpy((float *)t->data + to, from, (size_t)n * sizeof *from);
    }
}

void chain_walk_run(const struct chain_walk *w, int64_t begin, int64_t end)
{
    const struct loops *l = &w->loops;
    int outer = l->n ? l->n - 1 : 0;
    int64_t row = l->n ? l->extent[outer] : 1;
    while (begin < end) {
        int64_t r = begin / row, at = begin % row;
        int64_t n = row - at < end - begin ? row - at : end - begin;
        int64_t offset[CHAIN_INPUTS] = {0};
        for (int k = 0; k < w->chain->inputs; k++)
            offset[k] = loops_offset(l, outer, k, r);
        struct chain_block b;
        int64_t piece = w->whole ? n : BLOCK;
        for (int64_t i = 0; i < n; i += piece) {
            int64_t left = n - i < piece ? n - i : piece;
            read_inputs(w, &b, offset, at + i, left);
            run_steps(w, &b, begin + i, left);
            write_outputs(w, &b, begin + i, left);
        }
        begin += n;
    }
}

// A step's home is the output that it is, unless a later step reads an input that lies there.
static void find_homes(struct chain_walk *w)
{
    const struct op_chain *c = w->chain;
    memset(w->home, -1, sizeof w->home);
    for (int k = 0; k < w->call->nout; k++) {
        int at = c->out[k] - c->inputs;
        bool free = at >= 0 && w->call->out[k].dtype == DT_F32;
        for (int s = at + 1; s < c->steps && free; s++)
            for (int i = 0; i < op_inputs(c->step[s].op); i++) {
                int r = c->step[s].in[i];
                free = free && !(r < c->inputs && w->in[r]->data == w->call->out[k].data);
            }
        if (free)
            w->home[at] = (int8_t)k;
    }
}

int chain_walk_init(struct chain_walk *w, const struct vec *vec, const struct op_call *c,
                    const struct op_chain *chain, const struct tensor *product, struct err *e)
{
    int index[CHAIN_INPUTS + 1], n = chain->inputs;
    *w = (struct chain_walk){.chain = chain, .call = c, .vec = vec};
    for (int k = 0; k < n; k++) {
        int operand = chain_operand(c->op, k);
        PRE(operand >= 0 || product);
        index[k] = operand < 0 ? c->nin : operand; // the product has the output's labels
        w->in[k] = operand < 0 ? product : &c->in[operand];
    }
    index[n] = c->nin;
    if (!loops_over(c, c->nin, c->out[0].shape.n, -1, index, n + 1, &w->loops))
        return op_refuse(c, e, "operands disagree about an extent");
    find_homes(w);
    w->whole = chain->steps == 1 && w->home[0] >= 0;
    for (int k = 0; k < n; k++) {
        if (w->loops.covered[k] != shape_count(&w->in[k]->shape))
            return op_refuse(c, e, "an operand has a dimension that the output lacks");
        int64_t stride = w->loops.n ? w->loops.stride[k][w->loops.n - 1] : 0;
        w->gather[k] = stride > 1 || w->in[k]->dtype == DT_BF16 ||
                       (op_is(c->op, OP_FROM_INTS) && w->in[k]->dtype != DT_F32);
        w->whole = w->whole && !w->gather[k];
    }
    return 0;
}

static void run_slice(void *arg, int64_t begin, int64_t end)
{
    chain_walk_run(arg, begin, end);
}

int op_elementwise(struct stream_q *q, const struct op_call *c, struct err *e)
{
    struct chain_walk w;
    struct op_chain one = {.inputs = c->nin,
                           .steps = 1,
                           .step = {{c->op, {0, c->nin > 1 ? 1 : -1}, c->attr->scale}},
                           .out = {(int8_t)c->nin}};
    int rc =
        chain_walk_init(&w, q->device->vec, c, c->op == OP_CHAIN ? c->attr->chain : &one, NULL, e);
    if (rc)
        return rc;
    pool_for(q->device->pool, shape_count(&c->out[0].shape), GRAIN, run_slice, &w);
    return 0;
}
