// SPDX-License-Identifier: Apache-2.0
// The specs of the sharding section held against the tensors of a graph. See sharding.h.
#include "common/compile/shard/refine.h"

struct spec_checker {
    struct sharding *s;
    const struct mesh *mesh;
    const struct graph *graph;
};

static struct fact make_fact(const struct spec_checker *c, enum fact_code code,
                             const struct value *v)
{
    bool param = v->kind == VALUE_PARAM;
    int entry = sharding_entry(c->s, v);
    return (struct fact){.code = code,
                         .list = entry < 0 ? FACT_RULES
                                 : param   ? FACT_PARAMS
                                           : FACT_POINTS,
                         .entry = entry,
                         .value = (int)(v - c->graph->values)};
}

// Attention over a cut sequence takes two chunks of it a device (zigzag.h), each cut by whatever
// else cuts the sequence somewhere. One point of them all is enough to say so.
static void check_chunks(struct spec_checker *c, const struct value *v, int d,
                         const struct spec *spec)
{
    struct facts *facts = &c->s->facts;
    struct fact f = make_fact(c, FACT_CHUNKS, v);
    f.axes = c->s->context | dim_axes(&spec->dim[d]);
    f.parts = 2 * mesh_product(c->mesh, f.axes);
    f.size = v->shape.dim[d];
    if (f.size % f.parts == 0)
        return;
    for (int i = c->s->of_names; i < facts->n; i++) {
        const struct fact *o = &facts->items[i];
        if ((o->code == FACT_CHUNKS || o->code == FACT_INDIVISIBLE) && o->axes == f.axes)
            return;
    }
    facts_add(facts, &f);
}

static void check_divides(struct spec_checker *c, const struct value *v)
{
    struct spec spec = sharding_asked(c->s, c->mesh, v);
    for (int d = 0; d < v->shape.n; d++) {
        struct fact f = make_fact(c, FACT_INDIVISIBLE, v);
        f.dim = d;
        f.axes = dim_axes(&spec.dim[d]);
        f.size = v->shape.dim[d];
        f.parts = dim_parts(c->mesh, &spec.dim[d]);
        f.has = spec;
        if (v->dims[d] == DIM_SEQ && c->s->context && !c->graph->ordered)
            check_chunks(c, v, d, &spec);
        else if (f.size % f.parts)
            facts_add(&c->s->facts, &f);
    }
}

static void check_length(struct spec_checker *c, const struct value *v, int longest)
{
    struct fact f = make_fact(c, FACT_SPEC_LENGTH, v);
    const struct job_sharding *job = c->s->job;
    if (f.entry < 0)
        return;
    f.size = longest;
    if (entry_dims(f.list == FACT_PARAMS ? &job->params[f.entry].spec
                                         : &job->points[f.entry].spec) > longest)
        facts_add(&c->s->facts, &f);
}

// An activation point whose explicit spec leaves out an axis that cuts the batch.
static void check_point(struct spec_checker *c, const struct value *v)
{
    struct fact f = make_fact(c, FACT_BATCH_DROPPED, v);
    if (f.entry < 0 || v->point == POINT_IDS || v->dims[0] != DIM_BATCH)
        return;
    f.has = sharding_asked(c->s, c->mesh, v);
    f.axes = c->s->batch & (axis_set)~dim_axes(&c->s->points[v->point].dim[0]);
    if (f.axes)
        facts_add(&c->s->facts, &f);
}

static void check_matches(struct spec_checker *c, enum fact_list list, int n,
                          const struct job_param_spec *entries)
{
    for (int i = 0; i < n; i++) {
        bool any = false;
        for (int v = 0; v < c->graph->nvalues && !any; v++)
            any = c->graph->values[v].kind == VALUE_PARAM &&
                  param_entry(1, &entries[i], &c->graph->values[v]) == 0;
        if (!any)
            facts_add(&c->s->facts, &(struct fact){FACT_NO_MATCH, .list = list, .entry = i});
    }
}

static axis_set context_axes(const struct sharding *s, const struct mesh *m, const struct graph *g)
{
    axis_set axes = 0;
    for (int i = 0; i < g->nnodes; i++) {
        const struct value *v = &g->values[g->nodes[i].out[0]];
        if (g->nodes[i].op != OP_ATTENTION)
            continue;
        struct spec spec = sharding_asked(s, m, v);
        for (int d = 0; d < v->shape.n; d++)
            axes |= v->dims[d] == DIM_SEQ ? dim_axes(&spec.dim[d]) : 0;
    }
    return axes;
}

static void check_value(struct spec_checker *c, const struct value *v, const int longest[])
{
    bool forward = v->producer >= 0 && c->graph->nodes[v->producer].phase == PHASE_FORWARD;
    if (v->kind == VALUE_PARAM) {
        check_length(c, v, v->shape.n);
        check_divides(c, v);
        // A weight cut on an axis that the batch uses is gathered by every pass that reads it, but for the
        // experts of a device: their tokens come to them.
        struct fact f = make_fact(c, FACT_WEIGHT_ON_BATCH_AXIS, v);
        f.has = sharding_asked(c->s, c->mesh, v);
        f.axes = spec_axes(&f.has) & c->s->batch & (axis_set)~c->s->gather;
        for (int d = 0; d < v->shape.n; d++)
            if (v->dims[d] == DIM_EXPERT)
                f.axes &= (axis_set)~dim_axes(&f.has.dim[d]);
        if (f.axes)
            facts_add(&c->s->facts, &f);
    } else if (v->point != POINT_NONE && forward) {
        check_length(c, v, longest[v->point]);
        check_divides(c, v);
        if (v->shape.n == longest[v->point])
            check_point(c, v);
    }
}

void sharding_check(struct sharding *s, const struct mesh *m, const struct graph *g)
{
    struct spec_checker c = {s, m, g};
    int longest[POINT_COUNT] = {0};
    for (int v = 0; v < g->nvalues; v++)
        if (g->values[v].shape.n > longest[g->values[v].point])
            longest[g->values[v].point] = g->values[v].shape.n;
    s->context = context_axes(s, m, g);
    check_matches(&c, FACT_PARAMS, s->job->n_params, s->job->params);
    for (int i = 0; i < g->nvalues; i++)
        check_value(&c, &g->values[i], longest);
    for (int i = s->of_names; i < s->facts.n; i++)
        s->lenient |=
            s->facts.items[i].code == FACT_CHUNKS || s->facts.items[i].code == FACT_INDIVISIBLE;
    check_matches(&c, FACT_GRADS, s->job->grads.n_params, s->job->grads.params);
    check_matches(&c, FACT_OPTIMIZER, s->job->optimizer.n_params, s->job->optimizer.params);
    refine_check(s, m, g);
}
