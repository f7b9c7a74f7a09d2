// SPDX-License-Identifier: Apache-2.0
// Cotangents on their way from readers to producers. See tape.h.
#include "common/compile/graph/tape.h"

#include "common/compile/graph/build.h"

bool tape_needs(const struct tape *t, int value)
{
    return value < t->n && t->needs[value];
}

// The parameter that a value is, or is the copy of in the compute dtype; −1: neither.
static int find_param(const struct tape *t, int value)
{
    const struct value *v = &t->g->values[value];
    return v->kind == VALUE_PARAM ? value : v->of;
}

enum dtype tape_dtype(const struct tape *t, int value)
{
    return find_param(t, value) >= 0 ? DT_F32 : t->g->values[value].dtype;
}

int tape_cotangent(struct tape *t, int value)
{
    struct graph *g = t->g;
    if (t->cot[value] < 0) {
        graph_at(g, g->values[value].point);
        int zeros = spread(g, graph_one(g), value, 0, DT_F32);
        t->cot[value] = cast(g, zeros, tape_dtype(t, value));
    }
    return t->cot[value];
}

// Whether a rule made the contribution for this value alone. A cotangent that a rule passes on is
// another value's, and complete.
static bool is_own_contribution(const struct tape *t, int contribution)
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
    int param = find_param(t, value);
    if (param >= 0) {
        struct value v = g->values[contribution];
        if (!op_is(g->nodes[v.producer].op, OP_ACCUMULATES) ||
            !is_own_contribution(t, contribution))
            contribution = sum(g, contribution, v.shape.n, v.dims, 1, DT_F32);
        graph_contribute(g, t->grad_sum[param], contribution);
        return;
    }
    struct terms *c = &t->terms[value];
    c->value = arena_grow(g->arena, c->value, sizeof *c->value, c->n, &c->cap);
    c->value[c->n++] = contribution;
    c->scope = g->scope;
    c->place = g->place;
    g->values[contribution].open = is_own_contribution(t, contribution);
}

// Whether a cotangent has the value's dimensions in its order: not after a transposition. A vector
// along the last dimension has another name for it.
static bool has_order_of(const struct value *v, const struct value *cotangent)
{
    bool same = true;
    for (int d = 0; d < v->shape.n && same; d++)
        same = v->dims[d] == cotangent->dims[d] || v->dims[d] == DIM_NORM;
    return same;
}

int tape_reduce_to(struct tape *t, int cotangent, int value, float by)
{
    struct graph *g = t->g;
    struct value v = g->values[value];
    bool alike = v.shape.n == g->values[cotangent].shape.n;
    if (alike && by == 1 && has_order_of(&v, &g->values[cotangent]))
        return cotangent;
    if (alike && find_param(t, value) < 0) // a parameter's is made by an op that accumulates
        return spread(g, cotangent, value, by, tape_dtype(t, value));
    // A norm vector lies along the last dimension, whatever that is called there.
    enum dim dims[MAX_DIMS];
    const struct value *c = &g->values[cotangent];
    for (int d = 0; d < v.shape.n; d++)
        dims[d] = v.dims[d] == DIM_NORM ? c->dims[c->shape.n - 1] : v.dims[d];
    return sum(g, cotangent, v.shape.n, dims, by, tape_dtype(t, value));
}

// Adds up what the readers of a value contributed, where the earliest of them stands. Until then
// the terms stay apart, so that those of one spec are added before they are resharded.
void tape_settle(struct tape *t, int value)
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
    g->place = c->place;
    graph_at(g, g->values[value].point);
    for (int k = 1; k < c->n && !g->failed; k++) {
        int both[2] = {t->cot[value], c->value[k]};
        t->cot[value] = graph_like(g, OP_ADD, 2, both, value);
        g->nodes[g->nnodes - 1].sums_cotangent = true;
        g->values[t->cot[value]].open = k < c->n - 1;
    }
}
