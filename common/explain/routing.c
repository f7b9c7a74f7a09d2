// SPDX-License-Identifier: Apache-2.0
// Findings of experts. See routing.h.
#include "common/explain/routing.h"

#include "common/explain/fixes.h"

struct checker {
    struct fixer fix;
    struct findings *found;
};

// ---- the order of axes -------------------------------------------------------------------------

// The names of a rule with those of `last` behind the others.
static struct job_names put_last(const struct checker *c, const struct job_names *from,
                                 axis_set last)
{
    struct job_names to = {0};
    to.name = arena_array(c->fix.arena, const char *, from->n);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < from->n; i++) {
            int axis = job_axis_find(&c->fix.job->mesh, from->name[i]);
            if ((axis >= 0 && last >> axis & 1) == pass)
                to.name[to.n++] = from->name[i];
        }
    return to;
}

// The axes that both rules have must come last in each: an axis leaves a dimension from its end, and
// what stands behind it would be gathered first.
static void check_order(const struct checker *c, enum dim dim, const char *name, axis_set shared)
{
    const struct dim_cut *axes = rules_axes(&c->fix.sharding->rules, dim);
    bool begun = false, broken = false;
    for (int i = 0; i < axes->n; i++) {
        if (c->fix.mesh->axis[axes->axis[i]].size < 2)
            continue;
        bool here = shared >> axes->axis[i] & 1;
        broken |= begun && !here;
        begun |= here;
    }
    const struct job_rule *rule = job_rule_find(&c->fix.job->sharding, name);
    if (!broken || !rule)
        return;
    struct job_names names = put_last(c, &rule->axes, shared);
    const char *which = axis_set_text(c->fix.mesh, shared, c->fix.arena);
    const char *fix = fix_rule(&c->fix, name, &names);
    findings_add(
        c->found,
        &(struct finding){.code = FINDING_EXPERT_ORDER,
                          .tensor = arena_printf(c->fix.arena, "sharding.rules.%s", name),
                          .axes = shared,
                          .message = arena_printf(
                              c->fix.arena,
                              "sharding.rules.%s: %s deals tokens to experts and is not last: what "
                              "stands behind it is gathered for each exchange; %s would not",
                              name, which, fix),
                          .fix = fix});
}

// ---- routers -----------------------------------------------------------------------------------

static void check_router(const struct checker *c, const struct graph *g, const struct node *n)
{
    const struct op_slots *s = &n->attr.slots;
    const struct value *ids = &g->values[n->in[0]];
    int64_t tokens = s->group * ids->shape.dim[1], choices = ids->shape.dim[2];
    const char *scope = g->scopes[n->scope];
    double kept = (double)(s->capacity * s->experts) / (double)(tokens * choices);
    if (choices == 1)
        findings_add(c->found,
                     &(struct finding){
                         .code = FINDING_ONE_CHOICE,
                         .message = arena_printf(c->fix.arena,
                                                 "%s: each token chooses one expert, whose weight "
                                                 "is 1 whatever its score: the router learns from "
                                                 "the balance alone",
                                                 scope)});
    if (kept < 1)
        findings_add(c->found,
                     &(struct finding){.code = FINDING_CHOICES_DROPPED,
                                       .message = arena_printf(
                                           c->fix.arena,
                                           "%s: %lld experts of %lld places take %lld choices of a "
                                           "group: at least %.0f %% are dropped in training",
                                           scope, (long long)s->experts, (long long)s->capacity,
                                           (long long)(tokens * choices), 100 * (1 - kept))});
}

void routing_check(const struct sharding *s, const struct job *job, const struct mesh *m,
                   const struct graph *g, struct findings *f)
{
    struct checker c = {{f->arena, job, s, m}, f};
    for (int i = 0; i < g->nnodes; i++) {
        if (g->nodes[i].op != OP_SLOTS)
            continue;
        axis_set shared = dim_axes(rules_axes(&s->rules, DIM_BATCH)) &
                          dim_axes(rules_axes(&s->rules, DIM_EXPERT)) & mesh_cuts(m);
        if (shared) {
            check_order(&c, DIM_BATCH, "batch", shared);
            check_order(&c, DIM_EXPERT, "expert", shared);
        }
        check_router(&c, g, &g->nodes[i]);
        return; // the layers are alike
    }
}
