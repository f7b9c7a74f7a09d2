// SPDX-License-Identifier: Apache-2.0
// The resolved job as text, its digest, errors as lines, and paths.
#include <string.h>

#include "common/base/hash.h"
#include "common/job/reading.h"
#include "common/language/model_program.h"

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

// Keys that may change while a training runs: where and how it runs, how long and at which
// learning rate. What is learnt, from which data and in which order, is the job's identity.
// checkpoint.dir is a part of that, since a run looks there for what it continues from.
static const char *const free_keys[] = {"mesh",
                                        "sharding",
                                        "pipeline",
                                        "resources",
                                        "restart",
                                        "metrics",
                                        "eval",
                                        "schedule",
                                        "train.steps",
                                        "train.microbatches",
                                        "train.remat",
                                        "train.fuse",
                                        "train.pack_heads",
                                        "precision.deterministic",
                                        "checkpoint.every",
                                        "checkpoint.keep",
                                        "checkpoint.keep_every",
                                        "checkpoint.async",
                                        "checkpoint.patience"};

static bool is_free_key(const char *path)
{
    for (size_t i = 0; i < sizeof free_keys / sizeof *free_keys; i++) {
        size_t n = strlen(free_keys[i]);
        if (!strncmp(path, free_keys[i], n) && (path[n] == '.' || !path[n]))
            return true;
    }
    return false;
}

// A setting as text that is equal where it means the same: the comments of a program, which change
// nothing that is learnt, are left out.
static void print_meaning(const struct schema_row *row, const void *field, struct buf *to)
{
    if (row->type == SCHEMA_TEXT)
        model_text_print_bare(*(const char *const *)field, to);
    else
        setting_types[row->type].print(row, field, to);
}

void job_print(const struct job *job, struct buf *to)
{
    const char *before = "";
    for (int i = 0; i < schema_rows(job->schema); i++) {
        size_t offset = 0;
        const struct schema_row *row = schema_row(job->schema, i, &offset);
        const void *field = (const char *)job + offset;
        if (!when_holds(job->schema, job, row) || is_absent(row, field))
            continue;
        buf_printf(to, "%s: ", open_sections(row->path, before, to));
        setting_types[row->type].print(row, field, to);
        buf_putc(to, '\n');
        before = row->path;
    }
}

// The setting of a key as it is printed; "" where the job has none. Models have keys of their own,
// so a key is looked up in each job's schema.
static void print_setting(const struct job *job, const char *path, bool identity, struct buf *to)
{
    for (int i = 0; i < schema_rows(job->schema); i++) {
        size_t offset = 0;
        const struct schema_row *row = schema_row(job->schema, i, &offset);
        const void *field = (const char *)job + offset;
        if (strcmp(row->path, path) != 0)
            continue;
        if (!when_holds(job->schema, job, row) || is_absent(row, field))
            return;
        if (identity)
            print_meaning(row, field, to);
        else
            setting_types[row->type].print(row, field, to);
        return;
    }
}

static bool has_key(const struct schema *schema, const char *path)
{
    size_t unused;
    for (int i = 0; i < schema_rows(schema); i++)
        if (!strcmp(schema_row(schema, i, &unused)->path, path))
            return true;
    return false;
}

// Prints how a key differs. For keys of the identity: only those that are part of it, and the key
// alone. Else any key, with both settings.
static void print_difference(const struct job *before, const struct job *now, const char *path,
                             bool identity, struct buf *to)
{
    struct buf a = {0}, b = {0};
    print_setting(before, path, identity, &a);
    print_setting(now, path, identity, &b);
    if (strcmp(buf_str(&a), buf_str(&b)) && !(identity && is_free_key(path))) {
        buf_printf(to, "%s%s", to->len ? ", " : "", path);
        if (!identity && !strchr(buf_str(&a), '\n') && !strchr(buf_str(&b), '\n'))
            buf_printf(to, " from %s to %s", a.len ? buf_str(&a) : "none",
                       b.len ? buf_str(&b) : "none");
    }
    buf_clear(&a);
    buf_clear(&b);
}

static void print_differences(const struct job *before, const struct job *now, bool identity,
                              struct buf *to)
{
    size_t unused;
    for (int i = 0; i < schema_rows(before->schema); i++)
        print_difference(before, now, schema_row(before->schema, i, &unused)->path, identity, to);
    for (int i = 0; i < schema_rows(now->schema); i++) {
        const char *path = schema_row(now->schema, i, &unused)->path;
        if (!has_key(before->schema, path))
            print_difference(before, now, path, identity, to);
    }
}

void job_identity_differences(const struct job *one, const struct job *other, struct buf *keys)
{
    print_differences(one, other, true, keys);
}

void job_changes(const struct job *before, const struct job *now, struct buf *text)
{
    print_differences(before, now, false, text);
}

void job_hash(const struct job *job, char hex[65])
{
    struct buf text = {0};
    job_print(job, &text);
    sha256_hex(buf_str(&text), text.len, hex);
    buf_clear(&text);
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
