// SPDX-License-Identifier: Apache-2.0
// The pass that fuses, and the table of what each backend has. See fuse.h.
#include "common/compile/program/fuse.h"

#include "common/compile/program/fuse_match.h"

struct fusion {
    fuse_fn *fn;
    bool dtypes[DT_COUNT];
};

enum { FUSIONS = 9 };

// A backend's fusions, those that it has kernels for, in the order in which they are tried, each
// over the whole graph. The last place stays empty.
static const struct fusion table[BACKEND_KINDS][FUSIONS] = {
    [BACKEND_CPU] = {{fuse_row_loss, {[DT_F32] = true, [DT_I32] = true}},
                     {fuse_row_loss_grad, {[DT_F32] = true, [DT_I32] = true}},
                     {fuse_row_loss_both, {[DT_F32] = true, [DT_I32] = true}},
                     {fuse_norm_grad_add, {[DT_F32] = true}},
                     {fuse_places, {[DT_F32] = true, [DT_BF16] = true}},
                     {fuse_chain, {[DT_F32] = true}},
                     {fuse_add_norm, {[DT_F32] = true}}},
    [BACKEND_CUDA] = {{fuse_row_loss, {[DT_F32] = true, [DT_BF16] = true, [DT_I32] = true}},
                      {fuse_row_loss_grad, {[DT_F32] = true, [DT_BF16] = true, [DT_I32] = true}},
                      {fuse_row_loss_both, {[DT_F32] = true, [DT_BF16] = true, [DT_I32] = true}},
                      {fuse_norm_grad_add, {[DT_F32] = true, [DT_BF16] = true}},
                      {fuse_norm_grads, {[DT_F32] = true, [DT_BF16] = true}},
                      {fuse_chain, {[DT_F32] = true, [DT_BF16] = true}},
                      {fuse_add_norm, {[DT_F32] = true, [DT_BF16] = true}},
                      {fuse_matmul_sum, {[DT_F32] = true, [DT_BF16] = true}}},
};

static void find_pinned_values(struct fuse *f)
{
    const struct graph *g = f->g;
    f->named = arena_array(g->arena, bool, g->nvalues);
    f->pinned = arena_array(g->arena, bool, g->nvalues);
    f->shares = arena_array(g->arena, int, g->nvalues);
    for (int v = 0; v < g->nvalues; v++) {
        const struct value *val = &g->values[v];
        f->named[v] = val->name != NULL;
        f->pinned[v] |= val->kind == VALUE_SUM || val->kind == VALUE_STATE;
        if (val->alias >= 0)
            f->pinned[val->alias] = true;
    }
    for (int s = 0; s < g->nsums; s++)
        for (int c = 0; c < g->sums[s].n; c++) {
            f->pinned[g->sums[s].contrib[c]] = true;
            f->shares[g->sums[s].contrib[c]] = g->sums[s].n;
        }
    if (g->metrics >= 0)
        f->named[g->metrics] = true;
}

void fuse_nodes(struct graph *g)
{
    struct fuse f = {.g = g};
    f.into = arena_array(g->arena, int, g->nnodes);
    for (int i = 0; i < g->nnodes; i++)
        f.into[i] = i;
    graph_find_readers(g, &f.first, &f.readers);
    find_pinned_values(&f);
    for (const struct fusion *with = table[g->backend]; with->fn; with++) {
        f.dtypes = with->dtypes;
        for (int i = 0; i < g->nnodes; i++)
            for (int at = f.into[i] == i ? i : -1; at >= 0;)
                at = with->fn(&f, at);
    }
    bool *fused = arena_array(g->arena, bool, g->nnodes);
    for (int i = 0; i < g->nnodes; i++)
        fused[i] = f.into[i] != i;
    graph_drop_nodes(g, fused);
}
