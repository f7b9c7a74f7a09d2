// SPDX-License-Identifier: Apache-2.0
// Reverse mode. See grad.h.
#include "common/compile/graph/grad.h"

#include "common/compile/graph/tape.h"
#include "common/compile/graph/vjp.h"

// A value needs a cotangent when it is a parameter that is trained, or its copy, or made from one
// by an op that has a vjp.
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
            t->needs[n->out[k]] = any && (vjp_has(n->op) || g->values[n->out[k]].of >= 0);
    }
}

static void make_sums(struct tape *t)
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
static void seed_loss(struct tape *t)
{
    struct graph *g = t->g;
    int one = graph_one(g);
    for (int i = 0; i < g->nsums; i++)
        if (g->sums[i].value == g->loss)
            for (int c = 0; c < g->sums[i].n; c++)
                t->cot[g->sums[i].contrib[c]] = one;
}

static void differentiate_node(struct tape *t, const struct node *n)
{
    struct graph *g = t->g;
    bool read = false;
    for (int k = 0; k < n->nout && !g->failed; k++) {
        tape_settle(t, n->out[k]);
        read |= t->cot[n->out[k]] >= 0;
    }
    if (g->failed || !read || !tape_needs(t, n->out[0]))
        return;
    g->scope = n->scope;
    g->place = n->place;
    t->at = n;
    g->failed = vjp_apply(t, n, tape_cotangent(t, n->out[0]));
}

int grad_build(struct graph *g)
{
    if (g->failed)
        return g->failed;
    int nodes = g->nnodes;
    graph_reserve(g, 5 * nodes, 5 * g->nvalues); // with a backward and an update
    struct tape t = {.g = g, .n = g->nvalues};
    t.cot = arena_array(g->arena, int, t.n);
    t.terms = arena_array(g->arena, struct terms, t.n);
    t.needs = arena_array(g->arena, bool, t.n);
    t.grad_sum = arena_array(g->arena, int, t.n);
    for (int i = 0; i < t.n; i++)
        t.cot[i] = -1;
    g->phase = PHASE_BACKWARD;
    mark_needs(&t);
    make_sums(&t);
    seed_loss(&t);
    for (int i = nodes - 1; i >= 0 && !g->failed; i--) {
        struct node n = g->nodes[i]; // a copy: the array grows
        differentiate_node(&t, &n);
    }
    return g->failed;
}
