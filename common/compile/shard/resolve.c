// SPDX-License-Identifier: Apache-2.0
// Specs from the job. See resolve.h.
//
// Fixes are told in the job's own words: a rule, a point's spec, or the list of parameter specs
// with an entry corrected, or with one for the tensor at hand put in front.
#include "common/compile/shard/resolve.h"

#include <ctype.h>
#include <fnmatch.h>
#include <string.h>

#include "common/compile/shard/refine.h"
#include "common/compile/shard/sharding_words.h"

const char *words_line(struct making *k, int line)
{
    return line ? arena_printf(k->found->arena, " (line %d)", line) : "";
}

// ---- fixes -------------------------------------------------------------------------------------

struct job_names words_without(struct arena *a, const struct job_names *s, int drop)
{
    struct job_names out = {0, arena_array(a, const char *, s->n + 1)};
    for (int i = 0; i < s->n; i++)
        if (i != drop)
            out.name[out.n++] = s->name[i];
    return out;
}

// The names of `s` whose axes are all outside of `axes`.
static struct job_names without_axes(struct making *k, const struct job_names *s, axis_set axes)
{
    struct job_names out = {0, arena_array(k->found->arena, const char *, s->n + 1)};
    for (int i = 0; i < s->n; i++) {
        const struct job_rule *rule = job_rule_find(&k->job->sharding, s->name[i]);
        const struct job_names one = {1, &s->name[i]};
        const struct job_names *names = rule ? &rule->axes : &one;
        bool hit = false;
        for (int n = 0; n < names->n; n++) {
            int axis = job_axis_find(&k->job->mesh, names->name[n]);
            hit |= axis >= 0 && axes >> axis & 1;
        }
        if (!hit)
            out.name[out.n++] = s->name[i];
    }
    return out;
}

static const char *fix_rule(struct making *k, const char *dim, const struct job_names *names)
{
    struct buf b = {0};
    buf_printf(&b, "sharding.rules.%s=", dim);
    job_names_print(names, &b);
    return buf_keep(&b, k->found->arena);
}

static const char *fix_point(struct making *k, const char *point, const struct job_spec *spec)
{
    struct buf b = {0};
    buf_printf(&b, "sharding.activations.%s=", point);
    job_spec_print(spec, &b);
    return buf_keep(&b, k->found->arena);
}

const char *words_fix_entry(struct making *k, int at, const char *match, bool insert,
                            const struct job_spec *spec)
{
    struct job_param_spec *list = arena_array(k->found->arena, struct job_param_spec, k->n + 1);
    struct job_param_spec entry = {.match = match, .spec = *spec};
    struct buf b = {0};
    int n = 0;
    if (!insert)
        entry.min = k->list[at].min;
    for (int i = 0; i <= k->n; i++) {
        if (i == at)
            list[n++] = entry;
        if (i < k->n && (i != at || insert))
            list[n++] = k->list[i];
    }
    buf_printf(&b, "%s=", k->key);
    job_params_print(n, list, &b);
    return buf_keep(&b, k->found->arena);
}

struct job_spec words_of_spec(struct arena *a, const struct mesh *m, int dims,
                              const struct spec *spec)
{
    struct job_spec out = {.n = dims};
    for (int d = 0; d < dims; d++) {
        struct job_names *names = &out.dim[d];
        names->name = arena_array(a, const char *, MESH_MAX_AXES);
        for (int i = 0; i < spec->dim[d].n; i++)
            names->name[names->n++] = m->axis[spec->dim[d].axis[i]].name;
    }
    return out;
}

static struct making making_of(struct sharding *s, const struct job *job, const struct mesh *m,
                               struct findings *f)
{
    return (struct making){
        s, job, m, f, "sharding.params", job->sharding.n_params, job->sharding.params, NULL};
}

const char *sharding_fix_param(const struct job *job, const struct mesh *m, const struct value *v,
                               const struct spec *spec, struct arena *a)
{
    struct findings f = {.arena = a};
    struct making k = making_of(NULL, job, m, &f);
    struct job_spec words = words_of_spec(a, m, v->shape.n, spec);
    return words_fix_entry(&k, 0, v->name, true, &words);
}

static const char *fix_spec(struct making *k, const struct place *p, const struct job_spec *spec)
{
    return p->param >= 0 ? words_fix_entry(k, p->param, p->name, false, spec)
                         : fix_point(k, p->name, spec);
}

static const char *fix_dropped(struct making *k, const struct place *p, int d, int drop)
{
    struct job_spec spec = *p->spec;
    spec.dim[d] = words_without(k->found->arena, &p->spec->dim[d], drop);
    return fix_spec(k, p, &spec);
}

// ---- names → axes ------------------------------------------------------------------------------

void words_unknown_axis(struct making *k, const char *tensor, const char *name, int line,
                        const char *fix)
{
    struct buf mesh = {0};
    mesh_print(k->mesh, &mesh);
    findings_add(k->found, &(struct finding){.code = FINDING_AXIS_UNKNOWN,
                                             .tensor = tensor,
                                             .message = arena_printf(
                                                 k->found->arena,
                                                 "%s%s: '%s' is no axis of the mesh %s, no rule "
                                                 "and no usual name of an axis",
                                                 tensor, words_line(k, line), name, buf_str(&mesh)),
                                             .fix = fix});
    buf_clear(&mesh);
}

// A pipeline's axis deals out layers: it cuts no tensor. True after saying so.
bool words_stage_axis(struct making *k, const char *tensor, int axis, int line, const char *fix)
{
    if (axis < 0 || !(k->mesh->stages >> axis & 1))
        return false;
    findings_add(k->found,
                 &(struct finding){.code = FINDING_STAGE_AXIS,
                                   .tensor = tensor,
                                   .axes = k->mesh->stages,
                                   .message = arena_printf(
                                       k->found->arena,
                                       "%s%s: axis %s holds the stages of the pipeline, which have "
                                       "different layers: it cannot cut a tensor",
                                       tensor, words_line(k, line), k->mesh->axis[axis].name),
                                   .fix = fix});
    return true;
}

static void rule_make(struct making *k, const struct job_rule *from, struct rule *to)
{
    struct job_names once;
    const char *twice = words_twice(k, &from->axes, &once);
    if (twice)
        words_told_twice(k, arena_printf(k->found->arena, "sharding.rules.%s", from->dim), twice,
                         from->line, fix_rule(k, from->dim, &once));
    for (int i = 0; i < from->axes.n; i++) {
        int axis = job_axis_find(&k->job->mesh, from->axes.name[i]);
        if (axis == -2) {
            struct job_names rest = words_without(k->found->arena, &from->axes, i);
            words_unknown_axis(k, arena_printf(k->found->arena, "sharding.rules.%s", from->dim),
                               from->axes.name[i], from->line, fix_rule(k, from->dim, &rest));
        } else if (to->dim != DIM_NONE && axis >= 0 && k->mesh->stages >> axis & 1) {
            struct job_names rest = words_without(k->found->arena, &from->axes, i);
            words_stage_axis(k, arena_printf(k->found->arena, "sharding.rules.%s", from->dim), axis,
                             from->line, fix_rule(k, from->dim, &rest));
        } else if (axis >= 0 && !(dim_axes(&to->axes) >> axis & 1)) {
            dim_append(&to->axes, axis);
        }
    }
}

static enum dim dim_named(const char *name)
{
    for (int d = 1; d < DIM_COUNT; d++)
        if (strcmp(dim_name((enum dim)d), name) == 0)
            return (enum dim)d;
    return DIM_NONE; // layers: no tensor has them
}

static void rules_make(struct making *k)
{
    const struct job_sharding *s = &k->job->sharding;
    for (int i = 0; i < s->n_rules; i++) {
        struct rule *r = &k->s->rules.rule[k->s->rules.n];
        *r = (struct rule){.dim = dim_named(s->rules[i].dim)};
        rule_make(k, &s->rules[i], r);
        k->s->rules.n += r->dim != DIM_NONE;
    }
}

static const struct dim_cut *rule_axes(const struct rules *r, enum dim dim)
{
    static const struct dim_cut none;
    for (int i = 0; i < r->n; i++)
        if (r->rule[i].dim == dim)
            return &r->rule[i].axes;
    return &none;
}

bool words_axes(const struct making *k, const char *name, struct dim_cut *out)
{
    int axis = job_axis_find(&k->job->mesh, name);
    bool rule = job_rule_find(&k->job->sharding, name) != NULL;
    *out = rule ? *rule_axes(&k->s->rules, dim_named(name)) : (struct dim_cut){0};
    if (!rule && axis >= 0)
        dim_append(out, axis);
    return rule || axis != -2;
}

static void add_axis(struct making *k, const struct place *p, struct spec *to, int d, int i,
                     int axis)
{
    if (k->mesh->axis[axis].size < 2)
        return;
    if (!(spec_axes(to) >> axis & 1)) {
        dim_append(&to->dim[d], axis);
        return;
    }
    findings_add(k->found,
                 &(struct finding){
                     .code = FINDING_AXIS_TWICE,
                     .tensor = p->name,
                     .axes = (axis_set)(1u << axis),
                     .message = arena_printf(
                         k->found->arena, "%s%s: axis %s cuts two dimensions: one axis can cut one",
                         p->name, words_line(k, p->spec->line), k->mesh->axis[axis].name),
                     .fix = fix_dropped(k, p, d, i)});
}

struct spec words_spec(struct making *k, const struct place *p)
{
    struct spec to = {0};
    for (int d = 0; d < p->spec->n; d++)
        for (int i = 0; i < p->spec->dim[d].n; i++) {
            const char *name = p->spec->dim[d].name[i];
            struct dim_cut axes;
            if (!words_axes(k, name, &axes))
                words_unknown_axis(k, p->name, name, p->spec->line, fix_dropped(k, p, d, i));
            for (int a = 0; a < axes.n; a++)
                if (!words_stage_axis(k, p->name, axes.axis[a], p->spec->line,
                                      fix_dropped(k, p, d, i)))
                    add_axis(k, p, &to, d, i, axes.axis[a]);
        }
    return to;
}

static enum point point_named(const char *name)
{
    for (int p = 0; p < POINT_COUNT; p++)
        if (strcmp(point_name((enum point)p), name) == 0)
            return (enum point)p;
    return POINT_NONE;
}

static const char *fix_gathered(struct making *k, const struct job_names *names)
{
    struct buf b = {0};
    buf_puts(&b, "sharding.gather=[");
    for (int n = 0; n < names->n; n++)
        buf_printf(&b, "%s%s", n ? ", " : "", names->name[n]);
    buf_putc(&b, ']');
    return buf_keep(&b, k->found->arena);
}

static void gather_make(struct making *k)
{
    const struct job_names *names = &k->job->sharding.gather;
    struct job_names once;
    const char *twice = words_twice(k, names, &once);
    if (twice)
        words_told_twice(k, "sharding.gather", twice, 0, fix_gathered(k, &once));
    for (int i = 0; i < names->n; i++) {
        int axis = job_axis_find(&k->job->mesh, names->name[i]);
        if (axis >= 0) {
            k->s->gather |= (axis_set)(1u << axis) & mesh_cuts(k->mesh);
            continue;
        }
        if (axis == -1)
            continue;
        struct job_names rest = words_without(k->found->arena, names, i);
        words_unknown_axis(k, "sharding.gather", names->name[i], 0, fix_gathered(k, &rest));
    }
}

void sharding_make(struct sharding *s, const struct job *job, const struct mesh *m,
                   struct findings *f)
{
    struct making k = making_of(s, job, m, f);
    const struct job_sharding *j = &job->sharding;
    *s = (struct sharding){.job = j};
    s->params = arena_array(f->arena, struct spec, j->n_params);
    rules_make(&k);
    gather_make(&k);
    for (int i = 0; i < j->n_params; i++)
        s->params[i] = words_spec(&k, &(struct place){i, j->params[i].match, &j->params[i].spec});
    for (int i = 0; i < j->n_points; i++) {
        enum point p = point_named(j->points[i].point);
        s->points[p] = words_spec(&k, &(struct place){-1, j->points[i].point, &j->points[i].spec});
        s->given[p] = true;
    }
    refine_make(s, job, m, f);
    struct value ids = {.shape = {1, {1}}, .dims = {DIM_BATCH}, .point = POINT_IDS};
    struct spec spec = sharding_spec(s, m, &ids);
    s->batch = dim_axes(&spec.dim[0]);
}

// ---- specs of values ---------------------------------------------------------------------------

// Key heads follow the rule of heads, where it divides.
static enum dim ruled_as(enum dim d)
{
    return d == DIM_KV_HEADS ? DIM_HEADS : d;
}

static void key_heads_divide(const struct mesh *m, const struct value *v, struct spec *s)
{
    for (int d = 0; d < v->shape.n; d++)
        if (v->dims[d] == DIM_KV_HEADS && v->shape.dim[d] % dim_parts(m, &s->dim[d]))
            s->dim[d] = (struct dim_cut){0};
}

// A point's spec tells of the dimensions after the one that stacks queries, keys and values.
static void shift_stacked(const struct value *v, struct spec *s)
{
    if (v->shape.n == 0 || v->dims[0] != DIM_QKV)
        return;
    for (int d = MAX_DIMS - 1; d > 0; d--)
        s->dim[d] = s->dim[d - 1];
    s->dim[0] = (struct dim_cut){0};
}

struct spec rules_spec(const struct rules *r, const struct mesh *m, const struct value *v)
{
    struct spec s = {0};
    axis_set used = 0;
    for (int d = 0; d < v->shape.n; d++)
        for (int i = 0; i < r->n; i++) {
            bool parameters_only = r->rule[i].dim == DIM_EMBED;
            if (r->rule[i].dim != ruled_as(v->dims[d]) ||
                (parameters_only && v->kind != VALUE_PARAM))
                continue;
            for (int k = 0; k < r->rule[i].axes.n; k++) {
                int axis = r->rule[i].axes.axis[k];
                if (used >> axis & 1 || m->axis[axis].size < 2)
                    continue;
                dim_append(&s.dim[d], axis);
                used |= (axis_set)(1u << axis);
            }
        }
    return s;
}

bool words_match(const struct job_param_spec *p, const struct value *v)
{
    if (fnmatch(p->match, v->name, 0) != 0 || p->min.n > v->shape.n)
        return false;
    for (int d = 0; d < p->min.n; d++)
        if (v->shape.dim[d] < ((const int64_t *)p->min.items)[d])
            return false;
    return true;
}

// The entry that tells a parameter's spec, −1: the rules do.
static int entry_of(const struct sharding *s, const struct value *v)
{
    for (int i = 0; s->job && i < s->job->n_params; i++)
        if (words_match(&s->job->params[i], v))
            return i;
    return -1;
}

static void cut_short(struct spec *s, int n)
{
    for (int d = n; d < MAX_DIMS; d++)
        s->dim[d] = (struct dim_cut){0};
}

static struct spec asked(const struct sharding *s, const struct mesh *m, const struct value *v)
{
    int entry = v->kind == VALUE_PARAM ? entry_of(s, v) : -1;
    struct spec spec;
    if (entry >= 0)
        spec = s->params[entry];
    else if (v->kind != VALUE_PARAM && s->given[v->point])
        spec = s->points[v->point];
    else
        spec = rules_spec(&s->rules, m, v);
    if (v->kind != VALUE_PARAM && s->given[v->point])
        shift_stacked(v, &spec);
    if (entry < 0)
        key_heads_divide(m, v, &spec);
    cut_short(&spec, v->shape.n);
    return spec;
}

struct spec sharding_spec(const struct sharding *s, const struct mesh *m, const struct value *v)
{
    struct spec spec = asked(s, m, v);
    for (int d = 0; s->lenient && d < v->shape.n; d++)
        while (v->shape.dim[d] % dim_parts(m, &spec.dim[d]))
            spec.dim[d].axis[--spec.dim[d].n] = 0;
    return spec;
}

// ---- specs held against tensors ----------------------------------------------------------------

const char *words_sizes(struct making *k, int64_t size, int64_t parts)
{
    int64_t below = size / parts * parts;
    return below ? arena_printf(k->found->arena, "%lld or %lld", (long long)below,
                                (long long)(below + parts))
                 : arena_printf(k->found->arena, "%lld", (long long)parts);
}

// The spec in the job's words, for a tensor whose entry or point has one.
static const struct job_spec *words_of(struct making *k, const struct value *v, int *entry)
{
    *entry = v->kind == VALUE_PARAM ? entry_of(k->s, v) : -1;
    if (*entry >= 0)
        return &k->job->sharding.params[*entry].spec;
    for (int i = 0; v->kind != VALUE_PARAM && i < k->job->sharding.n_points; i++)
        if (point_named(k->job->sharding.points[i].point) == v->point)
            return &k->job->sharding.points[i].spec;
    return NULL;
}

static const char *tensor_name(const struct value *v)
{
    return v->kind == VALUE_PARAM ? v->name : point_name(v->point);
}

// The setting that takes `axes` off dimension d of a tensor (all dimensions: d < 0).
static const char *fix_without(struct making *k, const struct value *v, const char *match, int d,
                               axis_set axes)
{
    int entry;
    const struct job_spec *words = words_of(k, v, &entry);
    if (!words) {
        for (int at = d < 0 ? 0 : d; at < (d < 0 ? v->shape.n : d + 1); at++) {
            const struct job_rule *rule = job_rule_find(&k->job->sharding, dim_name(v->dims[at]));
            if (!rule || !(dim_axes(rule_axes(&k->s->rules, v->dims[at])) & axes))
                continue;
            struct job_names rest = without_axes(k, &rule->axes, axes);
            return fix_rule(k, rule->dim, &rest);
        }
        return NULL;
    }
    struct job_spec spec = *words;
    if (spec.n > v->shape.n)
        spec.n = v->shape.n;
    for (int at = 0; at < spec.n; at++)
        if (d < 0 || at == d)
            spec.dim[at] = without_axes(k, &words->dim[at], axes);
    return entry >= 0 ? words_fix_entry(k, entry, match, true, &spec)
                      : fix_point(k, point_name(v->point), &spec);
}

// Layers have the same tensors: what holds for one of them is said once, of the first, and its fix
// is for all. A tensor whose likes differ in shape stands alone.
struct likes {
    const char *match, *more; // a glob, or its own name; " and 3 like it", or nothing
    bool first;
};

const char *words_glob(struct arena *a, const char *name)
{
    char *out = arena_strdup(a, name), *to = out;
    for (const char *at = name; *at; to++) {
        bool number = isdigit((unsigned char)*at) && at > name && at[-1] == '/';
        *to = number ? '*' : *at;
        at += number ? strspn(at, "0123456789") : 1;
    }
    *to = 0;
    return out;
}

static struct likes likes_of(struct making *k, const struct value *v)
{
    struct likes own = {v->kind == VALUE_PARAM ? v->name : NULL, "", true}, all = own;
    if (v->kind != VALUE_PARAM)
        return own;
    all.match = words_glob(k->found->arena, v->name);
    int n = 0, before = 0;
    for (int i = 0; i < k->graph->nvalues; i++) {
        const struct value *o = &k->graph->values[i];
        if (o->kind != VALUE_PARAM || fnmatch(all.match, o->name, 0) != 0)
            continue;
        if (!shape_equal(&o->shape, &v->shape) || memcmp(o->dims, v->dims, sizeof o->dims) != 0 ||
            entry_of(k->s, o) != entry_of(k->s, v))
            return own;
        n++;
        before += o < v;
    }
    all.first = before == 0;
    if (n > 1)
        all.more = arena_printf(k->found->arena, " and %d like it", n - 1);
    return n > 1 ? all : own;
}

// Attention over a cut sequence takes two chunks of it a device (zigzag.h), each cut by whatever
// else cuts the sequence somewhere.
static void check_chunks(struct making *k, const struct value *v, int d, const struct spec *spec)
{
    axis_set axes = k->s->context | dim_axes(&spec->dim[d]);
    int64_t unit = 2 * mesh_product(k->mesh, axes), size = v->shape.dim[d];
    if (size % unit == 0)
        return;
    for (int i = 0; i < k->found->n && k->s->lenient; i++) // at one point of them all
        if (k->found->items[i].code == FINDING_INDIVISIBLE && k->found->items[i].axes == axes)
            return;
    int64_t above = size / unit * unit + unit;
    k->s->lenient = true;
    findings_add(k->found,
                 &(struct finding){
                     .code = FINDING_INDIVISIBLE,
                     .tensor = tensor_name(v),
                     .axes = axes,
                     .message = arena_printf(
                         k->found->arena,
                         "%s: dimension seq of size %lld does not divide by %lld, two chunks for "
                         "each place on %s: %s would do",
                         tensor_name(v), (long long)size, (long long)unit,
                         axis_set_text(k->mesh, axes, k->found->arena), words_sizes(k, size, unit)),
                     .fix = arena_printf(k->found->arena, "model.seq=%lld", (long long)above)});
}

static void check_divides(struct making *k, const struct value *v)
{
    struct spec spec = asked(k->s, k->mesh, v);
    for (int d = 0; d < v->shape.n; d++) {
        if (v->dims[d] == DIM_SEQ && k->s->context) {
            check_chunks(k, v, d, &spec);
            continue;
        }
        int64_t parts = dim_parts(k->mesh, &spec.dim[d]), size = v->shape.dim[d];
        axis_set axes = dim_axes(&spec.dim[d]), bad = axes;
        int64_t ways = 1;
        if (size % parts == 0)
            continue;
        for (int i = 0;
             i < spec.dim[d].n && size % (ways * k->mesh->axis[spec.dim[d].axis[i]].size) == 0;
             i++) {
            ways *= k->mesh->axis[spec.dim[d].axis[i]].size;
            bad &= (axis_set) ~(1u << spec.dim[d].axis[i]);
        }
        k->s->lenient = true;
        struct likes likes = likes_of(k, v);
        if (!likes.first)
            continue;
        findings_add(
            k->found,
            &(struct finding){.code = FINDING_INDIVISIBLE,
                              .tensor = tensor_name(v),
                              .axes = axes,
                              .like = likes.match,
                              .message = arena_printf(
                                  k->found->arena,
                                  "%s%s: dimension %s of size %lld does not divide by %lld (%s): "
                                  "%s would do",
                                  tensor_name(v), likes.more, dim_name(v->dims[d]), (long long)size,
                                  (long long)parts, axis_set_text(k->mesh, axes, k->found->arena),
                                  words_sizes(k, size, parts)),
                              .fix = fix_without(k, v, likes.match, d, bad)});
    }
}

static void check_length(struct making *k, const struct value *v, int longest)
{
    int entry;
    const struct job_spec *words = words_of(k, v, &entry);
    bool cuts = false;
    for (int d = longest; words && d < words->n; d++)
        cuts |= words->dim[d].n > 0;
    if (!cuts)
        return;
    struct job_spec spec = *words;
    spec.n = longest;
    struct likes likes = likes_of(k, v);
    if (!likes.first)
        return;
    findings_add(
        k->found,
        &(struct finding){
            .code = FINDING_SPEC_TOO_LONG,
            .tensor = tensor_name(v),
            .like = likes.match,
            .message = arena_printf(
                k->found->arena, "%s%s: the spec%s has %d entries, the tensor %d dimensions",
                tensor_name(v), likes.more, words_line(k, words->line), words->n, longest),
            .fix = entry >= 0 ? words_fix_entry(k, entry, likes.match, true, &spec)
                              : fix_point(k, point_name(v->point), &spec)});
}

static uint64_t gather_bytes(struct making *k, const struct value *v, axis_set axes)
{
    struct spec spec = asked(k->s, k->mesh, v);
    int n = mesh_product(k->mesh, axes), cut = mesh_product(k->mesh, spec_axes(&spec) & ~axes);
    uint64_t whole = (uint64_t)shape_count(&v->shape) * dtype_size(v->dtype) / (uint64_t)cut;
    return reshard_ring_bytes(RESHARD_ALL_GATHER, whole, n);
}

static const char *fix_gather(struct making *k, axis_set axes)
{
    struct buf b = {0};
    const struct job_names *g = &k->job->sharding.gather;
    buf_puts(&b, "sharding.gather=[");
    for (int i = 0; i < g->n; i++)
        if (job_axis_find(&k->job->mesh, g->name[i]) != -2) // a finding of its own
            buf_printf(&b, "%s, ", g->name[i]);
    for (int i = 0, n = 0; i < k->mesh->n; i++)
        if (axes >> i & 1)
            buf_printf(&b, "%s%s", n++ ? ", " : "", k->mesh->axis[i].name);
    buf_putc(&b, ']');
    return buf_keep(&b, k->found->arena);
}

// A weight cut on an axis that the batch uses is gathered by every pass that reads it: usage.c
// counts the bytes.
static void check_weight(struct making *k, const struct value *v)
{
    struct spec spec = asked(k->s, k->mesh, v);
    axis_set axes = spec_axes(&spec) & k->s->batch & (axis_set)~k->s->gather;
    if (!axes)
        return;
    struct likes likes = likes_of(k, v);
    if (!likes.first)
        return;
    const char *first = fix_without(k, v, likes.match, -1, axes);
    findings_add(k->found,
                 &(struct finding){
                     .code = FINDING_WEIGHT_ON_BATCH_AXIS,
                     .tensor = v->name,
                     .axes = axes,
                     .like = likes.match,
                     .message = arena_printf(
                         k->found->arena,
                         "%s%s %s cut on %s, which cuts the batch: it would be gathered in each "
                         "pass that reads it; leave the axis out, or declare it in "
                         "sharding.gather",
                         v->name, likes.more, *likes.more ? "are" : "is",
                         axis_set_text(k->mesh, axes, k->found->arena)),
                     .fix = arena_printf(k->found->arena, "%s%s%s", first ? first : "",
                                         first ? " or " : "", fix_gather(k, axes))});
}

// An activation point whose explicit spec leaves out an axis that cuts the batch.
static void check_point(struct making *k, const struct value *v)
{
    int entry;
    const struct job_spec *words = words_of(k, v, &entry);
    if (!words || v->point == POINT_IDS || v->dims[0] != DIM_BATCH)
        return;
    axis_set lost = k->s->batch & (axis_set)~dim_axes(&k->s->points[v->point].dim[0]);
    if (!lost)
        return;
    static const char *batch[] = {"batch"};
    struct job_spec spec = *words;
    spec.n = spec.n ? spec.n : 1;
    for (int d = 1; d < spec.n; d++)
        spec.dim[d] = without_axes(k, &words->dim[d], k->s->batch);
    spec.dim[0] = (struct job_names){1, batch};
    for (int i = 0; i < k->job->sharding.n_points; i++)
        if (point_named(k->job->sharding.points[i].point) == POINT_IDS)
            spec.dim[0] = k->job->sharding.points[i].spec.dim[0];
    uint64_t waste = (uint64_t)k->job->train.microbatches * gather_bytes(k, v, lost);
    findings_add(
        k->found,
        &(struct finding){.code = FINDING_BATCH_DROPPED,
                          .tensor = point_name(v->point),
                          .axes = lost,
                          .waste = waste,
                          .message = arena_printf(
                              k->found->arena,
                              "%s: the spec%s leaves out %s, which cuts the batch: every device "
                              "would hold and compute the others' samples too",
                              point_name(v->point), words_line(k, words->line),
                              axis_set_text(k->mesh, lost, k->found->arena)),
                          .fix = fix_point(k, point_name(v->point), &spec)});
}

void words_check_matches(struct making *k, const struct graph *g)
{
    for (int i = 0; i < k->n; i++) {
        const struct job_param_spec *p = &k->list[i];
        bool any = false;
        for (int v = 0; v < g->nvalues && !any; v++)
            any = g->values[v].kind == VALUE_PARAM && words_match(p, &g->values[v]);
        if (any)
            continue;
        struct buf b = {0};
        struct job_param_spec *rest = arena_array(k->found->arena, struct job_param_spec, k->n + 1);
        int left = 0;
        for (int n = 0; n < k->n; n++)
            if (n != i)
                rest[left++] = k->list[n];
        buf_printf(&b, "%s=", k->key);
        job_params_print(left, rest, &b);
        findings_add(k->found,
                     &(struct finding){
                         .code = FINDING_NO_MATCH,
                         .tensor = p->match,
                         .message = arena_printf(k->found->arena, "%s%s: no parameter matches%s",
                                                 p->match, words_line(k, p->spec.line),
                                                 p->min.n ? " with these sizes or more" : ""),
                         .fix = buf_keep(&b, k->found->arena)});
    }
}

static axis_set context_axes(const struct sharding *s, const struct mesh *m, const struct graph *g)
{
    axis_set axes = 0;
    for (int i = 0; i < g->nnodes; i++) {
        const struct value *v = &g->values[g->nodes[i].out[0]];
        struct spec spec = g->nodes[i].op == OP_ATTENTION ? asked(s, m, v) : (struct spec){0};
        for (int d = 0; d < v->shape.n; d++)
            axes |= v->dims[d] == DIM_SEQ ? dim_axes(&spec.dim[d]) : 0;
    }
    return axes;
}

struct zigzag sharding_zigzag(const struct sharding *s, const struct mesh *m, int64_t seq)
{
    int parts = mesh_product(m, s->context);
    return (struct zigzag){seq, seq % (2 * (int64_t)parts) == 0 ? parts : 1};
}

void sharding_check(struct sharding *s, const struct job *job, const struct mesh *m,
                    const struct graph *g, struct findings *f)
{
    struct making k = making_of(s, job, m, f);
    k.graph = g;
    int longest[POINT_COUNT] = {0};
    for (int v = 0; v < g->nvalues; v++)
        if (g->values[v].shape.n > longest[g->values[v].point])
            longest[g->values[v].point] = g->values[v].shape.n;
    words_check_matches(&k, g);
    s->context = context_axes(s, m, g);
    for (int i = 0; i < g->nvalues; i++) {
        const struct value *v = &g->values[i];
        bool forward = v->producer >= 0 && g->nodes[v->producer].phase == PHASE_FORWARD;
        if (v->kind == VALUE_PARAM) {
            check_length(&k, v, v->shape.n);
            check_divides(&k, v);
            check_weight(&k, v);
        } else if (v->point != POINT_NONE && forward) {
            check_length(&k, v, longest[v->point]);
            check_divides(&k, v);
            if (v->shape.n == longest[v->point])
                check_point(&k, v);
        }
    }
    refine_check(s, job, m, g, f);
}
