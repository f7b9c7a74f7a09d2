// SPDX-License-Identifier: Apache-2.0
// Cuts beyond the parameters'. See refine.h.
#include "common/compile/shard/refine.h"

static int find_entry(const struct refine *r, const struct value *v)
{
    return r->job ? param_entry(r->job->n_params, r->job->params, v) : -1;
}

// The axis on the dimension with the largest local size that it divides, the earliest of equals;
// none: the tensor stays.
static void append_where_largest(const struct mesh *m, const struct shape *shape, int axis,
                                 struct spec *s)
{
    struct shape local = spec_local(s, m, shape);
    int best = -1, parts = m->axis[axis].size;
    if (parts < 2 || spec_axes(s) >> axis & 1)
        return;
    for (int d = 0; d < shape->n; d++)
        if (local.dim[d] % parts == 0 && (best < 0 || local.dim[d] > local.dim[best]))
            best = d;
    if (best >= 0)
        dim_append(&s->dim[best], axis);
}

// Returns the cut that the job asks for. Where the job only names axes, they are added to `coarse`.
static struct spec find_asked_cut(const struct refine *r, const struct mesh *m,
                                  const struct value *v, const struct spec *coarse,
                                  const struct spec *otherwise)
{
    int entry = find_entry(r, v);
    struct spec s = r->axes.n ? *coarse : *otherwise;
    if (entry >= 0)
        s = r->specs[entry];
    for (int i = 0; entry < 0 && i < r->axes.n; i++)
        append_where_largest(m, &v->shape, r->axes.axis[i], &s);
    for (int d = v->shape.n; d < MAX_DIMS; d++)
        s.dim[d] = (struct dim_cut){0};
    return s;
}

static bool is_refinement_of(const struct spec *coarse, const struct spec *fine)
{
    for (int d = 0; d < MAX_DIMS; d++) {
        struct dim_cut head = fine->dim[d];
        if (head.n < coarse->dim[d].n)
            return false;
        head.n = coarse->dim[d].n;
        if (!dim_equal(&head, &coarse->dim[d]))
            return false;
    }
    return true;
}

// Returns `fine` if it divides the value evenly and only cuts `coarse` further; else `coarse`.
static struct spec admit_finer(const struct mesh *m, const struct value *v,
                               const struct spec *coarse, struct spec fine)
{
    int bad;
    return is_refinement_of(coarse, &fine) && spec_divides(&fine, m, &v->shape, &bad) ? fine
                                                                                      : *coarse;
}

struct spec refine_grad(const struct sharding *s, const struct mesh *m, const struct value *param)
{
    struct spec own = sharding_spec(s, m, param);
    return admit_finer(m, param, &own, find_asked_cut(&s->grads, m, param, &own, &own));
}

struct spec refine_state(const struct sharding *s, const struct mesh *m, const struct value *param)
{
    struct spec own = sharding_spec(s, m, param), grad = refine_grad(s, m, param);
    return admit_finer(m, param, &grad, find_asked_cut(&s->optimizer, m, param, &grad, &own));
}

// ---- held against parameters -------------------------------------------------------------------

// Checks that a finer cut names only dimensions that the tensor has, divides them evenly, and only
// cuts the coarser one further. The first of these that fails is recorded as a fact.
static void check_finer(struct sharding *s, const struct mesh *m, const struct graph *g,
                        const struct value *v, struct fact f)
{
    const struct refine *r = f.list == FACT_GRADS ? &s->grads : &s->optimizer;
    int d;
    f.entry = find_entry(r, v);
    f.value = (int)(v - g->values);
    if (f.entry >= 0 && entry_dims(&r->job->params[f.entry].spec) > v->shape.n) {
        f.code = FACT_SPEC_LENGTH;
        f.size = v->shape.n;
    } else if (!spec_divides(&f.has, m, &v->shape, &d)) {
        f.code = FACT_INDIVISIBLE;
        f.dim = d;
        f.axes = dim_axes(&f.has.dim[d]);
        f.size = v->shape.dim[d];
        f.parts = dim_parts(m, &f.has.dim[d]);
    } else if (!is_refinement_of(&f.within, &f.has)) {
        f.code = FACT_NOT_FINER;
    } else {
        return;
    }
    facts_add(&s->facts, &f);
}

static void check_param(struct sharding *s, const struct mesh *m, const struct graph *g,
                        const struct value *v)
{
    struct spec own = sharding_spec(s, m, v);
    struct fact grad = {.list = FACT_GRADS, .within = own};
    grad.has = find_asked_cut(&s->grads, m, v, &own, &own);
    check_finer(s, m, g, v, grad);
    struct fact state = {.list = FACT_OPTIMIZER,
                         .within = admit_finer(m, v, &grad.within, grad.has)};
    state.has = find_asked_cut(&s->optimizer, m, v, &state.within, &own);
    check_finer(s, m, g, v, state);
}

void refine_check(struct sharding *s, const struct mesh *m, const struct graph *g)
{
    for (int i = 0; i < g->nvalues; i++)
        if (g->values[i].kind == VALUE_PARAM && g->values[i].alias < 0 && !g->values[i].frozen)
            check_param(s, m, g, &g->values[i]);
}
