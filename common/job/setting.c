// SPDX-License-Identifier: Apache-2.0
// Settings of the plain types: numbers, durations, words and lists of numbers. See setting.h.
// Numbers follow one strict grammar, not YAML 1.1's: no octal, no underscores, no yes/no. What is
// printed reads back to the same bits.
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/duration.h"
#include "common/base/json.h"
#include "common/base/suggest.h"
#include "common/base/url.h"
#include "common/job/setting.h"
#include "common/job/text.h"

bool setting_error(const struct setting *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const char *text = arena_vprintf(s->arena, fmt, ap);
    va_end(ap);
    tree_error(s->errors, s->node, s->path, "%s", text);
    return false;
}

struct setting setting_member(const struct setting *s, const struct tree_node *member)
{
    struct setting m = *s;
    m.node = member;
    m.path = arena_printf(s->arena, "%s.%.100s", s->path, member->key);
    return m;
}

struct setting setting_item(const struct setting *s, const struct tree_node *item, int index)
{
    struct setting m = *s;
    m.node = item;
    m.path = arena_printf(s->arena, "%s[%d]", s->path, index);
    return m;
}

bool setting_unknown_key(const struct setting *s, const char *const *known, int n, const char *what)
{
    const char *near = suggest(s->node->key, known, n);
    struct buf all = {0};
    for (int i = 0; i < n && !near; i++)
        buf_printf(&all, "%s%s", i == 0 ? "" : ", ", known[i]);
    if (near)
        tree_error_key(s->errors, s->node, s->path, "unknown key: did you mean %s?", near);
    else
        tree_error_key(s->errors, s->node, s->path, "unknown key: %s %s", what, buf_str(&all));
    buf_clear(&all);
    return false;
}

int setting_line(const struct tree_node *node)
{
    return node->source->one_line ? 0 : node->line;
}

static bool check_scalar(const struct setting *s, const char *want)
{
    if (s->node->kind == TREE_BROKEN)
        return false; // reported where it was read
    if (s->node->kind == TREE_SCALAR && !tree_is_null(s->node))
        return true;
    return setting_error(s, "must be %s, not %s", want, tree_kind_text(s->node));
}

static bool check_plain(const struct setting *s, const char *want)
{
    if (!check_scalar(s, want))
        return false;
    return s->node->plain || setting_error(s, "must be %s: take the quotes away", want);
}

// ---- numbers -----------------------------------------------------------------------------------
static const char *skip_digits(const char *s)
{
    while (isdigit((unsigned char)*s))
        s++;
    return s;
}

static const char *skip_sign(const char *s)
{
    return *s == '-' || *s == '+' ? s + 1 : s;
}

// [sign] digits, no needless zero in front.
static bool is_int(const char *s)
{
    s = skip_sign(s);
    return *s && !*skip_digits(s) && !(s[0] == '0' && s[1]);
}

static bool is_float(const char *s)
{
    s = skip_sign(s);
    const char *whole = s;
    s = skip_digits(s);
    bool any = s > whole;
    if (whole[0] == '0' && s > whole + 1)
        return false;
    if (*s == '.') {
        const char *part = s + 1;
        s = skip_digits(part);
        any = any || s > part;
    }
    if (any && (*s == 'e' || *s == 'E')) {
        const char *power = skip_sign(s + 1);
        s = skip_digits(power);
        any = s > power;
    }
    return any && !*s;
}

static bool check_range(const struct setting *s, double x)
{
    const struct schema_row *row = s->row;
    if (row->min == row->max) // unbounded
        return true;
    bool low = row->above_min ? x <= row->min : x < row->min;
    bool high = row->below_max ? x >= row->max : x > row->max;
    if (!low && !high)
        return true;
    char bound[32];
    json_format_double(low ? row->min : row->max, bound);
    size_t n = strlen(bound);
    if (n > 2 && strcmp(bound + n - 2, ".0") == 0) // bounds are mostly whole
        bound[n - 2] = 0;
    bool strict = low ? row->above_min : row->below_max;
    bool time = row->type == SCHEMA_DURATION || row->type == SCHEMA_DURATIONS;
    const char *unit = time ? "s" : "";
    return setting_error(
        s, "%s is too %s: it must be %s %s%s", s->node->text, low ? "small" : "large",
        low ? (strict ? "more than" : "at least") : (strict ? "less than" : "at most"), bound,
        unit);
}

bool setting_read_int(const struct setting *s, void *field)
{
    if (!check_plain(s, "a whole number"))
        return false;
    const char *unit = s->row->unit;
    if (!is_int(s->node->text))
        return setting_error(s, "must be a whole number%s%s, not '%.100s'", unit ? " of " : "",
                             unit ? unit : "", s->node->text);
    errno = 0;
    long long x = strtoll(s->node->text, NULL, 10);
    if (errno)
        return setting_error(s, "%.100s does not fit 64 bits", s->node->text);
    *(int64_t *)field = x;
    return check_range(s, (double)x);
}

bool setting_read_float(const struct setting *s, void *field)
{
    if (!check_plain(s, "a number"))
        return false;
    if (!is_float(s->node->text))
        return setting_error(s, "must be a number, not '%.100s'", s->node->text);
    double x = strtod(s->node->text, NULL);
    if (!isfinite(x))
        return setting_error(s, "%.100s is beyond the range of double", s->node->text);
    *(double *)field = x == 0 ? 0 : x; // no negative zero
    return check_range(s, x);
}

void setting_print_int(const struct schema_row *row, const void *field, struct buf *to)
{
    (void)row;
    buf_printf(to, "%lld", (long long)*(const int64_t *)field);
}

void setting_print_float(const struct schema_row *row, const void *field, struct buf *to)
{
    (void)row;
    char text[32];
    json_format_double(*(const double *)field, text);
    buf_puts(to, text);
}

bool setting_read_duration(const struct setting *s, void *field)
{
    struct err e;
    if (!check_plain(s, "a duration such as 5s"))
        return false;
    if (duration_read(s->node->text, field, &e))
        return setting_error(s, "%s", e.text);
    return check_range(s, (double)*(int64_t *)field / 1e9);
}

void setting_print_duration(const struct schema_row *row, const void *field, struct buf *to)
{
    (void)row;
    duration_print(*(const int64_t *)field, to);
}

// ---- words -------------------------------------------------------------------------------------
bool setting_read_bool(const struct setting *s, void *field)
{
    if (!check_plain(s, "true or false"))
        return false;
    bool yes = strcmp(s->node->text, "true") == 0;
    if (!yes && strcmp(s->node->text, "false") != 0)
        return setting_error(s, "must be true or false, not '%.100s'", s->node->text);
    *(bool *)field = yes;
    return true;
}

void setting_print_bool(const struct schema_row *row, const void *field, struct buf *to)
{
    (void)row;
    buf_puts(to, *(const bool *)field ? "true" : "false");
}

bool setting_read_string(const struct setting *s, void *field)
{
    enum { LONGEST = 4096 };
    if (!check_scalar(s, "text"))
        return false;
    const char *text = s->node->text;
    if (!*text)
        return setting_error(s, "is empty");
    if (strlen(text) > LONGEST)
        return setting_error(s, "is longer than %d bytes", LONGEST);
    if (s->row->is_path && url_refuse(text, NULL))
        return setting_error(s, "'%.100s' " URL_WHY, text);
    if (s->row->valid && !s->row->valid(text))
        return setting_error(s, "'%.100s' will not do: %s", text, s->row->doc);
    *(const char **)field = text;
    return true;
}

// Words that YAML reads as themselves and as nothing else.
static bool is_plain_word(const char *s)
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

void setting_print_string(const struct schema_row *row, const void *field, struct buf *to)
{
    (void)row;
    const char *s = *(const char *const *)field;
    if (is_plain_word(s)) {
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

bool setting_read_text(const struct setting *s, void *field)
{
    if (!check_scalar(s, "lines of text"))
        return false;
    *(const char **)field = text_lines(s->arena, s->node->text);
    return true;
}

// A block of YAML: its lines stand two deeper than the key, which is in a section.
void setting_print_text(const struct schema_row *row, const void *field, struct buf *to)
{
    (void)row;
    buf_puts(to, "|2");
    for (const char *line = *(const char *const *)field; *line;) {
        size_t n = strcspn(line, "\n");
        buf_puts(to, n ? "\n    " : "\n");
        buf_append(to, line, n);
        line += n + (line[n] == '\n');
    }
}

bool setting_read_enum(const struct setting *s, void *field)
{
    const char *const *names = s->row->names;
    if (!check_scalar(s, "a word"))
        return false;
    int n = 0;
    while (names[n] && strcmp(names[n], s->node->text) != 0)
        n++;
    *(int *)field = n;
    if (names[n])
        return true;
    struct buf all = {0};
    for (int i = 0; i < n; i++)
        buf_printf(&all, "%s%s", i == 0 ? "" : i == n - 1 ? " or " : ", ", names[i]);
    const char *near = suggest(s->node->text, names, n);
    setting_error(s, "'%.100s' is not %s%s%s%s%s", s->node->text, n > 1 ? "one of " : "",
                  buf_str(&all), near ? ": did you mean " : "", near ? near : "", near ? "?" : "");
    buf_clear(&all);
    return false;
}

void setting_print_enum(const struct schema_row *row, const void *field, struct buf *to)
{
    buf_puts(to, row->names[*(const int *)field]);
}

// ---- lists -------------------------------------------------------------------------------------
bool setting_read_items(const struct setting *s, bool (*read)(const struct setting *, void *),
                        void *items, size_t size)
{
    bool ok = true;
    int i = 0;
    for (const struct tree_node *n = s->node->first; n; n = n->next, i++) {
        struct setting item = setting_item(s, n, i);
        ok = read(&item, (char *)items + (size_t)i * size) && ok;
    }
    return ok;
}

void setting_print_items(const struct schema_row *row,
                         void (*print)(const struct schema_row *, const void *, struct buf *),
                         const void *items, size_t size, int n, struct buf *to)
{
    buf_putc(to, '[');
    for (int i = 0; i < n; i++) {
        buf_puts(to, i ? ", " : "");
        print(row, (const char *)items + (size_t)i * size, to);
    }
    buf_putc(to, ']');
}

static bool check_list(const struct setting *s, int least, int most, const char *example)
{
    if (s->node->kind == TREE_BROKEN)
        return false;
    if (s->node->kind != TREE_LIST)
        return setting_error(s, "must be a list such as %s, not %s", example,
                             tree_kind_text(s->node));
    int n = s->node->count;
    if (n >= least && n <= most)
        return true;
    if (least == most)
        return setting_error(s, "has %d item%s: it must have %d", n, n == 1 ? "" : "s", least);
    return setting_error(s, "has %d items: it must have %d to %d", n, least, most);
}

bool setting_read_int_list(const struct setting *s, void *field)
{
    if (!check_list(s, s->row->min_items, s->row->max_items, "[256, 128]"))
        return false;
    struct schema_list *list = field;
    list->n = s->node->count;
    list->items = arena_array(s->arena, int64_t, list->n);
    return setting_read_items(s, setting_read_int, list->items, sizeof(int64_t));
}

void setting_print_int_list(const struct schema_row *row, const void *field, struct buf *to)
{
    const struct schema_list *list = field;
    setting_print_items(row, setting_print_int, list->items, sizeof(int64_t), list->n, to);
}

bool setting_read_pair(const struct setting *s, void *field)
{
    return check_list(s, 2, 2, "[0.9, 0.999]") &&
           setting_read_items(s, setting_read_float, field, sizeof(double));
}

void setting_print_pair(const struct schema_row *row, const void *field, struct buf *to)
{
    setting_print_items(row, setting_print_float, field, sizeof(double), 2, to);
}

bool setting_read_durations(const struct setting *s, void *field)
{
    return check_list(s, 2, 2, "[1s, 60s]") &&
           setting_read_items(s, setting_read_duration, field, sizeof(int64_t));
}

void setting_print_durations(const struct schema_row *row, const void *field, struct buf *to)
{
    setting_print_items(row, setting_print_duration, field, sizeof(int64_t), 2, to);
}
