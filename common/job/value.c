// SPDX-License-Identifier: Apache-2.0
// How one value is read and printed, by the type of its row. Numbers follow one strict grammar, not
// YAML 1.1's: no octal, no underscores, no yes/no. What prints reads back to the same bits.
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/job/reading.h"

bool value_error(const struct value *v, const char *fmt, ...)
{
    struct buf text = {0};
    va_list ap;
    va_start(ap, fmt);
    buf_vprintf(&text, fmt, ap);
    va_end(ap);
    tree_error(v->errors, v->node, v->path, "%s", buf_str(&text));
    buf_clear(&text);
    return false;
}

bool value_is_scalar(const struct value *v, const char *want)
{
    if (v->node->kind == TREE_BROKEN)
        return false; // reported where it was read
    if (v->node->kind == TREE_SCALAR && !tree_is_null(v->node))
        return true;
    return value_error(v, "must be %s, not %s", want, tree_kind_text(v->node));
}

static bool is_plain(const struct value *v, const char *want)
{
    if (!value_is_scalar(v, want))
        return false;
    return v->node->plain || value_error(v, "must be %s: take the quotes away", want);
}

// ---- numbers -----------------------------------------------------------------------------------
static const char *digits(const char *s)
{
    while (isdigit((unsigned char)*s))
        s++;
    return s;
}

static const char *sign(const char *s)
{
    return *s == '-' || *s == '+' ? s + 1 : s;
}

// [sign] digits, no needless zero in front.
static bool is_int(const char *s)
{
    s = sign(s);
    return *s && !*digits(s) && !(s[0] == '0' && s[1]);
}

static bool is_float(const char *s)
{
    s = sign(s);
    const char *whole = s;
    s = digits(s);
    bool any = s > whole;
    if (whole[0] == '0' && s > whole + 1)
        return false;
    if (*s == '.') {
        const char *part = s + 1;
        s = digits(part);
        any = any || s > part;
    }
    if (any && (*s == 'e' || *s == 'E')) {
        const char *power = sign(s + 1);
        s = digits(power);
        any = s > power;
    }
    return any && !*s;
}

static void number_text(double x, char out[32])
{
    json_format_double(x, out);
    size_t n = strlen(out);
    if (n > 2 && strcmp(out + n - 2, ".0") == 0) // bounds are mostly whole
        out[n - 2] = 0;
}

static bool in_range(const struct value *v, double x)
{
    const struct schema_row *row = v->row;
    if (row->min == row->max) // unbounded
        return true;
    bool low = row->above_min ? x <= row->min : x < row->min;
    bool high = row->below_max ? x >= row->max : x > row->max;
    if (!low && !high)
        return true;
    char bound[32];
    number_text(low ? row->min : row->max, bound);
    bool strict = low ? row->above_min : row->below_max;
    bool time = row->type == SCHEMA_DURATION || row->type == SCHEMA_DURATIONS;
    const char *unit = time ? "s" : "";
    return value_error(
        v, "%s is too %s: it must be %s %s%s", v->node->text, low ? "small" : "large",
        low ? (strict ? "more than" : "at least") : (strict ? "less than" : "at most"), bound,
        unit);
}

bool value_read_int(const struct value *v, void *field)
{
    if (!is_plain(v, "a whole number"))
        return false;
    if (!is_int(v->node->text))
        return value_error(v, "must be a whole number, not '%.100s'", v->node->text);
    errno = 0;
    long long x = strtoll(v->node->text, NULL, 10);
    if (errno)
        return value_error(v, "%.100s does not fit 64 bits", v->node->text);
    *(int64_t *)field = x;
    return in_range(v, (double)x);
}

bool value_read_float(const struct value *v, void *field)
{
    if (!is_plain(v, "a number"))
        return false;
    if (!is_float(v->node->text))
        return value_error(v, "must be a number, not '%.100s'", v->node->text);
    double x = strtod(v->node->text, NULL);
    if (!isfinite(x))
        return value_error(v, "%.100s is beyond the range of double", v->node->text);
    *(double *)field = x == 0 ? 0 : x; // no negative zero
    return in_range(v, x);
}

void value_print_int(const struct schema_row *row, const void *field, struct buf *to)
{
    (void)row;
    buf_printf(to, "%lld", (long long)*(const int64_t *)field);
}

void value_print_float(const struct schema_row *row, const void *field, struct buf *to)
{
    (void)row;
    char text[32];
    json_format_double(*(const double *)field, text);
    buf_puts(to, text);
}

static const struct unit {
    const char *name;
    int64_t ns;
} units[] = {
    {"h", 3600000000000}, {"m", 60000000000}, {"s", 1000000000},
    {"ms", 1000000},      {"us", 1000},       {"ns", 1},
};
enum { UNITS = sizeof units / sizeof *units };

static bool read_duration(const struct value *v, void *field)
{
    if (!is_plain(v, "a duration such as 5s"))
        return false;
    const char *text = v->node->text, *unit = digits(text);
    if (unit == text)
        return value_error(v, "must be a duration such as 5s, not '%.100s'", text);
    if (!*unit)
        return value_error(v, "%.100s has no unit: ns, us, ms, s, m or h, as in %.100ss", text,
                           text);
    int i = 0;
    while (i < UNITS && strcmp(unit, units[i].name) != 0)
        i++;
    if (i == UNITS)
        return value_error(v, "'%.100s' is not a unit of time: ns, us, ms, s, m or h", unit);
    errno = 0;
    int64_t n = strtoll(text, NULL, 10), ns = 0;
    if (errno || __builtin_mul_overflow(n, units[i].ns, &ns))
        return value_error(v, "%.100s is longer than 292 years", text);
    *(int64_t *)field = ns;
    return in_range(v, (double)ns / 1e9);
}

static void print_duration(const struct schema_row *row, const void *field, struct buf *to)
{
    (void)row;
    int64_t ns = *(const int64_t *)field;
    int i = ns == 0 ? 2 : 0; // "0s", not "0h"
    while (ns % units[i].ns != 0)
        i++;
    buf_printf(to, "%lld%s", (long long)(ns / units[i].ns), units[i].name);
}

// ---- words -------------------------------------------------------------------------------------
static bool read_bool(const struct value *v, void *field)
{
    if (!is_plain(v, "true or false"))
        return false;
    bool yes = strcmp(v->node->text, "true") == 0;
    if (!yes && strcmp(v->node->text, "false") != 0)
        return value_error(v, "must be true or false, not '%.100s'", v->node->text);
    *(bool *)field = yes;
    return true;
}

static void print_bool(const struct schema_row *row, const void *field, struct buf *to)
{
    (void)row;
    buf_puts(to, *(const bool *)field ? "true" : "false");
}

bool value_read_string(const struct value *v, void *field)
{
    enum { LONGEST = 4096 };
    if (!value_is_scalar(v, "text"))
        return false;
    const char *text = v->node->text;
    if (!*text)
        return value_error(v, "is empty");
    if (strlen(text) > LONGEST)
        return value_error(v, "is longer than %d bytes", LONGEST);
    if (v->row->valid && !v->row->valid(text))
        return value_error(v, "'%.100s' will not do: %s", text, v->row->doc);
    *(const char **)field = text;
    return true;
}

// Words that YAML reads as themselves and as nothing else.
static bool prints_plain(const char *s)
{
    static const char *const other[] = {"null", "true", "false", "yes", "no",
                                        "on",   "off",  "y",     "n"};
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (strcasecmp(s, other[i]) == 0)
            return false;
    bool path = *s == '/' || strncmp(s, "./", 2) == 0 || strncmp(s, "../", 3) == 0;
    if (!path && !isalpha((unsigned char)*s))
        return false;
    return s[strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/_.-")] == 0;
}

void value_print_string(const struct schema_row *row, const void *field, struct buf *to)
{
    (void)row;
    const char *s = *(const char *const *)field;
    if (prints_plain(s)) {
        buf_puts(to, s);
        return;
    }
    buf_putc(to, '"');
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            buf_putc(to, '\\');
        buf_putc(to, *s);
    }
    buf_putc(to, '"');
}

static bool read_enum(const struct value *v, void *field)
{
    const char *const *names = v->row->names;
    if (!value_is_scalar(v, "a word"))
        return false;
    int n = 0;
    while (names[n] && strcmp(names[n], v->node->text) != 0)
        n++;
    *(int *)field = n;
    if (names[n])
        return true;
    struct buf all = {0};
    for (int i = 0; i < n; i++)
        buf_printf(&all, "%s%s", i == 0 ? "" : i == n - 1 ? " or " : ", ", names[i]);
    const char *near = suggest(v->node->text, names, n);
    value_error(v, "'%.100s' is not %s%s%s%s%s", v->node->text, n > 1 ? "one of " : "",
                buf_str(&all), near ? ": did you mean " : "", near ? near : "", near ? "?" : "");
    buf_clear(&all);
    return false;
}

static void print_enum(const struct schema_row *row, const void *field, struct buf *to)
{
    buf_puts(to, row->names[*(const int *)field]);
}

// ---- lists of numbers ---------------------------------------------------------------------------
// Reads every item with `read` into an array of `size`-byte items; false when any is wrong.
static bool read_items(const struct value *v, bool (*read)(const struct value *, void *),
                       char *items, size_t size)
{
    bool ok = true;
    int i = 0;
    for (const struct tree_node *n = v->node->first; n; n = n->next, i++) {
        struct value item = *v;
        item.node = n;
        item.path = arena_printf(v->arena, "%s[%d]", v->path, i);
        ok = read(&item, items + (size_t)i * size) && ok;
    }
    return ok;
}

static bool is_list(const struct value *v, int least, int most, const char *example)
{
    if (v->node->kind == TREE_BROKEN)
        return false;
    if (v->node->kind != TREE_LIST)
        return value_error(v, "must be a list such as %s, not %s", example,
                           tree_kind_text(v->node));
    int n = v->node->count;
    if (n >= least && n <= most)
        return true;
    if (least == most)
        return value_error(v, "has %d item%s: it must have %d", n, n == 1 ? "" : "s", least);
    return value_error(v, "has %d items: it must have %d to %d", n, least, most);
}

bool value_read_int_list(const struct value *v, void *field)
{
    if (!is_list(v, v->row->min_items, v->row->max_items, "[256, 128]"))
        return false;
    struct schema_list *list = field;
    list->n = v->node->count;
    list->items = arena_array(v->arena, int64_t, list->n);
    return read_items(v, value_read_int, list->items, sizeof(int64_t));
}

void value_print_int_list(const struct schema_row *row, const void *field, struct buf *to)
{
    const struct schema_list *list = field;
    buf_putc(to, '[');
    for (int i = 0; i < list->n; i++) {
        buf_puts(to, i ? ", " : "");
        value_print_int(row, (const int64_t *)list->items + i, to);
    }
    buf_putc(to, ']');
}

static bool read_pair(const struct value *v, void *field)
{
    return is_list(v, 2, 2, "[0.9, 0.999]") &&
           read_items(v, value_read_float, field, sizeof(double));
}

static void print_pair(const struct schema_row *row, const void *field, struct buf *to)
{
    const double *pair = field;
    buf_putc(to, '[');
    value_print_float(row, &pair[0], to);
    buf_puts(to, ", ");
    value_print_float(row, &pair[1], to);
    buf_putc(to, ']');
}

static bool read_durations(const struct value *v, void *field)
{
    return is_list(v, 2, 2, "[1s, 60s]") && read_items(v, read_duration, field, sizeof(int64_t));
}

static void print_durations(const struct schema_row *row, const void *field, struct buf *to)
{
    const int64_t *pair = field;
    buf_putc(to, '[');
    print_duration(row, &pair[0], to);
    buf_puts(to, ", ");
    print_duration(row, &pair[1], to);
    buf_putc(to, ']');
}

const struct value_type value_types[SCHEMA_COUNT] = {
    [SCHEMA_INT] = {"integer", value_read_int, value_print_int},
    [SCHEMA_FLOAT] = {"number", value_read_float, value_print_float},
    [SCHEMA_BOOL] = {"true or false", read_bool, print_bool},
    [SCHEMA_STRING] = {"text", value_read_string, value_print_string},
    [SCHEMA_ENUM] = {"word", read_enum, print_enum},
    [SCHEMA_DURATION] = {"duration", read_duration, print_duration},
    [SCHEMA_INT_LIST] = {"list of integers", value_read_int_list, value_print_int_list},
    [SCHEMA_PAIR] = {"two numbers", read_pair, print_pair},
    [SCHEMA_DURATIONS] = {"two durations", read_durations, print_durations},
    [SCHEMA_MESH] = {"map of axis: size", value_read_mesh, value_print_mesh},
    [SCHEMA_RULES] = {"map of dimension: axes", value_read_rules, value_print_rules},
    [SCHEMA_PARAMS] = {"list of parameter specs", value_read_params, value_print_params},
    [SCHEMA_POINTS] = {"map of point: spec", value_read_points, value_print_points},
    [SCHEMA_AXES] = {"list of axes", value_read_axes, value_print_axes},
    [SCHEMA_REFINE] = {"list of axes, or of parameter specs", value_read_refine,
                       value_print_refine},
    [SCHEMA_GROUPS] = {"list of groups", value_read_groups, value_print_groups},
};
