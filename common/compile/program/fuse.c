// SPDX-License-Identifier: Apache-2.0
// The pass that fuses. See fuse.h.
#include "common/compile/program/fuse.h"

#include <string.h>

struct fusion {
    fuse_fn *fn;
    bool dtypes[DT_COUNT];
};

enum { FUSIONS = 8 };

// In the order they are tried, each over the whole graph; the last place stays empty. A backend's
// row lists what it has kernels for.
static const struct fusion table[BACKEND_KINDS][FUSIONS] = {
    [BACKEND_CPU] = {{fuse_row_loss, {[DT_F32] = true, [DT_I32] = true}},
                     {fuse_row_loss_grad, {[DT_F32] = true, [DT_I32] = true}},
                     {fuse_norm_grad_add, {[DT_F32] = true}},
                     {fuse_chain, {[DT_F32] = true}},
                     {fuse_add_norm, {[DT_F32] = true}}},
    [BACKEND_CUDA] = {{fuse_row_loss, {[DT_F32] = true, [DT_BF16] = true, [DT_I32] = true}},
                      {fuse_row_loss_grad, {[DT_F32] = true, [DT_BF16] = true, [DT_I32] = true}},
                      {fuse_norm_grad_add, {[DT_F32] = true, [DT_BF16] = true}},
                      {fuse_chain, {[DT_F32] = true, [DT_BF16] = true}},
                      {fuse_add_norm, {[DT_F32] = true, [DT_BF16] = true}}},
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
        f->pinned[v] |= val->kind == VALUE_SUM || val->kind == VALUE_STATE;
        if (val->alias >= 0)
            f->pinned[val->alias] = true;
    }
    for (int s = 0; s < g->nsums; s++)
        for (int c = 0; c < g->sums[s].n; c++)
            f->pinned[g->sums[s].contrib[c]] = true;
    if (g->metrics >= 0)
        f->named[g->metrics] = true;
}

// Parameters and their copies are changed in the update, long after what forward and backward read
// of them.
static bool touches_pinned(const struct fuse *f, const struct node *n)
{
    for (int k = 0; k < n->nin; k++) {
        enum value_kind kind = f->g->values[n->in[k]].kind;
        bool param = kind == VALUE_PARAM || kind == VALUE_COPY;
        if (f->pinned[n->in[k]] && (!param || n->phase == PHASE_UPDATE))
            return true;
    }
    for (int k = 0; k < n->nout; k++)
        if (f->pinned[n->out[k]] || f->g->values[n->out[k]].alias >= 0)
            return true;
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
    return a->phase == b->phase && a->when == b->when && a->stage == b->stage &&
           a->stages == b->stages && a->again == b->again;
}

bool fuse_beside(const struct fuse *f, int a, int b)
{
    const struct node *x = &f->g->nodes[a], *y = &f->g->nodes[b];
    return together(x, y) && fits(f, x) && fits(f, y);
}

int fuse_near(const struct fuse *f, int node, int k)
{
    int by = f->g->values[f->g->nodes[node].in[k]].producer;
    return by >= 0 && by < node && fuse_beside(f, by, node) ? by : -1;
}

int fuse_producer(const struct fuse *f, int node, int k)
{
    int by = fuse_near(f, node, k);
    return by >= 0 && f->g->nodes[by].scope == f->g->nodes[node].scope ? by : -1;
}

static bool same_loops(const struct node *n, int j, int k)
{
    return memcmp(n->attr.label[j], n->attr.label[k], sizeof n->attr.label[j]) == 0;
}

bool fuse_adds_alike(const struct graph *g, const struct node *n)
{
    bool alike =
        n->kind == NODE_OP && n->op == OP_ADD && same_loops(n, 0, 2) && same_loops(n, 1, 2);
    const struct value *out = alike ? &g->values[n->out[0]] : NULL;
    for (int k = 0; k < 2 && alike; k++) {
        const struct value *in = &g->values[n->in[k]];
        alike = in->dtype == out->dtype && shape_equal(&in->shape, &out->shape) &&
                spec_equal(&in->spec, &out->spec);
    }
    return alike;
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

// Whether nobody between the two reads what a makes; a itself may, having been several nodes.
static bool unread_until(const struct fuse *f, int a, int b)
{
    const struct node *n = &f->g->nodes[a];
    for (int k = 0; k < n->nout; k++)
        for (int r = f->first[n->out[k]]; r < f->first[n->out[k] + 1]; r++) {
            int reader = now(f, f->readers[r]);
            if (reader < b && reader != a)
                return false;
        }
    return true;
}

int fuse_place(const struct fuse *f, int a, int b)
{
    if (unread_until(f, a, b))
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
