// SPDX-License-Identifier: Apache-2.0
// The parts of stages. See part.h.
#include "common/compile/program/part.h"

struct finding_parts {
    const struct graph *g;
    struct stage_part *parts;
    struct arena *arena;
    uint64_t *has; // value → the stages that list it, a bit each
    int *sum_of;   // value → the sum that it is a contribution to, −1
};

static void add_id(struct finding_parts *f, struct id_list *to, int id)
{
    to->at = arena_grow(f->arena, to->at, sizeof *to->at, to->n, &to->cap);
    to->at[to->n++] = id;
}

// Lists a value for these stages, and the values in whose buffers it may lie: what it is an alias
// of, its sum, and the parameter that a copy is made of, which is there with it.
static void add_value(struct finding_parts *f, int value, uint64_t stages)
{
    for (int next; value >= 0 && stages & ~f->has[value]; value = next) {
        const struct value *v = &f->g->values[value];
        uint64_t added = stages & ~f->has[value];
        f->has[value] |= added;
        for (; added; added &= added - 1)
            add_id(f, &f->parts[__builtin_ctzll(added)].values, value);
        if (v->kind == VALUE_COPY)
            add_value(f, v->of, stages);
        next = v->alias >= 0 ? v->alias : f->sum_of[value];
    }
}

static void add_node(struct finding_parts *f, int node)
{
    const struct node *n = &f->g->nodes[node];
    for (uint64_t s = n->stages; s; s &= s - 1)
        add_id(f, &f->parts[__builtin_ctzll(s)].nodes, node);
    for (int k = 0; k < n->nin; k++)
        add_value(f, n->in[k], n->stages);
    for (int k = 0; k < n->nout; k++)
        add_value(f, n->out[k], n->stages);
}

static void find_sums(struct finding_parts *f)
{
    const struct graph *g = f->g;
    for (int v = 0; v < g->nvalues; v++)
        f->sum_of[v] = -1;
    for (int i = 0; i < g->nsums; i++)
        for (int c = 0; c < g->sums[i].n; c++)
            f->sum_of[g->sums[i].contrib[c]] = g->sums[i].value;
}

static const struct readers *find_readers(const struct graph *g, struct arena *a)
{
    struct readers *of = arena_array(a, struct readers, g->nvalues);
    for (int i = 0; i < g->nnodes; i++) {
        const struct node *n = &g->nodes[i];
        for (int k = 0; k < n->nin; k++) {
            struct readers *r = &of[n->in[k]];
            r->n++;
            r->others |= n->kind != NODE_OP;
            r->ops |= n->kind == NODE_OP && !op_is(n->op, OP_MAKES_PIECES);
        }
        for (int k = 0; k < n->nout; k++)
            of[n->out[k]].others |= n->kind != NODE_OP;
    }
    return of;
}

const struct stage_part *parts_find(const struct graph *g, int n, struct arena *a)
{
    struct finding_parts f = {.g = g,
                              .parts = arena_array(a, struct stage_part, n),
                              .arena = a,
                              .has = arena_array(a, uint64_t, g->nvalues),
                              .sum_of = arena_array(a, int, g->nvalues)};
    const struct readers *of = find_readers(g, a);
    for (int s = 0; s < n; s++)
        f.parts[s].readers = of;
    find_sums(&f);
    for (int i = 0; i < g->nnodes; i++)
        add_node(&f, i);
    add_value(&f, g->metrics, n < 64 ? ((uint64_t)1 << n) - 1 : ~(uint64_t)0);
    for (int i = 0; i < g->nsums; i++)
        for (uint64_t s = f.has[g->sums[i].value]; s; s &= s - 1)
            add_id(&f, &f.parts[__builtin_ctzll(s)].sums, i);
    return f.parts;
}
