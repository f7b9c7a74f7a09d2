// SPDX-License-Identifier: Apache-2.0
// Sites of random numbers. See draws.h.
#include "common/model/draws.h"

#include <string.h>

#include "common/base/hash.h"

struct draws draws_init(struct graph *g, int64_t seed, bool on)
{
    return (struct draws){.g = g, .seed = (uint64_t)seed, .on = on, .step = -1};
}

bool draws_drops(const struct draws *d, double rate)
{
    return d->on && rate > 0;
}

int draws_step(struct draws *d)
{
    if (d->step < 0)
        d->step = graph_value(d->g, VALUE_SCALAR, "step", DT_I32, 0, NULL, NULL);
    return d->step;
}

struct op_draw draws_site(const struct draws *d, const char *path, double rate)
{
    return (struct op_draw){.seed = d->seed, .stream = hash_fnv1a32(path), .rate = (float)rate};
}

// The one dimension of x that is born of the sequence, beside samples; −1: none is, or several are, or
// it is the last, whose elements are drawn in a run.
static int find_place(const struct value *v)
{
    int place = -1, n = 0, samples = 0;
    for (int d = 0; d < v->shape.n; d++) {
        samples += v->born[d] == DIM_BATCH;
        n += v->born[d] == DIM_SEQ;
        place = v->born[d] == DIM_SEQ ? d : place;
    }
    return n == 1 && samples && place < v->shape.n - 1 ? place : -1;
}

bool draws_want_positions(const struct graph *g, int x)
{
    return !g->failed && find_place(&g->values[x]) >= 0;
}

// A draw over the dimensions of x: `in` ends with the step, and has room for the positions.
static int draw_over(struct draws *d, enum op op, int nin, int in[3], int x, int positions,
                     const char *path, double rate)
{
    struct graph *g = d->g;
    const struct value v = g->values[x];
    struct op_attr attr = {.draw = draws_site(d, path, rate)};
    enum dim as[] = {DIM_BATCH, DIM_SEQ};
    for (int k = 0; k < v.shape.n && !attr.draw.batch; k++)
        attr.draw.batch = (int8_t)(v.born[k] == DIM_BATCH ? k + 1 : 0);
    if (positions >= 0) {
        attr.draw.place = (int8_t)(find_place(&v) + 1);
        as[0] = attr.draw.batch ? v.dims[attr.draw.batch - 1] : DIM_BATCH;
        as[1] = v.dims[attr.draw.place - 1];
        in[nin++] = positions;
    }
    return graph_op(g, &(struct op_args){.op = op,
                                         .nin = nin,
                                         .in = in,
                                         .nout_dims = v.shape.n,
                                         .out_dims = v.dims,
                                         .sizes = v.shape.dim,
                                         .attr = &attr,
                                         .read_as = positions < 0 ? NULL : as,
                                         .read_input = nin - 1});
}

int draws_dropout(struct draws *d, int x, int positions, const char *path, double rate)
{
    int in[3] = {x, draws_step(d)};
    return draw_over(d, OP_DROPOUT, 2, in, x, positions, path, rate);
}

int draws_normal(struct draws *d, int x, int positions, const char *path)
{
    struct graph *g = d->g;
    int in[3] = {draws_step(d)}, made = draw_over(d, OP_NORMAL, 1, in, x, positions, path, 0);
    if (g->failed)
        return 0;
    // Its dimensions are x's, of which the op has no operand.
    const struct value *v = &g->values[x];
    memcpy(g->values[made].born, v->born, sizeof v->born);
    memcpy(g->values[made].limit, v->limit, sizeof v->limit);
    for (int k = 0; k < v->shape.n && positions < 0 && !g->ordered; k++)
        if (v->born[k] == DIM_SEQ)
            g->ordered = arena_printf(g->arena, "normal over %s", dims_name(g->dims, v->dims[k]));
    return graph_pad(g, made, 0);
}
