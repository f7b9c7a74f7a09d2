// SPDX-License-Identifier: Apache-2.0
// The job's checkpoint directory: owner, names, scan, fence. The life of one checkpoint in it is
// store_write.c. See store.h.
#include "common/ckpt/store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/folder.h"
#include "common/base/json.h"
#include "common/base/path.h"
#include "common/base/root.h"
#include "common/ckpt/durable.h"
#include "common/ckpt/store_names.h"

enum { OWNER_MAX = 16 << 20, DIR_MODE = 0755 };

// ---- names ----
void store_entry_name(int64_t attempt, int64_t step, char out[64])
{
    snprintf(out, 64, "step-%08" PRId64 ".a%" PRId64, step, attempt);
}

// A number as store_entry_name prints it: digits alone.
static const char *parse_number(const char *s, int64_t *out)
{
    size_t n = strspn(s, "0123456789");
    if (n == 0 || n > 18)
        return NULL;
    *out = strtoll(s, NULL, 10);
    return s + n;
}

bool store_begins(const char *name, const char *prefix, const char **rest)
{
    size_t n = strlen(prefix);
    if (strncmp(name, prefix, n) != 0)
        return false;
    if (rest)
        *rest = name + n;
    return true;
}

bool store_entry_parse(const char *name, struct store_entry *out)
{
    char back[64];
    const char *s;
    *out = (struct store_entry){0};
    if (!store_begins(name, "step-", &s) || !(s = parse_number(s, &out->step)) ||
        !store_begins(s, ".a", &s) || !(s = parse_number(s, &out->attempt)) || *s)
        return false;
    store_entry_name(out->attempt, out->step, back);
    return store_entry_ok((uint64_t)out->attempt, out->step) && strcmp(back, name) == 0;
}

bool store_entry_ok(uint64_t attempt, int64_t step)
{
    return attempt > 0 && attempt <= ATTEMPT_MAX && step >= 0;
}

int store_entry_compare(struct store_entry a, struct store_entry b)
{
    if (a.attempt != b.attempt)
        return a.attempt < b.attempt ? -1 : 1;
    return (a.step > b.step) - (a.step < b.step);
}

void store_fresh_name(const char *prefix, const char *name, char out[STORE_NAME_MAX])
{
    uint64_t r = 0;
    if (getrandom(&r, sizeof r, 0) != (ssize_t)sizeof r)
        r = (uint64_t)getpid();
    snprintf(out, STORE_NAME_MAX, "%s%.100s.%08" PRIx32, prefix, name, (uint32_t)r);
}

// ---- opening ----
int store_open(struct store *s, const char *root, const char *path, struct err *e)
{
    *s = (struct store){.fd = -1};
    int rc = root_join(root, path, s->path, sizeof s->path, e);
    if (rc)
        return rc;
    return root_open(root, path, O_RDONLY | O_DIRECTORY, 0, &s->fd, e);
}

void store_close(struct store *s)
{
    if (s->fd >= 0 && *s->path)
        close(s->fd);
    *s = (struct store){.fd = -1};
}

// With `may_refuse` a directory that this user may not open is left to its owner to sync.
static int sync_path(const char *root, const char *path, bool may_refuse, struct err *e)
{
    int fd, rc = root_open(root, path, O_RDONLY | O_DIRECTORY, 0, &fd, e);
    if (rc)
        return may_refuse && errno == EACCES ? 0 : rc;
    rc = durable_fsync(fd, path, e);
    close(fd);
    return rc;
}

// Makes one directory durably. One that is there was perhaps made by a start that died before its
// fsync, so it and its parent are synced either way.
static int make_dir(const char *root, const char *path, struct err *e)
{
    bool there;
    int rc = root_mkdir(root, path, DIR_MODE, &there, e);
    if (rc)
        return rc;
    char parent[STORE_PATH_MAX];
    path_folder(path, parent, sizeof parent);
    rc = sync_path(root, path, there, e);
    if (rc)
        return rc;
    return sync_path(root, parent, there, e);
}

static bool is_missing(const char *root, const char *path)
{
    int fd;
    if (root_open(root, path, O_PATH, 0, &fd, NULL))
        return errno == ENOENT;
    close(fd);
    return false;
}

// Makes what is missing above the job's directory.
static int make_parents(const char *root, const char *dir, struct err *e)
{
    char part[STORE_PATH_MAX];
    for (const char *at = dir; *at; at++) {
        int len = (int)(at - dir) + (*at != '/');
        if ((*at != '/' && at[1]) || len == 0)
            continue;
        snprintf(part, sizeof part, "%.*s", len, dir);
        int rc = !at[1] || is_missing(root, part) ? make_dir(root, part, e) : 0;
        if (rc)
            return rc;
    }
    return 0;
}

// ---- owner ----
static void print_owner(const struct store_owner *o, struct buf *out)
{
    struct json_out w;
    json_out_init(&w, out);
    w.pretty = true;
    json_object(&w, NULL);
    json_str(&w, "cluster", o->cluster);
    json_str(&w, "job", o->job);
    json_str(&w, "name", o->name);
    json_str(&w, "resolved", o->resolved);
    json_int(&w, "threads", o->threads);
    json_end(&w);
    json_out_clear(&w);
    buf_putc(out, '\n');
}

int store_read_owner(const struct store *s, struct arena *a, struct store_owner *out, struct err *e)
{
    struct buf text = {0};
    struct json *top;
    int rc = folder_read_whole(s->fd, "OWNER", true, OWNER_MAX, &text, e);
    if (!rc) {
        rc = json_parse(a, text.data, text.len, &top, e);
        rc = rc ? rc : json_get_str(top, "cluster", &out->cluster, e);
        rc = rc ? rc : json_get_str(top, "job", &out->job, e);
        rc = rc ? rc : json_get_str(top, "name", &out->name, e);
        rc = rc ? rc : json_get_str(top, "resolved", &out->resolved, e);
        rc = rc ? rc : json_get_int(top, "threads", &out->threads, e);
        if (!rc && (out->threads < 0 || out->threads > INT_MAX))
            rc = err_set(e, ERR_DATA, "threads cannot be %" PRId64, out->threads);
        if (rc) {
            err_wrap(e, "OWNER");
            rc = ERR_DATA;
        }
    }
    buf_clear(&text);
    return rc;
}

enum { MOST_SWEPT = 100 };

static int rename_loose(const struct store *s, const char *loose, const char *name, bool replaces,
                        struct err *e)
{
    if (!replaces)
        return durable_rename_new(s->fd, loose, name, e);
    if (renameat(s->fd, loose, s->fd, name))
        return err_errno(e, ERR_IO, "cannot replace %s", name);
    return 0;
}

static bool is_gone(const struct store *s, const char *name)
{
    return faccessat(s->fd, name, F_OK, 0) && errno == ENOENT;
}

// A process that dies in between leaves a loose file. Another process that sweeps cannot know whether a
// loose file's writer lives: one that it has taken away is written again.
int store_write_whole(const struct store *s, const char *name, bool replaces, const char *text,
                      size_t len, struct err *e)
{
    char loose[STORE_NAME_MAX];
    for (int swept = 0;; swept++) {
        store_fresh_name(STORE_LOOSE, name, loose);
        int rc = durable_write_file(s->fd, loose, text, len, e);
        bool written = !rc;
        if (written)
            rc = rename_loose(s, loose, name, replaces, e);
        if (!rc)
            return 0;
        if (!replaces && !faccessat(s->fd, name, F_OK, 0))
            rc = ERR_EXISTS;
        else if (written && is_gone(s, loose) && swept < MOST_SWEPT)
            continue;
        unlinkat(s->fd, loose, 0);
        return rc;
    }
}

// With `replaces` it takes the place of the one that is there: who looks meanwhile sees one or the other.
static int write_owner(struct store *s, const struct store_owner *owner, bool replaces,
                       struct err *e)
{
    struct buf text = {0};
    print_owner(owner, &text);
    int rc = store_write_whole(s, "OWNER", replaces, text.data, text.len, e);
    buf_clear(&text);
    return rc;
}

static int ensure_owner(struct store *s, const struct store_owner *owner, struct err *e)
{
    if (!faccessat(s->fd, "OWNER", F_OK, 0))
        return 0;
    if (errno != ENOENT)
        return err_errno(e, ERR_IO, "cannot see OWNER");
    int rc = write_owner(s, owner, false, e);
    return rc == ERR_EXISTS ? 0 : rc; // the caller then reads whose it is
}

// With `renews` the file gets the job's resolved text as it is today.
static int check_owner(struct store *s, const struct store_owner *want, bool renews, struct err *e)
{
    struct arena a;
    struct store_owner is = {0};
    arena_init(&a);
    int rc = store_read_owner(s, &a, &is, e);
    if (!rc && (strcmp(is.cluster, want->cluster) != 0 || strcmp(is.job, want->job) != 0))
        rc = err_set(e, ERR_EXISTS, "%s belongs to job %s of cluster %s", s->path, is.job,
                     is.cluster);
    if (!rc && renews && (strcmp(is.resolved, want->resolved) != 0 || is.threads != want->threads))
        rc = write_owner(s, want, true, e);
    arena_clear(&a);
    if (rc)
        return rc;
    return durable_fsync(s->fd, s->path, e);
}

// *dir becomes what it is beneath the root, `path` the job's directory in it.
static int name_directory(const char *root, const char **dir, const struct store_owner *owner,
                          char path[STORE_PATH_MAX], struct err *e)
{
    if (!folder_name_ok(owner->name))
        return err_set(e, ERR_INVALID, "'%s' is no name for a job's directory", owner->name);
    int rc = root_relative(root, *dir, dir, e);
    if (rc)
        return rc;
    int n = snprintf(path, STORE_PATH_MAX, "%s/%s-%.8s", *dir, owner->name, owner->job);
    if (n >= STORE_PATH_MAX || !**dir)
        return err_set(e, ERR_INVALID, "the path of the checkpoint directory is too long or empty");
    return 0;
}

static int make_directory(struct store *s, const char *root, const char *path,
                          const struct store_owner *owner, struct err *e)
{
    int rc = make_dir(root, path, e);
    rc = rc ? rc : store_open(s, root, path, e);
    rc = rc ? rc : ensure_owner(s, owner, e);
    rc = rc ? rc : check_owner(s, owner, true, e);
    if (rc)
        store_close(s);
    return rc;
}

int store_make(struct store *s, const char *root, const char *dir, const struct store_owner *owner,
               struct err *e)
{
    char path[STORE_PATH_MAX];
    *s = (struct store){.fd = -1};
    int rc = name_directory(root, &dir, owner, path, e);
    rc = rc ? rc : make_parents(root, dir, e);
    return rc ? rc : make_directory(s, root, path, owner, e);
}

int store_make_at(struct store *s, const char *path, const struct store_owner *owner, struct err *e)
{
    *s = (struct store){.fd = -1};
    return make_directory(s, NULL, path, owner, e);
}

int store_find(struct store *s, const char *root, const char *dir, const struct store_owner *owner,
               struct err *e)
{
    char path[STORE_PATH_MAX];
    *s = (struct store){.fd = -1};
    int rc = name_directory(root, &dir, owner, path, e);
    if (rc)
        return rc;
    if (is_missing(root, path)) {
        (void)root_join(root, path, s->path, sizeof s->path, NULL); // for store_destroy()
        return err_set(e, ERR_NOTFOUND, "there is no %s", path);
    }
    rc = store_open(s, root, path, e);
    rc = rc ? rc : check_owner(s, owner, false, e);
    if (rc)
        store_close(s);
    return rc;
}

// ---- scan ----
struct scan {
    struct arena *arena;
    struct store_entry *v;
    int n, cap;
};

static int scan_entry(void *arg, const char *name, struct err *e)
{
    struct scan *s = arg;
    struct store_entry entry;
    (void)e;
    if (!store_entry_parse(name, &entry))
        return 0;
    s->v = arena_grow(s->arena, s->v, sizeof *s->v, s->n, &s->cap);
    s->v[s->n++] = entry;
    return 0;
}

static int compare_newest_first(const void *a, const void *b)
{
    return store_entry_compare(*(const struct store_entry *)b, *(const struct store_entry *)a);
}

int store_scan(const struct store *s, struct arena *a, struct store_entry **out, int *n,
               struct err *e)
{
    struct scan scan = {.arena = a};
    int rc = durable_list(s->fd, scan_entry, &scan, e);
    if (scan.n)
        qsort(scan.v, (size_t)scan.n, sizeof *scan.v, compare_newest_first);
    *out = scan.v;
    *n = scan.n;
    return rc;
}

int store_find_step(const struct store *s, int64_t step, struct store_entry *out, struct err *e)
{
    struct arena a = {0};
    struct buf steps = {0};
    struct store_entry *all;
    int n, i = 0, rc = store_scan(s, &a, &all, &n, e);
    for (; !rc && i < n && all[i].step != step; i++)
        buf_printf(&steps, "%s%lld", steps.len ? ", " : "", (long long)all[i].step);
    if (!rc && i < n)
        *out = all[i];
    else if (!rc)
        rc = err_set(e, ERR_NOTFOUND, "there is no checkpoint of step %lld%s%.200s",
                     (long long)step, steps.len ? ", only of steps: " : "", buf_str(&steps));
    buf_clear(&steps);
    arena_clear(&a);
    return rc;
}

struct unused {
    struct arena *arena;
    const char **v;
    int n, cap;
};

static int collect_unused(void *arg, const char *name, struct err *e)
{
    struct unused *u = arg;
    struct store_entry entry;
    (void)e;
    if (!store_begins(name, "step-", NULL) || store_entry_parse(name, &entry))
        return 0;
    u->v = arena_grow(u->arena, u->v, sizeof *u->v, u->n, &u->cap);
    u->v[u->n++] = arena_strdup(u->arena, name);
    return 0;
}

int store_list_unused(const struct store *s, struct arena *a, const char ***out, int *n,
                      struct err *e)
{
    struct unused u = {.arena = a};
    int rc = durable_list(s->fd, collect_unused, &u, e);
    *out = u.v;
    *n = u.n;
    return rc;
}

// ---- fence ----

// The number of a marker "attempt-A", ATTEMPT_MAX + 1 for any that is greater, 0 for no marker.
static int64_t parse_marker(const char *name)
{
    const char *digits;
    int64_t attempt = 0;
    if (!store_begins(name, "attempt-", &digits) || !*digits)
        return 0;
    for (; *digits >= '0' && *digits <= '9'; digits++)
        attempt = attempt > ATTEMPT_MAX ? attempt : attempt * 10 + (*digits - '0');
    return *digits ? 0 : attempt > ATTEMPT_MAX ? ATTEMPT_MAX + 1 : attempt;
}

// A checkpoint counts as well as a marker: one that was copied here must not stay the newest.
static int find_greatest(void *arg, const char *name, struct err *e)
{
    int64_t *greatest = arg, attempt = parse_marker(name);
    struct store_entry entry;
    if (attempt > ATTEMPT_MAX)
        return err_set(
            e, ERR_INVALID,
            "the file %.80s is beyond attempt %d, the last that weft gives: it is nobody's, "
            "move it away",
            name, ATTEMPT_MAX);
    if (store_entry_parse(name, &entry))
        attempt = entry.attempt;
    if (attempt > *greatest)
        *greatest = attempt;
    return 0;
}

int store_check_attempt(const struct store *s, int64_t attempt, int64_t *greatest, struct err *e)
{
    int64_t found = 0;
    int rc = durable_list(s->fd, find_greatest, &found, e);
    if (greatest)
        *greatest = found;
    if (!rc && found > attempt)
        rc = err_set(e, ERR_FENCED, "attempt %" PRId64 " is over: attempt %" PRId64 " has begun",
                     attempt, found);
    return rc;
}

struct fence {
    struct store *s;
    int64_t attempt;
};

// Renames what an older attempt has open, so that it can no longer be given its final name.
static int fence_open_save(void *arg, const char *name, struct err *e)
{
    struct fence *f = arg;
    struct store_entry entry;
    char dead[STORE_NAME_MAX];
    const char *final;
    if (!store_begins(name, STORE_TMP, &final) || !store_entry_parse(final, &entry) ||
        entry.attempt >= f->attempt)
        return 0;
    store_fresh_name(STORE_DEAD, final, dead);
    if (renameat(f->s->fd, name, f->s->fd, dead) && errno != ENOENT) // ENOENT: it just committed
        return err_errno(e, ERR_IO, "cannot rename %s to %s", name, dead);
    return 0;
}

// Whether the fence that is there is this attempt's own.
static int check_fence_owner(struct store *s, const char *name, int64_t attempt,
                             const char *attempt_id, int64_t *greatest, struct err *e)
{
    struct buf who = {0};
    int rc = folder_read_whole(s->fd, name, true, 4096, &who, e);
    if (!rc && strcmp(buf_str(&who), attempt_id) != 0) {
        *greatest = attempt > *greatest ? attempt : *greatest;
        rc = err_set(e, ERR_FENCED, "attempt %" PRId64 " was fenced by another coordinator",
                     attempt);
    }
    buf_clear(&who);
    return rc;
}

static int make_fence(struct store *s, int64_t attempt, const char *attempt_id, int64_t *greatest,
                      struct err *e)
{
    char name[64];
    snprintf(name, sizeof name, "attempt-%" PRId64, attempt);
    if (!faccessat(s->fd, name, F_OK, 0))
        return check_fence_owner(s, name, attempt, attempt_id, greatest, e);
    int rc = store_write_whole(s, name, false, attempt_id, strlen(attempt_id), e);
    return rc == ERR_EXISTS ? check_fence_owner(s, name, attempt, attempt_id, greatest, e) : rc;
}

int store_fence(struct store *s, int64_t attempt, const char *attempt_id, int64_t *greatest,
                struct err *e)
{
    struct fence f = {s, attempt};
    PRE(*attempt_id);
    *greatest = 0;
    if (attempt < 1 || attempt > ATTEMPT_MAX)
        return err_set(e, ERR_INVALID,
                       "attempt %" PRId64
                       " is not one of 1 to %d, which is all that a job has: submit "
                       "it as a new one",
                       attempt, ATTEMPT_MAX);
    int rc = store_check_attempt(s, attempt, greatest, e);
    rc = rc ? rc : make_fence(s, attempt, attempt_id, greatest, e);
    rc = rc ? rc : durable_fsync(s->fd, s->path, e);
    // Another process may have fenced meanwhile: with our file in place, look again.
    rc = rc ? rc : store_check_attempt(s, attempt, greatest, e);
    rc = rc ? rc : durable_list(s->fd, fence_open_save, &f, e);
    rc = rc ? rc : durable_fsync(s->fd, s->path, e);
    return rc;
}

// ---- a directory that somebody removed ----
static bool was_removed(const struct store *s)
{
    struct stat held, there;
    if (fstat(s->fd, &held))
        return errno == ESTALE;
    bool same =
        !stat(s->path, &there) && held.st_dev == there.st_dev && held.st_ino == there.st_ino;
    return !same && held.st_nlink == 0;
}

// What is left of the path must be on the file system that the directory was on: else its mount is
// gone, and what is written below the mount point would be hidden when it is back.
static int check_mount(const struct store *s, struct err *e)
{
    struct stat held, above;
    char path[STORE_PATH_MAX];
    snprintf(path, sizeof path, "%s", s->path);
    while (stat(path, &above) && strrchr(path, '/') > path)
        *strrchr(path, '/') = 0;
    if (!fstat(s->fd, &held) && !stat(path, &above) && held.st_dev != above.st_dev)
        return err_set(e, ERR_IO, "%s is gone, and %s is on another file system: is it mounted?",
                       s->path, path);
    return 0;
}

// Somebody may have brought the directory back with what was in it; or a file server, started again, no
// longer knows the descriptor while all is where it was.
static int look_for_checkpoints(const struct store *s, bool *none, struct err *e)
{
    struct arena a;
    struct store_entry *v;
    int n;
    arena_init(&a);
    int rc = store_scan(s, &a, &v, &n, e);
    *none = !n;
    arena_clear(&a);
    return rc;
}

int store_make_again(struct store *s, const char *root, const struct store_owner *owner,
                     int64_t attempt, const char *attempt_id, bool *removed, struct err *e)
{
    struct store again = {.fd = -1};
    char dir[STORE_PATH_MAX];
    int64_t greatest;
    *removed = false;
    if (!was_removed(s))
        return 0;
    snprintf(dir, sizeof dir, "%s", s->path);
    if (strrchr(dir, '/'))
        *strrchr(dir, '/') = 0;
    int rc = check_mount(s, e);
    rc = rc ? rc : store_make(&again, root, dir, owner, e);
    rc = rc ? rc : store_fence(&again, attempt, attempt_id, &greatest, e);
    rc = rc ? rc : look_for_checkpoints(&again, removed, e);
    if (rc) {
        store_close(&again);
        return rc;
    }
    store_close(s);
    *s = again;
    return 0;
}
