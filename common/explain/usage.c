// SPDX-License-Identifier: Apache-2.0
// Unused axes and repeated work. See usage.h.
#include "common/explain/usage.h"

#include <fnmatch.h>
#include <string.h>

#include "common/compile/graph/node_work.h"
#include "common/compile/graph/optable.h"
#include "common/explain/cost.h"
#include "common/explain/fixes.h"

enum { REPEATED_PERCENT = 25 }; // of the matmuls: a small head may well be repeated

// Every axis that cuts some value.
static axis_set find_used_axes(const struct graph *g)
{
    axis_set used = 0;
    for (int v = 0; v < g->nvalues; v++)
        used |= spec_axes(&g->values[v].spec);
    return used;
}

// Axes over which a share of the matmuls' work worth a word is repeated.
static axis_set find_repeated_axes(const struct program *p)
{
    const struct graph *g = p->graph;
    double all = 0, on[MESH_MAX_AXES] = {0};
    axis_set repeated = 0;
    for (int i = 0; i < g->nnodes; i++) {
        const struct node *n = &g->nodes[i];
        if (n->kind != NODE_OP || n->again || !op_row(n->op)->flops)
            continue;
        const struct spec *out = &g->values[n->out[0]].spec;
        axis_set split = spec_axes(out) | out->partial_sum;
        double flops = node_flops(g, &p->mesh, n);
        all += flops;
        for (int a = 0; a < p->mesh.n; a++)
            on[a] += split >> a & 1 ? 0 : flops;
    }
    for (int a = 0; a < p->mesh.n; a++)
        if (mesh_cuts(&p->mesh) >> a & 1 && on[a] * 100 > all * REPEATED_PERCENT)
            repeated |= (axis_set)(1u << a);
    return repeated;
}

// A device's samples of a microbatch; 0: it reads none.
static int64_t count_local_batch(const struct compiled *c)
{
    const struct graph *g = compiled_program(c, PROGRAM_TRAIN, 0)->graph;
    for (int v = 0; v < g->nvalues; v++)
        if (g->values[v].kind == VALUE_INPUT)
            return spec_local(&g->values[v].spec, &c->mesh, &g->values[v].shape).dim[0];
    return 0;
}

// The batch's rule with the axes put behind, where the batch still divides.
static const char *fix_batch_rule(const struct compiled *c, const struct job *job, axis_set axes,
                                  struct arena *a)
{
    const struct mesh *m = &c->mesh;
    const struct job_rule *rule = job_rule_find(&job->sharding, "batch");
    int64_t shards = mesh_product(m, axes), local = count_local_batch(c);
    struct buf b = {0};
    if (!rule || !local || local % shards)
        return NULL;
    buf_puts(&b, "sharding.rules.batch=[");
    for (int i = 0; i < rule->axes.n; i++)
        buf_printf(&b, "%s, ", rule->axes.name[i]);
    for (int i = 0, n = 0; i < m->n; i++)
        if (axes >> i & 1)
            buf_printf(&b, "%s%s", n++ ? ", " : "", m->axis[i].name);
    buf_putc(&b, ']');
    return buf_keep(&b, a);
}

// Axes that an error names already: with it mended they will cut something.
static axis_set find_blamed_axes(const struct findings *f)
{
    axis_set axes = 0;
    for (int i = 0; i < f->n; i++)
        if (finding_is_error(f->items[i].code))
            axes |= f->items[i].axes;
    return axes;
}

static void find_unused_axes(const struct compiled *c, const struct job *job, struct arena *a,
                             struct findings *f)
{
    axis_set none = mesh_cuts(&c->mesh) &
                    (axis_set)~find_used_axes(compiled_program(c, PROGRAM_TRAIN, 0)->graph);
    none &= (axis_set)~find_blamed_axes(f);
    for (int i = 0; i < c->mesh.n; i++) {
        const struct mesh_axis *axis = &c->mesh.axis[i];
        if (!(none >> i & 1))
            continue;
        findings_add(
            f, &(struct finding){.code = FINDING_UNUSED_AXIS,
                                 .axes = (axis_set)(1u << i),
                                 .message = arena_printf(
                                     a,
                                     "axis %s of the mesh cuts nothing: its %d devices would all "
                                     "do the same; name it in a rule of sharding",
                                     axis->name, axis->size),
                                 .fix = fix_batch_rule(c, job, (axis_set)(1u << i), a)});
    }
}

// What the gathers of weights that should not be cut so would send.
static void count_gathers(const struct cost *cost, struct findings *f)
{
    for (int i = 0; i < f->n; i++)
        for (int k = 0; f->items[i].code == FINDING_WEIGHT_ON_BATCH_AXIS && k < cost->ncollectives;
             k++) {
            const struct collective_row *r = &cost->collectives[k];
            const char *match = f->items[i].like ? f->items[i].like : f->items[i].tensor;
            if (r->op == RESHARD_ALL_GATHER && r->phase != PHASE_UPDATE &&
                fnmatch(match, r->tensor, 0) == 0)
                f->items[i].waste += r->bytes;
        }
}

// The parameter that an operand is, or was gathered from; null: neither.
static const struct value *find_param(const struct graph *g, int operand)
{
    const char *name = g->values[operand].name;
    for (int v = 0; name && v < g->nvalues; v++)
        if (g->values[v].kind == VALUE_PARAM && strcmp(g->values[v].name, name) == 0)
            return &g->values[v];
    return NULL;
}

// The setting that cuts a parameter on the axes too, on the first dimension that they divide.
static const char *fix_param_cut(const struct compiled *c, const struct job *job,
                                 const struct value *v, axis_set axes, struct arena *a)
{
    struct spec spec = v->spec;
    struct shape local = spec_local(&spec, &c->mesh, &v->shape);
    int d = 0;
    while (d < v->shape.n && local.dim[d] % mesh_product(&c->mesh, axes))
        d++;
    if (d == v->shape.n || spec_axes(&spec) & axes)
        return NULL;
    for (int x = 0; x < c->mesh.n; x++)
        if (axes >> x & 1)
            dim_append(&spec.dim[d], x);
    return fix_param(&(struct fixer){a, job, c->sharding, &c->mesh}, v, &spec);
}

// The weight of the largest matmul that is not split over the axes, cut on them.
static const char *fix_weight_cut(const struct compiled *c, const struct job *job, axis_set axes,
                                  struct arena *a)
{
    const struct graph *g = compiled_program(c, PROGRAM_TRAIN, 0)->graph;
    double most = 0;
    const char *fix = NULL;
    for (int i = 0; i < g->nnodes; i++) {
        const struct node *n = &g->nodes[i];
        const struct spec *out = &g->values[n->out[0]].spec;
        double flops = n->kind == NODE_OP ? node_flops(g, &c->mesh, n) : 0;
        bool split = (spec_axes(out) | out->partial_sum) & axes;
        for (int k = 0; flops > most && !split && k < n->nin; k++) {
            const struct value *v = find_param(g, n->in[k]);
            const char *one = v ? fix_param_cut(c, job, v, axes, a) : NULL;
            fix = one ? one : fix;
            most = one ? flops : most;
        }
    }
    return fix;
}

// The default deal of the layers, where the job gave another with a larger stage.
static void find_uneven_stages(const struct compiled *c, const struct job *job, struct arena *a,
                               struct findings *f)
{
    struct job even = *job;
    struct buf fix = {0};
    int64_t most = 0;
    int slowest = 0;
    even.pipeline.stages.n = 0;
    buf_puts(&fix, "pipeline.stages=[");
    for (int s = 0; s < c->nstages * c->nchunks; s++) {
        slowest = c->layers[s] > c->layers[slowest] ? s : slowest;
        most = job_stage_layers(&even, s) > most ? job_stage_layers(&even, s) : most;
        buf_printf(&fix, "%s%lld", s ? ", " : "", (long long)job_stage_layers(&even, s));
    }
    buf_putc(&fix, ']');
    if (c->layers[slowest] > most)
        findings_add(
            f, &(struct finding){.code = FINDING_STAGE_IMBALANCE,
                                 .axes = c->mesh.stages,
                                 .message = arena_printf(
                                     a,
                                     "stage %d has %lld layers%s where %lld would do: the others "
                                     "wait for it, the bubble is %.3g",
                                     slowest % c->nstages, (long long)c->layers[slowest],
                                     c->nchunks > 1 ? " in a chunk" : "", (long long)most,
                                     c->schedule_cost.bubble),
                                 .fix = buf_keep(&fix, a)});
    buf_clear(&fix);
}

static void find_few_microbatches(const struct compiled *c, const struct job *job, struct arena *a,
                                  struct findings *f)
{
    int64_t have = job->train.microbatches, want = c->nstages;
    int64_t samples = count_local_batch(c) * have;
    if (have >= want)
        return;
    while (want <= samples && samples % want)
        want++;
    findings_add(
        f, &(struct finding){
               .code = FINDING_FEW_MICROBATCHES,
               .axes = c->mesh.stages,
               .message = arena_printf(a,
                                       "%lld microbatch%s for %d stages: some always wait, the "
                                       "bubble is %.3g",
                                       (long long)have, have == 1 ? "" : "es", c->nstages,
                                       c->schedule_cost.bubble),
               .fix = want <= samples ? arena_printf(a, "train.microbatches=%lld", (long long)want)
                                      : NULL});
}

void usage_check(const struct compiled *c, const struct job *job, struct arena *a,
                 struct findings *f)
{
    struct cost cost;
    axis_set wrong = find_blamed_axes(f);
    cost_count(c, a, &cost);
    count_gathers(&cost, f);
    find_unused_axes(c, job, a, f);
    find_uneven_stages(c, job, a, f);
    find_few_microbatches(c, job, a, f);
    axis_set axes = find_repeated_axes(compiled_program(c, PROGRAM_TRAIN, 0)) & (axis_set)~wrong;
    if (cost.utilisation * 100 > 100 - REPEATED_PERCENT || !axes)
        return;
    bool idle = !(axes & find_used_axes(compiled_program(c, PROGRAM_TRAIN, 0)->graph));
    struct buf text = {0};
    axis_set_print(&c->mesh, axes, &text);
    findings_add(
        f, &(struct finding){
               .code = FINDING_REDUNDANT,
               .axes = axes,
               .utilisation = cost.utilisation,
               .message = arena_printf(a,
                                       "devices along %s repeat each other's matmuls: %.3g of "
                                       "the work is useful",
                                       buf_str(&text), cost.utilisation),
               .fix = idle ? fix_batch_rule(c, job, axes, a) : fix_weight_cut(c, job, axes, a)});
    buf_clear(&text);
}
