// SPDX-License-Identifier: Apache-2.0
// Which axes hold batch, stages and heads. See fit_axes.h.
#include "common/explain/fit_axes.h"

#include <string.h>

enum axis_role { STAYS, BATCH, STAGE, HEADS };

bool fit_axis_own(const char *name)
{
    return job_axis_find(&(struct job_mesh){0}, name) == -2;
}

bool fit_axis_same(const char *one, const char *other)
{
    const struct job_mesh mesh = {1, {{one, 1}}};
    return job_axis_find(&mesh, other) == 0;
}

bool fit_axis_among(const struct job_names *names, const char *axis)
{
    for (int i = 0; names && i < names->n; i++)
        if (fit_axis_same(names->name[i], axis))
            return true;
    return false;
}

static bool cuts_dim(const struct job *job, const char *dim, const char *axis)
{
    const struct job_rule *rule = job_rule_find(&job->sharding, dim);
    return rule && fit_axis_among(&rule->axes, axis);
}

// Dimensions whose rules say nothing about heads.
static bool is_special(const char *dim)
{
    static const char *const special[] = {"batch",  "seq",  "embed",   "layers",
                                          "expert", "norm", "position"};
    for (size_t i = 0; i < sizeof special / sizeof *special; i++)
        if (strcmp(dim, special[i]) == 0)
            return true;
    return false;
}

// Heads, hidden features, the vocabulary and what else a model has between its layers.
static bool cuts_heads(const struct job *job, const char *axis)
{
    const struct job_sharding *s = &job->sharding;
    for (int i = 0; i < s->n_rules; i++)
        if (!is_special(s->rules[i].dim) && fit_axis_among(&s->rules[i].axes, axis))
            return true;
    return false;
}

static bool cuts_params(const struct job *job, const char *axis)
{
    const struct job_sharding *s = &job->sharding;
    for (int i = 0; i < s->n_params; i++)
        for (int d = 0; d < s->params[i].spec.n; d++)
            if (fit_axis_among(&s->params[i].spec.dim[d], axis))
                return true;
    return false;
}

static enum axis_role find_role(const struct job *job, const char *axis)
{
    if (cuts_dim(job, "layers", axis))
        return STAGE;
    if (cuts_dim(job, "batch", axis))
        return cuts_dim(job, "expert", axis) ? STAYS : BATCH;
    if (cuts_heads(job, axis))
        return HEADS;
    return cuts_params(job, axis) && !cuts_dim(job, "seq", axis) ? HEADS : STAYS;
}

static bool cuts_weights(const struct job *job, const char *axis)
{
    return cuts_dim(job, "embed", axis) && fit_axis_among(&job->sharding.gather, axis);
}

// An axis's name in the mesh; one that it lacks keeps the name that the rule has.
static const char *find_name(const struct job *job, const char *name)
{
    int at = job_axis_find(&job->mesh, name);
    return at < 0 ? name : job->mesh.axis[at].name;
}

// The first axis of the mesh that has this role, rather of more than one device; else the first name
// of the rules that could be.
static const char *find_axis(const struct job *job, enum axis_role role)
{
    const struct job_sharding *s = &job->sharding;
    const char *found = NULL;
    for (int more = 1; more >= 0; more--)
        for (int i = 0; i < job->mesh.n && !found; i++)
            if (job->mesh.axis[i].size > more && find_role(job, job->mesh.axis[i].name) == role)
                found = job->mesh.axis[i].name;
    for (int r = 0; r < s->n_rules && !found; r++)
        for (int i = 0; i < s->rules[r].axes.n && !found; i++)
            if (find_role(job, s->rules[r].axes.name[i]) == role)
                found = s->rules[r].axes.name[i];
    return found;
}

// Finds the batch's axis, preferably one that cuts weights too.
static const char *find_batch_axis(const struct job *job)
{
    const struct job_rule *rule = job_rule_find(&job->sharding, "batch");
    for (int i = 0; rule && i < rule->axes.n; i++)
        if (find_role(job, rule->axes.name[i]) == BATCH && cuts_weights(job, rule->axes.name[i]))
            return find_name(job, rule->axes.name[i]);
    return find_axis(job, BATCH);
}

static bool is_context_or_expert(const struct job *job, const char *axis)
{
    return find_role(job, axis) == STAYS &&
           (cuts_dim(job, "seq", axis) || cuts_dim(job, "expert", axis));
}

void fit_axes_find(const struct job *job, bool all, struct fit_axes *out)
{
    *out = (struct fit_axes){.batch = find_batch_axis(job),
                             .stage = find_axis(job, STAGE),
                             .heads = find_axis(job, HEADS),
                             .devices = 1};
    for (int i = 0; i < job->mesh.n; i++) {
        const struct job_axis *axis = &job->mesh.axis[i];
        out->dealt[i] = find_role(job, axis->name) == BATCH || axis->name == out->stage ||
                        axis->name == out->heads || (all && is_context_or_expert(job, axis->name));
        out->devices *= out->dealt[i] ? axis->size : 1;
    }
}
