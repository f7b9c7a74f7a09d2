// SPDX-License-Identifier: Apache-2.0
// Facts of the sharding section as sentences. See sharding_findings.h.
#include "common/explain/sharding_findings.h"

#include <fnmatch.h>
#include <string.h>

#include "common/compile/graph/experts.h"
#include "common/explain/fixes.h"

struct reporter {
    struct fixer fix;
    const struct graph *graph;
    struct findings *found;
};

#define TEXT(t, ...) arena_printf((t)->fix.arena, __VA_ARGS__)

static const char *describe_line(const struct reporter *t, int line) // " (line 7)"; "" for 0
{
    return line ? TEXT(t, " (line %d)", line) : "";
}

static const char *describe_axes(const struct reporter *t, axis_set axes)
{
    return axis_set_text(t->fix.mesh, axes, t->fix.arena);
}

static const char *describe_spec(const struct reporter *t, const struct value *v,
                                 const struct spec *s)
{
    struct buf b = {0};
    spec_print(s, t->fix.mesh, v->shape.n, &b);
    return buf_keep(&b, t->fix.arena);
}

static const char *describe_sizes(const struct reporter *t, int64_t size,
                                  int64_t parts) // "12 or 16"
{
    int64_t below = size / parts * parts;
    return below ? TEXT(t, "%lld or %lld", (long long)below, (long long)(below + parts))
                 : TEXT(t, "%lld", (long long)parts);
}

static bool cuts_finer(const struct fact *f)
{
    return f->list == FACT_GRADS || f->list == FACT_OPTIMIZER;
}

static const struct job_refine *get_refine(const struct reporter *t, const struct fact *f)
{
    const struct job_sharding *s = &t->fix.job->sharding;
    return f->list == FACT_GRADS ? &s->grads : &s->optimizer;
}

// The entry's spec as the job has it; null: there is none, a rule speaks.
static const struct job_spec *find_spec(const struct reporter *t, const struct fact *f)
{
    if (f->entry < 0 || f->list == FACT_RULES || f->list == FACT_GATHER)
        return NULL;
    return f->list == FACT_POINTS ? &t->fix.job->sharding.points[f->entry].spec
                                  : &fix_entries(t->fix.job, f->list).list[f->entry].spec;
}

// ---- of names ----------------------------------------------------------------------------------

// Where a name stands: how that place is called, its line, its list of names.
struct name_site {
    const char *called;
    int line;
    struct job_names names;
};

static struct name_site find_site(const struct reporter *t, const struct fact *f)
{
    const struct job_sharding *s = &t->fix.job->sharding;
    const struct job_spec *spec = find_spec(t, f);
    if (f->list == FACT_RULES)
        return (struct name_site){TEXT(t, "sharding.rules.%s", s->rules[f->entry].dim),
                                  s->rules[f->entry].line, s->rules[f->entry].axes};
    if (f->list == FACT_GATHER)
        return (struct name_site){"sharding.gather", 0, s->gather};
    if (!spec)
        return (struct name_site){fix_entries(t->fix.job, f->list).key, get_refine(t, f)->line,
                                  get_refine(t, f)->axes};
    return (struct name_site){f->list == FACT_POINTS
                                  ? s->points[f->entry].point
                                  : fix_entries(t->fix.job, f->list).list[f->entry].match,
                              spec->line, spec->dim[f->dim]};
}

// The setting that puts other names where the fact's name stands.
static const char *fix_names(const struct reporter *t, const struct fact *f, struct job_names names)
{
    const struct job_sharding *s = &t->fix.job->sharding;
    if (f->list == FACT_RULES)
        return fix_rule(&t->fix, s->rules[f->entry].dim, &names);
    if (f->list == FACT_GATHER)
        return fix_gather(&t->fix, &names);
    if (f->entry < 0)
        return fix_refine(&t->fix, f->list, &(struct job_refine){.axes = names});
    struct job_spec spec = *find_spec(t, f);
    spec.dim[f->dim] = names;
    if (f->list == FACT_POINTS)
        return fix_point(&t->fix, s->points[f->entry].point, &spec);
    return fix_entry(&t->fix, f->list, f->entry,
                     fix_entries(t->fix.job, f->list).list[f->entry].match, false, &spec);
}

static const char *get_axis_name(const struct reporter *t, const struct fact *f)
{
    return t->fix.mesh->axis[__builtin_ctz(f->axes)].name;
}

static void report_name(const struct reporter *t, const struct fact *f, enum finding_code code,
                        const char *what)
{
    struct name_site p = find_site(t, f);
    struct job_names names = f->code == FACT_NAME_TWICE
                                 ? names_once(t->fix.arena, &p.names)
                                 : names_without(t->fix.arena, &p.names, f->name);
    findings_say(
        t->found,
        (struct finding){
            .code = code, .tensor = p.called, .axes = f->axes, .fix = fix_names(t, f, names)},
        "%s%s: %s", p.called, describe_line(t, p.line), what);
}

static void report_unknown(const struct reporter *t, const struct fact *f)
{
    struct name_site p = find_site(t, f);
    struct buf mesh = {0};
    mesh_print(t->fix.mesh, &mesh);
    report_name(t, f, FINDING_AXIS_UNKNOWN,
                TEXT(t, "'%s' is no axis of the mesh %s, no rule and no usual name of an axis",
                     p.names.name[f->name], buf_str(&mesh)));
    buf_clear(&mesh);
}

static void report_name_twice(const struct reporter *t, const struct fact *f)
{
    struct name_site p = find_site(t, f);
    report_name(t, f, FINDING_AXIS_TWICE,
                TEXT(t, "'%s' stands twice in the list", p.names.name[f->name]));
}

static void report_stage_axis(const struct reporter *t, const struct fact *f)
{
    report_name(t, f, FINDING_STAGE_AXIS,
                TEXT(t,
                     "axis %s holds the stages of the pipeline, which have different layers: "
                     "it cannot cut a tensor",
                     get_axis_name(t, f)));
}

static void report_axis_twice(const struct reporter *t, const struct fact *f)
{
    report_name(t, f, FINDING_AXIS_TWICE,
                TEXT(t, "axis %s cuts two dimensions: one axis can cut one", get_axis_name(t, f)));
}

// ---- of tensors --------------------------------------------------------------------------------

static const struct value *get_value(const struct reporter *t, const struct fact *f)
{
    return &t->graph->values[f->value];
}

static const char *get_tensor_name(const struct value *v)
{
    return v->kind == VALUE_PARAM ? v->name : point_name(v->point);
}

// Layers have the same tensors: what holds for one of them is said once, of the first, and its fix
// is for all. A tensor that differs in shape from its namesakes stands alone.
struct namesakes {
    const char *match, *more; // a glob, or its own name; " and 3 like it", or nothing
    bool first;
};

static struct namesakes find_namesakes(const struct reporter *t, const struct value *v)
{
    struct namesakes own = {v->kind == VALUE_PARAM ? v->name : NULL, "", true}, all = own;
    if (v->kind != VALUE_PARAM)
        return own;
    all.match = layers_glob(t->fix.arena, v->name);
    int n = 0, before = 0;
    for (int i = 0; i < t->graph->nvalues; i++) {
        const struct value *o = &t->graph->values[i];
        if (o->kind != VALUE_PARAM || fnmatch(all.match, o->name, 0) != 0)
            continue;
        if (!shape_equal(&o->shape, &v->shape) || memcmp(o->dims, v->dims, sizeof o->dims) != 0 ||
            sharding_entry(t->fix.sharding, o) != sharding_entry(t->fix.sharding, v))
            return own;
        n++;
        before += o < v;
    }
    all.first = before == 0;
    if (n > 1)
        all.more = TEXT(t, " and %d like it", n - 1);
    return n > 1 ? all : own;
}

static const char *describe_dim(const struct reporter *t, const struct value *v, int d)
{
    return dims_name(t->fix.sharding->rules.dims, v->dims[d]);
}

// The tensor's entry, or its point's, with another spec.
static const char *fix_tensor(const struct reporter *t, const struct fact *f, const char *match,
                              const struct job_spec *spec)
{
    return f->list == FACT_POINTS ? fix_point(&t->fix, point_name(get_value(t, f)->point), spec)
                                  : fix_entry(&t->fix, f->list, f->entry, match, true, spec);
}

// The setting that takes `axes` off the dimensions of a tensor from `from` up to `to`.
static const char *fix_without(const struct reporter *t, const struct fact *f, const char *match,
                               int from, int to, axis_set axes)
{
    const struct value *v = get_value(t, f);
    if (f->entry < 0) {
        for (int d = from; d < to; d++) {
            const struct rules *rules = &t->fix.sharding->rules;
            const struct job_rule *rule = job_rule_find(
                &t->fix.job->sharding, dims_name(rules->dims, rules_dim(rules, v->dims[d])));
            if (!rule || !(dim_axes(rules_axes(rules, v->dims[d])) & axes))
                continue;
            struct job_names rest = names_without_axes(&t->fix, &rule->axes, axes);
            return fix_rule(&t->fix, rule->dim, &rest);
        }
        return NULL;
    }
    struct job_spec spec = *find_spec(t, f);
    if (spec.n > v->shape.n)
        spec.n = v->shape.n;
    for (int d = from; d < to && d < spec.n; d++)
        spec.dim[d] = names_without_axes(&t->fix, &spec.dim[d], axes);
    return fix_tensor(t, f, match, &spec);
}

// A tensor's cut beyond its parameter's, replaced for this tensor alone.
static const char *fix_finer(const struct reporter *t, const struct fact *f, const struct spec *s)
{
    const struct value *v = get_value(t, f);
    struct job_spec spec = spec_in_names(&t->fix, v->shape.n, s);
    return fix_entry(&t->fix, f->list, f->entry < 0 ? 0 : f->entry, v->name, true, &spec);
}

static int find_finer_line(const struct reporter *t, const struct fact *f)
{
    return f->entry < 0 ? get_refine(t, f)->line : find_spec(t, f)->line;
}

static void report_no_match(const struct reporter *t, const struct fact *f)
{
    const struct job_param_spec *p = &fix_entries(t->fix.job, f->list).list[f->entry];
    findings_say(t->found,
                 (struct finding){.code = FINDING_NO_MATCH,
                                  .tensor = p->match,
                                  .fix = fix_without_entry(&t->fix, f->list, f->entry)},
                 "%s%s: no parameter matches%s", p->match, describe_line(t, p->spec.line),
                 p->min.n ? " with these sizes or more" : "");
}

static void report_length(const struct reporter *t, const struct fact *f)
{
    const struct value *v = get_value(t, f);
    struct namesakes all = {v->name, "", true};
    struct job_spec spec = *find_spec(t, f);
    struct finding one = {.code = FINDING_SPEC_TOO_LONG, .tensor = get_tensor_name(v)};
    const char *where = "";
    int entries = spec.n;
    spec.n = (int)f->size;
    if (cuts_finer(f)) {
        where = TEXT(t, " in %s", fix_entries(t->fix.job, f->list).key);
    } else {
        all = find_namesakes(t, v);
        one.like = all.match;
    }
    if (!all.first)
        return;
    one.fix = fix_tensor(t, f, all.match, &spec);
    findings_say(t->found, one, "%s%s: the spec%s%s has %d entries, the tensor %d dimensions",
                 one.tensor, all.more, where, describe_line(t, spec.line), entries, spec.n);
}

// The axes, minor ones, by which the dimension does not divide any more.
static axis_set find_excess_axes(const struct reporter *t, const struct fact *f)
{
    axis_set bad = f->axes;
    int64_t shards = 1;
    for (int i = 0; i < f->has.dim[f->dim].n; i++) {
        int axis = f->has.dim[f->dim].axis[i];
        shards *= t->fix.mesh->axis[axis].size;
        if (f->size % shards)
            break;
        bad &= (axis_set) ~(1u << axis);
    }
    return bad;
}

static void report_indivisible_finer(const struct reporter *t, const struct fact *f)
{
    const struct value *v = get_value(t, f);
    struct spec less = spec_that_divides(&f->has, t->fix.mesh, &v->shape);
    struct buf axes = {0};
    dim_cut_print(&f->has.dim[f->dim], t->fix.mesh, &axes);
    findings_say(t->found,
                 (struct finding){.code = FINDING_INDIVISIBLE,
                                  .tensor = v->name,
                                  .axes = f->axes,
                                  .fix = fix_finer(t, f, &less)},
                 "%s: dimension %s of size %lld does not divide by %lld, as %s%s asks with %s: try "
                 "%s",
                 v->name, describe_dim(t, v, f->dim), (long long)f->size, (long long)f->parts,
                 fix_entries(t->fix.job, f->list).key, describe_line(t, find_finer_line(t, f)),
                 buf_str(&axes), describe_sizes(t, f->size, f->parts));
    buf_clear(&axes);
}

// What deals tokens to the experts whose places a value holds; null: it holds none.
static const struct node *find_dealing(const struct reporter *t, const struct value *v)
{
    const struct graph *g = t->graph;
    for (const struct value *at = v; at->producer >= 0;) {
        const struct node *n = &g->nodes[at->producer];
        if (n->op == OP_DISPATCH)
            return &g->nodes[g->values[n->in[1]].producer];
        at = &g->values[n->in[0]];
    }
    return NULL;
}

// A number of samples a group that would leave whole groups to each device.
static int64_t find_group(int64_t group, int64_t groups, int64_t parts)
{
    for (int64_t n = group; n > 1; n--)
        if (groups * group % (n * parts) == 0)
            return n;
    return 1;
}

static void report_groups(const struct reporter *t, const struct fact *f, struct finding *one)
{
    const struct op_slots *s = &find_dealing(t, get_value(t, f))->attr.slots;
    int64_t would = find_group(s->group, f->size, f->parts);
    one->message =
        TEXT(t,
             "%s: %lld groups of %lld samples do not divide by %lld (%s), which cut the batch; a "
             "group lies on one device: try group=%lld",
             one->tensor, (long long)f->size, (long long)s->group, (long long)f->parts,
             describe_axes(t, f->axes), (long long)would);
    one->fix = TEXT(t, "model.group=%lld", (long long)would);
}

// "capacity=1 gives 2 and capacity=2 gives 4".
static void report_places(const struct reporter *t, const struct fact *f, struct finding *one)
{
    const struct node *n = find_dealing(t, get_value(t, f));
    const struct op_slots *s = &n->attr.slots;
    int64_t tokens = s->group * t->graph->values[n->in[0]].shape.dim[1];
    int64_t below = f->size / f->parts * f->parts, above = below + f->parts;
    const char *would = TEXT(t, "capacity=%.9g gives %lld",
                             experts_factor(tokens, s->experts, above), (long long)above);
    if (below)
        would = TEXT(t, "capacity=%.9g gives %lld and %s",
                     experts_factor(tokens, s->experts, below), (long long)below, would);
    one->message = TEXT(t,
                        "%s: %lld slots an expert, for %lld tokens of a group and %lld experts, do "
                        "not divide by %lld (%s): %s",
                        one->tensor, (long long)f->size, (long long)tokens, (long long)s->experts,
                        (long long)f->parts, describe_axes(t, f->axes), would);
}

static void report_indivisible(const struct reporter *t, const struct fact *f)
{
    const struct value *v = get_value(t, f);
    struct finding one = {
        .code = FINDING_INDIVISIBLE, .tensor = get_tensor_name(v), .axes = f->axes};
    if (cuts_finer(f)) {
        report_indivisible_finer(t, f);
        return;
    }
    struct namesakes all = find_namesakes(t, v);
    if (!all.first)
        return;
    one.like = all.match;
    one.message =
        TEXT(t, "%s%s: dimension %s of size %lld does not divide by %lld (%s): try %s", one.tensor,
             all.more, describe_dim(t, v, f->dim), (long long)f->size, (long long)f->parts,
             describe_axes(t, f->axes), describe_sizes(t, f->size, f->parts));
    one.fix = fix_without(t, f, all.match, f->dim, f->dim + 1, find_excess_axes(t, f));
    if (v->dims[f->dim] == DIM_GROUP && find_dealing(t, v))
        report_groups(t, f, &one);
    else if (v->dims[f->dim] == DIM_CAPACITY && find_dealing(t, v))
        report_places(t, f, &one);
    findings_add(t->found, &one);
}

static void report_chunks(const struct reporter *t, const struct fact *f)
{
    struct finding one = {.code = FINDING_INDIVISIBLE, .axes = f->axes};
    one.tensor = get_tensor_name(get_value(t, f));
    one.fix = TEXT(t, "model.seq=%lld", (long long)(f->size / f->parts * f->parts + f->parts));
    findings_say(
        t->found, one,
        "%s: dimension seq of size %lld does not divide by %lld, two chunks for each place "
        "on %s: try %s",
        one.tensor, (long long)f->size, (long long)f->parts, describe_axes(t, f->axes),
        describe_sizes(t, f->size, f->parts));
}

// Reports a spec that does not continue the parameter's or gradient's. If the job does not give
// the list at all, this is one finding for the list and not one a tensor, and the fix gives the list
// what sharding.grads has.
static void report_not_finer(const struct reporter *t, const struct fact *f)
{
    const struct value *v = get_value(t, f);
    // The coarser cut with the axes that the finer has besides, where they divide.
    struct spec right = f->within;
    for (int d = 0; d < v->shape.n; d++)
        for (int i = 0; i < f->has.dim[d].n; i++) {
            int axis = f->has.dim[d].axis[i], parts = dim_parts(t->fix.mesh, &right.dim[d]);
            if (!(spec_axes(&right) >> axis & 1) &&
                v->shape.dim[d] % (parts * t->fix.mesh->axis[axis].size) == 0)
                dim_append(&right.dim[d], axis);
        }
    const char *key = fix_entries(t->fix.job, f->list).key;
    int line = find_finer_line(t, f);
    bool given = line || get_refine(t, f)->n_params;
    struct finding one = {.code = FINDING_NOT_A_REFINEMENT, .tensor = given ? v->name : key};
    one.axes = given ? (axis_set)(spec_axes(&f->within) | spec_axes(&f->has)) : 0;
    one.fix =
        given ? fix_finer(t, f, &right) : fix_refine(&t->fix, f->list, &t->fix.job->sharding.grads);
    findings_say(t->found, one, "%s: %s%s %s %s, which does not continue the %s's %s: try %s",
                 v->name, key, describe_line(t, line), f->entry < 0 ? "leaves it at" : "cuts",
                 describe_spec(t, v, &f->has), f->list == FACT_GRADS ? "parameter" : "gradient",
                 describe_spec(t, v, &f->within), describe_spec(t, v, &right));
}

// sharding.gather with the axes added; names that nobody knows are findings of their own.
static const char *fix_gather_too(const struct reporter *t, axis_set axes)
{
    const struct job_names *given = &t->fix.job->sharding.gather;
    struct job_names all = {0, arena_array(t->fix.arena, const char *, given->n + MESH_MAX_AXES)};
    for (int i = 0; i < given->n; i++)
        if (job_axis_find(&t->fix.job->mesh, given->name[i]) != -2)
            all.name[all.n++] = given->name[i];
    for (int i = 0; i < t->fix.mesh->n; i++)
        if (axes >> i & 1)
            all.name[all.n++] = t->fix.mesh->axis[i].name;
    return fix_gather(&t->fix, &all);
}

// The bytes that its gathers would send are counted by usage.c.
static void report_weight(const struct reporter *t, const struct fact *f)
{
    const struct value *v = get_value(t, f);
    struct namesakes all = find_namesakes(t, v);
    if (!all.first)
        return;
    const char *less = fix_without(t, f, all.match, 0, v->shape.n, f->axes);
    const char *fix =
        TEXT(t, "%s%s%s", less ? less : "", less ? " or " : "", fix_gather_too(t, f->axes));
    findings_say(t->found,
                 (struct finding){.code = FINDING_WEIGHT_ON_BATCH_AXIS,
                                  .tensor = v->name,
                                  .like = all.match,
                                  .axes = f->axes,
                                  .fix = fix},
                 "%s%s %s cut on %s, which cuts the batch: it would be gathered in each pass that "
                 "reads it; leave the axis out, or declare it in sharding.gather",
                 v->name, all.more, *all.more ? "are" : "is", describe_axes(t, f->axes));
}

static uint64_t gather_bytes(const struct reporter *t, const struct fact *f)
{
    const struct value *v = get_value(t, f);
    const struct mesh *m = t->fix.mesh;
    int cut = mesh_product(m, spec_axes(&f->has) & ~f->axes);
    uint64_t whole = (uint64_t)shape_count(&v->shape) * dtype_size(v->dtype) / (uint64_t)cut;
    return reshard_ring_bytes(RESHARD_ALL_GATHER, whole, mesh_product(m, f->axes));
}

// The point's spec with the batch where it belongs.
static const char *fix_batch_dropped(const struct reporter *t, const struct fact *f)
{
    static const char *batch[] = {"batch"};
    const struct job_sharding *s = &t->fix.job->sharding;
    struct job_spec spec = *find_spec(t, f);
    spec.n = spec.n ? spec.n : 1;
    for (int d = 1; d < spec.n; d++)
        spec.dim[d] = names_without_axes(&t->fix, &spec.dim[d], t->fix.sharding->batch);
    spec.dim[0] = (struct job_names){1, batch};
    for (int i = 0; i < s->n_points; i++)
        if (strcmp(s->points[i].point, point_name(POINT_IDS)) == 0)
            spec.dim[0] = s->points[i].spec.dim[0];
    return fix_point(&t->fix, point_name(get_value(t, f)->point), &spec);
}

static void report_batch_dropped(const struct reporter *t, const struct fact *f)
{
    struct finding one = {.code = FINDING_BATCH_DROPPED, .axes = f->axes};
    one.tensor = get_tensor_name(get_value(t, f));
    one.waste = (uint64_t)t->fix.job->train.microbatches * gather_bytes(t, f);
    one.fix = fix_batch_dropped(t, f);
    findings_say(t->found, one,
                 "%s: the spec%s leaves out %s, which cuts the batch: every device would hold and "
                 "compute the others' samples too",
                 one.tensor, describe_line(t, find_spec(t, f)->line), describe_axes(t, f->axes));
}

void sharding_findings(const struct compiled *c, const struct job *job, int first, int end,
                       struct findings *out)
{
    static void (*const report[FACT_CODES])(const struct reporter *, const struct fact *) = {
        [FACT_NAME_UNKNOWN] = report_unknown,       [FACT_NAME_TWICE] = report_name_twice,
        [FACT_STAGE_AXIS] = report_stage_axis,      [FACT_AXIS_TWICE] = report_axis_twice,
        [FACT_NO_MATCH] = report_no_match,          [FACT_SPEC_LENGTH] = report_length,
        [FACT_INDIVISIBLE] = report_indivisible,    [FACT_CHUNKS] = report_chunks,
        [FACT_NOT_FINER] = report_not_finer,        [FACT_WEIGHT_ON_BATCH_AXIS] = report_weight,
        [FACT_BATCH_DROPPED] = report_batch_dropped};
    struct reporter t = {{out->arena, job, c->sharding, &c->mesh}, c->global[c->holder], out};
    for (int i = first; i < end; i++)
        report[c->sharding->facts.items[i].code](&t, &c->sharding->facts.items[i]);
}
