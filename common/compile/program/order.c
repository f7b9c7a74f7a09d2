// SPDX-License-Identifier: Apache-2.0
// Order. See order.h.
//
// Each phase is a row of runs: nodes of one scope, one after the other. A node's place is its run
// and its position within it, FIRST, AMID or LAST, and never before a node it depends on; nodes are
// then sorted by phase and place, those of one place as they were.
#include "common/compile/program/order.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST, AMID, LAST, POSITIONS };

struct node_order {
    struct graph *g;
    int *place;  // node → run · POSITIONS + position, within its phase
    int *before; // value → the last node that contributed to it so far, −1
    bool *early; // value → it follows from a parameter alone and is made early
};

// A gather of a parameter or its copy, the cast before it, a gather's second step.
static bool is_moved_early(const struct node_order *o, const struct node *n)
{
    bool cast = node_casts_param(n);
    if (n->phase == PHASE_UPDATE ||
        (!cast && !(n->kind == NODE_RESHARD && n->step.kind == RESHARD_ALL_GATHER)))
        return false;
    enum value_kind from = o->g->values[n->in[0]].kind;
    return from == VALUE_PARAM || from == VALUE_COPY || o->early[n->in[0]];
}

// Whether a node adds a gradient that was just reduce-scattered to its sum.
static bool is_moved_late(const struct node_order *o, const struct node *n)
{
    if (n->kind != NODE_OP || n->op != OP_SUM || n->phase != PHASE_BACKWARD)
        return false;
    int by = o->g->values[n->in[0]].producer;
    const struct node *made = by < 0 ? NULL : &o->g->nodes[by];
    return made && made->phase == PHASE_BACKWARD && made->kind == NODE_RESHARD &&
           made->step.kind == RESHARD_REDUCE_SCATTER;
}

// Moves a node behind node `on`, if there is one and it belongs to the same phase.
static void put_after(const struct node_order *o, int node, int on)
{
    if (on >= 0 && o->g->nodes[on].phase == o->g->nodes[node].phase &&
        o->place[node] < o->place[on])
        o->place[node] = o->place[on];
}

static void place_node(struct node_order *o, int node, int run)
{
    struct graph *g = o->g;
    const struct node *n = &g->nodes[node];
    bool early = is_moved_early(o, n);
    if (early)
        o->place[node] = (run ? run - 1 : 0) * POSITIONS + FIRST;
    else if (is_moved_late(o, n))
        o->place[node] = (run + 1) * POSITIONS + LAST;
    else
        o->place[node] = run * POSITIONS + AMID;
    for (int k = 0; k < n->nin; k++) {
        put_after(o, node, g->values[n->in[k]].producer);
        put_after(o, node, o->before[n->in[k]]);
    }
    for (int k = 0; k < n->nout; k++)
        o->early[n->out[k]] = early;
}

// Each contribution comes after the one before it, and readers of the sum after all so far.
static void order_contributions(struct node_order *o, const int *sum_of, int node)
{
    const struct node *n = &o->g->nodes[node];
    for (int k = 0; k < n->nout; k++) {
        int sum = sum_of[n->out[k]];
        if (sum < 0)
            continue;
        put_after(o, node, o->before[sum]);
        o->before[sum] = node;
    }
}

static void find_places(struct node_order *o, struct arena *scratch)
{
    struct graph *g = o->g;
    int run[PHASE_COUNT] = {0}, scope[PHASE_COUNT];
    int *sum_of = arena_array(scratch, int, g->nvalues);
    memset(sum_of, -1, sizeof *sum_of * (size_t)g->nvalues);
    memset(scope, -1, sizeof scope);
    for (int s = 0; s < g->nsums; s++)
        for (int c = 0; c < g->sums[s].n; c++)
            sum_of[g->sums[s].contrib[c]] = g->sums[s].value;
    for (int i = 0; i < g->nnodes; i++) {
        const struct node *n = &g->nodes[i];
        if (scope[n->phase] >= 0 && scope[n->phase] != n->scope)
            run[n->phase]++;
        scope[n->phase] = n->scope;
        place_node(o, i, run[n->phase]);
        order_contributions(o, sum_of, i);
    }
}

struct node_place {
    int phase, place, node;
};

static int compare_places(const void *x, const void *y)
{
    const struct node_place *a = x, *b = y;
    if (a->phase != b->phase)
        return a->phase < b->phase ? -1 : 1;
    if (a->place != b->place)
        return a->place < b->place ? -1 : 1;
    return a->node < b->node ? -1 : a->node > b->node;
}

void order_nodes(struct graph *g)
{
    struct arena scratch = {0};
    struct node_order o = {.g = g,
                           .place = arena_array(&scratch, int, g->nnodes),
                           .before = arena_array(&scratch, int, g->nvalues),
                           .early = arena_array(&scratch, bool, g->nvalues)};
    struct node_place *placed = arena_array(&scratch, struct node_place, g->nnodes);
    memset(o.before, -1, sizeof *o.before * (size_t)g->nvalues);
    find_places(&o, &scratch);
    for (int i = 0; i < g->nnodes; i++)
        placed[i] = (struct node_place){(int)g->nodes[i].phase, o.place[i], i};
    qsort(placed, (size_t)g->nnodes, sizeof *placed, compare_places);
    // Brings the nodes to their places, cycle by cycle, and ends with each place having its own node.
    for (int i = 0; i < g->nnodes; i++) {
        struct node first = g->nodes[i];
        int at = i;
        for (int from = placed[at].node; from != i && from != at; from = placed[at].node) {
            g->nodes[at] = g->nodes[from];
            placed[at].node = at;
            at = from;
        }
        if (at != i)
            g->nodes[at] = first;
        placed[at].node = at;
    }
    for (int i = 0; i < g->nnodes; i++)
        for (int k = 0; k < g->nodes[i].nout; k++)
            g->values[g->nodes[i].out[k]].producer = i;
    arena_clear(&scratch);
}
