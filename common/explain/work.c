// SPDX-License-Identifier: Apache-2.0
// The work of devices, and rules that share it better. See work.h.
#include "common/explain/work.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/compile/graph/node_work.h"
#include "common/compile/graph/optable.h"
#include "common/compile/shard/partition.h"
#include "common/explain/fixes.h"
#include "common/explain/heads.h"
#include "common/explain/routing.h"
#include "common/language/model_program.h"

enum { REPEATED_PERCENT = 25 }; // of the products: a small head may well be repeated
// How much is tried: dimensions at most, and nodes that are partitioned for all trials together.
enum { DIMENSIONS = 24, NODES = 1 << 19 };

// ---- counting ----------------------------------------------------------------------------------

static bool is_of_experts(const struct graph *g, const struct node *n)
{
    bool experts = false;
    for (int k = 0; k < n->nin; k++)
        experts |= value_find_dim(&g->values[n->in[k]], DIM_EXPERT) >= 0;
    for (int k = 0; k < n->nout; k++)
        experts |= value_find_dim(&g->values[n->out[k]], DIM_EXPERT) >= 0;
    return experts;
}

static bool is_product(const struct node *n)
{
    return n->kind == NODE_OP && !n->again && op_row(n->op)->flops;
}

static double count_flops(const struct graph *g)
{
    double total = 0;
    for (int i = 0; i < g->nnodes; i++)
        total += is_product(&g->nodes[i]) ? node_flops(g, NULL, &g->nodes[i]) : 0;
    return total;
}

static axis_set find_axes_above(const struct mesh *m, const double *on, double limit)
{
    axis_set axes = 0;
    for (int a = 0; a < m->n; a++)
        if (mesh_cuts(m) >> a & 1 && on[a] > limit)
            axes |= (axis_set)(1u << a);
    return axes;
}

static axis_set find_split(const struct graph *g, const struct node *n)
{
    const struct spec *out = &g->values[n->out[0]].spec;
    return spec_axes(out) | out->partial_sum;
}

struct work work_count(const struct compiled *c, const struct graph *cut)
{
    const struct mesh *m = &c->mesh;
    double all = 0, dense = 0, on[MESH_MAX_AXES] = {0}, dense_on[MESH_MAX_AXES] = {0};
    for (int i = 0; i < cut->nnodes; i++) {
        const struct node *n = &cut->nodes[i];
        if (!is_product(n))
            continue;
        axis_set split = find_split(cut, n);
        double flops = node_flops(cut, m, n), other = is_of_experts(cut, n) ? 0 : flops;
        all += flops;
        dense += other;
        for (int a = 0; a < m->n; a++) {
            on[a] += split >> a & 1 ? 0 : flops;
            dense_on[a] += split >> a & 1 ? 0 : other;
        }
    }
    double whole = count_flops(c->global[PROGRAM_TRAIN]);
    double together = all * mesh_ranks(m) / c->nstages;
    return (struct work){.utilisation = together > 0 ? whole / together : 1,
                         .repeated = find_axes_above(m, on, all * REPEATED_PERCENT / 100),
                         .dense = find_axes_above(m, dense_on, dense / 2)};
}

bool work_is_repeated(const struct work *w)
{
    return w->utilisation * 100 <= 100 - REPEATED_PERCENT && w->repeated;
}

// ---- other rules -------------------------------------------------------------------------------

void rules_add(struct rules_change *to, const char *dim, axis_set axes)
{
    PRE(to->n < RULES_TRIED);
    to->rule[to->n].dim = dim;
    to->rule[to->n++].axes = axes;
}

// The names of a rule, with the axes behind them.
static struct job_names put_behind(const struct compiled *c, const struct job_names *rule,
                                   axis_set axes, struct arena *a)
{
    struct job_names out = {0, arena_array(a, const char *, rule->n + MESH_MAX_AXES)};
    for (int i = 0; i < rule->n; i++)
        out.name[out.n++] = rule->name[i];
    for (int i = 0; i < c->mesh.n; i++)
        if (axes >> i & 1)
            out.name[out.n++] = c->mesh.axis[i].name;
    return out;
}

static struct job_names change_rule(const struct compiled *c, const struct job *job,
                                    const struct rules_change *r, int i, struct arena *a)
{
    static const struct job_names none;
    const struct job_rule *rule = job_rule_find(&job->sharding, r->rule[i].dim);
    return put_behind(c, rule ? &rule->axes : &none, r->rule[i].axes, a);
}

const char *rules_text(const struct compiled *c, const struct job *job,
                       const struct rules_change *r, struct arena *a)
{
    const struct fixer fix = {a, job, c->sharding, &c->mesh};
    const char *text = NULL;
    for (int i = 0; i < r->n; i++) {
        struct job_names names = change_rule(c, job, r, i, a);
        const char *one = fix_rule(&fix, r->rule[i].dim, &names);
        text = text ? arena_printf(a, "%s and %s", text, one) : one;
    }
    return text;
}

static bool change_job(const struct compiled *c, const struct job *job,
                       const struct rules_change *r, struct arena *a, struct job *out)
{
    *out = *job;
    struct job_sharding *s = &out->sharding;
    for (int i = 0; i < r->n; i++) {
        int at = 0;
        while (at < s->n_rules && strcmp(s->rules[at].dim, r->rule[i].dim) != 0)
            at++;
        if (at == JOB_RULES)
            return false;
        if (at == s->n_rules)
            s->rules[s->n_rules++] = (struct job_rule){.dim = r->rule[i].dim};
        s->rules[at].axes = change_rule(c, job, r, i, a);
    }
    return true;
}

// Whether the samples of each microbatch are still shared out evenly: the job's reader asks for that.
static bool batch_divides(const struct compiled *c, const struct job *job, const struct sharding *s)
{
    axis_set axes = s->batch | dim_axes(rules_axes(&s->rules, DIM_BATCH));
    return job->data.batch / job->train.microbatches % mesh_product(&c->mesh, axes) == 0;
}

// Counts what speaks against a sharding: errors, and warnings that would replace the one that the
// change removes.
static int count_objections(const struct compiled *c, const struct job *job,
                            const struct sharding *s, struct arena *a)
{
    const struct graph *g = c->global[PROGRAM_TRAIN];
    struct findings found;
    int n = s->facts.errors;
    findings_init(&found, job, a);
    heads_check(s, job, &c->mesh, g, &found);
    routing_check(s, job, &c->mesh, g, &found);
    for (int i = 0; i < found.n; i++)
        n += finding_is_error(found.items[i].code) || found.items[i].code == FINDING_EXPERT_ORDER;
    return n;
}

static bool cut_again(const struct compiled *c, const struct job *job, const struct job *changed,
                      struct arena *a, struct graph *cut)
{
    struct err e = {0};
    struct sharding *s = arena_new(a, struct sharding);
    sharding_resolve(s, changed, &c->mesh, c->dims, a);
    sharding_check(s, &c->mesh, c->global[PROGRAM_TRAIN]);
    if (!batch_divides(c, job, s) ||
        count_objections(c, changed, s, a) > count_objections(c, job, c->sharding, a))
        return false;
    graph_init(cut, a, c->dims, &e);
    return partition(c->global[PROGRAM_TRAIN], &c->mesh, s, cut, &e) == 0;
}

bool rules_try(const struct compiled *c, const struct job *job, const struct rules_change *r,
               struct work *out)
{
    struct arena scratch = {0};
    struct job *changed = arena_new(&scratch, struct job);
    struct graph *cut = arena_new(&scratch, struct graph);
    bool ok = change_job(c, job, r, &scratch, changed) && cut_again(c, job, changed, &scratch, cut);
    if (ok)
        *out = work_count(c, cut);
    arena_clear(&scratch);
    return ok;
}

// ---- the search --------------------------------------------------------------------------------

struct cut_search {
    const struct compiled *c;
    const struct job *job;
    int ndims, tries; // tries that are left
    bool costly;      // dimensions are tried too whose cut makes a collective of each product
    struct tried_dim {
        enum dim dim;
        double flops; // of the repeated products that have it
    } dims[DIMENSIONS];
};

// Whether a job may give the dimension a rule.
static bool may_have_rule(const struct cut_search *s, enum dim d)
{
    const char *name = d == DIM_NONE ? "" : dims_name(s->c->dims, d);
    return job_rule_find(&s->job->sharding, name) ||
           (s->job->model.read && model_size_find(s->job->model.read, name) >= 0);
}

static void note_dim(struct cut_search *s, enum dim d, double flops)
{
    int at = 0;
    // The dimension whose rule cuts this one: its own, or the one it is like.
    enum dim ruled = rules_dim(&s->c->sharding->rules, d);
    d = ruled == DIM_NONE ? d : ruled;
    if (!may_have_rule(s, d))
        return;
    while (at < s->ndims && s->dims[at].dim != d)
        at++;
    if (at == DIMENSIONS)
        return;
    s->dims[at].dim = d;
    s->dims[at].flops = (at < s->ndims ? s->dims[at].flops : 0) + flops;
    s->ndims += at == s->ndims;
}

// Whether cutting the dimension costs a collective for each product.
static bool is_costly(enum dim d)
{
    return d == DIM_EMBED || d == DIM_SEQ;
}

static int compare_dims(const void *x, const void *y)
{
    const struct tried_dim *a = x, *b = y;
    double one = a->dim == DIM_BATCH ? HUGE_VAL : a->flops;
    double other = b->dim == DIM_BATCH ? HUGE_VAL : b->flops;
    return one != other ? (one < other ? 1 : -1) : (int)a->dim - (int)b->dim;
}

// The dimensions of products that are repeated over the axes: the batch, then those with the most
// work.
static void find_dims(struct cut_search *s, axis_set axes)
{
    const struct graph *g = compiled_program(s->c, PROGRAM_TRAIN, 0)->graph;
    note_dim(s, DIM_BATCH, 0);
    for (int i = 0; i < g->nnodes; i++) {
        const struct node *n = &g->nodes[i];
        if (!is_product(n) || n->phase != PHASE_FORWARD || !(axes & ~find_split(g, n)))
            continue;
        double flops = node_flops(g, &s->c->mesh, n);
        for (int k = 0; k < n->nin; k++)
            for (int d = 0; d < g->values[n->in[k]].shape.n; d++)
                note_dim(s, g->values[n->in[k]].dims[d], flops);
    }
    qsort(s->dims, (size_t)s->ndims, sizeof *s->dims, compare_dims);
}

// Whether one is better: the end of repetition before all, then by a part in a hundred.
static bool is_better(const struct work *one, const struct work *other)
{
    bool done = !work_is_repeated(one), before = !work_is_repeated(other);
    return done != before ? done : one->utilisation > 1.01 * other->utilisation;
}

static bool has_rule(const struct rules_change *r, const char *dim)
{
    for (int i = 0; i < r->n; i++)
        if (strcmp(r->rule[i].dim, dim) == 0)
            return true;
    return false;
}

// Tries the axes behind the rule of each dimension that has none of them yet; keeps the best.
static bool try_dims(struct cut_search *s, const struct rules_change *from, axis_set axes,
                     struct rules_change *best, struct work *then)
{
    bool any = false;
    for (int i = 0; i < s->ndims; i++) {
        const char *dim = dims_name(s->c->dims, s->dims[i].dim);
        struct rules_change change = *from;
        struct work work;
        if (has_rule(from, dim) || (is_costly(s->dims[i].dim) && !s->costly) || s->tries-- <= 0)
            continue;
        rules_add(&change, dim, axes);
        if (!rules_try(s->c, s->job, &change, &work) || !is_better(&work, then))
            continue;
        *best = change;
        *then = work;
        any = true;
    }
    return any;
}

// One more rule, the one that helps most: with all axes, or with one of them. False: none helps.
static bool add_best_rule(struct cut_search *s, axis_set axes, struct rules_change *best,
                          struct work *then)
{
    const struct rules_change from = *best;
    bool any = try_dims(s, &from, axes, best, then);
    for (int a = 0; a < s->c->mesh.n; a++)
        if (axes >> a & 1 && axes != 1u << a)
            any |= try_dims(s, &from, (axis_set)(1u << a), best, then);
    return any;
}

bool rules_search(const struct compiled *c, const struct job *job, struct rules_change *best,
                  struct work *then)
{
    const struct graph *g = compiled_program(c, PROGRAM_TRAIN, 0)->graph;
    struct cut_search s = {.c = c, .job = job, .tries = 1 + NODES / (g->nnodes + 1)};
    const struct work now = work_count(c, g);
    find_dims(&s, now.repeated);
    *then = now;
    for (int costly = 0; costly < 2 && work_is_repeated(then); costly++) {
        struct rules_change change = {0};
        struct work work = now;
        s.costly = costly;
        while (change.n < RULES_TRIED && work_is_repeated(&work) &&
               add_best_rule(&s, now.repeated, &change, &work))
            ;
        if (!costly || is_better(&work, then)) {
            *best = change;
            *then = work;
        }
    }
    return !work_is_repeated(then);
}
