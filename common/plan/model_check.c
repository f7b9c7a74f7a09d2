// SPDX-License-Identifier: Apache-2.0
// A program by itself. See model_check.h.
#include "common/plan/model_check.h"

#include <stdlib.h>
#include <string.h>

#include "common/explain/cost.h"
#include "common/language/model_facts.h"
#include "common/model/builder.h"
#include "common/plan/plan.h"
#include "common/plan/schema_list.h"

// ---- a job for it ------------------------------------------------------------------------------

// An error in the program's own name is reported at that name: nobody gave it with -s.
static void report_program(struct job_errors *errs, const char *given, const char *program)
{
    for (int i = 0; i < errs->n; i++) {
        if (strcmp(errs->items[i].file, given) != 0)
            continue;
        errs->items[i].file = program;
        errs->items[i].path = "";
    }
}

// A file's name may hold what YAML would take for more than text.
static const char *quote(const char *name, struct arena *a)
{
    struct buf quoted = {0};
    buf_putc(&quoted, '\'');
    for (; *name; name++)
        buf_printf(&quoted, *name == '\'' ? "%c'" : "%c", *name);
    buf_putc(&quoted, '\'');
    return buf_keep(&quoted, a);
}

static int read_job(struct model_checked *out, const char *program, const char *const *set, int n,
                    const char *data, struct arena *a, struct job_errors *errs)
{
    struct buf text = {0};
    const char **all = arena_array(a, const char *, n + 1);
    memcpy(all, set, sizeof *set * (size_t)n);
    all[n] = arena_printf(a, "model.program=%s", quote(program, a));
    buf_printf(&text, "name: check\ntrain: {steps: 1}\ndata: {%s, batch: 1}\nmodel: {}\n", data);
    int rc = job_parse(a, &weft_schema, program, NULL, buf_str(&text), text.len, all, n + 1,
                       &out->job, errs);
    report_program(errs, arena_printf(a, "-s %s", all[n]), program);
    buf_clear(&text);
    return rc;
}

// A program says itself which data it reads: so it is read once to know, and once with that.
static int make_job(struct model_checked *out, const char *program, const char *const *sizes, int n,
                    struct arena *a, struct buf *why)
{
    static const char tokens[] = "format: tokens, train: {tokens: t}",
                      images[] = "train: {images: i}", labels[] = "train: {images: i, labels: l}";
    struct job_errors errs;
    const char **set = arena_array(a, const char *, n);
    for (int i = 0; i < n; i++)
        set[i] =
            strncmp(sizes[i], "model.", 6) == 0 ? sizes[i] : arena_printf(a, "model.%s", sizes[i]);
    int rc = read_job(out, program, set, n, tokens, a, &errs);
    const struct job_model *m = &out->job.model;
    if (m->read && !model_reads_tokens(m->read))
        rc = read_job(out, program, set, n, m->facts && m->facts->labels ? labels : images, a,
                      &errs);
    if (rc)
        job_errors_print(&errs, why);
    return rc;
}

// ---- what it is --------------------------------------------------------------------------------

static bool is_param(const struct value *v)
{
    return v->kind == VALUE_PARAM && v->alias < 0;
}

static bool has_named_dim(const struct rules *rules, const struct value *v, const char *name)
{
    enum dim dim = dims_id(rules->dims, name);
    for (int d = 0; d < v->shape.n; d++)
        if (rules_dim(rules, v->dims[d]) == dim)
            return true;
    return false;
}

static bool is_cut_by(const struct model_checked *out, const struct rules *rules,
                      const struct value *v)
{
    const struct job_sharding *s = &out->job.sharding;
    for (int i = 0; i < s->n_rules; i++)
        if (s->rules[i].axes.n && has_named_dim(rules, v, s->rules[i].dim))
            return true;
    return false;
}

static void find_uncut(struct model_checked *out, const struct rules *rules)
{
    int64_t uncut = 0, most = 0;
    for (int v = 0; v < out->g->nvalues; v++) {
        const struct value *p = &out->g->values[v];
        int64_t n = shape_count(&p->shape);
        if (!is_param(p) || is_cut_by(out, rules, p))
            continue;
        uncut += n;
        if (n > most) {
            most = n;
            out->most = p->name;
        }
    }
    out->uncut = (double)uncut / (double)out->params;
}

static struct model_cut count_rule(const struct model_checked *out, const struct rules *rules,
                                   const struct job_rule *rule, struct arena *a)
{
    struct model_cut cut = {.dim = rule->dim};
    struct buf axes = {0};
    for (int v = 0; v < out->g->nvalues; v++) {
        const struct value *p = &out->g->values[v];
        if (!is_param(p) || !has_named_dim(rules, p, rule->dim))
            continue;
        cut.params += (double)shape_count(&p->shape) / (double)out->params;
        cut.tensors++;
    }
    job_names_print(&rule->axes, &axes);
    cut.axes = buf_keep(&axes, a);
    return cut;
}

// ---- parameters that nothing reads --------------------------------------------------------------

static bool is_read(const struct graph *g, int param)
{
    for (int i = 0; i < g->nnodes; i++)
        for (int k = 0; k < g->nodes[i].nin; k++)
            if (g->nodes[i].in[k] == param &&
                (g->nodes[i].op != OP_SUM || g->nodes[i].attr.scale != 0))
                return true;
    return false;
}

// Lists the parameters that the forward part does not read.
static void find_unread(struct model_checked *out, struct arena *a)
{
    const struct graph *g = out->g;
    out->unread = arena_array(a, const char *, g->nvalues);
    for (int v = 0; v < g->nvalues; v++)
        if (is_param(&g->values[v]) && !is_read(g, v))
            out->unread[out->nunread++] = g->values[v].name;
}

// ---- the names of its lines --------------------------------------------------------------------

struct naming {
    struct model_checked *out;
    struct arena *arena;
};

// A line in a repeat names the same thing in each layer, and mostly of the same dimensions.
static void keep_named(void *ctx, int line, const char *name, const char *dims)
{
    struct naming *n = ctx;
    struct model_checked *out = n->out;
    for (int i = 0; i < out->nnamed; i++)
        if (out->named[i].line == line && strcmp(out->named[i].name, name) == 0 &&
            strcmp(out->named[i].dims, dims) == 0)
            return;
    out->named = arena_grow(n->arena, out->named, sizeof *out->named, out->nnamed, &out->named_cap);
    out->named[out->nnamed++] = (struct model_named){line, name, dims};
}

// Of a repeat's turns the first says it for all.
static void keep_reread(void *ctx, int line, const char *param, int first_line)
{
    struct naming *n = ctx;
    struct model_checked *out = n->out;
    for (int i = 0; i < out->nreread; i++)
        if (out->reread[i].line == line && out->reread[i].first_line == first_line)
            return;
    out->reread =
        arena_grow(n->arena, out->reread, sizeof *out->reread, out->nreread, &out->reread_cap);
    out->reread[out->nreread++] = (struct model_reread){line, first_line, param};
}

static void find_unused(struct model_checked *out, struct arena *a)
{
    const struct model_program *p = out->job.model.read;
    out->unused = arena_array(a, const struct model_size *, p->nsizes + 1);
    for (int i = 0; i < p->nsizes; i++)
        if (!model_size_is_read(p, p->sizes[i].name))
            out->unused[out->nunused++] = &p->sizes[i];
}

static int compare_lines(const void *x, const void *y)
{
    return ((const struct model_named *)x)->line - ((const struct model_named *)y)->line;
}

static int build_forward(struct model_checked *out, struct arena *a, struct err *e)
{
    struct naming naming = {out, a};
    const struct model_run run = {.kind = PROGRAM_TRAIN,
                                  .batch = 1,
                                  .step_batch = 1,
                                  .bytes = true,
                                  .named = keep_named,
                                  .reread = keep_reread,
                                  .ctx = &naming};
    struct graph *g = arena_alloc(a, sizeof *g);
    graph_init(g, a, NULL, e);
    int rc = model_build(g, out->job.model.sizes, &run);
    if (out->nnamed)
        qsort(out->named, (size_t)out->nnamed, sizeof *out->named, compare_lines);
    out->g = g;
    return rc;
}

int model_look(const char *program, const char *const *sizes, int nsizes, struct arena *a,
               struct model_checked *out, struct buf *why)
{
    struct err e = {0};
    *out = (struct model_checked){0};
    int rc = make_job(out, program, sizes, nsizes, a, why);
    if (rc)
        return rc;
    out->title = model_title(out->job.model.read, a);
    rc = build_forward(out, a, &e);
    if (rc)
        buf_printf(why, "%s\n", e.text);
    else {
        const struct graph *g = out->g;
        for (int v = 0; v < g->nvalues; v++)
            if (is_param(&g->values[v]))
                out->params += shape_count(&g->values[v].shape);
        find_unread(out, a);
        find_unused(out, a);
    }
    return rc;
}

int model_check(const char *program, const char *const *sizes, int nsizes, struct arena *a,
                struct model_checked *out, struct buf *why)
{
    struct compiled compiled;
    struct cost cost;
    struct err e = {0};
    int rc = model_look(program, sizes, nsizes, a, out, why);
    if (rc)
        return rc;
    if ((rc = plan_compile(&out->job, NULL, a, &compiled, NULL, &e))) {
        buf_printf(why, "%s\n", e.text);
        return rc;
    }
    out->g = compiled.global[PROGRAM_TRAIN];
    cost_count(&compiled, a, &cost);
    out->flops = cost.flops_per_step;
    if (out->params) {
        const struct job_sharding *s = &out->job.sharding;
        out->cuts = arena_array(a, struct model_cut, s->n_rules);
        for (int i = 0; i < s->n_rules; i++)
            if (s->rules[i].axes.n && strcmp(s->rules[i].dim, "layers") != 0)
                out->cuts[out->ncuts++] =
                    count_rule(out, &compiled.sharding->rules, &s->rules[i], a);
        find_uncut(out, &compiled.sharding->rules);
        out->nunlike = unruled_find(&out->job, &compiled.sharding->rules, out->g, a, &out->unlike);
    }
    return 0;
}
