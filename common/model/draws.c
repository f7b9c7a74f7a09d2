// SPDX-License-Identifier: Apache-2.0
// Sites of random numbers. See draws.h.
#include "common/model/draws.h"

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

int draws_dropout(struct draws *d, int x, int positions, const char *path, double rate)
{
    if (!draws_drops(d, rate))
        return x;
    const int in[3] = {x, draws_step(d), positions};
    struct op_attr attr = {.draw = draws_site(d, path, rate)};
    return graph_shaped(d->g, OP_DROPOUT, positions < 0 ? 2 : 3, in, x, &attr, DT_NONE);
}

int draws_normal(struct draws *d, int n, const enum dim *dims, const int64_t *sizes,
                 const char *path)
{
    const int in[1] = {draws_step(d)};
    struct op_attr attr = {.draw = draws_site(d, path, 0)};
    return graph_op(d->g, &(struct op_args){.op = OP_NORMAL,
                                            .nin = 1,
                                            .in = in,
                                            .nout_dims = n,
                                            .out_dims = dims,
                                            .attr = &attr,
                                            .sizes = sizes});
}
