// SPDX-License-Identifier: Apache-2.0
// The update of a step. See optimiser.h.
#include "common/compile/graph/optimiser.h"

#include "common/compile/graph/norm_groups.h"

static const enum dim none[1] = {DIM_NONE};

static int add_slots(struct graph *g, const char *name, int64_t n)
{
    return graph_value(g, VALUE_SCALAR, name, DT_F32, 1, none, &n);
}

static int make_vector(struct graph *g, enum op op, int nin, const int *in, int64_t n,
                       const struct op_attr *attr)
{
    return graph_op(g, &(struct op_args){.op = op,
                                         .nin = nin,
                                         .in = in,
                                         .nout_dims = 1,
                                         .out_dims = none,
                                         .attr = attr,
                                         .sizes = &n});
}

// The parameter's group: the first whose pattern matches.
static struct op_attr choose_attributes(const struct job_optimizer *o, const char *name)
{
    struct op_attr a = {
        .beta1 = o->kind == JOB_MOMENTUM ? o->momentum : o->beta1,
        .beta2 = o->beta2,
        .eps = (float)o->eps,
        .decay = (float)o->weight_decay,
        .lr_scale = 1,
        .nesterov = o->nesterov,
    };
    const struct job_param_group *group = job_group_of(o, name);
    if (group) {
        a.decay = (float)group->weight_decay;
        a.lr_scale = (float)group->lr_scale;
    }
    return a;
}

// Op and state tensors of each kind; decay of adam and sgd is 0 by the job's own rule.
static const struct {
    enum op op;
    int states;
    const char *state[2];
} kinds[] = {
    [JOB_SGD] = {OP_SGD, 0, {0}},
    [JOB_MOMENTUM] = {OP_MOMENTUM, 1, {"momentum"}},
    [JOB_ADAM] = {OP_ADAM, 2, {"m", "v"}},
    [JOB_ADAMW] = {OP_ADAM, 2, {"m", "v"}},
};

static void update_param(struct graph *g, const struct job_optimizer *o, int param, int grad,
                         int clip, int hyper)
{
    struct value p = g->values[param];
    struct op_attr attr = choose_attributes(o, p.name);
    int in[6] = {param, grad}, n = 2;
    for (int i = 0; i < kinds[o->kind].states; i++) {
        const char *name = arena_printf(g->arena, "%s/%s", kinds[o->kind].state[i], p.name);
        int s = graph_value(g, VALUE_STATE, name, DT_F32, p.shape.n, p.dims, p.shape.dim);
        g->values[s].of = param;
        in[n++] = s;
    }
    in[n++] = clip;
    in[n++] = hyper;
    int out = graph_shaped(g, kinds[o->kind].op, n, in, param, &attr, DT_NONE);
    if (g->failed)
        return;
    g->values[out].alias = param;
    for (int i = 0; i < kinds[o->kind].states; i++)
        g->values[out + 1 + i].alias = in[2 + i];
}

static int build_norm(struct graph *g)
{
    int total = -1, sums = g->nsums;
    struct op_attr attr = {.scale = 1};
    for (int i = 0; i < sums; i++) {
        int grad = g->sums[i].value;
        if (g->values[grad].of < 0)
            continue;
        int part =
            graph_op(g, &(struct op_args){.op = OP_SQNORM, .nin = 1, .in = &grad, .attr = &attr});
        if (g->failed)
            return -1;
        if (total < 0)
            total = graph_sum(g, "sqnorm", -1, part);
        graph_contribute(g, total, part);
    }
    return total;
}

static int join_some(struct graph *g, int n, const int *in)
{
    int64_t slots = 0;
    for (int i = 0; i < n; i++)
        slots += shape_count(&g->values[in[i]].shape);
    return make_vector(g, OP_METRICS, n, in, slots, NULL);
}

// Joins operands into one vector, also more of them than an op takes: those of the first parts are
// joined first, and stay as every device has them until the whole is summed.
static int join_vectors(struct graph *g, int n, int *in)
{
    while (n > OP_MAX_IN) {
        in[0] = join_some(g, OP_MAX_IN, in);
        if (g->failed)
            return 0;
        g->values[in[0]].open = true;
        n -= OP_MAX_IN - 1;
        for (int i = 1; i < n; i++)
            in[i] = in[i + OP_MAX_IN - 1];
    }
    int joined = join_some(g, n, in);
    g->values[joined].name = "metrics";
    return joined;
}

// Returns the place among the metrics at which the numbers of a part begin.
static int64_t find_part(const struct graph *g, int part)
{
    int64_t at = METRIC_PARTS;
    for (int i = 0; i < part; i++)
        at += g->parts[i].count;
    return at;
}

static void build_balances(struct graph *g, int clip)
{
    for (int i = 0; i < g->nbalances && !g->failed; i++) {
        const struct balance *b = &g->balances[i];
        struct op_attr attr = {.scale = b->rate, .start = find_part(g, b->part)};
        int in[3] = {b->param, g->metrics, clip};
        int out = graph_shaped(g, OP_BALANCE, 3, in, b->param, &attr, DT_NONE);
        if (!g->failed)
            g->values[out].alias = b->param;
    }
}

static bool is_balanced(const struct graph *g, int param)
{
    for (int i = 0; i < g->nbalances; i++)
        if (g->balances[i].param == param)
            return true;
    return false;
}

int optimiser_freeze(struct graph *g, const struct job_optimizer *o)
{
    int moving = 0, line = 0;
    for (int v = 0; v < g->nvalues && !g->failed; v++) {
        if (g->values[v].kind != VALUE_PARAM)
            continue;
        const struct job_param_group *group = job_group_of(o, g->values[v].name);
        bool asked = group && group->freeze;
        g->values[v].frozen = asked || is_balanced(g, v);
        line = asked ? group->line : line;
        moving += !g->values[v].frozen;
    }
    if (!g->failed && !moving) {
        const char *where = line ? arena_printf(g->arena, " (line %d)", line) : "";
        g->failed = err_set(g->err, ERR_INVALID,
                            "optimizer.groups%s: every parameter is frozen: nothing would be "
                            "trained; a narrower match would leave some",
                            where);
    }
    return g->failed;
}

static void begin_update(struct graph *g)
{
    g->phase = PHASE_UPDATE;
    graph_scope(g, "update");
    graph_at(g, POINT_NONE);
}

int optimiser_build(struct graph *g, const struct job_optimizer *o, bool detail)
{
    if (g->failed)
        return g->failed;
    begin_update(g);
    int *in = arena_array(g->arena, int, METRIC_PARTS + g->nparts + 1), n = 0, sums = g->nsums;
    int norm = build_norm(g);
    int control = add_slots(g, "control", CONTROL_SLOTS);
    int hyper = add_slots(g, "hyper", HYPER_SLOTS);
    in[n++] = g->loss;
    in[n++] = norm;
    in[n++] = control;
    for (int i = 0; i < g->nparts; i++)
        in[n++] = g->parts[i].value;
    const char **groups;
    if (detail)
        in[n++] = add_slots(g, "detail", 2 * (int64_t)norm_groups(g, g->arena, &groups));
    if (g->failed)
        return g->failed;
    g->metrics = join_vectors(g, n, in);
    struct op_attr clip = {.clip_norm = (float)o->clip_norm};
    int scale = make_vector(g, OP_CLIP, 1, &g->metrics, CLIP_SLOTS, &clip);
    for (int i = 0; i < sums && !g->failed; i++) {
        int grad = g->sums[i].value, param = g->values[grad].of;
        if (param >= 0)
            update_param(g, o, param, grad, scale, hyper);
    }
    build_balances(g, scale);
    return g->failed;
}

int optimiser_build_eval(struct graph *g)
{
    if (g->failed)
        return g->failed;
    begin_update(g);
    int *in = arena_array(g->arena, int, 1 + g->nparts);
    in[0] = g->loss;
    for (int i = 0; i < g->nparts; i++)
        in[1 + i] = g->parts[i].value;
    g->metrics = join_vectors(g, 1 + g->nparts, in);
    return g->failed;
}
