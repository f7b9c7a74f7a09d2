// SPDX-License-Identifier: Apache-2.0
// Walking the schema, and its table as text, Markdown and JSON, as `weft schema` prints it.
#include <string.h>

#include "common/base/json.h"
#include "common/job/reading.h"

int schema_rows(const struct schema *schema)
{
    int n = 0;
    for (int i = 0; i < schema->n; i++)
        n += schema->tables[i]->n;
    return n;
}

const struct schema_row *schema_row(const struct schema *schema, int i, size_t *offset)
{
    const struct schema_table *const *t = schema->tables;
    for (; i >= (*t)->n; t++)
        i -= (*t)->n;
    *offset = (*t)->section + (*t)->rows[i].offset;
    return &(*t)->rows[i];
}

// The row of a path that exists.
static const struct schema_row *find_row(const struct schema *schema, const char *path,
                                         size_t *offset)
{
    for (int i = 0; i < schema_rows(schema); i++) {
        const struct schema_row *row = schema_row(schema, i, offset);
        if (strcmp(row->path, path) == 0)
            return row;
    }
    err_bug(__FILE__, __LINE__, path);
}

// Whether `word` is one of the words of "adam|adamw".
static bool is_listed(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL)
        if (strncmp(p, word, n) == 0 && (p[n] == 0 || p[n] == '|'))
            return true;
    return false;
}

static const struct schema_row *find_asked(const struct schema *schema, const struct job *job,
                                           const char *path, size_t n, const void **field)
{
    char name[128];
    size_t offset = 0;
    PRE(n < sizeof name);
    memcpy(name, path, n);
    name[n] = 0;
    const struct schema_row *row = find_row(schema, name, &offset);
    *field = (const char *)job + offset;
    return row;
}

bool when_holds(const struct schema *schema, const struct job *job, const struct schema_row *row)
{
    if (!row->when)
        return true;
    size_t n = strcspn(row->when, "=");
    const struct schema_row *asked;
    const void *field;
    if (!row->when[n]) {
        for (const char *p = row->when; *p; p += strcspn(p, "|"), p += *p == '|') {
            asked = find_asked(schema, job, p, strcspn(p, "|"), &field);
            PRE(asked->type == SCHEMA_STRING);
            if (*(const char *const *)field)
                return true;
        }
        return false;
    }
    asked = find_asked(schema, job, row->when, n, &field);
    PRE(asked->type == SCHEMA_ENUM);
    return is_listed(row->when + n + 1, asked->names[*(const int *)field]);
}

const char *when_text(const struct schema_row *row, struct arena *a)
{
    if (!row->when)
        return "";
    size_t n = strcspn(row->when, "=");
    struct buf text = {0};
    for (const char *p = row->when; *p; p++)
        if (*p == '|')
            buf_puts(&text, " or ");
        else if (*p == '=')
            buf_puts(&text, " is ");
        else
            buf_putc(&text, *p);
    buf_puts(&text, row->when[n] ? "" : " is given");
    return buf_keep(&text, a);
}

// ---- the table ---------------------------------------------------------------------------------
static void print_bound(double x, const char *unit, struct buf *to)
{
    if (x == (double)(int64_t)x && x < 2e9)
        buf_printf(to, "%lld%s", (long long)x, unit);
    else
        buf_printf(to, "%g%s", x, unit);
}

// "1 to 65536", "more than 0, at most 1", "relu, gelu, tanh".
static void print_allowed(const struct schema_row *row, struct buf *to)
{
    bool time = row->type == SCHEMA_DURATION || row->type == SCHEMA_DURATIONS;
    const char *unit = time ? "s" : "";
    for (int i = 0; row->names && row->names[i]; i++)
        buf_printf(to, "%s%s", i ? ", " : "", row->names[i]);
    if (row->min == row->max)
        return;
    if (row->above_min) {
        buf_puts(to, "above ");
        print_bound(row->min, unit, to);
        buf_puts(to, ", ");
    } else {
        print_bound(row->min, unit, to);
        buf_puts(to, " ");
    }
    buf_puts(to, row->below_max ? "to below " : "to ");
    print_bound(row->max, unit, to);
}

static const char *describe_default(const struct schema_row *row)
{
    return row->def ? row->def : row->derived ? row->derived : row->optional ? "none" : "required";
}

static void print_text_row(const struct schema_row *row, struct arena *a, struct buf *to)
{
    struct buf allowed = {0};
    print_allowed(row, &allowed);
    buf_printf(to, "%-23s %-18s default: %s%s%s", row->path, setting_types[row->type].name,
               describe_default(row), row->unit ? " " : "", row->unit ? row->unit : "");
    if (allowed.len)
        buf_printf(to, "; allowed: %s", buf_str(&allowed));
    buf_printf(to, "\n%-23s %s", "", row->doc);
    if (row->when)
        buf_printf(to, " (only when %s)", when_text(row, a));
    buf_putc(to, '\n');
    buf_clear(&allowed);
}

static void print_cell(struct buf *to, const char *s)
{
    buf_puts(to, " ");
    for (; *s; s++)
        buf_printf(to, *s == '|' ? "\\%c" : "%c", *s);
    buf_puts(to, " |");
}

static void print_markdown_row(const struct schema_row *row, struct arena *a, struct buf *to)
{
    struct buf allowed = {0};
    print_allowed(row, &allowed);
    buf_putc(to, '|');
    print_cell(to, arena_printf(a, "`%s`", row->path));
    print_cell(to, setting_types[row->type].name);
    print_cell(to, row->def ? arena_printf(a, "`%s`", row->def) : describe_default(row));
    print_cell(to, row->unit ? row->unit : "");
    print_cell(to, buf_str(&allowed));
    print_cell(to, row->when ? arena_printf(a, "%s; only when %s", row->doc, when_text(row, a))
                             : row->doc);
    buf_putc(to, '\n');
    buf_clear(&allowed);
}

static void print_json_row(const struct schema_row *row, struct json_out *w)
{
    json_object(w, NULL);
    json_str(w, "key", row->path);
    json_str(w, "type", setting_types[row->type].name);
    json_str(w, "default", row->def ? row->def : row->derived);
    json_bool(w, "required", !row->def && !row->derived && !row->optional);
    json_str(w, "unit", row->unit);
    json_str(w, "when", row->when);
    if (row->min != row->max) {
        json_double(w, "min", row->min);
        json_double(w, "max", row->max);
    } else {
        json_null(w, "min");
        json_null(w, "max");
    }
    json_array(w, "values");
    for (int i = 0; row->names && row->names[i]; i++)
        json_str(w, NULL, row->names[i]);
    json_end(w);
    json_str(w, "doc", row->doc);
    json_end(w);
}

static void print_json_table(const struct schema *schema, struct buf *to)
{
    struct json_out w;
    json_out_init(&w, to);
    json_object(&w, NULL);
    json_int(&w, "schema", JOB_SCHEMA_VERSION);
    json_array(&w, "keys");
    size_t offset = 0;
    for (int i = 0; i < schema_rows(schema); i++)
        print_json_row(schema_row(schema, i, &offset), &w);
    json_end(&w);
    json_end(&w);
    json_out_clear(&w);
    buf_putc(to, '\n');
}

void job_schema_print(const struct schema *schema, enum job_schema_form form, struct buf *to)
{
    if (form == JOB_SCHEMA_JSON) {
        print_json_table(schema, to);
        return;
    }
    struct arena a = {0};
    size_t offset = 0;
    if (form == JOB_SCHEMA_MARKDOWN)
        buf_puts(to, "| key | type | default | unit | allowed | what it does |\n"
                     "|---|---|---|---|---|---|\n");
    for (int i = 0; i < schema_rows(schema); i++)
        if (form == JOB_SCHEMA_MARKDOWN)
            print_markdown_row(schema_row(schema, i, &offset), &a, to);
        else
            print_text_row(schema_row(schema, i, &offset), &a, to);
    arena_clear(&a);
}
