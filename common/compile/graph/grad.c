// SPDX-License-Identifier: Apache-2.0
// Reverse mode. See grad.h.
#include "common/compile/graph/grad.h"

#include "common/compile/graph/optable.h"

bool tape_needs(const struct tape *t, int value)
{
    return value < t->n && t->needs[value];
}

int tape_param(const struct tape *t, int value)
{
    const struct value *v = &t->g->values[value];
    return v->kind == VALUE_PARAM ? value : v->of;
}

enum dtype tape_dtype(const struct tape *t, int value)
{
    return tape_param(t, value) >= 0 ? DT_F32 : t->g->values[value].dtype;
}

// Made for this value alone; a cotangent that a rule passes on is another value's and settled.
static bool own_contribution(const struct tape *t, int contribution)
{
    for (int k = 0; k < t->at->nout; k++)
        if (t->cot[t->at->out[k]] == contribution)
            return false;
    return true;
}

// An elementwise op's other operand may be a vector along the last dimension: its contribution
// arrives already reduced to its shape (tape_reduce_to).
void tape_add(struct tape *t, int value, int contribution)
{
    if (!tape_needs(t, value))
        return;
    struct graph *g = t->g;
    int param = tape_param(t, value);
    if (param >= 0) {
        graph_contribute(g, t->grad_sum[param], contribution);
        return;
    }
    struct terms *c = &t->terms[value];
    c->value = arena_grow(g->arena, c->value, sizeof *c->value, c->n, &c->cap);
    c->value[c->n++] = contribution;
    c->scope = g->scope;
    c->stage = g->stage;
    g->values[contribution].open = own_contribution(t, contribution);
}

// All readers have contributed: their sum, made where the earliest of them is. Several terms stay
// open until then, so that those of one spec are added before they are moved.
static void settle(struct tape *t, int value)
{
    struct graph *g = t->g;
    const struct terms *c = &t->terms[value];
    if (c->n == 0)
        return;
    t->cot[value] = c->value[0];
    if (c->n == 1) {
        g->values[c->value[0]].open = false;
        return;
    }
    g->scope = c->scope;
    g->stage = c->stage;
    graph_at(g, g->values[value].point);
    for (int k = 1; k < c->n && !g->failed; k++) {
        int sum = graph_like(g, OP_ADD, 2, (int[]){t->cot[value], c->value[k]}, value);
        g->nodes[g->nnodes - 1].joins = true;
        g->values[sum].open = k < c->n - 1;
        t->cot[value] = sum;
    }
}

int tape_reduce_to(struct tape *t, int cotangent, int value, float scale)
{
    struct graph *g = t->g;
    struct value v = g->values[value];
    if (v.shape.n == g->values[cotangent].shape.n) {
        if (scale == 1)
            return cotangent;
        struct op_attr attr = {.scale = scale};
        return graph_op(g, &(struct op_args){.op = OP_SCALE,
                                             .nin = 1,
                                             .in = &cotangent,
                                             .nout_dims = v.shape.n,
                                             .out_dims = v.dims,
                                             .attr = &attr,
                                             .dtype = tape_dtype(t, value)});
    }
    // A norm vector lies along the last dimension, whatever that is called there.
    enum dim dims[MAX_DIMS];
    const struct value *c = &g->values[cotangent];
    for (int d = 0; d < v.shape.n; d++)
        dims[d] = v.dims[d] == DIM_NORM ? c->dims[c->shape.n - 1] : v.dims[d];
    struct op_attr attr = {.scale = scale};
    return graph_op(g, &(struct op_args){.op = OP_SUM,
                                         .nin = 1,
                                         .in = &cotangent,
                                         .nout_dims = v.shape.n,
                                         .out_dims = dims,
                                         .attr = &attr,
                                         .dtype = tape_dtype(t, value)});
}

// A value needs a cotangent when it is a parameter that moves, or its copy, or made from one by an
// op that has a vjp.
static void mark_needs(struct tape *t)
{
    struct graph *g = t->g;
    for (int i = 0; i < t->n; i++)
        t->needs[i] = g->values[i].kind == VALUE_PARAM && !g->values[i].frozen;
    for (int i = 0; i < g->nnodes; i++) {
        const struct node *n = &g->nodes[i];
        bool any = false;
        for (int k = 0; k < n->nin; k++)
            any |= t->needs[n->in[k]];
        for (int k = 0; k < n->nout; k++)
            t->needs[n->out[k]] = any && (op_row(n->op)->vjp || g->values[n->out[k]].of >= 0);
    }
}

static void sums_make(struct tape *t)
{
    struct graph *g = t->g;
    for (int i = 0; i < t->n; i++) {
        if (g->values[i].kind != VALUE_PARAM || g->values[i].frozen)
            continue;
        const char *name = arena_printf(g->arena, "grad/%s", g->values[i].name);
        t->grad_sum[i] = graph_sum(g, name, i, i);
    }
}

// The loss's own contributions: each counts with weight one, the host's constant.
static void seed(struct tape *t)
{
    struct graph *g = t->g;
    int one = graph_one(g);
    for (int i = 0; i < g->nsums; i++)
        if (g->sums[i].value == g->loss)
            for (int c = 0; c < g->sums[i].n; c++)
                t->cot[g->sums[i].contrib[c]] = one;
}

static void node_differentiate(struct tape *t, const struct node *n)
{
    struct graph *g = t->g;
    for (int k = 0; k < n->nout && !g->failed; k++)
        settle(t, n->out[k]);
    int cot = t->cot[n->out[0]];
    if (g->failed || cot < 0 || !tape_needs(t, n->out[0]))
        return;
    g->scope = n->scope;
    g->stage = n->stage;
    t->at = n;
    g->failed = op_row(n->op)->vjp(t, n, cot);
}

int grad_build(struct graph *g)
{
    if (g->failed)
        return g->failed;
    int nodes = g->nnodes;
    struct tape t = {.g = g, .n = g->nvalues};
    t.cot = arena_array(g->arena, int, t.n);
    t.terms = arena_array(g->arena, struct terms, t.n);
    t.needs = arena_array(g->arena, bool, t.n);
    t.grad_sum = arena_array(g->arena, int, t.n);
    for (int i = 0; i < t.n; i++)
        t.cot[i] = -1;
    g->phase = PHASE_BACKWARD;
    mark_needs(&t);
    sums_make(&t);
    seed(&t);
    for (int i = nodes - 1; i >= 0 && !g->failed; i--) {
        struct node n = g->nodes[i]; // a copy: the array grows
        node_differentiate(&t, &n);
    }
    return g->failed;
}
