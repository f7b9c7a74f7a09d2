// SPDX-License-Identifier: Apache-2.0
// The resolved job as text, its digest, errors as lines, and paths.
#include <string.h>

#include "common/base/hash.h"
#include "common/job/reading.h"

// Opens the sections of `path` that `before` was not in; returns the key's name.
static const char *open_sections(const char *path, const char *before, struct buf *to)
{
    int depth = 0;
    size_t same = 0; // length of the sections both share, with their dots
    for (size_t i = 0; path[i] && path[i] == before[i]; i++)
        if (path[i] == '.') {
            same = i + 1;
            depth++;
        }
    const char *part = path + same;
    for (const char *dot = strchr(part, '.'); dot; part = dot + 1, dot = strchr(part, '.'))
        buf_printf(to, "%*s%.*s:\n", 2 * depth++, "", (int)(dot - part), part);
    buf_printf(to, "%*s", 2 * depth, "");
    return part;
}

static bool is_absent(const struct schema_row *row, const void *field)
{
    bool text = row->type == SCHEMA_STRING || row->type == SCHEMA_TEXT;
    return row->optional && text && !*(const char *const *)field;
}

// Keys that say where and how a job runs. They are left out of its identity: with others of them it
// learns the same but for rounding.
static const char *const layout_keys[] = {"mesh",
                                          "sharding",
                                          "pipeline",
                                          "resources",
                                          "train.microbatches",
                                          "train.remat",
                                          "train.fuse",
                                          "precision.deterministic"};

static bool is_layout_key(const char *path)
{
    for (size_t i = 0; i < sizeof layout_keys / sizeof *layout_keys; i++) {
        size_t n = strlen(layout_keys[i]);
        if (!strncmp(path, layout_keys[i], n) && (path[n] == '.' || !path[n]))
            return true;
    }
    return false;
}

static void print_rows(const struct job *job, bool with_layout, struct buf *to)
{
    const char *before = "";
    for (int i = 0; i < schema_rows(job->schema); i++) {
        size_t offset = 0;
        const struct schema_row *row = schema_row(job->schema, i, &offset);
        const void *field = (const char *)job + offset;
        if (!when_holds(job->schema, job, row) || is_absent(row, field) ||
            (!with_layout && is_layout_key(row->path)))
            continue;
        buf_printf(to, "%s: ", open_sections(row->path, before, to));
        setting_types[row->type].print(row, field, to);
        buf_putc(to, '\n');
        before = row->path;
    }
}

void job_print(const struct job *job, struct buf *to)
{
    print_rows(job, true, to);
}

// The setting of a row as it is printed; "" where the job has none.
static void print_setting(const struct job *job, int i, struct buf *to)
{
    size_t offset = 0;
    const struct schema_row *row = schema_row(job->schema, i, &offset);
    const void *field = (const char *)job + offset;
    if (when_holds(job->schema, job, row) && !is_absent(row, field))
        setting_types[row->type].print(row, field, to);
}

void job_differences(const struct job *one, const struct job *other, struct buf *keys)
{
    struct buf a = {0}, b = {0};
    size_t unused;
    for (int i = 0; i < schema_rows(one->schema); i++) {
        buf_reset(&a);
        buf_reset(&b);
        print_setting(one, i, &a);
        print_setting(other, i, &b);
        if (strcmp(buf_str(&a), buf_str(&b)) != 0)
            buf_printf(keys, "%s%s", keys->len ? ", " : "",
                       schema_row(one->schema, i, &unused)->path);
    }
    buf_clear(&a);
    buf_clear(&b);
}

static void hash_rows(const struct job *job, bool with_layout, char hex[65])
{
    struct buf text = {0};
    print_rows(job, with_layout, &text);
    sha256_hex(buf_str(&text), text.len, hex);
    buf_clear(&text);
}

void job_hash(const struct job *job, char hex[65])
{
    hash_rows(job, true, hex);
}

void job_identity(const struct job *job, char hex[65])
{
    hash_rows(job, false, hex);
}

const char *job_path(const struct job *job, struct arena *a, const char *rel)
{
    if (rel[0] == '/' || strcmp(job->base_dir, ".") == 0)
        return arena_strdup(a, rel);
    size_t n = strlen(job->base_dir);
    return arena_printf(a, "%s%s%s", job->base_dir, job->base_dir[n - 1] == '/' ? "" : "/", rel);
}

static void print_error(const struct job_error *e, struct buf *to)
{
    buf_puts(to, e->file);
    if (e->line)
        buf_printf(to, ":%d:%d", e->line, e->column);
    buf_printf(to, ": %s%s%s", e->path, *e->path ? ": " : "", e->message);
}

void job_errors_print(const struct job_errors *errs, struct buf *to)
{
    for (int i = 0; i < errs->n; i++) {
        print_error(&errs->items[i], to);
        buf_putc(to, '\n');
    }
    if (errs->more)
        buf_printf(to, "… and %d more\n", errs->more);
}

int job_errors_err(const struct job_errors *errs, struct err *e)
{
    PRE(errs->n > 0);
    struct buf text = {0};
    print_error(&errs->items[0], &text);
    int more = errs->n - 1 + errs->more;
    if (more)
        buf_printf(&text, " (and %d more)", more);
    err_set(e, ERR_INVALID, "%s", buf_str(&text));
    buf_clear(&text);
    return ERR_INVALID;
}
