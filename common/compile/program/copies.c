// SPDX-License-Identifier: Apache-2.0
// Parameters' copies. See copies.h.
#include "common/compile/program/copies.h"

#include <string.h>

#include "common/compile/graph/operand.h"

enum { NONE = -1, PARTS = -2 };

struct copies {
    struct graph *g;
    const struct graph *train;
    int *writer; // parameter → the update that writes the whole of it; NONE: nobody; PARTS
    int *copy;   // parameter → its copy, −1
    int *now;    // value → what is read in its place
};

static void find_writers(struct copies *c)
{
    const struct graph *g = c->g;
    for (int i = 0; i < g->nnodes; i++) {
        const struct node *n = &g->nodes[i];
        for (int k = 0; k < n->nout; k++) {
            int param = g->values[n->out[k]].alias;
            if (param < 0 || g->values[param].kind != VALUE_PARAM)
                continue;
            bool whole = n->kind == NODE_OP && op_is(n->op, OP_IS_UPDATE) && k == 0 &&
                         n->in[0] == param && c->writer[param] == NONE;
            c->writer[param] = whole ? i : PARTS;
        }
    }
}

static bool may_keep(const struct copies *c, int param, uint64_t stages)
{
    const struct graph *g = c->g;
    int writer = c->writer[param];
    if (c->train) {
        // Whether the training program keeps a copy of the parameter on all of these stages.
        for (int v = 0; v < c->train->nvalues; v++) {
            const struct value *val = &c->train->values[v];
            if (val->kind == VALUE_COPY &&
                strcmp(c->train->values[val->of].name, g->values[param].name) == 0)
                return !(stages & ~val->stages);
        }
        return false;
    }
    return writer == NONE || (writer >= 0 && !(stages & ~g->nodes[writer].stages));
}

static bool is_cast(const struct copies *c, const struct node *n)
{
    const struct graph *g = c->g;
    if (!node_casts_param(n))
        return false;
    const struct value *from = &g->values[n->in[0]], *to = &g->values[n->out[0]];
    return from->kind == VALUE_PARAM && to->dtype == DT_BF16 && n->attr.scale == 1 &&
           operand_same_loops(n, 0, 1) && spec_equal(&from->spec, &to->spec) &&
           may_keep(c, n->in[0], n->stages);
}

// The cast's output becomes the copy, or stands for the one that there is: a parameter that two
// stages read is cast on each.
static void keep_cast(struct copies *c, const struct node *cast)
{
    struct graph *g = c->g;
    int param = cast->in[0], made = cast->out[0];
    if (c->copy[param] >= 0) {
        c->now[made] = c->copy[param];
        g->values[c->copy[param]].stages |= cast->stages;
        return;
    }
    struct value *v = &g->values[made];
    v->kind = VALUE_COPY;
    v->name = arena_printf(g->arena, "%s/%s", dtype_name(v->dtype), g->values[param].name);
    v->of = param;
    v->stages = cast->stages;
    c->copy[param] = made;
}

static void drop_casts(struct copies *c)
{
    struct graph *g = c->g;
    bool *dropped = arena_array(g->arena, bool, g->nnodes);
    for (int i = 0; i < g->nnodes; i++) {
        struct node *n = &g->nodes[i];
        dropped[i] = is_cast(c, n);
        if (dropped[i])
            keep_cast(c, n);
        for (int k = 0; k < n->nin && !dropped[i]; k++)
            n->in[k] = c->now[n->in[k]];
    }
    graph_drop_nodes(g, dropped);
}

static void write_in_update(struct graph *g, struct node *n, int copy)
{
    struct value like = g->values[copy];
    int made =
        graph_value(g, VALUE_TEMP, NULL, like.dtype, like.shape.n, like.dims, like.shape.dim);
    struct value *v = &g->values[made];
    v->alias = copy;
    v->of = like.of;
    v->spec = like.spec;
    v->stages = n->stages;
    v->producer = (int)(n - g->nodes);
    memcpy(n->attr.label[n->nin + n->nout], n->attr.label[n->nin], sizeof n->attr.label[0]);
    n->out[n->nout++] = made;
}

void copies_make(struct graph *g, const struct graph *train)
{
    struct copies c = {.g = g,
                       .train = train,
                       .writer = arena_array(g->arena, int, g->nvalues),
                       .copy = arena_array(g->arena, int, g->nvalues),
                       .now = arena_array(g->arena, int, g->nvalues)};
    for (int v = 0; v < g->nvalues; v++) {
        c.writer[v] = c.copy[v] = -1;
        c.now[v] = v;
    }
    find_writers(&c);
    drop_casts(&c);
    for (int i = 0; i < g->nnodes; i++) {
        struct node *n = &g->nodes[i];
        bool update = n->kind == NODE_OP && op_is(n->op, OP_IS_UPDATE);
        if (update && c.copy[n->in[0]] >= 0)
            write_in_update(g, n, c.copy[n->in[0]]);
    }
}
