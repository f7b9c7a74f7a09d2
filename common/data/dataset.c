// SPDX-License-Identifier: Apache-2.0
// A data set: opening and checking it, gathering samples. See dataset.h; tokens are tokens.c.
#include "common/data/dataset.h"

#include "common/data/tokens.h"

// Label of sample i, or −1 with the error set.
static int32_t read_label(const struct dataset *ds, uint64_t i, struct err *e)
{
    const struct array *a = &ds->labels;
    int64_t label = array_int(a, i);
    if (label >= 0 && label < ds->classes)
        return (int32_t)label;
    err_set(e, ERR_DATA,
            "%s: byte %llu: label %lld of sample %llu is not in 0 … %lld (classes: %lld)", a->path,
            (unsigned long long)(a->offset + i * array_type_size(a->type)), (long long)label,
            (unsigned long long)i, (long long)ds->classes - 1, (long long)ds->classes);
    return -1;
}

static int check_images(struct dataset *ds, struct err *e)
{
    const struct array *a = &ds->images;
    if (a->type != ARRAY_U8 && a->type != ARRAY_F32)
        return err_set(e, ERR_UNSUPPORTED, "%s: byte 0: images of %s are not read; u8 and f32 are",
                       a->path, array_type_name(a->type));
    if (a->count == 0 || a->shape.n == 0)
        return err_set(e, ERR_DATA, "%s: byte %zu: it holds no samples", a->path, a->offset);
    ds->dtype = a->type == ARRAY_U8 ? DT_U8 : DT_F32;
    ds->n = (uint64_t)a->shape.dim[0];
    ds->features = a->count / ds->n;
    return 0;
}

static int check_labels(const struct dataset *ds, struct err *e)
{
    const struct array *a = &ds->labels;
    if (!array_type_is_int(a->type))
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: byte 0: labels of %s are not read; u8, i32, i64 are", a->path,
                       array_type_name(a->type));
    if (a->shape.n != 1)
        return err_set(e, ERR_DATA, "%s: byte 0: labels have %d dimensions, 1 is expected", a->path,
                       a->shape.n);
    if (a->count != ds->n)
        return err_set(e, ERR_DATA, "%s holds %llu images, %s %llu labels", ds->images.path,
                       (unsigned long long)ds->n, a->path, (unsigned long long)a->count);
    for (uint64_t i = 0; i < ds->n; i++)
        if (read_label(ds, i, e) < 0)
            return ERR_DATA;
    return 0;
}

int dataset_open(struct dataset *ds, const char *root, const char *images, const char *labels,
                 int64_t classes, struct err *e)
{
    PRE(!labels || (classes >= 1 && classes <= INT32_MAX));
    *ds = (struct dataset){.classes = classes};
    int rc = array_open_beneath(&ds->images, root, images, e);
    if (rc == 0)
        rc = check_images(ds, e);
    if (rc == 0 && labels)
        rc = array_open_beneath(&ds->labels, root, labels, e);
    if (rc == 0 && labels)
        rc = check_labels(ds, e);
    ds->labelled = labels != NULL;
    if (rc)
        dataset_close(ds);
    return rc;
}

void dataset_close(struct dataset *ds)
{
    tokens_close(ds);
    array_close(&ds->images);
    array_close(&ds->labels);
    *ds = (struct dataset){0};
}

enum { BLOCK = 4096, BLOCKS = 64, BLOCKS_LEAST = 3 }; // of all files together, and of one

static int digest_file(struct xxh3 *x, const struct array *a, uint64_t blocks, struct err *e)
{
    uint64_t len = a->file_len;
    int rc = array_check(a, e);
    if (rc)
        return rc;
    xxh3_update(x, &len, sizeof len);
    if (len <= blocks * BLOCK) {
        xxh3_update(x, a->file, len);
        return 0;
    }
    for (uint64_t i = 0; i < blocks; i++) // by their share of the way: no product overflows
        xxh3_update(x, a->file + (len - BLOCK) / (blocks - 1) * i, BLOCK);
    xxh3_update(x, a->file + len - BLOCK, BLOCK);
    return 0;
}

int dataset_identify(const struct dataset *ds, struct data_identity *out, struct err *e)
{
    const struct array *pair[] = {&ds->images, &ds->labels};
    int n = ds->seq ? ds->nfiles : 1 + ds->labelled, rc = 0;
    uint64_t blocks = (uint64_t)(BLOCKS / n < BLOCKS_LEAST ? BLOCKS_LEAST : BLOCKS / n);
    struct xxh3 *x = xxh3_new();
    *out = (struct data_identity){.files = n};
    for (int i = 0; i < n && !rc; i++) {
        const struct array *a = ds->seq ? &ds->files[i].tokens : pair[i];
        out->bytes += (int64_t)a->file_len;
        rc = digest_file(x, a, blocks, e);
    }
    out->digest = xxh3_digest(x);
    xxh3_free(x);
    return rc;
}

size_t dataset_label_bytes(const struct dataset *ds)
{
    return ds->labelled ? sizeof(int32_t) : 0;
}

size_t dataset_sample_bytes(const struct dataset *ds)
{
    if (ds->seq)
        return (size_t)(ds->seq + 1) * sizeof(int32_t);
    return ds->features * array_type_size(ds->images.type);
}

int dataset_read(const struct dataset *ds, const uint64_t *ids, size_t n, void *images_out,
                 int32_t *labels_out, struct err *e)
{
    if (ds->seq)
        return tokens_read(ds, ids, n, images_out, e);
    int rc = array_check(&ds->images, e);
    if (rc == 0 && ds->labelled)
        rc = array_check(&ds->labels, e);
    if (rc)
        return rc;
    unsigned char *to = images_out;
    size_t bytes = dataset_sample_bytes(ds);
    for (size_t k = 0; k < n; k++) {
        PRE(ids[k] < ds->n);
        array_copy(&ds->images, ids[k] * ds->features, ds->features, to + k * bytes);
        if (ds->labelled && (labels_out[k] = read_label(ds, ids[k], e)) < 0)
            return ERR_DATA;
    }
    return 0;
}
