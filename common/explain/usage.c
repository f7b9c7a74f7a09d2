// SPDX-License-Identifier: Apache-2.0
// Unused axes and stages that wait. See usage.h.
#include "common/explain/usage.h"

#include <fnmatch.h>

#include "common/explain/cost.h"

// Every axis that cuts some value.
static axis_set find_used_axes(const struct graph *g)
{
    axis_set used = 0;
    for (int v = 0; v < g->nvalues; v++)
        used |= spec_axes(&g->values[v].spec);
    return used;
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

static void find_unused_axes(const struct compiled *c, const struct job *job, struct arena *a,
                             struct findings *f)
{
    axis_set none = mesh_cuts(&c->mesh) &
                    (axis_set)~find_used_axes(compiled_program(c, PROGRAM_TRAIN, 0)->graph);
    none &= (axis_set)~findings_blamed_axes(f);
    for (int i = 0; i < c->mesh.n; i++) {
        axis_set axis = none & (axis_set)(1u << i);
        if (axis)
            findings_say(f,
                         (struct finding){.code = FINDING_UNUSED_AXIS,
                                          .axes = axis,
                                          .fix = fix_batch_rule(c, job, axis, a)},
                         "axis %s of the mesh cuts nothing: its %d devices would all do the same; "
                         "name it in a rule of sharding",
                         c->mesh.axis[i].name, c->mesh.axis[i].size);
    }
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
    const char *text = buf_keep(&fix, a);
    if (c->layers[slowest] > most)
        findings_say(
            f,
            (struct finding){.code = FINDING_STAGE_IMBALANCE, .axes = c->mesh.stages, .fix = text},
            "stage %d has %lld layers%s where %lld are enough: the others wait for it, the "
            "bubble is %.3g",
            slowest % c->nstages, (long long)c->layers[slowest],
            c->nchunks > 1 ? " in a chunk" : "", (long long)most, c->schedule_cost.bubble);
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
    const char *fix =
        want <= samples ? arena_printf(a, "train.microbatches=%lld", (long long)want) : NULL;
    findings_say(
        f, (struct finding){.code = FINDING_FEW_MICROBATCHES, .axes = c->mesh.stages, .fix = fix},
        "%lld microbatch%s for %d stages: some always wait, the bubble is %.3g", (long long)have,
        have == 1 ? "" : "es", c->nstages, c->schedule_cost.bubble);
}

void usage_check(const struct compiled *c, const struct job *job, struct arena *a,
                 struct findings *f)
{
    struct cost cost;
    cost_count(c, a, &cost);
    // Counts the bytes that are sent to gather weights that should not be cut so.
    for (int i = 0; i < f->n; i++)
        for (int k = 0; f->items[i].code == FINDING_WEIGHT_ON_BATCH_AXIS && k < cost.ncollectives;
             k++) {
            const struct collective_row *r = &cost.collectives[k];
            const char *match = f->items[i].like ? f->items[i].like : f->items[i].tensor;
            if (r->op == RESHARD_ALL_GATHER && r->phase != PHASE_UPDATE &&
                fnmatch(match, r->tensor, 0) == 0)
                f->items[i].waste += r->bytes;
        }
    find_unused_axes(c, job, a, f);
    find_uneven_stages(c, job, a, f);
    find_few_microbatches(c, job, a, f);
}
