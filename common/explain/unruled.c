// SPDX-License-Identifier: Apache-2.0
// Dimensions that no rule cuts. See unruled.h.
#include "common/explain/unruled.h"

static bool is_param_dim(const struct graph *g, enum dim dim)
{
    for (int v = 0; v < g->nvalues; v++)
        if (g->values[v].kind == VALUE_PARAM && g->values[v].alias < 0 &&
            value_find_dim(&g->values[v], dim) >= 0)
            return true;
    return false;
}

// Whether a rule names the dimension, even if only to leave it whole.
static bool is_ruled(const struct job *job, const struct rules *rules, enum dim dim)
{
    const struct job_sharding *s = &job->sharding;
    for (int i = 0; i < s->n_rules; i++)
        if (dims_id(rules->dims, s->rules[i].dim) == rules_dim(rules, dim))
            return true;
    return false;
}

// The size that an expression is a multiple of and that a rule cuts: mlp of `2 * mlp`. −1: none.
static int find_base(const struct job *job, const struct rules *rules, const struct graph *g,
                     const struct expr *e)
{
    if (e->kind == EXPR_PATH && e->name && !e->has_dims) {
        int size = model_size_find(job->model.read, e->name);
        enum dim dim = size < 0 ? DIM_NONE : dims_id(rules->dims, e->name);
        return size >= 0 && is_param_dim(g, dim) && is_ruled(job, rules, dim) ? size : -1;
    }
    bool over = e->kind == EXPR_OPERATOR && e->sign == SIGN_DIV && e->arg[1]->kind == EXPR_NUMBER;
    if (!over && (e->kind != EXPR_OPERATOR || e->sign != SIGN_MUL))
        return -1;
    int base = find_base(job, rules, g, e->arg[0]);
    return base >= 0 || over ? base : find_base(job, rules, g, e->arg[1]);
}

int unruled_find(const struct job *job, const struct rules *rules, const struct graph *g,
                 struct arena *a, const struct unruled **out)
{
    const struct model_program *p = job->model.read;
    struct unruled *list = arena_array(a, struct unruled, p ? p->nsizes : 0);
    int n = 0;
    *out = list;
    for (int i = 0; p && i < p->nsizes; i++) {
        const struct model_size *s = &p->sizes[i];
        enum dim dim = dims_id(rules->dims, s->name);
        if (s->kind != MODEL_WHOLE || s->like || is_ruled(job, rules, dim) || !is_param_dim(g, dim))
            continue;
        int base = find_base(job, rules, g, s->line->value);
        if (base >= 0)
            list[n++] = (struct unruled){s, &p->sizes[base]};
    }
    return n;
}

// Whether a rule names axes for a dimension of the parameter, be they of this mesh or not.
static bool has_rule(const struct job *job, const struct rules *rules, const struct value *p)
{
    for (int d = 0; d < p->shape.n; d++) {
        enum dim ruled = rules_dim(rules, p->dims[d]);
        const struct job_rule *rule =
            ruled == DIM_NONE ? NULL : job_rule_find(&job->sharding, dims_name(rules->dims, ruled));
        if (rule && rule->axes.n)
            return true;
    }
    return false;
}

static int64_t count_elements(const struct graph *g)
{
    int64_t n = 0;
    for (int v = 0; v < g->nvalues; v++)
        if (g->values[v].kind == VALUE_PARAM && g->values[v].alias < 0)
            n += shape_count(&g->values[v].shape);
    return n;
}

// The elements of parameters that have the dimension, and that neither rules nor the axes cut.
static int64_t count_uncut(const struct job *job, const struct sharding *s, const struct mesh *m,
                           const struct graph *g, axis_set axes, enum dim dim)
{
    int64_t n = 0;
    for (int v = 0; v < g->nvalues; v++) {
        const struct value *p = &g->values[v];
        if (p->kind != VALUE_PARAM || p->alias >= 0 || value_find_dim(p, dim) < 0 ||
            has_rule(job, &s->rules, p))
            continue;
        struct spec spec = sharding_spec(s, m, p);
        n += spec_axes(&spec) & axes ? 0 : shape_count(&p->shape);
    }
    return n;
}

const struct model_size *unruled_find_largest(const struct job *job, const struct sharding *s,
                                              const struct mesh *m, const struct graph *g,
                                              axis_set axes, double *share)
{
    const struct model_program *p = job->model.read;
    const struct model_size *found = NULL;
    int64_t most = 0, all = count_elements(g);
    for (int i = 0; p && i < p->nsizes; i++) {
        enum dim dim = dims_id(s->rules.dims, p->sizes[i].name);
        if (p->sizes[i].kind != MODEL_WHOLE || rules_dim(&s->rules, dim) != DIM_NONE)
            continue;
        int64_t n = count_uncut(job, s, m, g, axes, dim);
        found = n > most ? &p->sizes[i] : found;
        most = n > most ? n : most;
    }
    *share = all ? (double)most / (double)all : 0;
    return found;
}
