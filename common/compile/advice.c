// SPDX-License-Identifier: Apache-2.0
// Warnings and notes on a job that compiles. See advice.h.
#include "common/compile/advice.h"

#include <fnmatch.h>
#include <string.h>

#include "common/compile/cost.h"

// ---- optimiser groups --------------------------------------------------------------------------

static bool matches_any(const struct graph *g, const char *pattern)
{
    for (int v = 0; v < g->nvalues; v++)
        if (g->values[v].kind == VALUE_PARAM && fnmatch(pattern, g->values[v].name, 0) == 0)
            return true;
    return false;
}

static const char *groups_without(const struct job_optimizer *o, int drop, struct arena *a)
{
    struct job_optimizer rest = *o;
    struct buf b = {0};
    rest.groups = arena_array(a, struct job_group, o->n_groups);
    rest.n_groups = 0;
    for (int i = 0; i < o->n_groups; i++)
        if (i != drop)
            rest.groups[rest.n_groups++] = o->groups[i];
    buf_puts(&b, "optimizer.groups=");
    job_groups_print(&rest, &b);
    const char *text = arena_strdup(a, buf_str(&b));
    buf_clear(&b);
    return text;
}

static void check_groups(const struct graph *g, const struct job_optimizer *o, struct arena *a,
                         struct findings *f)
{
    for (int i = 0; i < o->n_groups; i++) {
        const char *pattern = o->groups[i].match;
        if (matches_any(g, pattern))
            continue;
        findings_add(f, &(struct finding){
                            .code = FINDING_NO_MATCH,
                            .tensor = pattern,
                            .message = arena_printf(
                                a, "optimizer.groups[%d]: no parameter matches %s", i, pattern),
                            .fix = groups_without(o, i, a)});
    }
}

// ---- key heads ---------------------------------------------------------------------------------

// FLOPs of one microbatch's products that make or take key heads, of the unpartitioned program.
static double key_flops(const struct graph *g)
{
    double sum = 0;
    for (int i = 0; i < g->nnodes; i++) {
        const struct node *n = &g->nodes[i];
        bool keys = false;
        for (int k = 0; k < n->nin + n->nout; k++) {
            const struct value *v = &g->values[k < n->nin ? n->in[k] : n->out[k - n->nin]];
            for (int d = 0; d < v->shape.n; d++)
                keys |= v->dims[d] == DIM_KV_HEADS;
        }
        sum += keys && n->op == OP_MATMUL ? cost_node_flops(g, NULL, n) : 0;
    }
    return sum;
}

// The cut of the query heads at attention; false: there is none.
static bool heads_cut(const struct graph *g, struct dim_cut *cut)
{
    for (int i = 0; i < g->nnodes; i++) {
        if (g->nodes[i].kind != NODE_OP || g->nodes[i].op != OP_ATTENTION)
            continue;
        *cut = g->values[g->nodes[i].out[0]].spec.dim[2];
        return cut->n > 0;
    }
    return false;
}

// Heads cut more ways than there are key heads: every device makes all of those.
static void check_key_heads(const struct compiled *c, const struct job *job, struct arena *a,
                            struct findings *f)
{
    const struct program *p = compiled_program(c, PROGRAM_TRAIN, 0);
    struct dim_cut cut;
    if (job->model.kind != JOB_MODEL_DECODER || !heads_cut(p->graph, &cut))
        return;
    int ways = dim_parts(&c->mesh, &cut);
    if (job->model.kv_heads % ways == 0)
        return;
    double again = key_flops(c->global[PROGRAM_TRAIN]) * p->microbatches * (ways - 1);
    struct buf axes = {0};
    axis_set_print(&c->mesh, dim_axes(&cut), &axes);
    findings_add(f, &(struct finding){
                        .code = FINDING_KEY_HEADS_WHOLE,
                        .axes = dim_axes(&cut),
                        .message = arena_printf(
                            a,
                            "%lld key heads do not divide by %d (%s): each of those devices makes "
                            "all of them, %.3g FLOPs a step more than once",
                            (long long)job->model.kv_heads, ways, buf_str(&axes), again)});
    buf_clear(&axes);
}

void advice_check(const struct compiled *c, const struct job *job, struct arena *a,
                  struct findings *f)
{
    check_groups(c->global[PROGRAM_TRAIN], &job->optimizer, a, f);
    check_key_heads(c, job, a, f);
}
