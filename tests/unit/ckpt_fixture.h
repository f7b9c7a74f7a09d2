// SPDX-License-Identifier: Apache-2.0
// What the checkpoint tests share: a directory, a small model on a dp 2 × tp 2 mesh whose every
// element is known, and a way to write whole checkpoints of it.
#pragma once

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/ckpt/deal.h"
#include "common/ckpt/load.h"
#include "common/ckpt/manifest.h"
#include "common/ckpt/shard_file.h"
#include "common/ckpt/store.h"
#include "tests/unit/scratch.h"

#define UNUSED __attribute__((unused))
enum { FX_RANKS = 4, FX_PARTS = 6 };

static const struct store_owner fx_owner = {"cluster-a", "0123456789abcdef", "mlp", "steps: 10\n",
                                            0};
static const int fx_all[] = {0, 1, 2, 3}, fx_even[] = {0, 2}, fx_odd[] = {1, 3};

// Ranks 0 and 2 hold tp coordinate 0, ranks 1 and 3 coordinate 1.
static const struct deal_part fx_parts[FX_PARTS] = {
    {"w1", DT_F32, {2, {96, 64}}, {{0}, {2, {96, 64}}}, 4, fx_all, {0}},
    {"b1", DT_F32, {1, {10}}, {{0}, {1, {10}}}, 4, fx_all, {0}},
    {"w2", DT_F32, {3, {40, 32, 16}}, {{0, 0, 0}, {3, {40, 32, 8}}}, 2, fx_even, {0}},
    {"w2", DT_F32, {3, {40, 32, 16}}, {{0, 0, 8}, {3, {40, 32, 8}}}, 2, fx_odd, {0}},
    {"scale", DT_F32, {0, {0}}, {{0}, {0, {0}}}, 4, fx_all, {0}},
    {"ids", DT_U8, {1, {7}}, {{0}, {1, {7}}}, 4, fx_all, {0}},
};
static const char *const fx_specs[FX_PARTS] = {
    "[]", "[]", "[null,null,\"tp\"]", "[null,null,\"tp\"]", "[]", "[]"};

struct fixture {
    struct scratch scratch;
    char dir[64]; // the same
    struct store store;
    struct arena arena;
    struct deal deal;
    char *part[FX_PARTS]; // local memory of each part
};

// The element at `index` (row-major in the global tensor) of a tensor, `salt` set by the step.
static UNUSED float fx_value(const char *name, int64_t index, int64_t salt)
{
    return (float)(name[0] * 31 + name[1]) * 64.0f + (float)index + (float)salt * 0.25f;
}

static UNUSED void fx_fill(const char *name, enum dtype t, const struct shape *global,
                           const struct box *b, int64_t salt, void *to)
{
    int64_t count = shape_count(&b->shape);
    for (int64_t i = 0; i < count; i++) {
        int64_t rest = i, index = 0, stride = 1;
        for (int d = b->shape.n - 1; d >= 0; d--) {
            index += (b->start[d] + rest % b->shape.dim[d]) * stride;
            rest /= b->shape.dim[d];
            stride *= global->dim[d];
        }
        if (t == DT_U8)
            ((unsigned char *)to)[i] = (unsigned char)(index * 3 + salt);
        else
            ((float *)to)[i] = fx_value(name, index, salt);
    }
}

static UNUSED void fx_set_step(struct fixture *f, int64_t step)
{
    for (int i = 0; i < FX_PARTS; i++)
        fx_fill(fx_parts[i].name, fx_parts[i].dtype, &fx_parts[i].global, &fx_parts[i].box, step,
                f->part[i]);
}

static UNUSED void fx_init(struct fixture *f)
{
    struct err e = {0};
    *f = (struct fixture){0};
    scratch_make(&f->scratch);
    snprintf(f->dir, sizeof f->dir, "%s", f->scratch.dir);
    arena_init(&f->arena);
    assert_int_equal(store_make(&f->store, NULL, f->dir, &fx_owner, &e), 0);
    assert_int_equal(deal_make(&f->arena, fx_parts, FX_PARTS, FX_RANKS, &f->deal, &e), 0);
    for (int i = 0; i < FX_PARTS; i++)
        f->part[i] = malloc(box_bytes(&fx_parts[i].box, fx_parts[i].dtype));
    fx_set_step(f, 0);
}

static UNUSED void fx_clear(struct fixture *f)
{
    for (int i = 0; i < FX_PARTS; i++)
        free(f->part[i]);
    store_close(&f->store);
    arena_clear(&f->arena);
    scratch_remove(&f->scratch);
}

static UNUSED struct manifest fx_manifest(struct fixture *f, int64_t attempt, int64_t step)
{
    struct manifest_axis *mesh = arena_array(&f->arena, struct manifest_axis, 2);
    mesh[0] = (struct manifest_axis){"dp", 2};
    mesh[1] = (struct manifest_axis){"tp", 2};
    return (struct manifest){
        .cluster = fx_owner.cluster,
        .job = fx_owner.job,
        .name = fx_owner.name,
        .job_hash = "hash",
        .run = "run-1",
        .attempt = attempt,
        .step = step,
        .seed = 18446744073709551615ull,
        .samples = step * 64,
        .tokenizer = "bytes",
        .optimizer = "adamw",
        .resolved = "name: test\n",
        .parent_attempt = -1,
        .parent_step = -1,
        .naxes = 2,
        .mesh = mesh,
        .numerics = {"cpu", "model \"x\"", "avx512", "onednn 2.6.3", "tree", "hosts", 2, true}};
}

// One rank's shard in the open checkpoint's directory, as a rank writes it.
static UNUSED void fx_write_shard(struct fixture *f, int dir, int rank, struct shard_report *r,
                                  int64_t step)
{
    const struct deal_rank *d = &f->deal.rank[rank];
    struct shard_slice *s = arena_array(&f->arena, struct shard_slice, d->n + 1);
    struct shard_plan plan;
    struct stream to = {0};
    struct err e = {0};
    char name[64];
    for (int i = 0; i < d->n; i++)
        s[i] = (struct shard_slice){.name = fx_parts[d->slices[i].part].name,
                                    .dtype = fx_parts[d->slices[i].part].dtype,
                                    .shape = d->slices[i].box.shape};
    struct shard_meta meta = {"format", "weft"};
    assert_int_equal(shard_plan_make(&f->arena, s, d->n, &meta, 1, &plan, &e), 0);
    *r = (struct shard_report){.rank = rank, .step = step, .n = d->n};
    r->digests = arena_array(&f->arena, struct hash128, d->n + 1);
    r->bytes = plan.bytes;
    r->head_bytes = plan.head.len;
    manifest_file_name(rank, FX_RANKS, name);
    assert_int_equal(stream_create(&to, dir, name, &e), 0);
    assert_int_equal(shard_write_head(&to, &plan, &r->head_digest, &e), 0);
    for (int i = 0; i < d->n; i++)
        assert_int_equal(shard_write_slice(&to, &plan, i,
                                           f->part[d->slices[i].part] + d->slices[i].at,
                                           &r->digests[i], &e),
                         0);
    assert_int_equal(stream_sync(&to, &e), 0);
    assert_int_equal(stream_close(&to, &e), 0);
    shard_plan_clear(&plan);
}

// All shards of a step, uncommitted; the manifest to commit them with.
static UNUSED struct manifest fx_prepare(struct fixture *f, int64_t attempt, int64_t step)
{
    struct shard_report reports[FX_RANKS];
    struct manifest m = fx_manifest(f, attempt, step);
    struct err e = {0};
    int dir;
    fx_set_step(f, step);
    assert_int_equal(store_begin(&f->store, attempt, step, &dir, &e), 0);
    for (int r = 0; r < FX_RANKS; r++)
        fx_write_shard(f, dir, r, &reports[r], step);
    assert_int_equal(store_sync_shard(&f->store, dir, &e), 0);
    close(dir);
    assert_int_equal(
        manifest_fill(&m, &f->arena, fx_parts, fx_specs, FX_PARTS, &f->deal, reports, &e), 0);
    return m;
}

static UNUSED void fx_save(struct fixture *f, int64_t attempt, int64_t step)
{
    struct err e = {0};
    struct manifest m = fx_prepare(f, attempt, step);
    assert_int_equal(store_commit(&f->store, &m, &e), 0);
}

// Reads every tensor whole; the first code that is not 0, or 0 and every element was right.
static UNUSED int fx_read_all(struct load *l, int64_t step, struct err *e)
{
    for (int i = 0; i < FX_PARTS; i++) {
        const struct deal_part *p = &fx_parts[i];
        struct box whole = {.shape = p->global};
        uint64_t bytes = box_bytes(&whole, p->dtype);
        char *got = malloc(bytes), *want = malloc(bytes);
        memset(got, 0x5a, bytes);
        fx_fill(p->name, p->dtype, &p->global, &whole, step, want);
        int rc = load_read(l, p->name, p->dtype, &p->global, &whole, got, e);
        if (!rc)
            assert_memory_equal(got, want, bytes);
        free(got);
        free(want);
        if (rc)
            return rc;
    }
    return 0;
}

static UNUSED bool fx_exists(const struct fixture *f, const char *name)
{
    return faccessat(f->store.fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static UNUSED void fx_put(int dirfd, const char *name, const void *data, size_t len)
{
    int fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, len), (ssize_t)len);
    close(fd);
}
