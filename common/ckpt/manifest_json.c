// SPDX-License-Identifier: Apache-2.0
// The text of MANIFEST.json: writer and strict parser, both by one table of fields a struct. See
// manifest.h.
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/map.h"
#include "common/ckpt/manifest.h"

struct parser {
    struct arena *a;
    struct manifest *m;
    struct map files, tensors; // by their names
};

enum field_kind {
    TEXT,
    NUMBER, // int64_t or uint64_t, at least 0
    FLAG,
    DIGEST,
    SEED, // uint64_t, as text
    VERSION,
    DTYPE,
    SPEC,
    AXES,      // the mesh
    FILE_NAME, // an index into the files, by their names
    DIMS,      // an array of `count` sizes
    START,     // the same, of as many as DIMS before it
    OBJECT,
    LOSS,   // eval_loss; null: not evaluated
    PARENT, // an object of the manifest's own members; null where parent_step is below 0
    SOURCE, // an object; null where it has no folder
    LIST,   // of `count` objects; each is checked after it was read
};
// A key of a closed object: every one must be there, and no other may be.
struct field {
    const char *key; // null: behind the last
    enum field_kind kind;
    size_t offset, count;
    const struct field *of; // of OBJECT, PARENT, SOURCE, LIST: the fields inside
    size_t size;            // of LIST: an item's
    int (*check)(struct parser *p, void *item, struct err *e);
};
static int check_file(struct parser *p, void *item, struct err *e);
static int check_tensor(struct parser *p, void *item, struct err *e);

#define FIELD(kind, type, key, member) FIELD_OF(kind, type, key, member, member, NULL, 0, NULL)
#define FIELD_OF(kind, type, key, member, n, fields, size, check)                               \
    {                                                                                           \
        key, kind, offsetof(struct type, member), offsetof(struct type, n), fields, size, check \
    }

static const struct field parent_fields[] = {
    FIELD(NUMBER, manifest, "attempt", parent_attempt),
    FIELD(NUMBER, manifest, "step", parent_step),
    {0},
};
static const struct field source_fields[] = {
    FIELD(TEXT, manifest_source, "folder", folder),
    FIELD(NUMBER, manifest_source, "attempt", attempt),
    FIELD(NUMBER, manifest_source, "step", step),
    FIELD(TEXT, manifest_source, "sha256", digest),
    {0},
};
static const struct field data_fields[] = {
    FIELD(NUMBER, data_identity, "files", files),
    FIELD(NUMBER, data_identity, "bytes", bytes),
    FIELD(DIGEST, data_identity, "xxh3", digest),
    {0},
};
static const struct field numerics_fields[] = {
    FIELD(TEXT, manifest_numerics, "backend", backend),
    FIELD(TEXT, manifest_numerics, "device", device),
    FIELD(TEXT, manifest_numerics, "isa", isa),
    FIELD(TEXT, manifest_numerics, "libraries", libraries),
    FIELD(TEXT, manifest_numerics, "collectives", collectives),
    FIELD(NUMBER, manifest_numerics, "threads", threads),
    FIELD(TEXT, manifest_numerics, "algorithms", algorithms),
    FIELD(FLAG, manifest_numerics, "deterministic", deterministic),
    {0},
};
static const struct field change_fields[] = {
    FIELD(NUMBER, manifest_change, "step", step),
    FIELD(TEXT, manifest_change, "what", what),
    {0},
};
static const struct field file_fields[] = {
    FIELD(TEXT, manifest_file, "name", name),
    FIELD(NUMBER, manifest_file, "bytes", bytes),
    FIELD(NUMBER, manifest_file, "head_bytes", head_bytes),
    FIELD(DIGEST, manifest_file, "head_xxh3", head_digest),
    {0},
};
static const struct field slice_fields[] = {
    FIELD(FILE_NAME, manifest_slice, "file", file),
    FIELD(NUMBER, manifest_slice, "offset", at),
    FIELD(NUMBER, manifest_slice, "bytes", bytes),
    FIELD_OF(DIMS, manifest_slice, "shape", box.shape.dim, box.shape.n, NULL, 0, NULL),
    FIELD_OF(START, manifest_slice, "start", box.start, box.shape.n, NULL, 0, NULL),
    FIELD(DIGEST, manifest_slice, "xxh3", digest),
    {0},
};
static const struct field tensor_fields[] = {
    FIELD(TEXT, manifest_tensor, "name", name),
    FIELD(DTYPE, manifest_tensor, "dtype", dtype),
    FIELD_OF(DIMS, manifest_tensor, "shape", shape.dim, shape.n, NULL, 0, NULL),
    FIELD_OF(START, manifest_tensor, "unpadded", unpadded, shape.n, NULL, 0, NULL),
    FIELD(SPEC, manifest_tensor, "spec", spec),
    FIELD_OF(LIST, manifest_tensor, "slices", slices, nslices, slice_fields,
             sizeof(struct manifest_slice), NULL),
    {0},
};
static const struct field manifest_fields[] = {
    {.key = "version", .kind = VERSION},
    FIELD(TEXT, manifest, "cluster", cluster),
    FIELD(TEXT, manifest, "job", job),
    FIELD(TEXT, manifest, "name", name),
    FIELD(TEXT, manifest, "job_hash", job_hash),
    FIELD(TEXT, manifest, "run", run),
    FIELD(NUMBER, manifest, "attempt", attempt),
    FIELD(NUMBER, manifest, "step", step),
    FIELD(SEED, manifest, "seed", seed),
    FIELD(NUMBER, manifest, "samples", samples),
    FIELD_OF(OBJECT, manifest, "data", data, data, data_fields, 0, NULL),
    FIELD(TEXT, manifest, "tokenizer", tokenizer),
    FIELD(TEXT, manifest, "optimizer", optimizer),
    FIELD(NUMBER, manifest, "updates", updates),
    FIELD(LOSS, manifest, "eval_loss", eval_loss),
    FIELD_OF(SOURCE, manifest, "source", source, source, source_fields, 0, NULL),
    {.key = "parent", .kind = PARENT, .of = parent_fields},
    FIELD(AXES, manifest, "mesh", mesh),
    FIELD_OF(OBJECT, manifest, "numerics", numerics, numerics, numerics_fields, 0, NULL),
    FIELD(TEXT, manifest, "resolved", resolved),
    FIELD_OF(LIST, manifest, "changes", changes, nchanges, change_fields,
             sizeof(struct manifest_change), NULL),
    FIELD_OF(LIST, manifest, "files", files, nfiles, file_fields, sizeof(struct manifest_file),
             check_file),
    FIELD_OF(LIST, manifest, "tensors", tensors, ntensors, tensor_fields,
             sizeof(struct manifest_tensor), check_tensor),
    {0},
};

// ---- writing ----
static void write_object(struct json_out *w, const char *key, const struct manifest *m,
                         const struct field *fields, const void *base);

static const char *get_text(const struct manifest *m, const struct field *f, const void *at,
                            char room[33])
{
    switch (f->kind) {
    case DIGEST:
        hash128_hex(*(const struct hash128 *)at, room);
        return room;
    case SEED:
        snprintf(room, 33, "%" PRIu64, *(const uint64_t *)at);
        return room;
    case DTYPE:
        return ckpt_dtype_name(*(const enum dtype *)at);
    case FILE_NAME:
        return m->files[*(const int *)at].name;
    default:
        return *(const char *const *)at;
    }
}

static void write_field(struct json_out *w, const struct manifest *m, const struct field *f,
                        const char *base)
{
    const void *at = base + f->offset;
    const int *n = (const void *)(base + f->count);
    char room[33];
    switch (f->kind) {
    case NUMBER:
        json_int(w, f->key, *(const int64_t *)at);
        break;
    case FLAG:
        json_bool(w, f->key, *(const bool *)at);
        break;
    case VERSION:
        json_int(w, f->key, MANIFEST_VERSION);
        break;
    case SPEC:
        json_raw(w, f->key, *(const char *const *)at);
        break;
    case AXES:
        json_object(w, f->key);
        for (int i = 0; i < m->naxes; i++)
            json_int(w, m->mesh[i].name, m->mesh[i].size);
        json_end(w);
        break;
    case DIMS:
    case START:
        json_array(w, f->key);
        for (int i = 0; i < *n; i++)
            json_int(w, NULL, ((const int64_t *)at)[i]);
        json_end(w);
        break;
    case PARENT:
        if (m->parent_step < 0)
            json_null(w, f->key);
        else
            write_object(w, f->key, m, f->of, at);
        break;
    case LOSS:
        json_known_double(w, f->key, m->evaluated, m->eval_loss);
        break;
    case SOURCE:
    case OBJECT:
        if (f->kind == SOURCE && !m->source.folder) {
            json_null(w, f->key);
            break;
        }
        write_object(w, f->key, m, f->of, at);
        break;
    case LIST:
        json_array(w, f->key);
        for (int i = 0; i < *n; i++)
            write_object(w, NULL, m, f->of, *(const char *const *)at + f->size * (size_t)i);
        json_end(w);
        break;
    default:
        json_str(w, f->key, get_text(m, f, at, room));
    }
}

static void write_object(struct json_out *w, const char *key, const struct manifest *m,
                         const struct field *fields, const void *base)
{
    json_object(w, key);
    for (const struct field *f = fields; f->key; f++)
        write_field(w, m, f, base);
    json_end(w);
}

void manifest_write(const struct manifest *m, struct buf *out)
{
    struct json_out w;
    json_out_init(&w, out);
    w.pretty = true;
    write_object(&w, NULL, m, manifest_fields, m);
    json_out_clear(&w);
    buf_putc(out, '\n');
}

// ---- reading ----
static const enum json_type json_types[] = {
    [TEXT] = JSON_STRING,      [NUMBER] = JSON_NUMBER, [FLAG] = JSON_BOOL,
    [DIGEST] = JSON_STRING,    [SEED] = JSON_STRING,   [VERSION] = JSON_NUMBER,
    [DTYPE] = JSON_STRING,     [SPEC] = JSON_ARRAY,    [AXES] = JSON_OBJECT,
    [FILE_NAME] = JSON_STRING, [DIMS] = JSON_ARRAY,    [START] = JSON_ARRAY,
    [OBJECT] = JSON_OBJECT,    [LIST] = JSON_ARRAY,
};

static int refuse(const struct field *f, const char *why, struct err *e)
{
    return err_set(e, ERR_DATA, "'%s' %s", f->key, why);
}

static int read_object(struct parser *p, const struct json *o, const struct field *fields,
                       void *base, struct err *e);

// Copies an entry of a spec: an axis, null or, not inside of another, a list of axes.
static int copy_spec_entry(const struct json *v, bool inside, struct json_out *w, struct err *e)
{
    int rc = 0;
    if (v->type == JSON_STRING && *v->string) {
        json_str(w, NULL, v->string);
    } else if (v->type == JSON_NULL && !inside) {
        json_null(w, NULL);
    } else if (v->type == JSON_ARRAY && !inside) {
        json_array(w, NULL);
        for (const struct json *axis = v->first; axis && !rc; axis = axis->next)
            rc = copy_spec_entry(axis, true, w, e);
        json_end(w);
    } else {
        rc = err_set(e, ERR_DATA, "'spec' holds something else than axes, lists of axes and null");
    }
    return rc;
}

// The spec is kept as its own JSON text: a reader of a checkpoint uses the slices alone.
static int read_spec(struct parser *p, const struct json *list, struct manifest_tensor *t,
                     struct err *e)
{
    struct buf text = {0};
    struct json_out w;
    int rc = 0;
    if (list->count > t->shape.n)
        return err_set(e, ERR_DATA, "'spec' has %d entries for %d dimensions", list->count,
                       t->shape.n);
    json_out_init(&w, &text);
    json_array(&w, NULL);
    for (const struct json *v = list->first; v && !rc; v = v->next)
        rc = copy_spec_entry(v, false, &w, e);
    json_end(&w);
    json_out_clear(&w);
    t->spec = buf_keep(&text, p->a);
    return rc;
}

static int read_list(struct parser *p, const struct json *list, const struct field *f, char **items,
                     int *n, struct err *e)
{
    *items = arena_alloc(p->a, f->size * (size_t)(list->count + 1));
    for (const struct json *o = list->first; o; o = o->next) {
        void *item = *items + f->size * (size_t)(*n)++;
        int rc = read_object(p, o, f->of, item, e);
        if (!rc && f->check)
            rc = f->check(p, item, e);
        if (rc) {
            err_wrap(e, "%s[%d]", f->key, *n - 1);
            return rc;
        }
    }
    return 0;
}

static int read_text(struct parser *p, const char *text, const struct field *f, void *to,
                     struct err *e)
{
    const struct manifest_file *file;
    char *end;
    switch (f->kind) {
    case DIGEST:
        return hash128_parse(text, to) ? refuse(f, "is not 32 hex digits", e) : 0;
    case SEED:
        errno = 0;
        *(uint64_t *)to = strtoull(text, &end, 10);
        return errno || *end || *text < '0' || *text > '9' ? refuse(f, "is not a whole number", e)
                                                           : 0;
    case DTYPE:
        *(enum dtype *)to = ckpt_dtype_parse(text);
        return *(enum dtype *)to ? 0 : err_set(e, ERR_DATA, "unknown dtype '%s'", text);
    case FILE_NAME:
        file = map_get(&p->files, text);
        *(int *)to = file ? (int)(file - p->m->files) : 0;
        return file ? 0 : err_set(e, ERR_DATA, "unknown file '%s'", text);
    default:
        *(const char **)to = text;
        return 0;
    }
}

static int read_field(struct parser *p, const struct json *v, const struct field *f, char *base,
                      struct err *e)
{
    void *to = base + f->offset;
    int *n = (void *)(base + f->count), i = 0;
    struct manifest *m = p->m;
    switch (f->kind) {
    case VERSION: // was looked at first
        return 0;
    case NUMBER:
        *(int64_t *)to = v->integer;
        return v->is_int && v->integer >= 0 ? 0 : refuse(f, "is not a whole number from 0 on", e);
    case FLAG:
        *(bool *)to = v->boolean;
        return 0;
    case SPEC:
        return read_spec(p, v, (struct manifest_tensor *)(void *)base, e);
    case AXES:
        m->mesh = arena_array(p->a, struct manifest_axis, v->count + 1);
        for (const struct json *x = v->first; x; x = x->next) {
            m->mesh[m->naxes++] = (struct manifest_axis){x->key, x->integer};
            if (!x->is_int || x->integer < 1)
                return err_set(e, ERR_DATA, "mesh: axis '%s' has no size", x->key);
        }
        return 0;
    case DIMS:
    case START:
        if (v->count > MAX_DIMS || (f->kind == START && v->count != *n))
            return refuse(f, "has too many or too few dimensions", e);
        for (const struct json *d = v->first; d; d = d->next, i++) {
            if (!d->is_int || d->integer < 0)
                return refuse(f, "holds something else than whole numbers", e);
            ((int64_t *)to)[i] = d->integer;
        }
        *n = i;
        return 0;
    case LIST:
        return read_list(p, v, f, to, n, e);
    case LOSS:
        m->evaluated = v->type == JSON_NUMBER;
        m->eval_loss = m->evaluated ? v->number : 0;
        return m->evaluated || v->type == JSON_NULL ? 0 : refuse(f, "is no number", e);
    case PARENT:
    case SOURCE:
        if (f->kind == PARENT)
            m->parent_attempt = m->parent_step = -1;
        if (v->type == JSON_NULL)
            return 0;
        __attribute__((fallthrough));
    case OBJECT:
        if (!read_object(p, v, f->of, to, e))
            return 0;
        err_wrap(e, "%s", f->key);
        return ERR_DATA;
    default:
        return read_text(p, v->string, f, to, e);
    }
}

static int read_object(struct parser *p, const struct json *o, const struct field *fields,
                       void *base, struct err *e)
{
    const struct field *f;
    int rc = 0;
    if (o->type != JSON_OBJECT)
        return err_set(e, ERR_DATA, "not an object");
    for (const struct json *c = o->first; c; c = c->next) {
        for (f = fields; f->key && strcmp(f->key, c->key); f++)
            ;
        if (!f->key)
            return err_set(e, ERR_DATA, "unknown key '%s'", c->key);
    }
    for (f = fields; f->key && !rc; f++) {
        const struct json *v = json_get(o, f->key);
        if (!v)
            rc = err_set(e, ERR_DATA, "'%s' is missing", f->key);
        else if (v->type != json_types[f->kind] && f->kind != PARENT && f->kind != SOURCE &&
                 f->kind != LOSS)
            rc = refuse(f, "is of another type", e);
        else
            rc = read_field(p, v, f, base, e);
    }
    return rc;
}

// ---- what the parts say together ----
// A file's name becomes a path, so it must be a plain name of a shard and nothing else.
static bool is_shard_file_name(const char *name)
{
    size_t n = strlen(name);
    return n > 0 && n < 200 && name[0] != '.' && !strchr(name, '/') &&
           strcmp(name, "COMMIT") != 0 && strcmp(name, "MANIFEST.json") != 0;
}

static int check_file(struct parser *p, void *item, struct err *e)
{
    const struct manifest_file *f = item;
    if (p->m->nfiles > MANIFEST_MAX_FILES)
        return err_set(e, ERR_DATA, "%d files, over %d", p->m->nfiles, MANIFEST_MAX_FILES);
    if (!is_shard_file_name(f->name) || map_put(&p->files, f->name, item))
        return err_set(e, ERR_DATA, "the name '%s' is not good or not unique", f->name);
    if (f->head_bytes < 8 || f->head_bytes > f->bytes)
        return err_set(e, ERR_DATA, "'%s': a head of %" PRIu64 " in %" PRIu64 " bytes", f->name,
                       f->head_bytes, f->bytes);
    return 0;
}

static int check_slice(const struct manifest *m, const struct manifest_tensor *t,
                       const struct manifest_slice *s, struct err *e)
{
    const struct manifest_file *f = &m->files[s->file];
    uint64_t bytes;
    if (!box_inside(&s->box, &t->shape))
        return err_set(e, ERR_DATA, "start and shape lie outside of the tensor");
    if (shape_bytes(&s->box.shape, dtype_size(t->dtype), &bytes) || bytes != s->bytes)
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
    uint64_t bytes, sum = 0;
    int n = 0, rc = 0;
    if (shape_bytes(&t->shape, dtype_size(t->dtype), &bytes))
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

static int check_tensor(struct parser *p, void *item, struct err *e)
{
    const struct manifest_tensor *t = item;
    int rc = 0;
    for (int d = 0; d < t->shape.n; d++)
        if (t->unpadded[d] > t->shape.dim[d])
            return err_set(e, ERR_DATA, "'%s': 'unpadded' is more than its shape", t->name);
    if (t->nslices > p->m->nfiles)
        return err_set(e, ERR_DATA, "'%s': %d slices in %d files", t->name, t->nslices,
                       p->m->nfiles);
    if (map_put(&p->tensors, t->name, item))
        return err_set(e, ERR_DATA, "'%s' is there twice", t->name);
    for (int i = 0; i < t->nslices && !rc; i++)
        if ((rc = check_slice(p->m, t, &t->slices[i], e)))
            err_wrap(e, "slice %d", i);
    if (!rc)
        rc = check_cover(t, e);
    if (rc)
        err_wrap(e, "'%s'", t->name);
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

static int check_version(const struct json *top, struct err *e)
{
    int64_t version;
    if (top->type != JSON_OBJECT)
        return err_set(e, ERR_DATA, "not an object");
    if (json_get_int(top, "version", &version, e))
        return ERR_DATA;
    return version == MANIFEST_VERSION
               ? 0
               : err_set(e, ERR_UNSUPPORTED, "version %" PRId64 ", this program reads %d", version,
                         MANIFEST_VERSION);
}

int manifest_parse(struct arena *a, const char *text, size_t len, struct manifest *out,
                   struct err *e)
{
    struct parser p = {.a = a, .m = out};
    struct json *top;
    *out = (struct manifest){0};
    int rc = json_parse(a, text, len, &top, e) ? ERR_DATA : 0;
    if (!rc)
        rc = check_version(top, e);
    if (!rc)
        rc = read_object(&p, top, manifest_fields, out, e);
    if (!rc)
        rc = check_files(out, e);
    map_clear(&p.files);
    map_clear(&p.tensors);
    if (rc && e)
        e->code = rc;
    return rc;
}
