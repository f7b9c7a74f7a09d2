// SPDX-License-Identifier: Apache-2.0
// Reads a committed checkpoint. See load.h.
#include "common/ckpt/load.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/folder.h"
#include "common/base/map.h"
#include "common/base/stream.h"
#include "common/base/system.h"

enum { CHUNK_BYTES = 1 << 20 };

// ---- opening ----
static int read_sealed(struct load *l, struct err *e)
{
    struct buf text = {0}, commit = {0};
    int rc = folder_read_whole(l->dirfd, "COMMIT", true, 4096, &commit, e);
    rc = rc ? rc : folder_read_whole(l->dirfd, "MANIFEST.json", true, MANIFEST_MAX_BYTES, &text, e);
    if (rc == ERR_NOTFOUND || rc == ERR_LIMIT) // a committed checkpoint without it is damaged
        rc = e ? (e->code = ERR_DATA) : ERR_DATA;
    if (!rc)
        rc = manifest_check_seal(buf_str(&text), text.len, buf_str(&commit), commit.len, e);
    if (!rc)
        snprintf(l->digest, sizeof l->digest, "%.*s", COMMIT_BYTES - 1, buf_str(&commit));
    if (!rc) {
        rc = manifest_parse(&l->arena, buf_str(&text), text.len, &l->manifest, e);
        if (rc)
            err_wrap(e, "MANIFEST.json");
    }
    buf_clear(&text);
    buf_clear(&commit);
    return rc;
}

static int check_files(const struct load *l, struct err *e)
{
    for (int i = 0; i < l->manifest.nfiles; i++) {
        const struct manifest_file *f = &l->manifest.files[i];
        struct stat st;
        if (fstatat(l->dirfd, f->name, &st, AT_SYMLINK_NOFOLLOW))
            return errno == ENOENT ? err_set(e, ERR_DATA, "%s is missing", f->name)
                                   : err_errno(e, ERR_IO, "%s", f->name);
        if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != f->bytes)
            return err_set(e, ERR_DATA, "%s has %jd bytes, not the %" PRIu64 " that were written",
                           f->name, (intmax_t)st.st_size, f->bytes);
    }
    return 0;
}

static int check_id(const struct manifest *m, int64_t attempt, int64_t step, struct err *e)
{
    if (m->attempt == attempt && m->step == step)
        return 0;
    return err_set(e, ERR_DATA,
                   "MANIFEST.json is of step %" PRId64 ", attempt %" PRId64
                   ": the directory was renamed",
                   m->step, m->attempt);
}

// A checkpoint of another job that was put here is whole, yet not this job's. One that was taken out
// of its folder has no OWNER beside it.
static int check_owner(const struct store *s, const struct manifest *m, struct err *e)
{
    struct arena a;
    struct store_owner owner = {0};
    arena_init(&a);
    int rc = store_read_owner(s, &a, &owner, e);
    if (rc == ERR_NOTFOUND)
        rc = 0;
    else if (!rc && (strcmp(m->job, owner.job) != 0 || strcmp(m->cluster, owner.cluster) != 0))
        rc = err_set(e, ERR_DATA,
                     "MANIFEST.json is of job %.64s of cluster %.64s, the folder of job %.64s of "
                     "cluster %.64s",
                     m->job, m->cluster, owner.job, owner.cluster);
    arena_clear(&a);
    return rc;
}

static int open_directory(struct load *l, const struct store *s, struct err *e)
{
    l->dirfd = openat(s->fd, l->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (l->dirfd >= 0)
        return 0;
    if (errno == ENOTDIR || errno == ELOOP)
        return err_set(e, ERR_DATA, "it is no directory");
    return err_errno(e, errno == ENOENT ? ERR_NOTFOUND : ERR_IO, "cannot open it");
}

int load_open(struct load *l, const struct store *s, int64_t attempt, int64_t step, struct err *e)
{
    *l = (struct load){.dirfd = -1};
    arena_init(&l->arena);
    store_entry_name(attempt, step, l->name);
    int rc = open_directory(l, s, e);
    rc = rc ? rc : read_sealed(l, e);
    rc = rc ? rc : check_id(&l->manifest, attempt, step, e);
    rc = rc ? rc : check_owner(s, &l->manifest, e);
    rc = rc ? rc : check_files(l, e);
    if (!rc && !(l->chunk = malloc(CHUNK_BYTES)))
        rc = err_set(e, ERR_NOMEM, "no memory to read with");
    if (rc) {
        err_wrap(e, "%s", l->name);
        load_close(l);
    }
    return rc;
}

void load_close(struct load *l)
{
    if (!l->chunk && !*l->name)
        return;
    system_close(&l->dirfd);
    free(l->chunk);
    arena_clear(&l->arena);
    *l = (struct load){.dirfd = -1};
}

// ---- reading ----
// Hashes a slice. Those bytes that lie in `want` are copied from the very memory that was hashed.
static int read_hashed(struct load *l, int fd, const struct manifest_slice *s,
                       const struct box *want, void *to, size_t elem, struct err *e)
{
    struct xxh3 *hash = xxh3_new();
    int rc = 0;
    for (uint64_t at = 0; at < s->bytes && !rc;) {
        uint64_t n = s->bytes - at < CHUNK_BYTES ? s->bytes - at : CHUNK_BYTES;
        rc = slice_read(fd, l->chunk, n, s->at + at, e);
        if (!rc) {
            xxh3_update(hash, l->chunk, n);
            if (to)
                box_copy(want, to, &s->box, l->chunk, at, n, elem);
        }
        at += n;
    }
    struct hash128 is = xxh3_digest(hash);
    xxh3_free(hash);
    if (!rc && !hash128_equal(is, s->digest))
        rc = err_set(e, ERR_CORRUPT, "digest differs: these are not the bytes that were written");
    return rc;
}

// What of a slice lies in `want`; `hashed`: all of it is read and held against its digest.
static int read_slice(struct load *l, const struct manifest_tensor *t,
                      const struct manifest_slice *s, const struct box *want, void *to, bool hashed,
                      struct err *e)
{
    const char *name = l->manifest.files[s->file].name;
    size_t elem = dtype_size(t->dtype);
    int fd = openat(l->dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    int rc = fd < 0   ? err_errno(e, ERR_IO, "cannot open %s", name)
             : hashed ? read_hashed(l, fd, s, want, to, elem, e)
                      : box_read(want, to, &s->box, fd, s->at, elem, e);
    system_close(&fd);
    if (rc)
        err_wrap(e, "%s/%s: tensor '%s'", l->name, name, t->name);
    return rc;
}

static int read_slices(struct load *l, const struct manifest_tensor *t, const struct box *b,
                       void *to, bool hashed, struct err *e)
{
    int rc = 0;
    for (int i = 0; !rc && i < t->nslices; i++)
        if (t->slices[i].bytes && box_overlap(&t->slices[i].box, b))
            rc = read_slice(l, t, &t->slices[i], b, to, hashed, e);
    return rc;
}

static int check_request(const struct load *l, const struct manifest_tensor *t, const char *tensor,
                         enum dtype dtype, const struct shape *global, const struct box *b,
                         struct err *e)
{
    PRE(box_inside(b, global));
    if (!t)
        return err_set(e, ERR_DATA, "%s: tensor '%s' is not in it", l->name, tensor);
    if (t->dtype != dtype)
        return err_set(e, ERR_DATA, "%s: tensor '%s' is %s, not %s", l->name, tensor,
                       ckpt_dtype_name(t->dtype), ckpt_dtype_name(dtype));
    if (!shape_equal(global, &t->shape))
        return err_set(e, ERR_DATA, "%s: tensor '%s' has another shape than the model's", l->name,
                       tensor);
    return 0;
}

int load_read_within(struct load *l, const struct manifest_tensor *t, const struct box *b, void *to,
                     struct err *e)
{
    return read_slices(l, t, b, to, true, e);
}

int load_read(struct load *l, const char *tensor, enum dtype dtype, const struct shape *global,
              const struct box *b, void *to, struct err *e)
{
    const struct manifest_tensor *t = manifest_find(&l->manifest, tensor);
    int rc = check_request(l, t, tensor, dtype, global, b, e);
    // The manifest's slices cover the tensor, so those that meet the box fill it.
    return rc ? rc : load_read_within(l, t, b, to, e);
}

int load_check(struct load *l, const struct manifest_tensor *t, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < t->nslices && !rc; i++)
        rc = read_slice(l, t, &t->slices[i], NULL, NULL, true, e);
    return rc;
}

int load_read_part(struct load *l, const struct manifest_tensor *t, const struct box *b, void *to,
                   struct err *e)
{
    return read_slices(l, t, b, to, false, e);
}

// ---- verifying ----
struct faults {
    void (*bad)(void *arg, const struct err *e);
    void *arg;
    struct err first;
};

static void add_fault(struct faults *f, const struct err *one)
{
    if (f->bad)
        f->bad(f->arg, one);
    if (!f->first.code)
        f->first = *one;
}

// The head and the manifest must say the same of every slice.
static int compare_slices(const struct load *l, int file, const struct shard_plan *plan,
                          struct err *e)
{
    struct map head = {0};
    int n = 0, rc = 0;
    for (int i = 0; i < plan->n; i++)
        map_put(&head, plan->slices[i].name, &plan->slices[i]);
    for (int i = 0; i < l->manifest.ntensors; i++) {
        const struct manifest_tensor *t = &l->manifest.tensors[i];
        for (int k = 0; k < t->nslices && !rc; k++) {
            const struct manifest_slice *s = &t->slices[k];
            if (s->file != file)
                continue;
            const struct shard_slice *h = map_get(&head, t->name);
            if (!h || h->at != s->at || h->dtype != t->dtype ||
                !shape_equal(&h->shape, &s->box.shape))
                rc = err_set(e, ERR_DATA, "tensor '%s': the head and the manifest disagree",
                             t->name);
            n++;
        }
    }
    map_clear(&head);
    if (!rc && n != plan->n)
        rc = err_set(e, ERR_DATA, "the head names %d tensors, the manifest %d", plan->n, n);
    return rc;
}

// The head is checked as bytes and as a safetensors head, because other readers rely on it.
static int verify_head(struct load *l, int file, struct err *e)
{
    const struct manifest_file *f = &l->manifest.files[file];
    struct arena a;
    struct stream s = {0};
    struct shard_plan plan;
    struct hash128 digest;
    arena_init(&a);
    int rc = stream_open(&s, l->dirfd, f->name, e);
    if (!rc) {
        rc = shard_read_head(&a, &s, f->bytes, SHARD_OURS, &plan, &digest, e);
        if (!rc && !hash128_equal(digest, f->head_digest))
            rc = err_set(e, ERR_CORRUPT, "the head's digest differs");
        if (!rc)
            rc = compare_slices(l, file, &plan, e);
        stream_close(&s, NULL);
    }
    arena_clear(&a);
    if (rc)
        err_wrap(e, "%s/%s", l->name, f->name);
    return rc;
}

int load_check_heads(struct load *l, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < l->manifest.nfiles && !rc; i++)
        rc = verify_head(l, i, e);
    return rc;
}

int load_verify(struct load *l, void (*bad)(void *arg, const struct err *e), void *arg,
                struct err *e)
{
    struct faults f = {bad, arg, {0}};
    struct err one = {0};
    for (int i = 0; i < l->manifest.nfiles; i++)
        if (verify_head(l, i, &one))
            add_fault(&f, &one);
    for (int i = 0; i < l->manifest.ntensors; i++) {
        const struct manifest_tensor *t = &l->manifest.tensors[i];
        for (int k = 0; k < t->nslices; k++)
            if (read_slice(l, t, &t->slices[k], NULL, NULL, true, &one))
                add_fault(&f, &one);
    }
    if (f.first.code && e)
        *e = f.first;
    return f.first.code;
}

int load_open_newest(struct load *l, const struct store *s,
                     int (*check)(struct load *l, struct err *e),
                     void (*refused)(void *arg, struct store_entry which, const struct err *e),
                     void *arg, struct err *e)
{
    struct arena a;
    struct store_entry *list;
    struct err one = {0}, first = {0};
    int n, rc;
    *l = (struct load){.dirfd = -1};
    arena_init(&a);
    rc = store_scan(s, &a, &list, &n, e);
    bool found = false;
    for (int i = 0; i < n && !rc && !found; i++) {
        found = !load_open(l, s, list[i].attempt, list[i].step, &one);
        if (found && check(l, &one)) {
            load_close(l);
            found = false;
        }
        if (!found && refused)
            refused(arg, list[i], &one);
        if (!found && !first.code)
            first = one;
    }
    arena_clear(&a);
    if (rc || found)
        return rc;
    if (!first.code)
        return err_set(e, ERR_NOTFOUND, "%s holds no checkpoint", s->path);
    if (e)
        *e = first;
    return first.code;
}

static int verify_all(struct load *l, struct err *e)
{
    return load_verify(l, NULL, NULL, e);
}

int load_open_newest_good(struct load *l, const struct store *s,
                          void (*refused)(void *arg, struct store_entry which, const struct err *e),
                          void *arg, struct err *e)
{
    return load_open_newest(l, s, verify_all, refused, arg, e);
}

int load_make_newest(struct store *s, int64_t attempt, int64_t step, struct err *e)
{
    struct store_entry id;
    struct load l = {0};
    int rc = store_find_step(s, step, &id, e);
    if (rc == ERR_NOTFOUND)
        return e->code = ERR_INVALID; // no other try helps
    if (rc)
        return rc;
    rc = load_open(&l, s, id.attempt, step, e);
    rc = rc ? rc : load_verify(&l, NULL, NULL, e);
    load_close(&l);
    if (rc && rc != ERR_IO)
        rc = e->code = ERR_INVALID;
    return rc ? err_wrap(e, "the checkpoint of step %lld to continue from", (long long)step)
              : store_set_aside(s, attempt, id, e);
}
