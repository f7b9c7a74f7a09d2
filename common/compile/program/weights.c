// SPDX-License-Identifier: Apache-2.0
// The backward in two. See weights.h.
#include "common/compile/program/weights.h"

enum { NOBODY = -1, OTHERS = -2 }; // beside the scope of those that read a value

static bool makes_weights(const struct node *n, const int *scope_of)
{
    for (int k = 0; k < n->nout; k++)
        if (scope_of[n->out[k]] != NOBODY && scope_of[n->out[k]] != n->scope)
            return false;
    return n->kind != NODE_SEND;
}

// Goes from the last node to the first, so that all readers of a value come before its producer.
static void find_phases(struct graph *g, int *scope_of)
{
    for (int v = 0; v < g->nvalues; v++)
        scope_of[v] = NOBODY;
    for (int i = g->nnodes - 1; i >= 0; i--) {
        struct node *n = &g->nodes[i];
        if (n->phase != PHASE_BACKWARD)
            continue;
        if (makes_weights(n, scope_of))
            n->phase = PHASE_WEIGHTS;
        // Whether a value's reader makes it one that others wait for.
        bool weights = n->phase == PHASE_WEIGHTS;
        for (int k = 0; k < n->nin; k++) {
            int *scope = &scope_of[n->in[k]];
            if (!weights || (*scope != NOBODY && *scope != n->scope))
                *scope = OTHERS;
            else
                *scope = n->scope;
        }
    }
}

// Contributions in the order in which they are made.
static void sort_contributions(struct graph *g, struct sum *s)
{
    for (int i = 1; i < s->n; i++) {
        int one = s->contrib[i], at = i;
        for (; at > 0 && g->values[s->contrib[at - 1]].producer > g->values[one].producer; at--)
            s->contrib[at] = s->contrib[at - 1];
        s->contrib[at] = one;
    }
}

void weights_split(struct graph *g)
{
    find_phases(g, arena_array(g->arena, int, g->nvalues));
    struct node *old = arena_dup(g->arena, g->nodes, sizeof *old * (size_t)g->nnodes);
    int n = 0;
    for (int phase = 0; phase < PHASE_COUNT; phase++)
        for (int i = 0; i < g->nnodes; i++) {
            if ((int)old[i].phase != phase)
                continue;
            for (int k = 0; k < old[i].nout; k++)
                g->values[old[i].out[k]].producer = n;
            g->nodes[n++] = old[i];
        }
    for (int i = 0; i < g->nsums; i++)
        sort_contributions(g, &g->sums[i]);
}
