// SPDX-License-Identifier: Apache-2.0
// The resolved job as text, its digest, errors as lines, and paths.
#include <string.h>

#include "common/base/hash.h"
#include "common/job/reading.h"
#include "common/job/text.h"
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

void job_print(const struct job *job, struct buf *to)
{
    const char *before = "";
    for (int i = 0; i < schema_rows(job->schema); i++) {
        size_t offset = 0;
        const struct schema_row *row = schema_row(job->schema, i, &offset);
        const void *field = (const char *)job + offset;
        if (!when_holds(job, row) || is_absent(row, field))
            continue;
        buf_printf(to, "%s: ", open_sections(row->path, before, to));
        setting_types[row->type].print(row, field, to);
        buf_putc(to, '\n');
        before = row->path;
    }
}

// The setting of a key as it is printed; "" where the job has none. Models have keys of their own,
// so a key is looked up in each job's schema. As a meaning it is equal where nothing that is learnt
// differs: of a program its tokens.
static void print_setting(const struct job *job, const char *path, bool meaning, struct buf *to)
{
    const void *field;
    const struct schema_row *row = schema_find(job, path, &field);
    if (!row || !when_holds(job, row) || is_absent(row, field))
        return;
    if (meaning && row->type == SCHEMA_TEXT)
        model_text_print_tokens(*(const char *const *)field, to);
    else
        setting_types[row->type].print(row, field, to);
}

// Calls `fn` for every key of either job whose meaning differs.
static void each_difference(const struct job *before, const struct job *now,
                            void (*fn)(const struct job *before, const struct job *now,
                                       const struct schema_row *row, void *ctx),
                            void *ctx)
{
    const struct job *const jobs[] = {before, now};
    const void *unused;
    size_t offset;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < schema_rows(jobs[k]->schema); i++) {
            const struct schema_row *row = schema_row(jobs[k]->schema, i, &offset);
            struct buf a = {0}, b = {0};
            if (k == 1 && schema_find(before, row->path, &unused))
                continue;
            print_setting(before, row->path, true, &a);
            print_setting(now, row->path, true, &b);
            if (strcmp(buf_str(&a), buf_str(&b)))
                fn(before, now, row, ctx);
            buf_clear(&a);
            buf_clear(&b);
        }
}

static bool has_same_params(const struct job *before, const struct job *now)
{
    struct job_graph a = {.compared = true}, b = a;
    return !before->schema->build(before, &a) && !now->schema->build(now, &b) &&
           !strcmp(a.params, b.params);
}

struct refused_keys {
    struct buf *to;
    enum { NOT_ASKED, SAME_PARAMS, OTHER_PARAMS } fit; // asked once: both models are built for it
};

static void add_refused_key(const struct job *before, const struct job *now,
                            const struct schema_row *row, void *ctx)
{
    struct refused_keys *r = ctx;
    if (row->continues == CONTINUE_FITS && r->fit == NOT_ASKED)
        r->fit = has_same_params(before, now) ? SAME_PARAMS : OTHER_PARAMS;
    if (row->continues == CONTINUE_REFUSED ||
        (row->continues == CONTINUE_FITS && r->fit == OTHER_PARAMS))
        buf_printf(r->to, "%s%s", r->to->len ? ", " : "", row->path);
}

static void add_change(const struct job *before, const struct job *now,
                       const struct schema_row *row, void *ctx)
{
    struct buf *to = ctx;
    struct buf a = {0}, b = {0};
    print_setting(before, row->path, false, &a);
    print_setting(now, row->path, false, &b);
    buf_printf(to, "%s%s", to->len ? ", " : "", row->path);
    if (!strchr(buf_str(&a), '\n') && !strchr(buf_str(&b), '\n'))
        buf_printf(to, " from %s to %s", a.len ? buf_str(&a) : "none",
                   b.len ? buf_str(&b) : "none");
    buf_clear(&a);
    buf_clear(&b);
}

void job_identity_differences(const struct job *one, const struct job *other, struct buf *keys)
{
    each_difference(one, other, add_refused_key, &(struct refused_keys){.to = keys});
}

void job_changes(const struct job *before, const struct job *now, struct buf *text)
{
    each_difference(before, now, add_change, text);
}

static bool is_same_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

bool job_names_other_data(const struct job *before, const struct job *now)
{
    const struct job_data_files *a = &before->data.train, *b = &now->data.train;
    return !is_same_text(a->images, b->images) || !is_same_text(a->labels, b->labels) ||
           !is_same_text(a->tokens, b->tokens);
}

bool job_optimizers_share_state(const char *one, const char *other)
{
    return strcmp(one, other) == 0 ||
           (strncmp(one, "adam", 4) == 0 && strncmp(other, "adam", 4) == 0);
}

void job_hash(const struct job *job, char hex[65])
{
    struct arena a = {0};
    struct buf text = {0};
    struct job trained = *job; // how its parameters are called elsewhere is no part of it
    if (job->model.text)
        trained.model.text = text_lines(&a, model_text_without_export(job->model.text, &a));
    job_print(&trained, &text);
    sha256_hex(buf_str(&text), text.len, hex);
    buf_clear(&text);
    arena_clear(&a);
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
