// SPDX-License-Identifier: Apache-2.0
// Which values share a buffer. See sharing.h.
#include "common/compile/program/sharing.h"

#include <string.h>

#include "common/compile/graph/optable.h"

// Whether this stage runs a node.
static bool runs_here(const struct sharing *s, const struct node *n)
{
    return n->stages >> s->stage & 1;
}

static void find_roots(struct sharing *s)
{
    const struct graph *g = s->g;
    for (int v = 0; v < g->nvalues; v++)
        s->root[v] = v;
    for (int i = 0; i < g->nsums; i++)
        for (int c = 0, first = 1; c < g->sums[i].n; c++) {
            int v = g->sums[i].contrib[c];
            s->root[v] = g->sums[i].value;
            s->first_of[v] = first ? 1 : 2;
            first &= !runs_here(s, &g->nodes[g->values[v].producer]);
        }
    // Aliases point at what was there before them; follow each to its end.
    for (int v = 0; v < g->nvalues; v++) {
        int r = v;
        while (g->values[r].alias >= 0 || s->root[r] != r)
            r = g->values[r].alias >= 0 ? g->values[r].alias : s->root[r];
        s->root[v] = r;
    }
}

static void find_last_reads(struct sharing *s)
{
    for (int v = 0; v < s->g->nvalues; v++)
        s->last_read[v] = -1;
    for (int n = 0; n < s->g->nnodes; n++)
        for (int k = 0; k < s->g->nodes[n].nin && runs_here(s, &s->g->nodes[n]); k++)
            s->last_read[s->root[s->g->nodes[n].in[k]]] = n;
}

struct shape sharing_shape(const struct sharing *s, int value)
{
    const struct value *v = &s->g->values[value];
    return spec_local(&v->spec, s->mesh, &v->shape);
}

bool sharing_all_microbatches(const struct sharing *s, int root)
{
    const struct value *v = &s->g->values[root];
    return v->kind != VALUE_TEMP ||
           (v->producer >= 0 && s->g->nodes[v->producer].when == FIRST_MICROBATCH);
}

static bool same_labels(const struct node *n, int in, int out)
{
    return memcmp(n->attr.label[in], n->attr.label[n->nin + out], sizeof n->attr.label[in]) == 0;
}

// A value's root, once roots have been joined: chains are cut short on the way.
static int root_of(struct sharing *s, int v)
{
    while (s->root[s->root[v]] != s->root[v])
        s->root[v] = s->root[s->root[v]];
    return s->root[v];
}

// Whether output k of a node may lie over an input: a temporary of its own shape and dtype, which
// it reads last, once, and in the same order.
static bool may_cover(struct sharing *s, int node, int input, int output)
{
    const struct graph *g = s->g;
    const struct node *n = &g->nodes[node];
    int in = root_of(s, n->in[input]), out = n->out[output];
    struct shape a = sharing_shape(s, n->in[input]), b = sharing_shape(s, out);
    bool free = s->root[out] == out && g->values[in].kind == VALUE_TEMP &&
                s->last_read[in] == node && shape_equal(&a, &b) &&
                g->values[in].dtype == g->values[out].dtype && !sharing_all_microbatches(s, in) &&
                same_labels(n, input, output);
    for (int k = 0; k < n->nin && free; k++)
        free = k == input || root_of(s, n->in[k]) != in;
    return free;
}

// An elementwise op writes over its first input, a fused one each output over some input, where
// that may be. The choice is made on the graph, so it holds for every microbatch.
static void find_in_place(struct sharing *s)
{
    const struct graph *g = s->g;
    for (int i = 0; i < g->nnodes; i++) {
        const struct node *n = &g->nodes[i];
        if (!runs_here(s, n) || n->kind != NODE_OP || !op_is(n->op, OP_IN_PLACE) ||
            (n->nout != 1 && !op_is(n->op, OP_IS_FUSED)))
            continue;
        int inputs = op_is(n->op, OP_IS_FUSED) ? n->nin : 1;
        for (int o = 0; o < n->nout; o++)
            for (int k = 0; k < inputs; k++) {
                if (!may_cover(s, i, k, o))
                    continue;
                int in = root_of(s, n->in[k]);
                s->root[n->out[o]] = in;
                s->last_read[in] = s->last_read[n->out[o]];
                break;
            }
    }
    for (int v = 0; v < g->nvalues; v++)
        s->root[v] = root_of(s, v);
}

void sharing_find(struct sharing *s, const struct graph *g, const struct mesh *m, int stage,
                  struct arena *a)
{
    *s = (struct sharing){.g = g,
                          .mesh = m,
                          .stage = stage,
                          .root = arena_array(a, int, g->nvalues),
                          .last_read = arena_array(a, int, g->nvalues),
                          .first_of = arena_array(a, int, g->nvalues)};
    find_roots(s);
    find_last_reads(s);
    find_in_place(s);
}
