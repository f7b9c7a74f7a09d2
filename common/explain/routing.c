// SPDX-License-Identifier: Apache-2.0
// Findings of experts. See routing.h.
#include "common/explain/routing.h"

#include "common/base/buf.h"
#include "common/compile/graph/experts.h"
#include "common/compile/layout/reshard.h"
#include "common/explain/fixes.h"

struct routing_checker {
    struct fixer fix;
    struct findings *found;
};

// ---- the order of axes -------------------------------------------------------------------------

// What swaps the first two dimensions of what a DISPATCH makes, which is where its tokens go to the
// devices of their experts; null: nothing does.
static const struct node *find_exchange(const struct graph *g)
{
    for (int i = 0; i < g->nnodes; i++) {
        const struct node *n = &g->nodes[i];
        int from = n->op == OP_SCALE ? g->values[n->in[0]].producer : -1;
        if (from >= 0 && g->nodes[from].op == OP_DISPATCH && g->values[n->out[0]].shape.n == 4)
            return n;
    }
    return NULL;
}

// The bytes that a device sends to bring a value from one spec to the other, and back.
static uint64_t count_both_ways(const struct routing_checker *c, const struct value *v,
                                const struct spec *a, const struct spec *b)
{
    struct reshard there, back;
    struct err e = {0};
    if (reshard_find(c->fix.mesh, &v->shape, dtype_size(v->dtype), a, b, c->fix.arena, &there,
                     &e) ||
        reshard_find(c->fix.mesh, &v->shape, dtype_size(v->dtype), b, a, c->fix.arena, &back, &e))
        return 0; // a cut does not divide: there is a finding of it
    return there.bytes + back.bytes;
}

// What the tokens of one layer and microbatch cost on their way to the experts and back, where the
// rule of `dim` is this.
static uint64_t count_exchange(const struct routing_checker *c, const struct graph *g, enum dim dim,
                               const struct dim_cut *axes)
{
    const struct node *n = find_exchange(g);
    struct sharding with = *c->fix.sharding;
    for (int i = 0; i < with.rules.n; i++)
        if (with.rules.rule[i].dim == dim)
            with.rules.rule[i].axes = *axes;
    if (!n)
        return 0;
    const struct value *tokens = &g->values[n->in[0]];
    struct spec here = sharding_spec(&with, c->fix.mesh, tokens);
    struct spec there = sharding_spec(&with, c->fix.mesh, &g->values[n->out[0]]);
    struct dim_cut first = there.dim[0];
    there.dim[0] = there.dim[1];
    there.dim[1] = first;
    return count_both_ways(c, tokens, &here, &there);
}

// The axes that the names stand for; the mesh may lack some.
static struct dim_cut find_axes(const struct routing_checker *c, const struct job_names *names)
{
    struct dim_cut cut = {0};
    for (int i = 0; i < names->n; i++) {
        int axis = job_axis_find(&c->fix.job->mesh, names->name[i]);
        if (axis >= 0)
            dim_append(&cut, axis);
    }
    return cut;
}

static int count_layers(const struct graph *g)
{
    int n = 0;
    for (int i = 0; i < g->nnodes; i++)
        n += g->nodes[i].op == OP_SLOTS;
    return n;
}

// "47.1 MB a layer and direction instead of 14.2 MB", of a microbatch; empty: nothing is known.
static const char *describe_bytes(const struct routing_checker *c, uint64_t now, uint64_t then)
{
    struct buf text = {0};
    if (now > then) {
        buf_printf(&text, ", ");
        buf_bytes(&text, now);
        buf_printf(&text, " a layer, microbatch and direction instead of ");
        buf_bytes(&text, then);
    }
    return buf_keep(&text, c->fix.arena);
}

// The axes that both rules have must come last in each: an axis leaves a dimension from its end, and
// what stands behind it would be gathered first.
static void check_order(const struct routing_checker *c, const struct graph *g, enum dim dim,
                        const char *name, axis_set shared)
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
    // The names of a rule with those of `last` behind the others.
    struct job_names names = {0};
    names.name = arena_array(c->fix.arena, const char *, rule->axes.n);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < rule->axes.n; i++) {
            int axis = job_axis_find(&c->fix.job->mesh, rule->axes.name[i]);
            if ((axis >= 0 && shared >> axis & 1) == pass)
                names.name[names.n++] = rule->axes.name[i];
        }
    struct dim_cut ordered = find_axes(c, &names);
    uint64_t now = count_exchange(c, g, dim, axes), then = count_exchange(c, g, dim, &ordered);
    const char *which = axis_set_text(c->fix.mesh, shared, c->fix.arena);
    struct finding one = {.code = FINDING_EXPERT_ORDER,
                          .tensor = arena_printf(c->fix.arena, "sharding.rules.%s", name),
                          .axes = shared,
                          .fix = fix_rule(&c->fix, name, &names)};
    one.waste = now > then ? 2 * (now - then) * (uint64_t)count_layers(g) *
                                 (uint64_t)c->fix.job->train.microbatches
                           : 0;
    findings_say(
        c->found, one,
        "%s: %s deals tokens to experts and is not last: what stands behind it is gathered "
        "for each exchange%s; %s would not",
        one.tensor, which, describe_bytes(c, now, then), one.fix);
}

// ---- routers -----------------------------------------------------------------------------------

static void check_router(const struct routing_checker *c, const struct graph *g,
                         const struct node *n)
{
    const struct op_slots *s = &n->attr.slots;
    const struct value *ids = &g->values[n->in[0]];
    int64_t tokens = s->group * ids->shape.dim[1], choices = ids->shape.dim[2];
    const char *scope = g->scopes[n->scope];
    double kept = (double)(s->capacity * s->experts) / (double)(tokens * choices);
    if (choices == 1)
        findings_say(c->found, (struct finding){.code = FINDING_ONE_CHOICE},
                     "%s: each token chooses one expert, whose weight is 1 whatever its score: the "
                     "router learns from the balance alone",
                     scope);
    if (kept < 1)
        findings_say(
            c->found, (struct finding){.code = FINDING_CHOICES_DROPPED},
            "%s: %lld experts of %lld places take %lld choices of a group: at least %.0f %% "
            "are dropped in training",
            scope, (long long)s->experts, (long long)s->capacity, (long long)(tokens * choices),
            100 * (1 - kept));
}

void routing_check(const struct sharding *s, const struct job *job, const struct mesh *m,
                   const struct graph *g, struct findings *f)
{
    struct routing_checker c = {{f->arena, job, s, m}, f};
    const struct node *router = experts_find_router(g); // the layers are alike
    if (!router)
        return;
    axis_set shared = dim_axes(rules_axes(&s->rules, DIM_BATCH)) &
                      dim_axes(rules_axes(&s->rules, DIM_EXPERT)) & mesh_cuts(m);
    if (shared) {
        check_order(&c, g, DIM_BATCH, "batch", shared);
        check_order(&c, g, DIM_EXPERT, "expert", shared);
    }
    check_router(&c, g, router);
}
