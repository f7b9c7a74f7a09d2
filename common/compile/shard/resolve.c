// SPDX-License-Identifier: Apache-2.0
// Names of the job's sharding section become axes, its entries specs. See sharding.h.
#include <string.h>

#include "common/compile/shard/sharding.h"

struct resolver {
    struct sharding *s;
    const struct job *job;
    const struct mesh *mesh;
};

static void report_name(struct resolver *r, enum fact_code code, const struct fact *at, int axis)
{
    struct fact f = *at;
    f.code = code;
    f.axes = axis < 0 ? 0 : (axis_set)(1u << axis);
    facts_add(&r->s->facts, &f);
}

static bool holds_stages(const struct resolver *r, int axis)
{
    return axis >= 0 && r->mesh->stages >> axis & 1;
}

// All names that stand more than once in a list are one fact together.
static void report_repeated(struct resolver *r, const struct fact *at, const struct job_names *list)
{
    struct fact f = *at;
    bool repeated = false;
    for (int i = 0; i < list->n; i++)
        for (int k = 0; k < i; k++)
            if (strcmp(list->name[i], list->name[k]) == 0) {
                repeated = true;
                f.name = i;
            }
    if (repeated)
        report_name(r, FACT_NAME_TWICE, &f, -1);
}

// ---- rules -------------------------------------------------------------------------------------

static void resolve_rule(struct resolver *r, int entry, struct rule *to)
{
    const struct job_names *axes = &r->job->sharding.rules[entry].axes;
    struct fact at = {.list = FACT_RULES, .entry = entry};
    report_repeated(r, &at, axes);
    for (int i = at.name = 0; i < axes->n; at.name = ++i) {
        int axis = job_axis_find(&r->job->mesh, axes->name[i]);
        if (axis == -2)
            report_name(r, FACT_NAME_UNKNOWN, &at, -1);
        else if (to->dim != DIM_NONE && holds_stages(r, axis))
            report_name(r, FACT_STAGE_AXIS, &at, axis);
        else if (axis >= 0 && !(dim_axes(&to->axes) >> axis & 1))
            dim_append(&to->axes, axis);
    }
}

static void resolve_rules(struct resolver *r)
{
    const struct job_sharding *job = &r->job->sharding;
    struct rules *rules = &r->s->rules;
    for (int i = 0; i < job->n_rules; i++) {
        // No tensor has layers: their rule names the axis of the stages.
        bool layers = strcmp(job->rules[i].dim, "layers") == 0;
        struct rule *to = &rules->rule[rules->n];
        *to = (struct rule){.dim = layers ? DIM_NONE : dims_id(rules->dims, job->rules[i].dim)};
        resolve_rule(r, i, to);
        rules->n += !layers;
    }
}

// ---- specs -------------------------------------------------------------------------------------

// The axes that a name stands for, itself or as a rule; false: nobody knows it.
static bool find_axes(const struct resolver *r, const char *name, struct dim_cut *out)
{
    int axis = job_axis_find(&r->job->mesh, name);
    *out = (struct dim_cut){0};
    if (job_rule_find(&r->job->sharding, name)) {
        *out = *rules_axes(&r->s->rules, dims_id(r->s->rules.dims, name));
        return true;
    }
    if (axis >= 0)
        dim_append(out, axis);
    return axis != -2;
}

// An axis that a rule's name brings is skipped where the spec has it already, as the rules themselves
// do; one that is named twice is an error.
static void append_axis(struct resolver *r, const struct fact *at, int axis, bool skips,
                        struct spec *to)
{
    if (holds_stages(r, axis))
        report_name(r, FACT_STAGE_AXIS, at, axis);
    else if (r->mesh->axis[axis].size < 2 || (skips && spec_axes(to) >> axis & 1))
        return;
    else if (spec_axes(to) >> axis & 1)
        report_name(r, FACT_AXIS_TWICE, at, axis);
    else
        dim_append(&to->dim[at->dim], axis);
}

// Whether a spec has the name already, before the place that `at` names.
static bool is_named_before(const struct job_spec *s, const struct fact *at, const char *name)
{
    for (int d = 0; d <= at->dim; d++)
        for (int i = 0; i < (d < at->dim ? s->dim[d].n : at->name); i++)
            if (strcmp(s->dim[d].name[i], name) == 0)
                return true;
    return false;
}

static struct spec resolve_spec(struct resolver *r, enum fact_list list, int entry,
                                const struct job_spec *from)
{
    struct fact at = {.list = list, .entry = entry};
    struct spec to = {0};
    for (at.dim = 0; at.dim < from->n; at.dim++)
        for (at.name = 0; at.name < from->dim[at.dim].n; at.name++) {
            struct dim_cut axes;
            const char *name = from->dim[at.dim].name[at.name];
            if (!find_axes(r, name, &axes))
                report_name(r, FACT_NAME_UNKNOWN, &at, -1);
            bool skips =
                job_rule_find(&r->job->sharding, name) && !is_named_before(from, &at, name);
            for (int a = 0; a < axes.n; a++)
                append_axis(r, &at, axes.axis[a], skips, &to);
        }
    return to;
}

static struct spec *resolve_entries(struct resolver *r, enum fact_list list, int n,
                                    const struct job_param_spec *from)
{
    struct spec *specs = arena_array(r->s->facts.arena, struct spec, n);
    for (int i = 0; i < n; i++)
        specs[i] = resolve_spec(r, list, i, &from[i].spec);
    return specs;
}

static void resolve_points(struct resolver *r)
{
    const struct job_sharding *job = &r->job->sharding;
    for (int i = 0; i < job->n_points; i++)
        for (int p = POINT_NONE + 1; p < POINT_COUNT; p++)
            if (strcmp(point_name((enum point)p), job->points[i].point) == 0) {
                r->s->points[p] = resolve_spec(r, FACT_POINTS, i, &job->points[i].spec);
                r->s->given[p] = true;
            }
}

static void resolve_refine(struct resolver *r, enum fact_list list, const struct job_refine *job,
                           struct refine *to)
{
    to->job = job;
    struct fact at = {.list = list, .entry = -1};
    report_repeated(r, &at, &job->axes);
    for (at.name = 0; at.name < job->axes.n; at.name++) {
        struct dim_cut axes;
        if (!find_axes(r, job->axes.name[at.name], &axes))
            report_name(r, FACT_NAME_UNKNOWN, &at, -1);
        for (int a = 0; a < axes.n; a++)
            if (holds_stages(r, axes.axis[a]))
                report_name(r, FACT_STAGE_AXIS, &at, axes.axis[a]);
            else if (!(dim_axes(&to->axes) >> axes.axis[a] & 1))
                dim_append(&to->axes, axes.axis[a]);
    }
    to->specs = resolve_entries(r, list, job->n_params, job->params);
}

void sharding_resolve(struct sharding *s, const struct job *job, const struct mesh *m,
                      struct dims *dims, struct arena *a)
{
    struct resolver r = {s, job, m};
    const struct job_sharding *j = &job->sharding;
    *s = (struct sharding){.job = j, .rules = {.dims = dims}, .facts = {.arena = a}};
    resolve_rules(&r);
    const struct job_names *names = &r.job->sharding.gather;
    struct fact at = {.list = FACT_GATHER, .entry = -1};
    report_repeated(&r, &at, names);
    for (at.name = 0; at.name < names->n; at.name++) {
        int axis = job_axis_find(&r.job->mesh, names->name[at.name]);
        if (axis >= 0)
            r.s->gather |= (axis_set)(1u << axis) & mesh_cuts(r.mesh);
        else if (axis == -2)
            report_name(&r, FACT_NAME_UNKNOWN, &at, -1);
    }
    s->params = resolve_entries(&r, FACT_PARAMS, j->n_params, j->params);
    resolve_points(&r);
    resolve_refine(&r, FACT_GRADS, &j->grads, &s->grads);
    resolve_refine(&r, FACT_OPTIMIZER, &j->optimizer, &s->optimizer);
    struct value ids = {.shape = {1, {1}}, .dims = {DIM_BATCH}, .point = POINT_IDS};
    struct spec spec = sharding_spec(s, m, &ids);
    s->batch = dim_axes(&spec.dim[0]);
    s->of_names = s->facts.n;
}
