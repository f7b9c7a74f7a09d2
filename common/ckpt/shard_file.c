// SPDX-License-Identifier: Apache-2.0
// Shard files. See shard_file.h for the format.
#include "common/ckpt/shard_file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/map.h"

enum { LEN_BYTES = 8 };

static uint64_t get_u64(const unsigned char *from)
{
    uint64_t v = 0;
    for (int i = 0; i < LEN_BYTES; i++)
        v |= (uint64_t)from[i] << (8 * i);
    return v;
}

// ---- writing ----
static void write_json(const struct shard_plan *p, const struct shard_meta *meta, int nmeta,
                       struct buf *out)
{
    struct json_out w;
    json_out_init(&w, out);
    json_object(&w, NULL);
    if (nmeta) {
        json_object(&w, "__metadata__");
        for (int i = 0; i < nmeta; i++)
            json_str(&w, meta[i].key, meta[i].value);
        json_end(&w);
    }
    uint64_t at = 0;
    for (int i = 0; i < p->n; i++) {
        const struct shard_slice *s = &p->slices[i];
        json_object(&w, s->name);
        json_str(&w, "dtype", ckpt_dtype_name(s->dtype));
        json_array(&w, "shape");
        for (int d = 0; d < s->shape.n; d++)
            json_int(&w, NULL, s->shape.dim[d]);
        json_end(&w);
        json_array(&w, "data_offsets");
        json_uint(&w, NULL, at);
        json_uint(&w, NULL, at + s->bytes);
        json_end(&w);
        json_end(&w);
        at += s->bytes;
    }
    json_end(&w);
    json_out_clear(&w);
}

static int check_names(const struct shard_slice *slices, int n, struct err *e)
{
    struct map seen = {0};
    int rc = 0;
    for (int i = 0; i < n && !rc; i++) {
        const char *name = slices[i].name;
        if (!*name || !strcmp(name, "__metadata__"))
            rc = err_set(e, ERR_INVALID, "a tensor may not be called '%s'", name);
        else if (map_put(&seen, name, &seen))
            rc = err_set(e, ERR_INVALID, "two slices are called '%s'", name);
    }
    map_clear(&seen);
    return rc;
}

int shard_plan_make(struct arena *a, const struct shard_slice *slices, int n,
                    const struct shard_meta *meta, int nmeta, struct shard_plan *out, struct err *e)
{
    *out = (struct shard_plan){.n = n};
    int rc = check_names(slices, n, e);
    if (rc)
        return rc;
    out->slices = arena_array(a, struct shard_slice, n ? n : 1);
    for (int i = 0; i < n; i++) {
        struct box whole = {.shape = slices[i].shape};
        out->slices[i] = slices[i];
        out->slices[i].bytes = box_bytes(&whole, slices[i].dtype);
    }
    unsigned char len[LEN_BYTES] = {0};
    buf_append(&out->head, len, sizeof len);
    write_json(out, meta, nmeta, &out->head);
    while (out->head.len % SHARD_ALIGN)
        buf_putc(&out->head, ' ');
    if (out->head.len > SHARD_MAX_HEAD)
        return err_set(e, ERR_LIMIT, "a shard's head has %zu bytes, over %d", out->head.len,
                       SHARD_MAX_HEAD);
    for (int i = 0; i < LEN_BYTES; i++)
        len[i] = (unsigned char)((uint64_t)(out->head.len - LEN_BYTES) >> (8 * i));
    memcpy(out->head.data, len, sizeof len);
    out->bytes = out->head.len;
    for (int i = 0; i < n; i++) {
        out->slices[i].at = out->bytes;
        out->bytes += out->slices[i].bytes;
    }
    return 0;
}

void shard_plan_clear(struct shard_plan *p)
{
    buf_clear(&p->head);
}

int shard_write_head(struct stream *to, const struct shard_plan *p, struct hash128 *digest,
                     struct err *e)
{
    stream_digest_reset(to);
    int rc = stream_write(to, p->head.data, p->head.len, e);
    if (!rc)
        *digest = stream_digest(to);
    return rc;
}

int shard_write_slice(struct stream *to, const struct shard_plan *p, int i, const void *bytes,
                      struct hash128 *digest, struct err *e)
{
    PRE(i >= 0 && i < p->n && stream_tell(to) == p->slices[i].at);
    stream_digest_reset(to);
    int rc = stream_write(to, bytes, p->slices[i].bytes, e);
    if (rc) {
        err_wrap(e, "tensor '%s'", p->slices[i].name);
        return rc;
    }
    *digest = stream_digest(to);
    return 0;
}

// ---- reading ----
static int reject_tensor(struct err *e, const char *name, const char *what)
{
    return err_set(e, ERR_DATA, "tensor '%s': %s", name, what);
}

// Bytes of an element; 0: no file of this origin has such.
static uint64_t element_bytes(const struct shard_slice *s, enum shard_origin origin)
{
    static const struct {
        const char *name;
        uint64_t bytes;
    } foreign[] = {{"F16", 2}, {"F64", 8}, {"I64", 8},  {"U64", 8},     {"U32", 4},    {"I16", 2},
                   {"U16", 2}, {"I8", 1},  {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};
    if (s->dtype)
        return dtype_size(s->dtype);
    for (size_t i = 0; origin == SHARD_FOREIGN && i < sizeof foreign / sizeof *foreign; i++)
        if (strcmp(s->type, foreign[i].name) == 0)
            return foreign[i].bytes;
    return 0;
}

static int parse_shape(const struct json *dims, const char *name, struct shape *out, struct err *e)
{
    if (dims->count > MAX_DIMS)
        return reject_tensor(e, name, "more than 8 dimensions");
    for (const struct json *d = dims->first; d; d = d->next) {
        if (d->type != JSON_NUMBER || !d->is_int || d->integer < 0)
            return reject_tensor(e, name, "a dimension is not a whole number");
        out->dim[out->n++] = d->integer;
    }
    return 0;
}

static int parse_slice(const struct json *o, struct shard_slice *out, uint64_t data, uint64_t len,
                       enum shard_origin origin, struct err *e)
{
    const struct json *dims, *range;
    *out = (struct shard_slice){.name = o->key};
    if (o->type != JSON_OBJECT || o->count != 3)
        return reject_tensor(e, o->key, "not an object of dtype, shape and data_offsets");
    int rc = json_get_str(o, "dtype", &out->type, e);
    rc = rc ? rc : json_get_array(o, "shape", &dims, e);
    rc = rc ? rc : json_get_array(o, "data_offsets", &range, e);
    if (rc) {
        err_wrap(e, "tensor '%s'", o->key);
        return ERR_DATA;
    }
    out->dtype = ckpt_dtype_parse(out->type);
    uint64_t element = element_bytes(out, origin);
    if (!element)
        return err_set(e, ERR_DATA, "tensor '%s': unknown dtype '%s'", o->key, out->type);
    rc = parse_shape(dims, o->key, &out->shape, e);
    if (rc)
        return rc;
    if (range->count != 2 || !range->first->is_int || !range->first->next->is_int)
        return reject_tensor(e, o->key, "data_offsets are not two whole numbers");
    int64_t from = range->first->integer, end = range->first->next->integer;
    if (from < 0 || end < from || (uint64_t)end > len - data)
        return err_set(e, ERR_DATA,
                       "tensor '%s': bytes %" PRId64 " to %" PRId64 " are outside of the %" PRIu64
                       " bytes of data",
                       o->key, from, end, len - data);
    if (shape_bytes(&out->shape, element, &out->bytes) || out->bytes != (uint64_t)(end - from))
        return err_set(e, ERR_DATA, "tensor '%s': dtype and shape do not make %" PRId64 " bytes",
                       o->key, end - from);
    out->at = data + (uint64_t)from;
    return 0;
}

static int compare_offsets(const void *a, const void *b)
{
    const struct shard_slice *x = a, *y = b;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); // empty ones first
}

static int check_cover(struct shard_plan *p, uint64_t data, uint64_t len, struct err *e)
{
    uint64_t at = data;
    if (p->n)
        qsort(p->slices, (size_t)p->n, sizeof *p->slices, compare_offsets);
    for (int i = 0; i < p->n; i++) {
        const struct shard_slice *s = &p->slices[i];
        if (s->at != at)
            return err_set(
                e, ERR_DATA, "tensor '%s' begins at byte %" PRIu64 "%s%" PRIu64, s->name, s->at,
                s->at < at ? ", inside the one that ends at " : ", leaving a hole behind byte ",
                at);
        at += s->bytes;
    }
    if (at != len)
        return err_set(e, ERR_DATA, "%" PRIu64 " bytes behind the last tensor belong to none",
                       len - at);
    return 0;
}

static int check_metadata(const struct json *o, struct err *e)
{
    if (o->type != JSON_OBJECT)
        return err_set(e, ERR_DATA, "__metadata__ is not an object");
    for (const struct json *m = o->first; m; m = m->next)
        if (m->type != JSON_STRING)
            return err_set(e, ERR_DATA, "metadata '%s' is not a string", m->key);
    return 0;
}

static int check_head_len(uint64_t json_len, uint64_t len, struct err *e)
{
    if (json_len > SHARD_MAX_HEAD)
        return err_set(e, ERR_DATA, "the head claims %" PRIu64 " bytes, over %d", json_len,
                       SHARD_MAX_HEAD);
    if (json_len > len - LEN_BYTES)
        return err_set(e, ERR_DATA, "the head claims %" PRIu64 " bytes of a file of %" PRIu64,
                       json_len, len);
    return 0;
}

int shard_parse(struct arena *a, const void *head, uint64_t head_len, uint64_t len,
                enum shard_origin origin, struct shard_plan *out, struct err *e)
{
    *out = (struct shard_plan){.bytes = len};
    if (head_len < LEN_BYTES || len < head_len)
        return err_set(e, ERR_DATA, "%" PRIu64 " bytes are too short for a head", len);
    uint64_t json_len = get_u64(head);
    int rc = check_head_len(json_len, len, e);
    if (rc)
        return rc;
    if (json_len > head_len - LEN_BYTES)
        return err_set(e, ERR_DATA, "the head is cut short");
    struct json *top;
    rc = json_parse(a, (const char *)head + LEN_BYTES, json_len, &top, e);
    if (rc || top->type != JSON_OBJECT) {
        rc ? err_wrap(e, "head") : err_set(e, ERR_DATA, "the head is not an object");
        return e ? (e->code = ERR_DATA) : ERR_DATA; // a limit of the JSON reader, too
    }
    uint64_t data = LEN_BYTES + json_len;
    out->slices = arena_array(a, struct shard_slice, top->count + 1);
    for (const struct json *o = top->first; o; o = o->next) {
        if (!strcmp(o->key, "__metadata__"))
            rc = check_metadata(o, e);
        else
            rc = parse_slice(o, &out->slices[out->n++], data, len, origin, e);
        if (rc)
            return rc;
    }
    return check_cover(out, data, len, e);
}

int shard_read_head(struct arena *a, struct stream *from, uint64_t len, enum shard_origin origin,
                    struct shard_plan *out, struct hash128 *digest, struct err *e)
{
    unsigned char first[LEN_BYTES];
    struct buf head = {0};
    *out = (struct shard_plan){0};
    if (len < LEN_BYTES)
        return err_set(e, ERR_DATA, "%" PRIu64 " bytes are too short for a head", len);
    stream_digest_reset(from);
    int rc = stream_read_exact(from, first, sizeof first, e);
    if (!rc)
        rc = check_head_len(get_u64(first), len, e);
    if (rc)
        return rc;
    uint64_t json_len = get_u64(first);
    buf_append(&head, first, sizeof first);
    buf_reserve(&head, json_len);
    rc = stream_read_exact(from, head.data + LEN_BYTES, json_len, e);
    *digest = stream_digest(from);
    if (!rc)
        rc = shard_parse(a, head.data, LEN_BYTES + json_len, len, origin, out, e);
    buf_clear(&head);
    return rc;
}
