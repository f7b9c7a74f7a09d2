// SPDX-License-Identifier: Apache-2.0
// The text of MANIFEST.json: writer and strict parser. See manifest.h.
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/map.h"
#include "common/ckpt/manifest.h"

// ---- writing ----
static void write_hash(struct json_out *w, const char *key, struct hash128 h)
{
    char hex[33];
    hash128_hex(h, hex);
    json_str(w, key, hex);
}

static void write_dims(struct json_out *w, const char *key, const int64_t *v, int n)
{
    json_array(w, key);
    for (int i = 0; i < n; i++)
        json_int(w, NULL, v[i]);
    json_end(w);
}

static void write_run(struct json_out *w, const struct manifest *m)
{
    char seed[24];
    snprintf(seed, sizeof seed, "%" PRIu64, m->seed);
    json_int(w, "version", MANIFEST_VERSION);
    json_str(w, "cluster", m->cluster);
    json_str(w, "job", m->job);
    json_str(w, "name", m->name);
    json_str(w, "job_hash", m->job_hash);
    json_str(w, "run", m->run);
    json_int(w, "epoch", m->epoch);
    json_int(w, "step", m->step);
    json_str(w, "seed", seed);
    json_int(w, "samples", m->samples);
    json_str(w, "optimizer", m->optimizer);
    if (m->parent_step < 0) {
        json_null(w, "parent");
    } else {
        json_object(w, "parent");
        json_int(w, "epoch", m->parent_epoch);
        json_int(w, "step", m->parent_step);
        json_end(w);
    }
    json_object(w, "mesh");
    for (int i = 0; i < m->naxes; i++)
        json_int(w, m->mesh[i].name, m->mesh[i].size);
    json_end(w);
    json_object(w, "numerics");
    json_str(w, "backend", m->numerics.backend);
    json_str(w, "device", m->numerics.device);
    json_str(w, "isa", m->numerics.isa);
    json_str(w, "libraries", m->numerics.libraries);
    json_int(w, "threads", m->numerics.threads);
    json_str(w, "algorithms", m->numerics.algorithms);
    json_bool(w, "deterministic", m->numerics.deterministic);
    json_end(w);
    if (m->resolved)
        json_str(w, "resolved", m->resolved);
    json_array(w, "changes");
    for (int i = 0; i < m->nchanges; i++) {
        json_object(w, NULL);
        json_int(w, "step", m->changes[i].step);
        json_str(w, "what", m->changes[i].what);
        json_end(w);
    }
    json_end(w);
}

static void write_tensor(struct json_out *w, const struct manifest *m,
                         const struct manifest_tensor *t)
{
    json_object(w, NULL);
    json_str(w, "name", t->name);
    json_str(w, "dtype", ckpt_dtype_name(t->dtype));
    write_dims(w, "shape", t->shape.dim, t->shape.n);
    json_raw(w, "spec", t->spec);
    json_array(w, "slices");
    for (int i = 0; i < t->nslices; i++) {
        const struct manifest_slice *s = &t->slices[i];
        json_object(w, NULL);
        json_str(w, "file", m->files[s->file].name);
        json_uint(w, "offset", s->at);
        json_uint(w, "bytes", s->bytes);
        write_dims(w, "start", s->box.start, s->box.shape.n);
        write_dims(w, "shape", s->box.shape.dim, s->box.shape.n);
        write_hash(w, "xxh3", s->digest);
        json_end(w);
    }
    json_end(w);
    json_end(w);
}

void manifest_write(const struct manifest *m, struct buf *out)
{
    struct json_out w;
    json_out_init(&w, out);
    w.pretty = true;
    json_object(&w, NULL);
    write_run(&w, m);
    json_array(&w, "files");
    for (int i = 0; i < m->nfiles; i++) {
        json_object(&w, NULL);
        json_str(&w, "name", m->files[i].name);
        json_uint(&w, "bytes", m->files[i].bytes);
        json_uint(&w, "head_bytes", m->files[i].head_bytes);
        write_hash(&w, "head_xxh3", m->files[i].head_digest);
        json_end(&w);
    }
    json_end(&w);
    json_array(&w, "tensors");
    for (int i = 0; i < m->ntensors; i++)
        write_tensor(&w, m, &m->tensors[i]);
    json_end(&w);
    json_end(&w);
    json_out_clear(&w);
    buf_putc(out, '\n');
}

// ---- reading: fields ----
// A row of a closed object: every key must be there, and no other may be. Only one whose type ends
// in _OR may be missing; the field then keeps what it held.
enum field_type {
    FIELD_STR,
    FIELD_STR_OR,
    FIELD_INT,
    FIELD_BOOL_OR,
    FIELD_HASH,
    FIELD_U64_TEXT,
    FIELD_OTHER,
    FIELD_OTHER_OR
};
struct field {
    const char *key;
    enum field_type type;
    size_t offset;
};

static int read_bool(const struct json *o, const char *key, bool *to, struct err *e)
{
    const struct json *b = json_get(o, key);
    if (b && b->type != JSON_BOOL)
        return err_set(e, ERR_DATA, "'%s' is neither true nor false", key);
    *to = b ? b->boolean : *to;
    return 0;
}

static int read_field(const struct json *o, const struct field *f, void *base, struct err *e)
{
    void *to = (char *)base + f->offset;
    const char *text;
    int64_t number;
    char *end;
    int rc;
    if (f->type == FIELD_OTHER)
        return json_get(o, f->key) ? 0 : err_set(e, ERR_DATA, "'%s' is missing", f->key);
    bool may_miss = f->type == FIELD_STR_OR || f->type == FIELD_OTHER_OR;
    if (f->type == FIELD_OTHER_OR || (may_miss && !json_get(o, f->key)))
        return 0;
    if (f->type == FIELD_BOOL_OR)
        return read_bool(o, f->key, to, e);
    if (f->type == FIELD_INT) {
        rc = json_get_int(o, f->key, &number, e);
        if (!rc && number < 0)
            rc = err_set(e, ERR_DATA, "'%s' is below 0", f->key);
        if (!rc)
            *(int64_t *)to = number;
        return rc;
    }
    rc = json_get_str(o, f->key, &text, e);
    if (rc)
        return rc;
    if (f->type == FIELD_STR || f->type == FIELD_STR_OR) {
        *(const char **)to = text;
    } else if (f->type == FIELD_HASH) {
        if (hash128_parse(text, to))
            return err_set(e, ERR_DATA, "'%s' is not 32 hex digits", f->key);
    } else {
        errno = 0;
        *(uint64_t *)to = strtoull(text, &end, 10);
        if (errno || *end || end == text || *text < '0' || *text > '9')
            return err_set(e, ERR_DATA, "'%s' is not a whole number", f->key);
    }
    return 0;
}

static int read_object(const struct json *o, const struct field *fields, int n, void *base,
                       struct err *e)
{
    if (!o || o->type != JSON_OBJECT)
        return err_set(e, ERR_DATA, "not an object");
    for (const struct json *c = o->first; c; c = c->next) {
        int i = 0;
        while (i < n && strcmp(fields[i].key, c->key) != 0)
            i++;
        if (i == n)
            return err_set(e, ERR_DATA, "unknown key '%s'", c->key);
    }
    for (int i = 0; i < n; i++)
        if (read_field(o, &fields[i], base, e))
            return ERR_DATA;
    return 0;
}

static int read_dims(const struct json *o, const char *key, int64_t *out, int *n, struct err *e)
{
    const struct json *list;
    if (json_get_array(o, key, &list, e))
        return ERR_DATA;
    if (list->count > MAX_DIMS)
        return err_set(e, ERR_DATA, "'%s' has more than %d dimensions", key, MAX_DIMS);
    *n = 0;
    for (const struct json *d = list->first; d; d = d->next) {
        if (d->type != JSON_NUMBER || !d->is_int || d->integer < 0)
            return err_set(e, ERR_DATA, "'%s' holds something else than whole numbers", key);
        out[(*n)++] = d->integer;
    }
    return 0;
}

// ---- reading: the parts ----
#define AT(type, key, kind, member)              \
    {                                            \
        key, kind, offsetof(struct type, member) \
    }

static const struct field run_fields[] = {
    AT(manifest, "cluster", FIELD_STR, cluster),
    AT(manifest, "job", FIELD_STR, job),
    AT(manifest, "name", FIELD_STR, name),
    AT(manifest, "job_hash", FIELD_STR, job_hash),
    AT(manifest, "run", FIELD_STR, run),
    AT(manifest, "epoch", FIELD_INT, epoch),
    AT(manifest, "step", FIELD_INT, step),
    AT(manifest, "seed", FIELD_U64_TEXT, seed),
    AT(manifest, "samples", FIELD_INT, samples),
    AT(manifest, "optimizer", FIELD_STR, optimizer),
    AT(manifest, "resolved", FIELD_STR_OR, resolved),
    {"version", FIELD_OTHER, 0},
    {"parent", FIELD_OTHER, 0},
    {"mesh", FIELD_OTHER, 0},
    {"numerics", FIELD_OTHER, 0},
    {"changes", FIELD_OTHER_OR, 0},
    {"files", FIELD_OTHER, 0},
    {"tensors", FIELD_OTHER, 0},
};
static const struct field numerics_fields[] = {
    AT(manifest_numerics, "backend", FIELD_STR, backend),
    AT(manifest_numerics, "device", FIELD_STR, device),
    AT(manifest_numerics, "isa", FIELD_STR, isa),
    AT(manifest_numerics, "libraries", FIELD_STR, libraries),
    AT(manifest_numerics, "threads", FIELD_INT, threads),
    AT(manifest_numerics, "algorithms", FIELD_STR, algorithms),
    AT(manifest_numerics, "deterministic", FIELD_BOOL_OR, deterministic),
};
static const struct field change_fields[] = {
    AT(manifest_change, "step", FIELD_INT, step),
    AT(manifest_change, "what", FIELD_STR, what),
};
static const struct field parent_fields[] = {
    AT(manifest, "epoch", FIELD_INT, parent_epoch),
    AT(manifest, "step", FIELD_INT, parent_step),
};
static const struct field file_fields[] = {
    AT(manifest_file, "name", FIELD_STR, name),
    AT(manifest_file, "bytes", FIELD_INT, bytes),
    AT(manifest_file, "head_bytes", FIELD_INT, head_bytes),
    AT(manifest_file, "head_xxh3", FIELD_HASH, head_digest),
};
static const struct field tensor_fields[] = {
    AT(manifest_tensor, "name", FIELD_STR, name),
    {"spec", FIELD_OTHER, 0},
    {"dtype", FIELD_OTHER, 0},
    {"shape", FIELD_OTHER, 0},
    {"slices", FIELD_OTHER, 0},
};
static const struct field slice_fields[] = {
    AT(manifest_slice, "offset", FIELD_INT, at),
    AT(manifest_slice, "bytes", FIELD_INT, bytes),
    AT(manifest_slice, "xxh3", FIELD_HASH, digest),
    {"file", FIELD_OTHER, 0},
    {"start", FIELD_OTHER, 0},
    {"shape", FIELD_OTHER, 0},
};
#define READ(o, table, base, e) \
    read_object(o, table, (int)(sizeof(table) / sizeof *(table)), base, e)

static int read_mesh(struct arena *a, const struct json *top, struct manifest *m, struct err *e)
{
    const struct json *mesh;
    if (json_get_object(top, "mesh", &mesh, e))
        return ERR_DATA;
    m->mesh = arena_array(a, struct manifest_axis, mesh->count + 1);
    for (const struct json *x = mesh->first; x; x = x->next) {
        if (x->type != JSON_NUMBER || !x->is_int || x->integer < 1)
            return err_set(e, ERR_DATA, "mesh: axis '%s' has no size", x->key);
        m->mesh[m->naxes++] = (struct manifest_axis){x->key, x->integer};
    }
    return 0;
}

static int read_changes(struct arena *a, const struct json *top, struct manifest *m, struct err *e)
{
    const struct json *list;
    if (!json_get(top, "changes"))
        return 0;
    if (json_get_array(top, "changes", &list, e))
        return ERR_DATA;
    struct manifest_change *changes = arena_array(a, struct manifest_change, list->count + 1);
    m->changes = changes;
    for (const struct json *o = list->first; o; o = o->next)
        if (READ(o, change_fields, &changes[m->nchanges++], e)) {
            err_wrap(e, "change %d", m->nchanges - 1);
            return ERR_DATA;
        }
    return 0;
}

static int read_run(struct arena *a, const struct json *top, struct manifest *m, struct err *e)
{
    int64_t version;
    if (top->type != JSON_OBJECT)
        return err_set(e, ERR_DATA, "not an object");
    if (json_get_int(top, "version", &version, e))
        return ERR_DATA;
    if (version != MANIFEST_VERSION)
        return err_set(e, ERR_UNSUPPORTED, "version %" PRId64 ", this program reads %d", version,
                       MANIFEST_VERSION);
    if (READ(top, run_fields, m, e))
        return ERR_DATA;
    m->parent_epoch = m->parent_step = -1;
    const struct json *parent = json_get(top, "parent");
    if (parent->type != JSON_NULL && READ(parent, parent_fields, m, e)) {
        err_wrap(e, "parent");
        return ERR_DATA;
    }
    m->numerics.deterministic = true; // of checkpoints from before there was a choice
    if (READ(json_get(top, "numerics"), numerics_fields, &m->numerics, e)) {
        err_wrap(e, "numerics");
        return ERR_DATA;
    }
    return read_changes(a, top, m, e) ? ERR_DATA : read_mesh(a, top, m, e);
}

// A file's name becomes a path, so it must be a plain name of a shard and nothing else.
static bool is_shard_file_name(const char *name)
{
    size_t n = strlen(name);
    return n > 0 && n < 200 && name[0] != '.' && !strchr(name, '/') &&
           strcmp(name, "COMMIT") != 0 && strcmp(name, "MANIFEST.json") != 0;
}

static int read_files(struct arena *a, const struct json *top, struct manifest *m,
                      struct map *index, struct err *e)
{
    const struct json *list;
    if (json_get_array(top, "files", &list, e))
        return ERR_DATA;
    if (list->count > MANIFEST_MAX_FILES)
        return err_set(e, ERR_DATA, "%d files, over %d", list->count, MANIFEST_MAX_FILES);
    m->files = arena_array(a, struct manifest_file, list->count + 1);
    for (const struct json *o = list->first; o; o = o->next) {
        struct manifest_file *f = &m->files[m->nfiles];
        if (READ(o, file_fields, f, e)) {
            err_wrap(e, "file %d", m->nfiles);
            return ERR_DATA;
        }
        if (!is_shard_file_name(f->name) || map_put(index, f->name, f))
            return err_set(e, ERR_DATA, "file %d: the name '%s' is not good or not unique",
                           m->nfiles, f->name);
        if (f->head_bytes < 8 || f->head_bytes > f->bytes)
            return err_set(e, ERR_DATA, "file '%s': a head of %" PRIu64 " in %" PRIu64 " bytes",
                           f->name, f->head_bytes, f->bytes);
        m->nfiles++;
    }
    return 0;
}

static int count_box_bytes(const struct box *b, enum dtype t, uint64_t *out)
{
    *out = dtype_size(t);
    for (int d = 0; d < b->shape.n; d++)
        if (__builtin_mul_overflow(*out, (uint64_t)b->shape.dim[d], out))
            return -1;
    return 0;
}

static int read_slice(const struct json *o, const struct manifest *m, const struct map *files,
                      const struct manifest_tensor *t, struct manifest_slice *s, struct err *e)
{
    const char *file;
    uint64_t bytes;
    int n = 0;
    if (READ(o, slice_fields, s, e) || json_get_str(o, "file", &file, e) ||
        read_dims(o, "start", s->box.start, &n, e) ||
        read_dims(o, "shape", s->box.shape.dim, &s->box.shape.n, e))
        return ERR_DATA;
    const struct manifest_file *f = map_get(files, file);
    if (!f)
        return err_set(e, ERR_DATA, "unknown file '%s'", file);
    s->file = (int)(f - m->files);
    if (n != s->box.shape.n || !box_inside(&s->box, &t->shape))
        return err_set(e, ERR_DATA, "start and shape lie outside of the tensor");
    if (count_box_bytes(&s->box, t->dtype, &bytes) || bytes != s->bytes)
        return err_set(e, ERR_DATA, "dtype and shape do not make %" PRIu64 " bytes", s->bytes);
    if (s->at < f->head_bytes || s->at > f->bytes || s->bytes > f->bytes - s->at)
        return err_set(e, ERR_DATA, "bytes %" PRIu64 " + %" PRIu64 " lie outside of '%s'", s->at,
                       s->bytes, f->name);
    return 0;
}

static int compare_starts(const void *a, const void *b)
{
    const struct manifest_slice *x = *(const struct manifest_slice *const *)a;
    const struct manifest_slice *y = *(const struct manifest_slice *const *)b;
    return (x->box.start[0] > y->box.start[0]) - (x->box.start[0] < y->box.start[0]);
}

// Exact cover: the bytes add up and no two overlap.
static int check_cover(const struct manifest_tensor *t, struct err *e)
{
    struct box whole = {.shape = t->shape};
    uint64_t bytes, sum = 0;
    int n = 0, rc = 0;
    if (count_box_bytes(&whole, t->dtype, &bytes))
        return err_set(e, ERR_DATA, "its shape has no size");
    const struct manifest_slice **s = calloc((size_t)t->nslices + 1, sizeof(void *));
    if (!s)
        return err_set(e, ERR_NOMEM, "no memory for %d slices", t->nslices);
    for (int i = 0; i < t->nslices; i++) {
        if (__builtin_add_overflow(sum, t->slices[i].bytes, &sum))
            rc = err_set(e, ERR_DATA, "its slices have no size");
        if (t->slices[i].bytes)
            s[n++] = &t->slices[i];
    }
    qsort(s, (size_t)n, sizeof(void *), compare_starts);
    for (int i = 0; i < n && !rc; i++)
        for (int k = i + 1; k < n && !rc; k++) {
            if (t->shape.n && s[k]->box.start[0] >= s[i]->box.start[0] + s[i]->box.shape.dim[0])
                break;
            if (t->shape.n == 0 || box_overlap(&s[i]->box, &s[k]->box))
                rc = err_set(e, ERR_DATA, "two of its slices overlap");
        }
    free(s);
    if (!rc && sum != bytes)
        rc = err_set(e, ERR_DATA, "its slices hold %" PRIu64 " of its %" PRIu64 " bytes", sum,
                     bytes);
    return rc;
}

static int read_axis(const struct json *v, struct json_out *w, struct err *e)
{
    if (v->type != JSON_STRING || !*v->string)
        return err_set(e, ERR_DATA,
                       "'spec' holds something else than axes, lists of axes and null");
    json_str(w, NULL, v->string);
    return 0;
}

static int read_entry(const struct json *v, struct json_out *w, struct err *e)
{
    int rc = 0;
    if (v->type == JSON_NULL) {
        json_null(w, NULL);
        return 0;
    }
    if (v->type != JSON_ARRAY)
        return read_axis(v, w, e);
    json_array(w, NULL);
    for (const struct json *axis = v->first; axis && !rc; axis = axis->next)
        rc = read_axis(axis, w, e);
    json_end(w);
    return rc;
}

// The spec is kept as its own JSON text: a reader of a checkpoint uses the slices alone.
static int read_spec(struct arena *a, const struct json *o, struct manifest_tensor *t,
                     struct err *e)
{
    const struct json *list;
    struct buf text = {0};
    struct json_out w;
    if (json_get_array(o, "spec", &list, e))
        return ERR_DATA;
    if (list->count > t->shape.n)
        return err_set(e, ERR_DATA, "'spec' has %d entries for %d dimensions", list->count,
                       t->shape.n);
    int rc = 0;
    json_out_init(&w, &text);
    json_array(&w, NULL);
    for (const struct json *v = list->first; v && !rc; v = v->next)
        rc = read_entry(v, &w, e);
    json_end(&w);
    json_out_clear(&w);
    t->spec = arena_strdup(a, buf_str(&text));
    buf_clear(&text);
    return rc;
}

static int read_tensor(struct arena *a, const struct json *o, const struct manifest *m,
                       const struct map *files, struct manifest_tensor *t, struct err *e)
{
    const char *dtype;
    const struct json *list;
    if (READ(o, tensor_fields, t, e) || json_get_str(o, "dtype", &dtype, e) ||
        read_dims(o, "shape", t->shape.dim, &t->shape.n, e) || read_spec(a, o, t, e) ||
        json_get_array(o, "slices", &list, e))
        return ERR_DATA;
    t->dtype = ckpt_dtype_parse(dtype);
    if (!t->dtype)
        return err_set(e, ERR_DATA, "unknown dtype '%s'", dtype);
    if (list->count > m->nfiles)
        return err_set(e, ERR_DATA, "%d slices in %d files", list->count, m->nfiles);
    t->slices = arena_array(a, struct manifest_slice, list->count + 1);
    for (const struct json *s = list->first; s; s = s->next, t->nslices++)
        if (read_slice(s, m, files, t, &t->slices[t->nslices], e)) {
            err_wrap(e, "slice %d", t->nslices);
            return ERR_DATA;
        }
    return check_cover(t, e);
}

static int read_tensors(struct arena *a, const struct json *top, struct manifest *m,
                        const struct map *files, struct err *e)
{
    struct map names = {0};
    const struct json *list;
    int rc = json_get_array(top, "tensors", &list, e) ? ERR_DATA : 0;
    if (rc)
        return rc;
    m->tensors = arena_array(a, struct manifest_tensor, list->count + 1);
    for (const struct json *o = list->first; o && !rc; o = o->next) {
        struct manifest_tensor *t = &m->tensors[m->ntensors++];
        rc = read_tensor(a, o, m, files, t, e);
        if (rc)
            err_wrap(e, "tensor '%s'", t->name ? t->name : "?");
        else if (map_put(&names, t->name, t))
            rc = err_set(e, ERR_DATA, "tensor '%s' is there twice", t->name);
    }
    map_clear(&names);
    return rc;
}

struct extent {
    int file;
    uint64_t at, bytes;
};

static int compare_extents(const void *a, const void *b)
{
    const struct extent *x = a, *y = b;
    if (x->file != y->file)
        return x->file - y->file;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

// Behind its head every byte of a file belongs to exactly one slice.
static int check_files(const struct manifest *m, struct err *e)
{
    size_t n = 0, k = 0;
    int rc = 0;
    for (int i = 0; i < m->ntensors; i++)
        n += (size_t)m->tensors[i].nslices;
    struct extent *x = calloc(n + 1, sizeof *x);
    if (!x)
        return err_set(e, ERR_NOMEM, "no memory for %zu slices", n);
    for (int i = 0; i < m->ntensors; i++)
        for (int s = 0; s < m->tensors[i].nslices; s++) {
            const struct manifest_slice *l = &m->tensors[i].slices[s];
            x[k++] = (struct extent){l->file, l->at, l->bytes};
        }
    qsort(x, n, sizeof *x, compare_extents);
    k = 0;
    for (int f = 0; f < m->nfiles && !rc; f++) {
        uint64_t at = m->files[f].head_bytes;
        for (; k < n && x[k].file == f && x[k].at == at; k++)
            at += x[k].bytes;
        if (at != m->files[f].bytes || (k < n && x[k].file == f))
            rc = err_set(e, ERR_DATA,
                         "file '%s': the slices overlap or leave a hole at byte %" PRIu64,
                         m->files[f].name, at);
    }
    free(x);
    return rc;
}

int manifest_parse(struct arena *a, const char *text, size_t len, struct manifest *out,
                   struct err *e)
{
    struct json *top;
    struct map files = {0};
    *out = (struct manifest){0};
    if (json_parse(a, text, len, &top, e))
        return e ? (e->code = ERR_DATA) : ERR_DATA;
    int rc = read_run(a, top, out, e);
    rc = rc ? rc : read_files(a, top, out, &files, e);
    rc = rc ? rc : read_tensors(a, top, out, &files, e);
    rc = rc ? rc : check_files(out, e);
    map_clear(&files);
    if (rc && e)
        e->code = rc;
    return rc;
}
