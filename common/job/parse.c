// SPDX-License-Identifier: Apache-2.0
// From text to struct job: read the tree, put the overrides in, match its keys against the schema's
// rows, read each row's setting or its default, then check what spans keys (check.c).
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>

#include "common/base/folder.h"
#include "common/base/path.h"
#include "common/base/suggest.h"
#include "common/job/job_model.h"
#include "common/job/reading.h"

// ---- keys --------------------------------------------------------------------------------------
static bool is_section(const struct reading *r, const char *path)
{
    size_t n = strlen(path);
    for (int i = 0; i < r->n; i++)
        if (strncmp(r->rows[i].row->path, path, n) == 0 && r->rows[i].row->path[n] == '.')
            return true;
    return false;
}

// The keys that may stand in section `path` ("" is the top), each once.
static int list_keys(const struct reading *r, const char *path, const char **keys)
{
    size_t skip = *path ? strlen(path) + 1 : 0;
    int n = 0;
    for (int i = 0; i < r->n; i++) {
        const char *p = r->rows[i].row->path;
        if (skip && (strncmp(p, path, skip - 1) != 0 || p[skip - 1] != '.'))
            continue;
        const char *key = arena_printf(r->arena, "%.*s", (int)strcspn(p + skip, "."), p + skip);
        if (n == 0 || strcmp(keys[n - 1], key) != 0) // rows of a section stand together
            keys[n++] = key;
    }
    return n;
}

// A key of another section that has this very name; if there are several, rather a required one.
static const char *find_same_name(const struct reading *r, const char *key)
{
    const char *found = NULL;
    for (int i = 0; i < r->n; i++) {
        const struct schema_row *row = r->rows[i].row;
        const char *dot = strrchr(row->path, '.');
        bool required = !row->def && !row->derived && !row->optional;
        if (dot && strcmp(dot + 1, key) == 0 && (!found || required))
            found = row->path;
    }
    return found;
}

// Names that other trainers give to weft's keys, wherever they stand or with their section.
static const struct {
    const char *key, *leads_to;
} other_names[] = {
    {"metrics.every", "train.log_every, eval.every and checkpoint.every"},
    {"logging_steps", "train.log_every"},
    {"log_interval", "train.log_every"},
    {"metrics.tensorboard", "metrics.sinks, as [tensorboard]"},
    {"report_to", "metrics.sinks, as [tensorboard]"},
    {"dtype", "precision.compute, and data.dtype for that of images"},
    {"compute_dtype", "precision.compute"},
    {"lr", "schedule.value, or schedule.peak where schedule.kind has one"},
    {"learning_rate", "schedule.value, or schedule.peak where schedule.kind has one"},
    {"max_lr", "schedule.peak"},
    {"min_lr", "schedule.end"},
    {"warmup_steps", "schedule.warmup"},
    {"max_steps", "train.steps"},
    {"batch_size", "data.batch"},
    {"grad_clip", "optimizer.clip_norm"},
    {"max_grad_norm", "optimizer.clip_norm"},
    {"gpus", "resources.devices"},
};

static const char *find_other_name(const char *path, const char *key)
{
    for (size_t i = 0; i < sizeof other_names / sizeof *other_names; i++)
        if (strcmp(other_names[i].key, key) == 0 || strcmp(other_names[i].key, path) == 0)
            return other_names[i].leads_to;
    return NULL;
}

// A section that there is not, of a key that another section has. False: it has no such key.
static bool report_moved_key(struct reading *r, const struct tree_node *section)
{
    for (struct tree_node *n = section->kind == TREE_MAP ? section->first : NULL; n; n = n->next) {
        const char *path = arena_printf(r->arena, "%.100s.%.100s", section->key, n->key);
        const char *other = find_other_name(path, n->key), *same = find_same_name(r, n->key);
        if (other)
            tree_error_key(&r->errors, n, path, "unknown key: weft has %s", other);
        else if (same)
            tree_error_key(&r->errors, n, path, "unknown key: did you mean %s?", same);
        if (other || same)
            return true;
    }
    return false;
}

static void report_unknown_key(struct reading *r, const struct tree_node *n, const char *section,
                               const char *path)
{
    const char **keys = arena_array(r->arena, const char *, r->n);
    int count = list_keys(r, section, keys);
    const char *near = suggest(n->key, keys, count), *dot = *section ? "." : "";
    const char *other = find_other_name(path, n->key);
    if (other) {
        tree_error_key(&r->errors, n, path, "unknown key: weft has %s", other);
        return;
    }
    if (near) {
        tree_error_key(&r->errors, n, path, "unknown key: did you mean %s%s%s?", section, dot,
                       near);
        return;
    }
    near = find_same_name(r, n->key);
    if (near) {
        tree_error_key(&r->errors, n, path, "unknown key: did you mean %s?", near);
        return;
    }
    if (!*section && report_moved_key(r, n))
        return;
    struct buf all = {0};
    for (int i = 0; i < count; i++)
        buf_printf(&all, "%s%s", i ? ", " : "", keys[i]);
    tree_error_key(&r->errors, n, path, "unknown key: %s%s%s", *section ? section : "a job",
                   " has ", buf_str(&all));
    buf_clear(&all);
}

static void match_keys(struct reading *r, const struct tree_node *map, const char *section)
{
    for (struct tree_node *n = map->first; n; n = n->next) {
        const char *path =
            arena_printf(r->arena, "%s%s%.100s", section, *section ? "." : "", n->key);
        if (is_section(r, path)) {
            if (n->kind == TREE_MAP)
                match_keys(r, n, path);
            else if (n->kind != TREE_BROKEN && !tree_is_null(n))
                tree_error(&r->errors, n, path, "must be a map of keys, not %s", tree_kind_text(n));
            continue;
        }
        int i = 0;
        while (i < r->n && strcmp(r->rows[i].row->path, path) != 0)
            i++;
        if (i < r->n)
            r->rows[i].node = n;
        else if (strcmp(section, "model") != 0 || r->job->model.read) // else nobody knows its keys
            report_unknown_key(r, n, section, path);
    }
}

// ---- overrides ---------------------------------------------------------------------------------
// Puts `value` at the dotted path and makes the sections that are missing above it.
static void put_override(struct reading *r, char *path, struct tree_node *value)
{
    struct tree_node *at = r->root;
    char *part = path;
    for (char *dot = strchr(part, '.'); dot; part = dot + 1, dot = strchr(part, '.')) {
        *dot = 0;
        struct tree_node *next = tree_get(at, part);
        if (!next || tree_is_null(next)) {
            next = arena_new(r->arena, struct tree_node);
            *next = (struct tree_node){.kind = TREE_MAP, .source = value->source, .text = ""};
            tree_put(at, arena_strdup(r->arena, part), next);
        }
        *dot = '.';
        if (next->kind != TREE_MAP) {
            tree_error(&r->errors, value, path, "%.*s is not a map", (int)(dot - path), path);
            return;
        }
        at = next;
    }
    tree_put(at, part, value);
}

static bool is_key_path(const char *s, size_t len)
{
    int parts = 1;
    bool empty = true;
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)s[i] <= ' ' || (s[i] == '.' && empty))
            return false;
        empty = s[i] == '.';
        parts += empty;
    }
    return !empty && parts <= JOB_MAX_DEPTH;
}

static void apply_override(struct reading *r, const char *text, int index)
{
    struct tree_source *source = arena_new(r->arena, struct tree_source);
    *source = (struct tree_source){arena_printf(r->arena, "-s %.200s", text), index, true};
    const char *equals = strchr(text, '=');
    if (!equals || !is_key_path(text, (size_t)(equals - text))) {
        tree_error_at(&r->errors, source, 0, 0, "must be key=value, as in train.steps=200");
        return;
    }
    struct tree_node *value = tree_read_value(source, equals + 1, strlen(equals + 1), &r->errors);
    if (value && r->root->kind == TREE_MAP)
        put_override(r, arena_printf(r->arena, "%.*s", (int)(equals - text), text), value);
}

// ---- settings ----------------------------------------------------------------------------------
static bool read_setting(struct reading *r, const struct reading_row *row,
                         const struct tree_node *node)
{
    struct setting s = {r->arena, &r->errors, row->row, node, row->row->path};
    return setting_types[row->row->type].read(&s, row->field);
}

static void read_default(struct reading *r, struct reading_row *row)
{
    static const struct tree_source source = {"default", INT_MAX, true};
    const char *def = row->row->def;
    row->ok = read_setting(r, row, tree_read_value(&source, def, strlen(def), &r->errors));
    POST(row->ok);
}

// What the model reads says the data's format, and nobody knows what it reads.
static bool is_unknown_format(const struct reading *r, const struct reading_row *row)
{
    return strcmp(row->row->path, "data.format") == 0 && r->job->model.program &&
           !r->job->model.read;
}

static void read_row(struct reading *r, struct reading_row *row)
{
    const struct schema_row *schema = row->row;
    row->active = when_holds(r->job, schema);
    if (row->node && !row->active)
        tree_error_key(&r->errors, row->node, schema->path, "acts only when %s",
                       when_text(schema, r->arena));
    else if (row->node)
        row->ok = read_setting(r, row, row->node);
    else if (row->active && schema->def)
        read_default(r, row);
    else if (row->active && !schema->optional && !schema->derived)
        reading_missing(r, row);
    else
        row->ok = !is_unknown_format(r, row);
}

// A key whose `when` asks about a setting that is itself wrong is not looked at: one error is
// enough.
static void read_rows(struct reading *r)
{
    for (int i = 0; i < r->n; i++) {
        struct reading_row *row = &r->rows[i];
        if (row->row->when) {
            const char *asked = row->row->when;
            bool wrong = false;
            for (size_t n = 0; *asked && *asked != '='; asked += n + (asked[n] == '|')) {
                n = strcspn(asked, "=|");
                const char *path = arena_printf(r->arena, "%.*s", (int)n, asked);
                wrong |= !reading_row(r, path)->ok;
            }
            if (wrong)
                continue;
        }
        read_row(r, row);
    }
}

// ---- the whole ---------------------------------------------------------------------------------
static int fail_reading(struct arena *a, const char *file, int code, const char *message,
                        struct job_errors *errs)
{
    *errs = (struct job_errors){0};
    errs->items = arena_grow(a, NULL, sizeof *errs->items, 0, &errs->cap);
    errs->items[errs->n++] = (struct job_error){file, 0, 0, "", message};
    return code;
}

int job_parse(struct arena *a, const struct schema *schema, const char *file, const char *base_dir,
              const char *text, size_t len, const char *const *overrides, int n_overrides,
              struct job *out, struct job_errors *errs)
{
    *errs = (struct job_errors){0};
    *out = (struct job){.base_dir = base_dir ? arena_strdup(a, base_dir) : ".", .schema = schema};
    struct reading r = {
        .arena = a, .schema = schema, .job = out, .file = file, .errors = {.arena = a}};
    struct tree_source *source = arena_new(a, struct tree_source);
    *source = (struct tree_source){arena_strdup(a, file ? file : "the job"), 0, !file};
    out->text = r.root = tree_read(source, text, len, &r.errors);
    if (r.root) {
        for (int i = 0; i < n_overrides; i++)
            apply_override(&r, overrides[i], i + 1);
        if (r.root->kind == TREE_MAP) {
            open_model(&r);
            reading_init_rows(&r);
            match_keys(&r, r.root, "");
            read_rows(&r);
            check_job(&r);
        } else if (r.root->kind != TREE_BROKEN) {
            tree_error(&r.errors, r.root, "", "a job is a map of keys, not %s",
                       tree_kind_text(r.root));
        }
    }
    tree_errors_give(&r.errors, errs);
    return errs->n ? ERR_INVALID : 0;
}

int job_line(const struct job *job, const char *path, size_t len)
{
    const struct tree_node *at = job->text ? tree_nearest(job->text, path, len) : NULL;
    return !at || at == job->text || at->source->one_line ? 0 : at->key_line;
}

int job_load(struct arena *a, const struct schema *schema, const char *path,
             const char *const *overrides, int n_overrides, struct job *out,
             struct job_errors *errs)
{
    struct buf text = {0};
    int code = folder_read_whole(AT_FDCWD, path, false, JOB_MAX_BYTES, &text, NULL);
    char dir[PATH_MAX];
    path_folder(path, dir, sizeof dir);
    if (code == ERR_LIMIT)
        code = fail_reading(a, arena_strdup(a, path), ERR_INVALID,
                            "larger than the 1 MiB a job may be", errs);
    else if (code)
        code = fail_reading(a, arena_strdup(a, path), ERR_IO, strerror(errno), errs);
    else
        code = job_parse(a, schema, path, arena_strdup(a, dir), buf_str(&text), text.len, overrides,
                         n_overrides, out, errs);
    buf_clear(&text);
    return code;
}
