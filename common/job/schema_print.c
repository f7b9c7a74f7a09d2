// SPDX-License-Identifier: Apache-2.0
// The schema as a table: text, Markdown and JSON, as `weft schema` prints it. The sizes of the
// programs that come with weft follow the keys.
#include <string.h>

#include "common/base/json.h"
#include "common/job/job_model.h"

#define MARKDOWN_HEAD                                                         \
    "| key | type | default | unit | allowed | continuing | what it does |\n" \
    "|---|---|---|---|---|---|---|\n"

static const char *const continues[] = {[CONTINUE_SAME] = "same",
                                        [CONTINUE_CHANGES] = "may change",
                                        [CONTINUE_FITS] = "if parameters stay",
                                        [CONTINUE_REFUSED] = "refused"};

// ---- a row -------------------------------------------------------------------------------------
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
    buf_printf(to, "; continuing: %s", continues[row->continues]);
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
    print_cell(to, continues[row->continues]);
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
    json_str(w, "continuing", continues[row->continues]);
    json_known_double(w, "min", row->min != row->max, row->min);
    json_known_double(w, "max", row->min != row->max, row->max);
    json_array(w, "values");
    for (int i = 0; row->names && row->names[i]; i++)
        json_str(w, NULL, row->names[i]);
    json_end(w);
    json_str(w, "doc", row->doc);
    json_end(w);
}

// ---- the sizes of the programs that come with weft ---------------------------------------------

// The rows of one program's sizes; the programs that come with weft can be read.
static int read_rows(const struct model_text *t, struct arena *a, const struct model_program **p,
                     struct schema_row **rows)
{
    struct model_errors errs = {.arena = a};
    int rc = model_program_read(t->name, t->text, strlen(t->text), p, &errs);
    POST(rc == 0);
    return model_rows(*p, a, rows);
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
    struct arena a = {0};
    json_array(&w, "programs");
    for (const struct model_text *t = model_texts; t->name; t++) {
        const struct model_program *p;
        struct schema_row *rows;
        int n = read_rows(t, &a, &p, &rows);
        json_object(&w, NULL);
        json_str(&w, "name", t->name);
        json_str(&w, "doc", model_title(p, &a));
        json_array(&w, "keys");
        for (int i = 0; i < n; i++)
            print_json_row(&rows[i], &w);
        json_end(&w);
        json_end(&w);
    }
    json_end(&w);
    arena_clear(&a);
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
    const bool markdown = form == JOB_SCHEMA_MARKDOWN;
    void (*const print_row)(const struct schema_row *, struct arena *, struct buf *) =
        markdown ? print_markdown_row : print_text_row;
    struct arena a = {0};
    size_t offset = 0;
    buf_puts(to, markdown ? MARKDOWN_HEAD : "");
    for (int i = 0; i < schema_rows(schema); i++)
        print_row(schema_row(schema, i, &offset), &a, to);
    for (const struct model_text *t = model_texts; t->name; t++) {
        const struct model_program *p;
        struct schema_row *rows;
        int n = read_rows(t, &a, &p, &rows);
        buf_printf(
            to, markdown ? "\n## `program: %s`\n%s\n\n" MARKDOWN_HEAD : "\nmodel.program: %s\n%s\n",
            t->name, model_title(p, &a));
        for (int i = 0; i < n; i++)
            print_row(&rows[i], &a, to);
    }
    arena_clear(&a);
}
