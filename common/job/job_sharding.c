// SPDX-License-Identifier: Apache-2.0
// The sharding section of a job file: rules, specs of parameters and activation points. Only the
// form is read here. Whether an axis exists, divides a dimension or makes sense is found out by the
// compiler, which knows the tensors.
#include <string.h>

#include "common/job/setting.h"

// Logical dimensions that have a rule in every job, given or not. A model's other dimensions have one
// where it is given. Then the points whose spec may be given.
static const char *const dimensions[] = {"batch", "seq",    "embed",  "heads", "mlp",
                                         "vocab", "layers", "expert", "norm",  "position"};
enum { DIMENSIONS = sizeof dimensions / sizeof *dimensions };
// All but POINT_NONE, which is the first.
static const char *const points[] = {
#define X(id, name) #name,
    POINT_TABLE(X)
#undef X
};

bool dimension_known(const char *name)
{
    for (int i = 0; i < DIMENSIONS; i++)
        if (strcmp(dimensions[i], name) == 0)
            return true;
    return false;
}

const char *const *dimensions_ruled(int *n)
{
    *n = DIMENSIONS;
    return dimensions;
}

const struct job_rule *job_rule_find(const struct job_sharding *s, const char *dim)
{
    for (int i = 0; i < s->n_rules; i++)
        if (strcmp(s->rules[i].dim, dim) == 0)
            return &s->rules[i];
    return NULL;
}

// ---- names -------------------------------------------------------------------------------------

static bool read_name_list(const struct setting *from, struct job_names *to)
{
    if (from->node->count > MAX_AXES)
        return setting_error(from, "has %d items: it may have %d", from->node->count, MAX_AXES);
    to->n = from->node->count;
    to->name = arena_array(from->arena, const char *, to->n);
    return setting_read_items(from, setting_read_string, to->name, sizeof *to->name);
}

// null, an axis or a rule by name, or a list of them.
static bool read_names(const struct setting *from, void *names)
{
    struct job_names *to = names;
    *to = (struct job_names){0};
    if (from->node->kind == TREE_BROKEN)
        return false;
    if (tree_is_null(from->node))
        return true;
    if (from->node->kind == TREE_LIST)
        return read_name_list(from, to);
    if (from->node->kind == TREE_MAP)
        return setting_error(from, "must be an axis, a list of axes or null, not a map");
    to->name = arena_array(from->arena, const char *, 1);
    to->n = 1;
    return setting_read_string(from, &to->name[0]);
}

static void print_name_list(const struct job_names *s, struct buf *to)
{
    setting_print_items(NULL, setting_print_string, s->name, sizeof *s->name, s->n, to);
}

void job_names_print(const struct job_names *s, struct buf *to)
{
    if (s->n == 0)
        buf_puts(to, "null");
    else if (s->n == 1)
        setting_print_string(NULL, &s->name[0], to);
    else
        print_name_list(s, to);
}

bool setting_read_axes(const struct setting *from, void *field)
{
    struct job_sharding *s = field;
    if (from->node->kind == TREE_BROKEN)
        return false;
    if (from->node->kind != TREE_LIST)
        return setting_error(from, "must be a list such as [fsdp], not %s",
                             tree_kind_text(from->node));
    s->gather = (struct job_names){0};
    return read_name_list(from, &s->gather);
}

void setting_print_axes(const struct schema_row *row, const void *field, struct buf *to)
{
    (void)row;
    print_name_list(&((const struct job_sharding *)field)->gather, to);
}

// ---- specs -------------------------------------------------------------------------------------

static bool read_spec(const struct setting *from, struct job_spec *to)
{
    *to = (struct job_spec){.line = setting_line(from->node)};
    if (from->node->kind == TREE_BROKEN)
        return false;
    if (from->node->kind != TREE_LIST)
        return setting_error(from, "must be a list such as [null, tp], not %s",
                             tree_kind_text(from->node));
    if (from->node->count > JOB_SPEC_DIMS)
        return setting_error(from, "has %d entries: a tensor has at most %d dimensions",
                             from->node->count, JOB_SPEC_DIMS);
    to->n = from->node->count;
    return setting_read_items(from, read_names, to->dim, sizeof *to->dim);
}

void job_spec_print(const struct job_spec *s, struct buf *to)
{
    buf_putc(to, '[');
    for (int d = 0; d < s->n; d++) {
        buf_puts(to, d ? ", " : "");
        job_names_print(&s->dim[d], to);
    }
    buf_putc(to, ']');
}

// ---- rules -------------------------------------------------------------------------------------

// Rules that are given replace those of the default, which is read first. Whether the model has the
// dimension is checked once the model is known.
bool setting_read_rules(const struct setting *from, void *field)
{
    struct job_sharding *s = field;
    static const struct tree_source source = {"default", 0, true};
    bool ok = true;
    if (from->node->kind == TREE_BROKEN)
        return false;
    if (from->node->kind != TREE_MAP && !tree_is_null(from->node))
        return setting_error(from, "must be a map such as {mlp: tp}, not %s",
                             tree_kind_text(from->node));
    for (; s->n_rules < DIMENSIONS; s->n_rules++)
        s->rules[s->n_rules] = (struct job_rule){.dim = dimensions[s->n_rules]};
    if (strcmp(from->node->source->name, source.name) != 0) {
        struct setting def = *from;
        def.node = tree_read_value(&source, from->row->def, strlen(from->row->def), from->errors);
        ok = setting_read_rules(&def, field);
    }
    for (const struct tree_node *n = from->node->first; n; n = n->next) {
        struct setting rule = setting_member(from, n);
        int i = 0;
        while (i < s->n_rules && strcmp(s->rules[i].dim, n->key) != 0)
            i++;
        if (i == JOB_RULES)
            return setting_error(&rule, "is one rule too many: a job has at most %d", JOB_RULES);
        if (i == s->n_rules)
            s->rules[s->n_rules++] = (struct job_rule){.dim = n->key};
        s->rules[i].line = setting_line(n);
        ok = read_names(&rule, &s->rules[i].axes) && ok;
    }
    return ok;
}

void setting_print_rules(const struct schema_row *row, const void *field, struct buf *to)
{
    const struct job_sharding *s = field;
    (void)row;
    buf_putc(to, '{');
    for (int i = 0; i < s->n_rules; i++) {
        buf_printf(to, "%s%s: ", i ? ", " : "", s->rules[i].dim);
        job_names_print(&s->rules[i].axes, to);
    }
    buf_putc(to, '}');
}

// ---- parameters --------------------------------------------------------------------------------

static const struct schema_row min_row = {
    .type = SCHEMA_INT_LIST, .min = 0, .max = 1e15, .min_items = 1, .max_items = JOB_SPEC_DIMS};
static const char *const param_keys[] = {"match", "min", "spec"};

static bool read_param(const struct setting *from, void *param)
{
    struct job_param_spec *p = param;
    if (from->node->kind == TREE_BROKEN)
        return false;
    if (from->node->kind != TREE_MAP)
        return setting_error(from, "must be a map such as {match: \"embed/*\", spec: [tp]}, not %s",
                             tree_kind_text(from->node));
    bool ok = true;
    for (const struct tree_node *n = from->node->first; n; n = n->next) {
        struct setting m = setting_member(from, n);
        if (strcmp(n->key, "match") == 0) {
            ok = setting_read_string(&m, &p->match) && ok;
        } else if (strcmp(n->key, "min") == 0) {
            m.row = &min_row;
            ok = setting_read_int_list(&m, &p->min) && ok;
        } else if (strcmp(n->key, "spec") == 0) {
            ok = read_spec(&m, &p->spec) && ok;
        } else {
            ok = setting_unknown_key(&m, param_keys, 3, "an entry has");
        }
    }
    if (!tree_get(from->node, "match") || !tree_get(from->node, "spec"))
        return setting_error(from,
                             "must have match and spec: which parameters, and how they are cut");
    return ok;
}

static bool read_params(const struct setting *from, int *n_params, struct job_param_spec **params)
{
    if (from->node->kind == TREE_BROKEN)
        return false;
    if (from->node->kind != TREE_LIST || from->node->count > from->row->max_items)
        return setting_error(from, "must be a list of at most %d entries", from->row->max_items);
    *n_params = from->node->count;
    *params = arena_array(from->arena, struct job_param_spec, from->node->count);
    return setting_read_items(from, read_param, *params, sizeof **params);
}

bool setting_read_params(const struct setting *from, void *field)
{
    struct job_sharding *s = field;
    return read_params(from, &s->n_params, &s->params);
}

void job_params_print(int n, const struct job_param_spec *params, struct buf *to)
{
    buf_putc(to, '[');
    for (int i = 0; i < n; i++) {
        const struct job_param_spec *p = &params[i];
        buf_puts(to, i ? ", {match: " : "{match: ");
        setting_print_string(NULL, &p->match, to);
        if (p->min.n) {
            buf_puts(to, ", min: ");
            setting_print_int_list(&min_row, &p->min, to);
        }
        buf_puts(to, ", spec: ");
        job_spec_print(&p->spec, to);
        buf_putc(to, '}');
    }
    buf_putc(to, ']');
}

void setting_print_params(const struct schema_row *row, const void *field, struct buf *to)
{
    const struct job_sharding *s = field;
    (void)row;
    job_params_print(s->n_params, s->params, to);
}

// ---- gradients and optimiser state -------------------------------------------------------------

// A list of maps holds specs of parameters; anything else is read as axes.
bool setting_read_refine(const struct setting *from, void *field)
{
    struct job_refine *r = field;
    *r = (struct job_refine){.line = setting_line(from->node)};
    if (from->node->kind == TREE_LIST && from->node->first && from->node->first->kind == TREE_MAP)
        return read_params(from, &r->n_params, &r->params);
    if (from->node->kind == TREE_MAP)
        return setting_error(from,
                             "must be a list of axes such as [dp], or of specs such as [{match: "
                             "\"embed/*\", spec: [dp]}], not a map");
    return read_names(from, &r->axes);
}

void job_refine_print(const struct job_refine *r, struct buf *to)
{
    if (r->n_params)
        job_params_print(r->n_params, r->params, to);
    else
        print_name_list(&r->axes, to);
}

void setting_print_refine(const struct schema_row *row, const void *field, struct buf *to)
{
    (void)row;
    job_refine_print(field, to);
}

// ---- activation points -------------------------------------------------------------------------

bool setting_read_points(const struct setting *from, void *field)
{
    struct job_sharding *s = field;
    bool ok = true;
    if (from->node->kind == TREE_BROKEN)
        return false;
    if (from->node->kind != TREE_MAP && !tree_is_null(from->node))
        return setting_error(from, "must be a map such as {act_seq: [batch, [seq, tp]]}, not %s",
                             tree_kind_text(from->node));
    s->n_points = 0;
    for (const struct tree_node *n = from->node->first; n; n = n->next) {
        struct setting one = setting_member(from, n);
        int i = POINT_NONE + 1;
        while (i < POINT_COUNT && strcmp(points[i], n->key) != 0)
            i++;
        if (i == POINT_COUNT) {
            ok = setting_unknown_key(&one, &points[POINT_NONE + 1], JOB_POINTS, "the points are");
            continue;
        }
        struct job_point_spec *p = &s->points[s->n_points++];
        p->point = points[i];
        ok = read_spec(&one, &p->spec) && ok;
    }
    return ok;
}

void setting_print_points(const struct schema_row *row, const void *field, struct buf *to)
{
    const struct job_sharding *s = field;
    (void)row;
    buf_putc(to, '{');
    for (int i = 0; i < s->n_points; i++) {
        buf_printf(to, "%s%s: ", i ? ", " : "", s->points[i].point);
        job_spec_print(&s->points[i].spec, to);
    }
    buf_putc(to, '}');
}
