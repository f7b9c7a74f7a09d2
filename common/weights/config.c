// SPDX-License-Identifier: Apache-2.0
// config.json, both ways. See config.h.
//
// It is read in the order in which its fields depend on each other: fields that are a size by
// themselves; what stands for those that are absent; `size` lines; then the conditions, and what holds
// under them: a field that is an expression of one size that nothing has given yet gives that size, any
// other is compared.
#include "common/weights/config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/map.h"
#include "common/weights/neutral_fields.h"

struct config {
    const struct model_program *program;
    const struct json *root; // reading
    struct arena *a;
    struct model_sizes sizes;
    const char *text[MODEL_MAX_SIZES];  // of each size what is given, or null
    const char *field[MODEL_MAX_SIZES]; // and by which field
    struct map seen;                    // fields that lines name
    struct map written;                 // names of what was written so far
    struct err *e;
};

static int refuse_place(struct config *c, struct text_place at, const char *what)
{
    return err_set(c->e, ERR_INVALID, "%s:%d:%d: %s", c->program->name, at.line, at.column, what);
}

static int number_of_line(struct config *c, const struct expr *e, int64_t n, struct number *out)
{
    struct model_errors errs = {.arena = c->a};
    if (foreign_number(&c->sizes, e, n, out, &errs))
        return 0;
    return refuse_place(c, errs.n ? errs.item[0].at : e->at,
                        errs.n ? errs.item[0].message : "this is no number");
}

// ---- lines ---------------------------------------------------------------------------------------

// The size that an expression is by itself, `layers` or `tied == 1`; −1: it is another.
static int size_alone(const struct config *c, const struct expr *e, bool *flag)
{
    *flag = e->kind == EXPR_OPERATOR && e->sign == SIGN_EQ && e->arg[1]->kind == EXPR_NUMBER &&
            e->arg[1]->number == 1;
    if (*flag)
        e = e->arg[0];
    return e->kind == EXPR_PATH && e->name && !e->has_dims ? model_size_find(c->program, e->name)
                                                           : -1;
}

static bool is_word(const struct config *c, const struct expr *e, const char *word)
{
    return e->kind == EXPR_PATH && e->name && strcmp(e->name, word) == 0 &&
           model_size_find(c->program, word) < 0;
}

// Calls `each` for the lines of a block: all of them, or those whose conditions hold.
static int each_line(struct config *c, const struct foreign_line *line, bool all,
                     int (*each)(struct config *c, const struct foreign_line *line))
{
    struct number holds;
    int rc = 0;
    for (; line && !rc; line = line->next) {
        if (line->kind != FOREIGN_IF) {
            rc = each(c, line);
        } else if (all) {
            rc = each_line(c, line->body, true, each);
            if (!rc)
                rc = each_line(c, line->otherwise, true, each);
        } else {
            rc = number_of_line(c, line->value, -1, &holds);
            if (!rc)
                rc = each_line(c, holds.value != 0 ? line->body : line->otherwise, false, each);
        }
    }
    return rc;
}

// ---- values --------------------------------------------------------------------------------------

static void print_number(double x, bool whole, int digits, struct buf *to)
{
    char text[40];
    if (whole) {
        buf_printf(to, "%.0f", x);
        return;
    }
    if (digits)
        snprintf(text, sizeof text, "%.*g", digits, x);
    else
        json_format_double(x, text);
    buf_printf(to, "%s%s", text, strpbrk(text, ".en") ? "" : ".0");
}

// A value of a line as JSON.
static int print_value(struct config *c, const struct expr *e, int64_t n, struct buf *to)
{
    struct json_out w;
    struct number x;
    bool flag;
    int rc = 0, size = size_alone(c, e, &flag);
    if (e->kind == EXPR_TEXT) {
        json_out_init(&w, to);
        json_str(&w, NULL, e->name);
        json_out_clear(&w);
        return 0;
    }
    if (is_word(c, e, "true") || is_word(c, e, "false") || is_word(c, e, "null")) {
        buf_puts(to, e->name);
        return 0;
    }
    if (e->kind == EXPR_LIST) {
        buf_putc(to, '[');
        for (int i = 0; i < e->n && !rc; i++) {
            buf_puts(to, i ? ", " : "");
            rc = print_value(c, e->arg[i], n, to);
        }
        buf_putc(to, ']');
        return rc;
    }
    if (e->kind == EXPR_CHOOSE) {
        rc = number_of_line(c, e->arg[1], n, &x);
        return rc ? rc : print_value(c, e->arg[x.value != 0 ? 0 : 2], n, to);
    }
    rc = number_of_line(c, e, n, &x);
    if (rc)
        return rc;
    if (flag)
        buf_puts(to, x.value != 0 ? "true" : "false");
    else if (size >= 0)
        print_number(x.value, c->program->sizes[size].kind == MODEL_WHOLE, 0, to);
    else // of an expression the last digits are its rounding
        print_number(x.value, x.whole && number_is_whole(x.value), e->kind == EXPR_NUMBER ? 0 : 15,
                     to);
    return 0;
}

// The value of a field: of one with an item for each layer the list of them.
static int print_field(struct config *c, const struct foreign_field *f, struct buf *to)
{
    int64_t layers = model_sizes_whole(&c->sizes, "layers", 0);
    int rc = 0;
    if (!f->each)
        return print_value(c, f->value, -1, to);
    buf_putc(to, '[');
    for (int64_t n = 0; n < layers && !rc; n++) {
        buf_puts(to, n ? ", " : "");
        rc = print_value(c, f->value, n, to);
    }
    buf_putc(to, ']');
    return rc;
}

static bool equal_json(const struct json *a, const struct json *b)
{
    bool same = a->type == b->type && a->count == b->count;
    if (!same)
        return false;
    if (a->type == JSON_NUMBER)
        return fabs(a->number - b->number) <= 1e-9 * fmax(fabs(a->number), fabs(b->number));
    if (a->type == JSON_STRING)
        return strcmp(a->string, b->string) == 0;
    if (a->type == JSON_BOOL)
        return a->boolean == b->boolean;
    for (const struct json *x = a->first, *y = b->first; x && same; x = x->next, y = y->next)
        same = equal_json(x, y);
    return same;
}

static const struct json *find_field(const struct json *root, const char *name)
{
    char part[MODEL_MAX_PATH + 1];
    while (root) {
        size_t n = strcspn(name, ".");
        snprintf(part, sizeof part, "%.*s", (int)n, name);
        root = json_get(root, part);
        if (!name[n])
            return root;
        name += n + 1;
    }
    return NULL;
}

static bool is_given(const struct json *v)
{
    return v && v->type != JSON_NULL;
}

static const char *show_json(struct config *c, const struct json *v)
{
    static const char *const kinds[] = {"null", "", "a number", "", "a list", "an object"};
    if (v->type == JSON_BOOL)
        return v->boolean ? "true" : "false";
    if (v->type == JSON_STRING)
        return arena_printf(c->a, "\"%.100s\"", v->string);
    if (v->type != JSON_NUMBER)
        return kinds[v->type];
    struct buf text = {0};
    print_number(v->number, v->is_int, 0, &text);
    return buf_keep(&text, c->a);
}

// ---- reading -------------------------------------------------------------------------------------

static void give(struct config *c, int size, const char *field, double x)
{
    char text[32];
    json_format_double(x, text);
    c->text[size] = number_is_whole(x) ? arena_printf(c->a, "%.0f", x) : arena_strdup(c->a, text);
    c->field[size] = field;
}

// The sizes as they are given so far, and the defaults of the others.
static int resolve(struct config *c, struct config_sizes *out)
{
    struct model_errors errs = {.arena = c->a};
    out->n = 0;
    for (int i = 0; i < c->program->nsizes; i++) {
        if (!c->text[i])
            continue;
        out->field[out->n] = c->field[i];
        out->given[out->n++] = (struct model_given){c->program->sizes[i].name, c->text[i], 0, NULL};
    }
    if (!model_sizes_resolve(c->program, out->given, out->n, &out->sizes, &errs)) {
        c->sizes = out->sizes;
        return 0;
    }
    const struct model_error *first = &errs.item[0];
    int size = first->size ? model_size_find(c->program, first->size) : -1;
    return err_set(
        c->e, ERR_DATA, "config.json: %s%s%s %s", size >= 0 && c->field[size] ? c->field[size] : "",
        size >= 0 && c->field[size] ? ": " : "", first->size ? first->size : "", first->message);
}

static int read_number(struct config *c, const char *field, const struct json *v, bool flag,
                       double *out)
{
    bool fits = flag ? v->type == JSON_BOOL : v->type == JSON_NUMBER;
    *out = flag ? v->boolean : v->number;
    return fits ? 0
                : err_set(c->e, ERR_DATA, "config.json: %s is %s: it must be %s", field,
                          show_json(c, v), flag ? "true or false" : "a number");
}

// Fields that are a size by themselves, wherever they stand.
static int read_size(struct config *c, const struct foreign_line *line)
{
    const struct foreign_field *f = &line->field;
    bool flag;
    int size = line->kind == FOREIGN_FIELD ? size_alone(c, f->value, &flag) : -1, rc = 0;
    double x;
    for (int i = 0; size >= 0 && i < f->n && !rc; i++) {
        const struct json *v = find_field(c->root, f->name[i]);
        if (!is_given(v))
            continue;
        map_put(&c->seen, f->name[i], &c->seen);
        rc = read_number(c, f->name[i], v, flag, &x);
        if (!rc && c->text[size] && strtod(c->text[size], NULL) != x)
            rc = err_set(c->e, ERR_DATA, "config.json: %s is %s, and %s is %s: both are %s",
                         f->name[i], show_json(c, v), c->field[size], c->text[size],
                         c->program->sizes[size].name);
        if (!rc && !c->text[size])
            give(c, size, f->name[i], x);
    }
    return rc;
}

// Those that are absent: what stands behind `else`.
static int read_absent(struct config *c, const struct foreign_line *line)
{
    const struct foreign_field *f = &line->field;
    bool flag;
    int size = line->kind == FOREIGN_FIELD ? size_alone(c, f->value, &flag) : -1;
    struct number x = {0};
    if (size < 0 || c->text[size] || (!f->otherwise && !flag))
        return 0;
    int rc = f->otherwise ? number_of_line(c, f->otherwise, -1, &x) : 0;
    if (!rc)
        give(c, size, f->name[0], x.value);
    return rc;
}

static int read_size_line(struct config *c, const struct foreign_line *line)
{
    struct number x;
    if (line->kind != FOREIGN_SIZE)
        return 0;
    int size = model_size_find(c->program, line->size);
    if (size < 0)
        return refuse_place(c, line->at, "no size is called so");
    int rc = number_of_line(c, line->value, -1, &x);
    if (!rc && !c->text[size])
        give(c, size, arena_printf(c->a, "size %s", line->size), x.value);
    return rc;
}

// The one size of an expression that nothing has given, with how often it stands there.
static int count_unknown(const struct config *c, const struct expr *e, int *size)
{
    int n = 0, found = e->kind == EXPR_PATH && e->name ? model_size_find(c->program, e->name) : -1;
    if (found >= 0 && !c->text[found]) {
        n = *size >= 0 && *size != found ? 2 : 1;
        *size = found;
    }
    for (int i = 0; i < e->n; i++)
        n += count_unknown(c, e->arg[i], size);
    return n;
}

// Gives the size with which the expression is x. False: that cannot be said.
static bool solve(struct config *c, const struct expr *e, int size, const char *field, double x)
{
    int none = -1;
    struct number other;
    if (e->kind == EXPR_PATH) {
        give(c, size, field, c->program->sizes[size].kind == MODEL_WHOLE ? round(x) : x);
        return true;
    }
    if (e->kind != EXPR_OPERATOR || e->n != 2)
        return false;
    bool left = count_unknown(c, e->arg[0], &none) > 0;
    struct model_errors errs = {.arena = c->a};
    if (!foreign_number(&c->sizes, e->arg[left], -1, &other, &errs))
        return false;
    double by = other.value;
    switch (e->sign) {
    case SIGN_ADD:
        return solve(c, e->arg[!left], size, field, x - by);
    case SIGN_SUB:
        return solve(c, e->arg[!left], size, field, left ? x + by : by - x);
    case SIGN_MUL:
        return by != 0 && solve(c, e->arg[!left], size, field, x / by);
    case SIGN_DIV:
        return (left || x != 0) && solve(c, e->arg[!left], size, field, left ? x * by : by / x);
    default:
        return false;
    }
}

// A field that is an expression gives the size that nothing has given.
static int read_solved(struct config *c, const struct foreign_line *line)
{
    const struct foreign_field *f = &line->field;
    bool flag;
    int size = -1, rc = 0;
    double x;
    if (line->kind != FOREIGN_FIELD || f->each || size_alone(c, f->value, &flag) >= 0 ||
        count_unknown(c, f->value, &size) != 1)
        return 0;
    for (int i = 0; i < f->n && !rc && !c->text[size]; i++) {
        const struct json *v = find_field(c->root, f->name[i]);
        if (!is_given(v) || v->type != JSON_NUMBER)
            continue;
        rc = read_number(c, f->name[i], v, false, &x);
        if (!rc && !solve(c, f->value, size, f->name[i], x))
            break;
    }
    return rc;
}

// The default of a size is a number for every model, or made of what is given.
static bool may_be_absent(const struct expr *e)
{
    bool fine = e->kind != EXPR_BY;
    for (int i = 0; i < e->n && fine; i++)
        fine = may_be_absent(e->arg[i]);
    return fine;
}

static int compare_field(struct config *c, const struct foreign_line *line)
{
    const struct foreign_field *f = &line->field;
    struct buf text = {0};
    struct json *want;
    bool flag, any = false;
    if (line->kind != FOREIGN_FIELD)
        return 0;
    int size = size_alone(c, f->value, &flag), rc = print_field(c, f, &text);
    if (!rc)
        rc = json_parse(c->a, buf_str(&text), text.len, &want, c->e);
    for (int i = 0; i < f->n && !rc; i++) {
        const struct json *v = find_field(c->root, f->name[i]);
        map_put(&c->seen, f->name[i], &c->seen);
        any |= is_given(v);
        if (!v || (v->type == JSON_NULL && (size >= 0 || f->otherwise)) || equal_json(v, want))
            continue;
        rc = err_set(c->e, ERR_DATA, "config.json: %s is %s: %s computes with %s", f->name[i],
                     show_json(c, v), c->program->name, buf_str(&text));
    }
    if (!rc && size >= 0 && !any && !f->otherwise && !flag) {
        const struct model_size *s = &c->program->sizes[size];
        if (!c->text[size] && (!s->derived || !may_be_absent(s->line->value)))
            rc = err_set(c->e, ERR_DATA, "config.json: %s is missing: it is %s", f->name[0],
                         s->name);
    }
    buf_clear(&text);
    return rc;
}

// Whether a field stands above others that lines name, as rope_scaling does: null, it has none.
static bool is_above(const struct config *c, const struct foreign_line *line, const char *name)
{
    size_t n = strlen(name);
    bool found = false;
    for (; line && !found; line = line->next) {
        for (int i = 0; line->kind == FOREIGN_FIELD && i < line->field.n && !found; i++)
            found = strncmp(line->field.name[i], name, n) == 0 &&
                    (line->field.name[i][n] == '.' || !line->field.name[i][n]);
        if (line->kind == FOREIGN_IF)
            found = is_above(c, line->body, name) || is_above(c, line->otherwise, name);
    }
    return found;
}

static bool is_neutral(struct config *c, const char *name, const struct json *v)
{
    for (const struct switched_field *s = switched_fields; s->name; s++) {
        const struct json *by = json_get(c->root, s->by);
        if (strcmp(s->name, name) == 0 && by && by->type == JSON_BOOL && !by->boolean)
            return true;
    }
    const struct neutral_field *f = neutral_fields;
    while (f->name && strcmp(f->name, name) != 0)
        f++;
    if (!f->name || !f->only)
        return f->name;
    struct json *only;
    return v->type == JSON_NULL ||
           (!json_parse(c->a, f->only, strlen(f->only), &only, NULL) && equal_json(v, only));
}

static int refuse_unknown(struct config *c, const struct json *object, const char *prefix)
{
    int rc = 0;
    for (const struct json *v = object->first; v && !rc; v = v->next) {
        const char *name = arena_printf(c->a, "%s%s", prefix, v->key);
        const struct foreign_line *lines = foreign_section(c->program)->config;
        if (map_get(&c->seen, name) || is_neutral(c, name, v))
            continue;
        if (v->type == JSON_NULL && is_above(c, lines, name))
            continue;
        if (v->type == JSON_OBJECT && is_above(c, lines, name))
            rc = refuse_unknown(c, v, arena_printf(c->a, "%s.", name));
        else
            rc = err_set(c->e, ERR_DATA,
                         "config.json: %.100s is %s: %s has no line for it, and it is not known to "
                         "change nothing",
                         name, show_json(c, v), c->program->name);
    }
    return rc;
}

// In this order; the sizes are resolved after each. `all`: whatever conditions a line is under.
static const struct {
    bool all;
    int (*each)(struct config *c, const struct foreign_line *line);
} passes[] = {{true, read_size},
              {true, read_absent},
              {true, read_size_line},
              {false, read_solved},
              {false, compare_field}};

int config_read(const struct model_program *p, const struct json *config, struct arena *a,
                struct config_sizes *out, struct err *e)
{
    const struct foreign_section *s = foreign_section(p);
    struct config c = {.program = p, .root = config, .a = a, .e = e};
    *out = (struct config_sizes){.given = arena_array(a, struct model_given, MODEL_MAX_SIZES),
                                 .field = arena_array(a, const char *, MODEL_MAX_SIZES)};
    if (!s)
        return err_set(e, ERR_INVALID, "%s has no section `export hf`", p->name);
    if (config->type != JSON_OBJECT)
        return err_set(e, ERR_DATA, "config.json is no object");
    int rc = 0;
    for (size_t i = 0; i < sizeof passes / sizeof *passes && !rc; i++) {
        rc = each_line(&c, s->config, passes[i].all, passes[i].each);
        if (!rc)
            rc = resolve(&c, out);
    }
    if (!rc)
        rc = refuse_unknown(&c, config, "");
    map_clear(&c.seen);
    return rc;
}

// ---- writing -------------------------------------------------------------------------------------

struct writer {
    struct config *c;
    struct config_member *member;
    int n, cap;
};

static void add_member(struct writer *w, const char *name, const char *json)
{
    w->member = arena_grow(w->c->a, w->member, sizeof *w->member, w->n, &w->cap);
    w->member[w->n++] = (struct config_member){name, json};
}

static int write_lines(struct writer *w, const struct foreign_line *line)
{
    struct config *c = w->c;
    struct number x;
    int rc = 0;
    for (; line && !rc; line = line->next) {
        const struct foreign_field *f = &line->field;
        struct buf text = {0};
        if (line->kind == FOREIGN_IF) {
            rc = number_of_line(c, line->value, -1, &x);
            if (!rc)
                rc = write_lines(w, x.value != 0 ? line->body : line->otherwise);
        } else if (line->kind == FOREIGN_SIZE) {
            double is = model_sizes_number(&c->sizes, line->size, 0);
            rc = number_of_line(c, line->value, -1, &x);
            if (!rc && x.value != is)
                rc = err_set(c->e, ERR_INVALID, "such checkpoints have %s = %g, and this has %g",
                             line->size, x.value, is);
        } else {
            // Where absence means the same, only the last name is written.
            bool usual = f->otherwise && f->value->kind == EXPR_TEXT &&
                         f->otherwise->kind == EXPR_TEXT &&
                         strcmp(f->value->name, f->otherwise->name) == 0;
            rc = print_field(c, f, &text);
            const char *json = buf_keep(&text, c->a);
            for (int i = usual ? f->n - 1 : 0; i < f->n && !rc; i++)
                add_member(w, f->name[i], json);
        }
    }
    return rc;
}

static void print_members(struct writer *w, struct buf *to)
{
    struct json_out out;
    json_out_init(&out, to);
    out.pretty = true;
    json_object(&out, NULL);
    for (int i = 0; i < w->n; i++) {
        const char *name = w->member[i].name, *dot = strchr(name, '.');
        size_t n = dot ? (size_t)(dot - name) + 1 : 0;
        bool before = false;
        for (int k = 0; k < i && !before; k++)
            before = dot ? strncmp(w->member[k].name, name, n) == 0
                         : strcmp(w->member[k].name, name) == 0;
        if (before)
            continue;
        if (!dot) {
            json_raw(&out, name, w->member[i].json);
            continue;
        }
        json_object(&out, arena_printf(w->c->a, "%.*s", (int)n - 1, name));
        for (int k = i; k < w->n; k++)
            if (strncmp(w->member[k].name, name, n) == 0)
                json_raw(&out, w->member[k].name + n, w->member[k].json);
        json_end(&out);
    }
    json_end(&out);
    json_out_clear(&out);
    buf_putc(to, '\n');
}

int config_write(const struct model_sizes *sizes, const struct config_member *more, int nmore,
                 struct arena *a, struct buf *to, struct err *e)
{
    const struct foreign_section *s = foreign_section(sizes->program);
    struct config c = {.program = sizes->program, .a = a, .sizes = *sizes, .e = e};
    struct writer w = {.c = &c};
    if (!s)
        return err_set(e, ERR_INVALID, "%s has no section `export hf`", sizes->program->name);
    int rc = write_lines(&w, s->config);
    for (int i = 0; i < nmore; i++)
        add_member(&w, more[i].name, more[i].json);
    if (!rc)
        print_members(&w, to);
    return rc;
}

static bool names_class(const struct foreign_line *line, const char *architecture)
{
    for (; line; line = line->next) {
        const struct expr *v = line->field.value;
        if (line->kind != FOREIGN_FIELD || strcmp(line->field.name[0], "architectures") != 0 ||
            v->kind != EXPR_LIST)
            continue;
        for (int i = 0; i < v->n; i++)
            if (v->arg[i]->kind == EXPR_TEXT && strcmp(v->arg[i]->name, architecture) == 0)
                return true;
    }
    return false;
}

bool config_is_of(const struct model_program *p, const char *architecture)
{
    const struct foreign_section *s = foreign_section(p);
    return s && names_class(s->config, architecture);
}
