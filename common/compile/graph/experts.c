// SPDX-License-Identifier: Apache-2.0
// The ops of experts as a model writes them. See experts.h.
#include "common/compile/graph/experts.h"

#include <math.h>

int experts_top(struct graph *g, int x, int by, int64_t k, int *ids)
{
    struct value v = g->values[x];
    int last = v.shape.n - 1;
    if (!g->failed && (last < 0 || k < 1 || k > v.shape.dim[last]))
        g->failed = err_set(g->err, ERR_INVALID, "top: %lld of %lld are asked for", (long long)k,
                            last < 0 ? 1LL : (long long)v.shape.dim[last]);
    if (g->failed)
        return 0;
    v.dims[last] = DIM_CHOICE;
    v.shape.dim[last] = k;
    struct op_output made = {v.shape.n, v.dims, v.shape.dim, DT_F32}, places = made;
    places.dtype = DT_I32;
    int top = graph_op(g, &(struct op_args){.op = OP_TOPK,
                                            .nin = by < 0 ? 1 : 2,
                                            .in = (int[]){x, by},
                                            .nout_dims = v.shape.n,
                                            .out_dims = v.dims,
                                            .sizes = v.shape.dim,
                                            .outputs = (struct op_output[]){made, places}});
    *ids = top + 1;
    return top;
}

int64_t experts_capacity(int64_t tokens, int64_t experts, double factor)
{
    return factor > 0 ? (int64_t)((double)tokens * factor / (double)experts) : tokens;
}

double experts_factor(int64_t tokens, int64_t experts, int64_t places)
{
    double exact = (double)places * (double)experts / (double)tokens;
    for (int64_t unit = 1; unit < 1000000000; unit *= 10) {
        double rounded = ceil(exact * (double)unit) / (double)unit;
        if (experts_capacity(tokens, experts, rounded) == places)
            return rounded;
    }
    return exact;
}

// "1, 2, 3 or 6": what would divide a microbatch's samples.
static const char *list_divisors(struct graph *g, int64_t n)
{
    const char *text = "1";
    for (int64_t d = 2; d <= n; d++)
        if (n % d == 0)
            text = arena_printf(g->arena, "%s%s%lld", text, d == n ? " or " : ", ", (long long)d);
    return text;
}

static int check_dealing(struct graph *g, const struct experts_dealing *how, const struct value *v)
{
    int64_t batch = v->shape.dim[0];
    if (how->group < 1 || batch % how->group)
        return err_set(g->err, ERR_INVALID,
                       "group: a microbatch of %lld samples is no whole number of groups of %lld; "
                       "try group=%s",
                       (long long)batch, (long long)how->group, list_divisors(g, batch));
    if (how->capacity < 1)
        return err_set(g->err, ERR_INVALID,
                       "capacity: an expert of %lld has no place for any of a group's %lld tokens; "
                       "capacity=%.9g gives it one",
                       (long long)how->experts, (long long)(how->group * v->shape.dim[1]),
                       experts_factor(how->group * v->shape.dim[1], how->experts, 1));
    return 0;
}

int experts_slots(struct graph *g, const struct experts_dealing *how, int ids, int weights,
                  int positions, int *chosen)
{
    struct value v = g->values[ids];
    enum point point = g->point;
    g->failed = g->failed ? g->failed : check_dealing(g, how, &v);
    if (g->failed)
        return 0;
    enum dim dims[2] = {v.dims[0], how->dim};
    int64_t sizes[2] = {v.shape.dim[0], how->experts};
    struct op_attr attr = {.slots = {how->group, how->experts, how->capacity, {0, 0}}};
    struct op_output outputs[2] = {{v.shape.n, v.dims, v.shape.dim, DT_I32},
                                   {2, dims, sizes, DT_F32}};
    graph_at(g, POINT_NONE);
    int slot = graph_op(g, &(struct op_args){.op = OP_SLOTS,
                                             .nin = 3,
                                             .in = (int[]){ids, weights, positions},
                                             .nout_dims = v.shape.n,
                                             .out_dims = v.dims,
                                             .attr = &attr,
                                             .outputs = outputs});
    graph_at(g, point);
    *chosen = slot + 1;
    return slot;
}

const struct node *experts_find_router(const struct graph *g)
{
    for (int i = 0; i < g->nnodes; i++)
        if (g->nodes[i].op == OP_SLOTS)
            return &g->nodes[i];
    return NULL;
}

static struct op_attr copy_attributes(const struct graph *g, int slot)
{
    const struct node *n = &g->nodes[g->values[slot].producer];
    PRE(n->op == OP_SLOTS);
    return (struct op_attr){.slots = n->attr.slots};
}

int experts_dispatch(struct graph *g, int x, int slot)
{
    if (g->failed)
        return 0;
    struct value v = g->values[x];
    struct op_attr attr = copy_attributes(g, slot);
    const enum dim dims[4] = {DIM_GROUP, DIM_EXPERT, DIM_CAPACITY, v.dims[2]};
    const int64_t sizes[4] = {v.shape.dim[0] / attr.slots.group, attr.slots.experts,
                              attr.slots.capacity, v.shape.dim[2]};
    int made = graph_op(g, &(struct op_args){.op = OP_DISPATCH,
                                             .nin = 2,
                                             .in = (int[]){x, slot},
                                             .nout_dims = 4,
                                             .out_dims = dims,
                                             .sizes = sizes,
                                             .attr = &attr});
    if (!g->failed) // groups are of samples
        g->values[made].born[0] = v.born[0];
    return made;
}

int experts_combine(struct graph *g, int y, int slot, int weights)
{
    if (g->failed)
        return 0;
    struct value v = g->values[y], s = g->values[slot];
    struct op_attr attr = copy_attributes(g, slot);
    return graph_op(g, &(struct op_args){.op = OP_COMBINE,
                                         .nin = weights < 0 ? 2 : 3,
                                         .in = (int[]){y, slot, weights},
                                         .nout_dims = 3,
                                         .out_dims = (enum dim[]){s.dims[0], s.dims[1], v.dims[3]},
                                         .attr = &attr});
}
