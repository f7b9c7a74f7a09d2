// SPDX-License-Identifier: Apache-2.0
// The life of one checkpoint in the job's directory: begin, commit, abort, delete, sweep. See
// store.h.
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/path.h"
#include "common/base/root.h"
#include "common/ckpt/durable.h"
#include "common/ckpt/store_names.h"

static void print_tmp_name(int64_t attempt, int64_t step, char out[STORE_NAME_MAX])
{
    char final[64];
    store_entry_name(attempt, step, final);
    snprintf(out, STORE_NAME_MAX, STORE_TMP "%s", final);
}

// If the directory was moved away, what is written through its open descriptor would be
// acknowledged and never found again.
static int check_same_directory(const struct store *s, struct err *e)
{
    struct stat held, there;
    if (fstat(s->fd, &held) || stat(s->path, &there))
        return err_errno(e, ERR_IO, "cannot find the checkpoint directory %s", s->path);
    if (held.st_dev != there.st_dev || held.st_ino != there.st_ino)
        return err_set(e, ERR_IO, "the checkpoint directory %s was replaced by another", s->path);
    return 0;
}

int store_begin(struct store *s, int64_t attempt, int64_t step, int *tmp, struct err *e)
{
    char name[STORE_NAME_MAX];
    print_tmp_name(attempt, step, name);
    *tmp = -1;
    int rc = check_same_directory(s, e);
    if (rc)
        return rc;
    if (mkdirat(s->fd, name, 0755) && errno != EEXIST)
        return err_errno(e, ERR_IO, "cannot make %s/%s", s->path, name);
    *tmp = openat(s->fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*tmp < 0)
        return err_errno(e, ERR_IO, "cannot open %s/%s", s->path, name);
    return 0;
}

int store_sync_shard(struct store *s, int tmp, struct err *e)
{
    int rc = durable_fsync(tmp, "the checkpoint's directory", e);
    if (rc)
        return rc;
    return durable_fsync(s->fd, s->path, e);
}

// ---- commit ----
static int check_shards(int dir, const struct manifest *m, struct err *e)
{
    for (int i = 0; i < m->nfiles; i++) {
        const struct manifest_file *f = &m->files[i];
        struct stat st;
        if (fstatat(dir, f->name, &st, AT_SYMLINK_NOFOLLOW))
            return err_errno(e, errno == ENOENT ? ERR_DATA : ERR_IO, "%s", f->name);
        if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != f->bytes)
            return err_set(e, ERR_DATA, "%s has %jd bytes, not %" PRIu64, f->name,
                           (intmax_t)st.st_size, f->bytes);
    }
    return 0;
}

static int seal_checkpoint(int dir, const struct manifest *m, struct err *e)
{
    struct buf text = {0};
    char commit[COMMIT_BYTES + 1];
    manifest_write(m, &text);
    manifest_seal(text.data, text.len, commit);
    int rc = durable_write_file(dir, "MANIFEST.json", text.data, text.len, e);
    rc = rc ? rc : durable_write_file(dir, "COMMIT", commit, COMMIT_BYTES, e);
    rc = rc ? rc : durable_fsync(dir, "the checkpoint's directory", e);
    buf_clear(&text);
    return rc;
}

static int commit_directory(struct store *s, int dir, const struct manifest *m, const char *tmp,
                            const char *final, struct err *e)
{
    int rc = check_shards(dir, m, e);
    rc = rc ? rc : store_check_attempt(s, m->attempt, NULL, e);
    rc = rc ? rc : seal_checkpoint(dir, m, e);
    rc = rc ? rc : check_same_directory(s, e);
    rc = rc ? rc : durable_rename_new(s->fd, tmp, final, e);
    if (rc)
        return rc;
    rc = durable_fsync(s->fd, s->path, e);
    // The answer will be "failed", so the checkpoint goes back to where an abort finds it. Should
    // the final name survive a power loss all the same, it is whole, and nobody heard otherwise.
    if (rc)
        renameat(s->fd, final, s->fd, tmp);
    return rc;
}

int store_commit(struct store *s, const struct manifest *m, struct err *e)
{
    char tmp[STORE_NAME_MAX], final[64];
    print_tmp_name(m->attempt, m->step, tmp);
    store_entry_name(m->attempt, m->step, final);
    if (!faccessat(s->fd, final, F_OK, AT_SYMLINK_NOFOLLOW))
        return durable_fsync(s->fd, s->path, e);
    if (errno != ENOENT)
        return err_errno(e, ERR_IO, "cannot look for %s", final);
    int rc, dir = openat(s->fd, tmp, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0) {
        rc = err_errno(e, errno == ENOENT ? ERR_DATA : ERR_IO, "cannot open %s", tmp);
    } else {
        rc = commit_directory(s, dir, m, tmp, final, e);
        close(dir);
    }
    struct err fenced = {0}; // whichever call failed: if a fence took the directory, that is why
    if (rc && store_check_attempt(s, m->attempt, NULL, &fenced) == ERR_FENCED)
        return err_set(e, ERR_FENCED, "%s", fenced.text);
    return rc;
}

// ---- removal ----
struct removal {
    int dir;
};

static int unlink_entry(void *arg, const char *name, struct err *e)
{
    struct removal *r = arg;
    if (unlinkat(r->dir, name, 0) && errno != ENOENT)
        return err_errno(e, ERR_IO, "cannot remove %s", name);
    return 0;
}

// A checkpoint's directory is flat.
static int remove_directory(int dirfd, const char *name, struct err *e)
{
    struct removal r = {openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)};
    if (r.dir < 0)
        return errno == ENOENT ? 0 : err_errno(e, ERR_IO, "cannot open %s", name);
    int rc = durable_list(r.dir, unlink_entry, &r, e);
    close(r.dir);
    if (!rc && unlinkat(dirfd, name, AT_REMOVEDIR) && errno != ENOENT)
        rc = err_errno(e, ERR_IO, "cannot remove %s", name);
    return rc;
}

// The files are removed once the new name is durable. Else a power loss could bring back the final
// name (of a commit whose last fsync failed, or of a deletion that was not synced yet) without
// them.
static int remove_renamed(struct store *s, const char *name, struct err *e)
{
    int rc = durable_fsync(s->fd, s->path, e);
    if (rc)
        return rc;
    return remove_directory(s->fd, name, e);
}

int store_abort(struct store *s, int64_t attempt, int64_t step, struct err *e)
{
    char tmp[STORE_NAME_MAX], dead[STORE_NAME_MAX], final[64];
    print_tmp_name(attempt, step, tmp);
    store_entry_name(attempt, step, final);
    store_fresh_name(STORE_DEAD, final, dead);
    // Renamed first: a rank that still writes into it cannot mistake what is left for its own.
    if (renameat(s->fd, tmp, s->fd, dead))
        return errno == ENOENT ? 0 : err_errno(e, ERR_IO, "cannot rename %s", tmp);
    return remove_renamed(s, dead, e);
}

int store_delete(struct store *s, int64_t attempt, int64_t step, struct err *e)
{
    char final[64], trash[STORE_NAME_MAX];
    store_entry_name(attempt, step, final);
    store_fresh_name(STORE_TRASH, final, trash);
    if (renameat(s->fd, final, s->fd, trash))
        // Gone already, but perhaps by an act that has not been synced yet.
        return errno == ENOENT ? durable_fsync(s->fd, s->path, e)
                               : err_errno(e, ERR_IO, "cannot rename %s", final);
    return remove_renamed(s, trash, e);
}

// ---- the whole folder ----

int store_destroy(struct store *s, const char *root, bool *absent, struct err *e)
{
    char parent[STORE_PATH_MAX], trash[STORE_NAME_MAX];
    struct stat held, there;
    int dir, rc = 0;
    const char *name = path_name(s->path);
    PRE(name > s->path && *name);
    if (absent)
        *absent = s->fd < 0;
    path_folder(s->path, parent, sizeof parent);
    rc = root_open(root, parent, O_RDONLY | O_DIRECTORY, 0, &dir, e);
    if (rc)
        return rc == ERR_NOTFOUND ? 0 : rc;
    snprintf(trash, sizeof trash, STORE_TRASH "%s", name);
    bool none = s->fd < 0 && faccessat(dir, trash, F_OK, AT_SYMLINK_NOFOLLOW) && errno == ENOENT;
    if (absent)
        *absent = none;
    rc = durable_remove_tree(dir, trash, e); // of a removal that was cut short
    if (!rc && s->fd >= 0 && !fstatat(dir, name, &there, AT_SYMLINK_NOFOLLOW)) {
        if (fstat(s->fd, &held) || held.st_ino != there.st_ino || held.st_dev != there.st_dev)
            rc = err_set(e, ERR_EXISTS, "%s is another folder by now", s->path);
        else if (renameat(dir, name, dir, trash))
            rc = err_errno(e, ERR_IO, "cannot rename %s", s->path);
    }
    if (!rc)
        rc = durable_fsync(dir, parent, e);
    if (!rc)
        rc = durable_remove_tree(dir, trash, e);
    if (!rc)
        rc = durable_fsync(dir, parent, e);
    close(dir);
    return rc;
}

int store_set_aside(struct store *s, int64_t attempt, struct store_entry from, struct err *e)
{
    struct arena a = {0};
    struct store_entry *all;
    int n, rc = store_scan(s, &a, &all, &n, e);
    for (int i = 0; i < n && !rc; i++) {
        char name[64], aside[80];
        if (all[i].step <= from.step && store_entry_compare(all[i], from) <= 0)
            continue;
        store_entry_name(all[i].attempt, all[i].step, name);
        snprintf(aside, sizeof aside, STORE_ASIDE "%s", name);
        rc = store_check_attempt(s, attempt, NULL, e);
        if (!rc)
            rc = durable_rename_new(s->fd, name, aside, e);
    }
    arena_clear(&a);
    return rc ? rc : durable_fsync(s->fd, s->path, e);
}

struct discard {
    struct store *s;
    const char *prefix;
    const struct timespec *before; // null: all
};

static bool is_before(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec < b->tv_sec || (a->tv_sec == b->tv_sec && a->tv_nsec < b->tv_nsec);
}

static int discard_entry(void *arg, const char *name, struct err *e)
{
    const struct discard *d = arg;
    char trash[STORE_NAME_MAX];
    struct stat st;
    (void)e;
    if (!store_begins(name, d->prefix, NULL))
        return 0;
    if (d->before &&
        (fstatat(d->s->fd, name, &st, AT_SYMLINK_NOFOLLOW) || !is_before(&st.st_mtim, d->before)))
        return 0;
    store_fresh_name(STORE_TRASH, "discarded", trash);
    (void)renameat(d->s->fd, name, d->s->fd, trash);
    return 0;
}

void store_discard(struct store *s, const char *prefix, const char *mark)
{
    struct discard d = {s, prefix, NULL};
    struct stat st;
    if (mark && fstatat(s->fd, mark, &st, AT_SYMLINK_NOFOLLOW))
        return;
    if (mark)
        d.before = &st.st_mtim;
    (void)durable_list(s->fd, discard_entry, &d, NULL);
}

struct sweep {
    struct store *s;
    int64_t attempt, step;
};

static int sweep_entry(void *arg, const char *name, struct err *e)
{
    struct sweep *w = arg;
    struct store_entry entry;
    char dead[STORE_NAME_MAX];
    const char *final;
    (void)e;
    if (store_begins(name, STORE_DEAD, NULL) || store_begins(name, STORE_TRASH, NULL)) {
        remove_renamed(w->s, name, NULL);
    } else if (store_begins(name, STORE_LOOSE, NULL)) {
        unlinkat(w->s->fd, name, 0);
    } else if (store_begins(name, STORE_TMP, &final) && store_entry_parse(final, &entry) &&
               entry.attempt == w->attempt && entry.step < w->step) {
        store_fresh_name(STORE_DEAD, final, dead);
        if (!renameat(w->s->fd, name, w->s->fd, dead))
            remove_renamed(w->s, dead, NULL);
    }
    return 0;
}

void store_sweep(struct store *s, int64_t attempt, int64_t step)
{
    struct sweep w = {s, attempt, step};
    durable_list(s->fd, sweep_entry, &w, NULL);
}
