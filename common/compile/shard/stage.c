// SPDX-License-Identifier: Apache-2.0
// Stages of a pipeline. See stage.h.
#include "common/compile/shard/stage.h"

void stages_assign(struct graph *g, const struct job *job)
{
    for (int i = 0; i < g->nnodes; i++) {
        int last = job_stages(job) * job_chunks(job) - 1, place = 0;
        for (int64_t end = job_stage_layers(job, 0); place < last && g->nodes[i].layer >= end;)
            end += job_stage_layers(job, ++place);
        g->nodes[i].place = place;
    }
}

// ---- who runs what ------------------------------------------------------------------------------

struct cut {
    struct graph *g;
    int nstages;
    uint64_t all;      // stages
    uint64_t *read;    // value → stages whose forward or backward reads it
    int *first, *last; // value → the first and the last place where that happens
    int *root;         // value → the one whose buffer it shares by alias
    bool *part;        // value → of a gradient that several stages have a part of
    int *summed;       // such a value → its version after the sum over the stages, −1
    struct node *old;
    int nold;
    struct err *err;
    bool sends_keys; // a cache would cross stages: it stays where its rows are made
};

static bool is_in_update(const struct node *n)
{
    return n->phase == PHASE_UPDATE;
}

static uint64_t stage_bit(int stage)
{
    return (uint64_t)1 << stage;
}

static int find_lowest_stage(uint64_t stages)
{
    return __builtin_ctzll(stages);
}

static int chunk_at(const struct cut *c, int place)
{
    return place / c->nstages;
}

static void place_node(const struct cut *c, struct node *n)
{
    n->stage = n->place % c->nstages;
    n->chunk = is_in_update(n) ? 0 : chunk_at(c, n->place);
}

static void find_roots(struct cut *c)
{
    struct graph *g = c->g;
    for (int v = 0; v < g->nvalues; v++) {
        int r = v;
        while (g->values[r].alias >= 0)
            r = g->values[r].alias;
        c->root[v] = r;
        c->summed[v] = -1;
    }
}

// What reads a value when; back from the end, since what the first microbatch makes for the step
// (a parameter in another dtype) is made by each stage that reads it.
static void find_readers(struct cut *c)
{
    const struct graph *g = c->g;
    for (int i = g->nnodes - 1; i >= 0; i--) {
        const struct node *n = &g->nodes[i];
        uint64_t stages = stage_bit(n->stage);
        if (is_in_update(n) || n->when == LAST_MICROBATCH)
            continue;
        if (n->when == FIRST_MICROBATCH)
            stages = c->read[n->out[0]];
        for (int k = 0; k < n->nin; k++) {
            int v = n->in[k];
            c->first[v] = c->read[v] && c->first[v] < n->place ? c->first[v] : n->place;
            c->last[v] = c->last[v] > n->place ? c->last[v] : n->place;
            c->read[v] |= stages;
        }
    }
}

// Puts leaves on the stages that read them, and what belongs to a parameter on its stages.
static void place_leaves(struct cut *c)
{
    struct graph *g = c->g;
    for (int v = 0; v < g->nvalues; v++)
        if (g->values[v].producer < 0)
            g->values[v].stages = c->read[v];
    for (int v = 0; v < g->nvalues; v++) {
        struct value *val = &g->values[v];
        if (val->kind == VALUE_SUM || val->kind == VALUE_STATE)
            val->stages = val->of < 0 ? c->all : g->values[val->of].stages;
        if (val->kind == VALUE_SCALAR)
            val->stages = c->all;
    }
}

// A gradient is brought to its cut by every stage that has a part of it, a parameter updated by
// every stage that has it; its norm counts once.
static uint64_t find_stages(const struct cut *c, const struct node *n)
{
    if (n->when == FIRST_MICROBATCH)
        return c->read[n->out[0]];
    if (!is_in_update(n) && n->when != LAST_MICROBATCH)
        return stage_bit(n->stage);
    uint64_t stages = c->all;
    for (int k = 0; k < n->nin; k++)
        stages &= c->g->values[c->root[n->in[k]]].stages;
    return n->kind == NODE_OP && op_is(n->op, OP_COUNTS_ONCE) ? stage_bit(find_lowest_stage(stages))
                                                              : stages;
}

static int place_nodes(struct cut *c)
{
    struct graph *g = c->g;
    for (int i = 0; i < g->nnodes; i++) {
        struct node *n = &g->nodes[i];
        n->stages = find_stages(c, n);
        if (!n->stages)
            return err_set(c->err, ERR_INTERNAL, "node %d reads what no one stage has", i);
        for (int k = 0; k < n->nout; k++)
            g->values[n->out[k]].stages |= n->stages;
    }
    return 0;
}

// ---- what ties stages together ------------------------------------------------------------------

static const char *name_send(const struct graph *g, const struct node *made_by, int value)
{
    const struct value *v = &g->values[value];
    if (v->name)
        return v->name;
    bool gradient = made_by->phase == PHASE_BACKWARD && !made_by->again;
    return arena_printf(g->arena, "%s%s/%s", gradient ? "grad/" : "", g->scopes[made_by->scope],
                        point_name(v->point));
}

// Sends a value to the next place or the one before, unless the stage there has it already.
static void add_send(struct cut *c, const struct node *made_by, int value, int from, int to)
{
    struct graph *g = c->g;
    int peer = to % c->nstages;
    const int whole = g->values[value].alias;
    if (g->values[value].stages & stage_bit(peer))
        return;
    c->sends_keys |= whole >= 0 && g->values[whole].kind == VALUE_CACHE;
    g->values[value].stages |= stage_bit(peer);
    struct node n = *made_by;
    n.kind = NODE_SEND;
    n.what = name_send(g, made_by, value);
    n.nin = 1;
    n.in[0] = value;
    n.nout = 0;
    n.place = from;
    place_node(c, &n);
    n.peer = peer;
    n.peer_chunk = chunk_at(c, to);
    n.stages = stage_bit(n.stage) | stage_bit(peer);
    graph_node(g, &n);
}

// From its place up to the last that reads it, and down to the first.
static void add_sends(struct cut *c, const struct node *made_by, int value)
{
    const uint64_t *have = &c->g->values[value].stages;
    if (is_in_update(made_by) || !(c->read[value] & ~*have))
        return;
    for (int at = made_by->place; at < c->last[value] && c->read[value] & ~*have; at++)
        add_send(c, made_by, value, at, at + 1);
    for (int at = made_by->place; at > c->first[value] && c->read[value] & ~*have; at--)
        add_send(c, made_by, value, at, at - 1);
}

// A version of the gradient with the other stages' parts in it.
static int sum_over_stages(struct cut *c, const struct node *reader, int value)
{
    struct graph *g = c->g;
    struct value v = g->values[value];
    if (c->summed[value] >= 0)
        return c->summed[value];
    int made = graph_value(g, v.kind, v.name, v.dtype, v.shape.n, v.dims, v.shape.dim);
    struct value *w = &g->values[made];
    w->point = v.point;
    w->of = v.of;
    w->alias = value;
    w->spec = v.spec;
    w->stages = g->values[c->root[value]].stages;
    graph_node(g, &(struct node){.kind = NODE_STAGE_SUM,
                                 .what = v.name,
                                 .nin = 1,
                                 .in = {value},
                                 .nout = 1,
                                 .out = {made},
                                 .scope = reader->scope,
                                 .stage = find_lowest_stage(w->stages),
                                 .stages = w->stages,
                                 .phase = PHASE_UPDATE});
    return c->summed[value] = made;
}

// A reshard or cast of a stage's partial sum is partial too; any other node of the update reads the
// sum over the stages.
static void replace_inputs(struct cut *c, struct node *n)
{
    for (int k = 0; k < n->nin; k++) {
        int v = n->in[k];
        if (c->summed[v] >= 0)
            n->in[k] = c->summed[v];
        else if (c->part[v] && (n->kind == NODE_RESHARD || n->op == OP_CAST))
            c->part[n->out[0]] = true;
        else if (c->part[v] && is_in_update(n))
            n->in[k] = sum_over_stages(c, n, v);
    }
}

static void find_parts(struct cut *c)
{
    const struct graph *g = c->g;
    for (int i = 0; i < g->nsums; i++) {
        const struct value *v = &g->values[g->sums[i].value];
        c->part[g->sums[i].value] =
            v->of >= 0 && (v->stages & (v->stages - 1)) != 0; // of several stages
    }
}

static void rebuild_nodes(struct cut *c)
{
    struct graph *g = c->g;
    struct arena scratch = {0};
    c->old = arena_dup(&scratch, g->nodes, sizeof *g->nodes * (size_t)g->nnodes);
    c->nold = g->nnodes;
    g->nnodes = 0;
    find_parts(c);
    for (int i = 0; i < c->nold; i++) {
        struct node n = c->old[i];
        replace_inputs(c, &n);
        graph_node(g, &n);
        for (int k = 0; k < n.nout; k++)
            add_sends(c, &n, n.out[k]);
    }
    arena_clear(&scratch);
}

int stages_cut(struct graph *g, int nstages, struct err *e)
{
    struct cut c = {.g = g, .nstages = nstages, .err = e};
    c.all = nstages < 64 ? stage_bit(nstages) - 1 : ~(uint64_t)0;
    c.read = arena_array(g->arena, uint64_t, g->nvalues);
    c.first = arena_array(g->arena, int, g->nvalues);
    c.last = arena_array(g->arena, int, g->nvalues);
    c.root = arena_array(g->arena, int, g->nvalues);
    c.part = arena_array(g->arena, bool, g->nvalues);
    c.summed = arena_array(g->arena, int, g->nvalues);
    for (int i = 0; i < g->nnodes; i++)
        place_node(&c, &g->nodes[i]);
    find_roots(&c);
    find_readers(&c);
    place_leaves(&c);
    int rc = place_nodes(&c);
    if (!rc && nstages > 1)
        rebuild_nodes(&c);
    return rc || !c.sends_keys
               ? rc
               : err_set(e, ERR_UNSUPPORTED,
                         "layers of several stages read the keys of one: a pipeline keeps none "
                         "of these");
}
