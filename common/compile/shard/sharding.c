// SPDX-License-Identifier: Apache-2.0
// The specs of values. See sharding.h.
#include "common/compile/shard/sharding.h"

#include <fnmatch.h>
#include <string.h>

static const struct rule *find_rule(const struct rules *r, enum dim dim)
{
    for (int i = 0; i < r->n; i++)
        if (r->rule[i].dim == dim)
            return &r->rule[i];
    return NULL;
}

enum dim rules_dim(const struct rules *r, enum dim d)
{
    while (d != DIM_NONE && !find_rule(r, d))
        d = dims_like(r->dims, d);
    return d;
}

const struct dim_cut *rules_axes(const struct rules *r, enum dim dim)
{
    static const struct dim_cut none;
    const struct rule *rule = find_rule(r, rules_dim(r, dim));
    return rule ? &rule->axes : &none;
}

// Key heads are like heads, and left whole where the cut of these does not divide them.
static void drop_uneven_key_heads(const struct dims *dims, const struct mesh *m,
                                  const struct value *v, struct spec *s)
{
    for (int d = 0; d < v->shape.n; d++)
        if (v->dims[d] != DIM_HEADS && dims_follows(dims, v->dims[d], DIM_HEADS) &&
            v->shape.dim[d] % dim_parts(m, &s->dim[d]))
            s->dim[d] = (struct dim_cut){0};
}

// A point's spec speaks of the dimensions after the one that stacks queries, keys and values.
static void shift_stacked(const struct value *v, struct spec *s)
{
    if (v->shape.n == 0 || v->dims[0] != DIM_QKV)
        return;
    for (int d = MAX_DIMS - 1; d > 0; d--)
        s->dim[d] = s->dim[d - 1];
    s->dim[0] = (struct dim_cut){0};
}

// A call's rows of a text, the places of a cache and those of experts: a call may have one row, which
// no cut divides.
static bool runs_along_seq(const struct dims *dims, const struct value *v, int d)
{
    return v->kind != VALUE_PARAM && (v->dims[d] == DIM_NONE || v->born[d] == DIM_SEQ ||
                                      dims_follows(dims, v->dims[d], DIM_SEQ));
}

struct spec rules_spec(const struct rules *r, const struct mesh *m, const struct value *v)
{
    struct spec s = {0};
    axis_set used = 0;
    for (int d = 0; d < v->shape.n; d++) {
        if (rules_dim(r, v->dims[d]) == DIM_EMBED && v->kind != VALUE_PARAM)
            continue; // that rule is for parameters only
        if (r->whole_seq && runs_along_seq(r->dims, v, d))
            continue;
        const struct dim_cut *axes = rules_axes(r, v->dims[d]);
        for (int k = 0; k < axes->n; k++) {
            int axis = axes->axis[k];
            if (used >> axis & 1 || m->axis[axis].size < 2)
                continue;
            dim_append(&s.dim[d], axis);
            used |= (axis_set)(1u << axis);
        }
    }
    return s;
}

static bool entry_matches(const struct job_param_spec *p, const struct value *v)
{
    if (fnmatch(p->match, v->name, 0) != 0 || p->min.n > v->shape.n)
        return false;
    for (int d = 0; d < p->min.n; d++)
        if (v->shape.dim[d] < ((const int64_t *)p->min.items)[d])
            return false;
    return true;
}

int param_entry(int n, const struct job_param_spec *list, const struct value *v)
{
    for (int i = 0; i < n; i++)
        if (entry_matches(&list[i], v))
            return i;
    return -1;
}

int sharding_entry(const struct sharding *s, const struct value *v)
{
    if (!s->job)
        return -1;
    if (v->kind == VALUE_PARAM)
        return param_entry(s->job->n_params, s->job->params, v);
    for (int i = 0; i < s->job->n_points; i++)
        if (strcmp(s->job->points[i].point, point_name(v->point)) == 0)
            return i;
    return -1;
}

int entry_dims(const struct job_spec *s)
{
    int n = s->n;
    while (n && !s->dim[n - 1].n)
        n--;
    return n;
}

// Latents, and what a router makes of a token, lie as the tokens do, unless the job says otherwise.
static enum point find_point(const struct sharding *s, const struct value *v)
{
    return v->point == POINT_LATENT && !s->given[POINT_LATENT] ? POINT_SEQ : v->point;
}

// A point's spec cuts the features of tokens, not what a router or a latent has in their place.
static void drop_other_features(const struct value *v, struct spec *s)
{
    for (int d = 1; d < v->shape.n; d++)
        if (v->dims[d] == DIM_ROUTER || v->dims[d] == DIM_CHOICE ||
            (d > 1 && (v->dims[d] == DIM_LATENT || v->dims[d] == DIM_ROTARY)))
            s->dim[d] = (struct dim_cut){0};
}

struct spec sharding_asked(const struct sharding *s, const struct mesh *m, const struct value *v)
{
    bool param = v->kind == VALUE_PARAM;
    int entry = param ? sharding_entry(s, v) : -1;
    enum point point = param ? POINT_NONE : find_point(s, v);
    struct spec spec;
    if (entry >= 0)
        spec = s->params[entry];
    else if (!param && s->given[point])
        spec = s->points[point];
    else
        spec = rules_spec(&s->rules, m, v);
    if (!param && s->given[point])
        shift_stacked(v, &spec);
    if (!param && s->given[point])
        drop_other_features(v, &spec);
    if (entry < 0)
        drop_uneven_key_heads(s->rules.dims, m, v, &spec);
    for (int d = 0; d < MAX_DIMS; d++)
        if (d >= v->shape.n || (s->rules.whole_seq && runs_along_seq(s->rules.dims, v, d)))
            spec.dim[d] = (struct dim_cut){0};
    return spec;
}

struct spec sharding_spec(const struct sharding *s, const struct mesh *m, const struct value *v)
{
    struct spec spec = sharding_asked(s, m, v);
    return s->lenient ? spec_that_divides(&spec, m, &v->shape) : spec;
}

struct zigzag sharding_zigzag(const struct sharding *s, const struct mesh *m, const struct graph *g,
                              int64_t seq)
{
    int parts = g->ordered || s->rules.whole_seq ? 1 : mesh_product(m, s->context);
    return (struct zigzag){seq, seq % (2 * (int64_t)parts) == 0 ? parts : 1};
}
