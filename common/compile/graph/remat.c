// SPDX-License-Identifier: Apache-2.0
// Rematerialisation. See remat.h.
#include "common/compile/graph/remat.h"

#include <string.h>

struct remat {
    struct graph *g;
    enum job_remat mode;
    int head;      // scope
    bool *outside; // value → a forward node of another scope reads it
    bool *at_head; // value → a forward node of the head reads it
    int *again;    // value → the copy the backward reads, −1 before it is made
    bool *due;     // node → its copy is about to be made
};

// What an op makes for its gradient alone, which the forward does not read, stays where its output
// does: else the op would run again for it.
static void keep_statistics(struct remat *r, const struct node *n)
{
    if (!op_is(n->op, OP_KEEPS_LAST))
        return;
    r->outside[n->out[n->nout - 1]] = r->outside[n->out[0]];
    r->at_head[n->out[n->nout - 1]] = r->at_head[n->out[0]];
}

static void find_readers(struct remat *r, int nforward)
{
    const struct graph *g = r->g;
    for (int i = 0; i < nforward; i++) {
        const struct node *n = &g->nodes[i];
        for (int k = 0; k < n->nin; k++) {
            int made_by = g->values[n->in[k]].producer;
            r->outside[n->in[k]] |= made_by >= 0 && g->nodes[made_by].scope != n->scope;
            r->at_head[n->in[k]] |= n->scope == r->head;
        }
    }
    for (int i = 0; i < nforward; i++)
        keep_statistics(r, &g->nodes[i]);
}

// Whether the value says which experts a token chose or which places it got. These few bytes are
// kept, so that it is decided once.
static bool is_decision(const struct graph *g, int value)
{
    return g->values[value].dtype == DT_I32 ||
           op_is(g->nodes[g->values[value].producer].op, OP_DECIDES);
}

static bool is_kept_for(const struct remat *r, int value, const struct node *reader)
{
    const struct graph *g = r->g;
    if (g->values[value].producer < 0 || g->values[value].of >= 0) // a parameter or its copy
        return true;
    const struct node *made_by = &g->nodes[g->values[value].producer];
    if (made_by->phase != PHASE_FORWARD || made_by->scope == r->head || r->at_head[value] ||
        is_decision(g, value))
        return true;
    if (r->mode == JOB_REMAT_FULL)
        return made_by->place != reader->place;
    return r->outside[value] || strcmp(g->scopes[made_by->scope], "embed") == 0;
}

static void copy_node(struct remat *r, int node)
{
    struct graph *g = r->g;
    struct node n = g->nodes[node];
    n.phase = PHASE_BACKWARD;
    n.again = true;
    for (int k = 0; k < n.nin; k++)
        if (!is_kept_for(r, n.in[k], &n))
            n.in[k] = r->again[n.in[k]] < 0 ? n.in[k] : r->again[n.in[k]];
    for (int k = 0; k < n.nout; k++) {
        struct value v = g->values[n.out[k]];
        int id = graph_value(g, v.kind, v.name, v.dtype, v.shape.n, v.dims, v.shape.dim);
        g->values[id] = v;
        r->again[n.out[k]] = id;
        n.out[k] = id;
    }
    graph_node(g, &n);
    r->due[node] = false;
}

// Makes `value` again for `reader`, and before it what it is made from. First all that is missing
// is marked, from `value` backwards; then it is copied in the forward's order.
static int make_again(struct remat *r, int value, const struct node *reader)
{
    struct graph *g = r->g;
    if (is_kept_for(r, value, reader))
        return value;
    if (r->again[value] >= 0)
        return r->again[value];
    int last = g->values[value].producer, first = last, left = 1;
    r->due[last] = true;
    for (int i = last; left > 0; i--) {
        const struct node *n = &g->nodes[i];
        if (!r->due[i])
            continue;
        left--;
        first = i;
        for (int k = 0; k < n->nin; k++) {
            int made_by = g->values[n->in[k]].producer;
            if (is_kept_for(r, n->in[k], n) || r->again[n->in[k]] >= 0 || r->due[made_by])
                continue;
            r->due[made_by] = true;
            left++;
        }
    }
    for (int i = first; i <= last; i++)
        if (r->due[i])
            copy_node(r, i);
    return r->again[value];
}

int remat_build(struct graph *g, enum job_remat mode)
{
    int nforward = 0, n = g->nnodes;
    if (g->failed || mode == JOB_REMAT_NONE)
        return g->failed;
    while (nforward < n && g->nodes[nforward].phase == PHASE_FORWARD)
        nforward++;
    PRE(nforward > 0);
    struct remat r = {.g = g, .mode = mode, .head = g->nodes[nforward - 1].scope};
    struct node *backward =
        arena_dup(g->arena, g->nodes + nforward, sizeof *backward * (size_t)(n - nforward));
    int nvalues = g->nvalues; // of before: a copy is never copied
    r.outside = arena_array(g->arena, bool, nvalues);
    r.at_head = arena_array(g->arena, bool, nvalues);
    r.again = arena_array(g->arena, int, nvalues);
    r.due = arena_array(g->arena, bool, nforward);
    for (int v = 0; v < nvalues; v++)
        r.again[v] = -1;
    find_readers(&r, nforward);
    g->nnodes = nforward;
    for (int i = 0; i < n - nforward; i++) {
        for (int k = 0; k < backward[i].nin; k++)
            backward[i].in[k] = make_again(&r, backward[i].in[k], &backward[i]);
        graph_node(g, &backward[i]);
    }
    return 0;
}
