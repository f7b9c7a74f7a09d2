// SPDX-License-Identifier: Apache-2.0
// The pass that fuses. See fuse.h.
#include "common/compile/fuse.h"

#include <string.h>

struct fusion {
    fuse_fn *fn;
    bool dtypes[DT_COUNT];
};

enum { FUSIONS = 8 };

// In the order they are tried, each over the whole graph; the last place stays empty. A backend's
// row lists what it has kernels for.
static const struct fusion table[BACKEND_KINDS][FUSIONS] = {
    [BACKEND_CPU] = {{fuse_chain, {[DT_F32] = true}}},
};

// ---- what the graph says ------------------------------------------------------------------------

static int now(const struct fuse *f, int node)
{
    while (f->into[node] != node)
        node = f->into[node];
    return node;
}

static void readers_find(struct fuse *f)
{
    const struct graph *g = f->g;
    f->first = arena_array(g->arena, int, (size_t)g->nvalues + 1);
    for (int i = 0; i < g->nnodes; i++)
        for (int k = 0; k < g->nodes[i].nin; k++)
            f->first[g->nodes[i].in[k] + 1]++;
    for (int v = 0; v < g->nvalues; v++)
        f->first[v + 1] += f->first[v];
    int *end = arena_dup(g->arena, f->first, sizeof *end * (size_t)g->nvalues);
    f->readers = arena_array(g->arena, int, (size_t)f->first[g->nvalues] + 1);
    for (int i = 0; i < g->nnodes; i++)
        for (int k = 0; k < g->nodes[i].nin; k++)
            f->readers[end[g->nodes[i].in[k]]++] = i;
}

static void values_find(struct fuse *f)
{
    const struct graph *g = f->g;
    f->named = arena_array(g->arena, bool, g->nvalues);
    f->pinned = arena_array(g->arena, bool, g->nvalues);
    for (int v = 0; v < g->nvalues; v++) {
        const struct value *val = &g->values[v];
        f->named[v] = val->name != NULL;
        f->pinned[v] |= val->alias >= 0 || val->kind == VALUE_SUM || val->kind == VALUE_STATE;
        if (val->alias >= 0)
            f->pinned[val->alias] = true;
    }
    for (int s = 0; s < g->nsums; s++)
        for (int c = 0; c < g->sums[s].n; c++)
            f->pinned[g->sums[s].contrib[c]] = true;
    if (g->metrics >= 0)
        f->named[g->metrics] = true;
}

// Parameters are changed in the update, long after what forward and backward read of them.
static bool touches_pinned(const struct fuse *f, const struct node *n)
{
    for (int k = 0; k < n->nin + n->nout; k++) {
        int v = k < n->nin ? n->in[k] : n->out[k - n->nin];
        bool param = f->g->values[v].kind == VALUE_PARAM && n->phase != PHASE_UPDATE;
        if (f->pinned[v] && !param)
            return true;
    }
    return false;
}

static bool fits(const struct fuse *f, const struct node *n)
{
    for (int k = 0; k < n->nin + n->nout; k++) {
        const struct value *v = &f->g->values[k < n->nin ? n->in[k] : n->out[k - n->nin]];
        if (!f->dtypes[v->dtype] || spec_partial(&v->spec))
            return false;
    }
    return n->kind == NODE_OP && !n->owner && n->nout && !touches_pinned(f, n);
}

static bool together(const struct node *a, const struct node *b)
{
    return a->phase == b->phase && a->when == b->when && a->scope == b->scope &&
           a->stage == b->stage && a->stages == b->stages && a->again == b->again;
}

int fuse_producer(const struct fuse *f, int node, int k)
{
    const struct node *n = &f->g->nodes[node];
    int by = f->g->values[n->in[k]].producer;
    if (by < 0 || by >= node)
        return -1;
    const struct node *made = &f->g->nodes[by];
    return together(made, n) && fits(f, made) && fits(f, n) ? by : -1;
}

bool fuse_kept(const struct fuse *f, int value, int a, int b)
{
    bool kept = f->named[value];
    for (int r = f->first[value]; r < f->first[value + 1] && !kept; r++) {
        int reader = now(f, f->readers[r]);
        kept = reader != a && reader != b;
    }
    return kept;
}

// Whether all that b reads is made on its stages before a.
static bool ready_at(const struct fuse *f, const struct node *b, int a)
{
    for (int k = 0; k < b->nin; k++) {
        int by = f->g->values[b->in[k]].producer;
        if (by > a || (by >= 0 && (b->stages & ~f->g->nodes[by].stages)))
            return false;
    }
    return true;
}

static bool unread_until(const struct fuse *f, const struct node *a, int b)
{
    for (int k = 0; k < a->nout; k++)
        for (int r = f->first[a->out[k]]; r < f->first[a->out[k] + 1]; r++)
            if (now(f, f->readers[r]) < b)
                return false;
    return true;
}

int fuse_place(const struct fuse *f, int a, int b)
{
    if (unread_until(f, &f->g->nodes[a], b))
        return b;
    return ready_at(f, &f->g->nodes[b], a) ? a : -1;
}

void fuse_put(struct fuse *f, int a, int b, int place, const struct node *made)
{
    struct graph *g = f->g;
    struct node fused = *made;
    for (int k = 0; k < g->nodes[a].nout; k++)
        g->values[g->nodes[a].out[k]].producer = -1;
    for (int k = 0; k < g->nodes[b].nout; k++)
        g->values[g->nodes[b].out[k]].producer = -1;
    for (int k = 0; k < fused.nout; k++)
        g->values[fused.out[k]].producer = place;
    f->into[place == a ? b : a] = place;
    g->nodes[place] = fused;
}

// ---- the pass -----------------------------------------------------------------------------------

static void nodes_close(struct fuse *f)
{
    struct graph *g = f->g;
    int n = 0;
    for (int i = 0; i < g->nnodes; i++) {
        if (f->into[i] != i)
            continue;
        g->nodes[n] = g->nodes[i];
        for (int k = 0; k < g->nodes[n].nout; k++)
            g->values[g->nodes[n].out[k]].producer = n;
        n++;
    }
    g->nnodes = n;
}

void fuse_nodes(struct graph *g)
{
    struct fuse f = {.g = g};
    f.into = arena_array(g->arena, int, g->nnodes);
    for (int i = 0; i < g->nnodes; i++)
        f.into[i] = i;
    readers_find(&f);
    values_find(&f);
    for (const struct fusion *with = table[g->backend]; with->fn; with++) {
        f.dtypes = with->dtypes;
        for (int i = 0; i < g->nnodes; i++)
            for (int at = f.into[i] == i ? i : -1; at >= 0;)
                at = with->fn(&f, at);
    }
    nodes_close(&f);
}
