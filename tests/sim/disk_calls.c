// SPDX-License-Identifier: Apache-2.0
// The system calls of the product's checkpoint store, on the simulated disk. Linked with --wrap:
// outside a fiber each is the real call.
//
// Mutations of disk acts live here, keyed by what the fiber is doing: one call of the real order is
// answered with success and not done.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/sim/disk.h"
#include "tests/sim/mutate.h"

#define REAL(type, name, args) \
    type __real_##name args;   \
    type __wrap_##name args;
REAL(int, open, (const char *path, int flags, ...))
REAL(int, openat, (int dir, const char *path, int flags, ...))
REAL(int, close, (int fd))
REAL(int, fsync, (int fd))
REAL(int, mkdir, (const char *path, mode_t mode))
REAL(int, mkdirat, (int dir, const char *path, mode_t mode))
REAL(int, stat, (const char *path, struct stat *st))
REAL(int, fstat, (int fd, struct stat *st))
REAL(int, fstatat, (int dir, const char *path, struct stat *st, int flags))
REAL(int, faccessat, (int dir, const char *path, int mode, int flags))
REAL(int, renameat, (int from_dir, const char *from, int to_dir, const char *to))
REAL(int, renameat2,
     (int from_dir, const char *from, int to_dir, const char *to, unsigned int flags))
REAL(int, unlinkat, (int dir, const char *path, int flags))
REAL(ssize_t, read, (int fd, void *to, size_t n))
REAL(ssize_t, pread, (int fd, void *to, size_t n, off_t at))
REAL(ssize_t, pwrite, (int fd, const void *from, size_t n, off_t at))
REAL(DIR *, fdopendir, (int fd))
REAL(struct dirent *, readdir, (DIR * d))
REAL(int, closedir, (DIR * d))
REAL(ssize_t, getrandom, (void *to, size_t n, unsigned int flags))

// ---- descriptors ----
static int fail(int code)
{
    errno = code;
    return -1;
}

static bool ours(int fd)
{
    return fd >= DISK_FD0 && fd < DISK_FD0 + DISK_FDS;
}

static struct disk_node *node_of(int fd)
{
    return ours(fd) ? disk_mounted->fd[fd - DISK_FD0].node : NULL;
}

static int hand_out(struct disk_node *n)
{
    struct disk *d = disk_mounted;
    for (int i = 0; i < DISK_FDS; i++)
        if (!d->fd[i].node) {
            d->fd[i] = (struct disk_fd){.node = n};
            d->open_fds++;
            return DISK_FD0 + i;
        }
    return fail(EMFILE);
}

static struct disk_node *at(int dir, const char *path)
{
    if (path[0] == '/')
        return disk_find(disk_mounted, path);
    struct disk_node *n = node_of(dir);
    return !strcmp(path, ".") ? n : disk_entry(n, path);
}

// Time passes before the act; the process may die in it.
static bool wait_turn(void)
{
    struct disk *d = disk_mounted;
    struct sim *s = d->sim;
    if (d->on_call && !fiber_proc()->dead)
        d->on_call(d->watch_arg);
    int64_t ns = sim_chance(s, d->slow_per_mille) ? sim_between(s, MS, 2000 * MS)
                                                  : sim_between(s, 5000, 400000);
    return fiber_pause(ns);
}

static bool begins(const char *s, const char *prefix)
{
    return !strncmp(s, prefix, strlen(prefix));
}

// ---- opening ----
static int create(struct disk_node *dir, const char *name, bool excl)
{
    if (!wait_turn())
        return fail(EIO);
    struct disk_node *n = disk_entry(dir, name);
    if (n && excl)
        return fail(EEXIST);
    return hand_out(n ? n : disk_make(disk_mounted, dir, name, false));
}

static int open_at(int dirfd, const char *path, int flags)
{
    if (fiber_proc()->dead)
        return fail(EIO);
    if (flags & O_CREAT)
        return create(node_of(dirfd), path, flags & O_EXCL);
    struct disk_node *n = at(dirfd, path);
    if (!n)
        return fail(ENOENT);
    if ((flags & O_DIRECTORY) && !n->dir)
        return fail(ENOTDIR);
    return hand_out(n);
}

int __wrap_open(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return fiber_proc() ? open_at(AT_FDCWD, path, flags) : __real_open(path, flags, mode);
}

int __wrap_openat(int dir, const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return fiber_proc() ? open_at(dir, path, flags) : __real_openat(dir, path, flags, mode);
}

int __wrap_close(int fd)
{
    if (!ours(fd))
        return __real_close(fd);
    if (!disk_mounted->fd[fd - DISK_FD0].node)
        return fail(EBADF);
    disk_mounted->fd[fd - DISK_FD0].node = NULL;
    disk_mounted->open_fds--;
    return 0;
}

// ---- syncing ----
static bool forgotten(const struct disk_node *n, bool job_dir)
{
    switch (fiber_doing()) {
    case ACT_SHARD:
        return (!n->dir && MUTATED(fsync_shard)) ||
               (n->dir && !job_dir && MUTATED(fsync_directory)) ||
               (job_dir && MUTATED(fsync_parent));
    case ACT_COMMIT:
        return (n->dir && !job_dir && MUTATED(fsync_directory)) ||
               (job_dir && MUTATED(fsync_parent));
    case ACT_FENCE:
        return job_dir && MUTATED(fence_fsync);
    case ACT_DELETE:
        return job_dir && MUTATED(trash_fsync);
    case ACT_NONE:
    case ACT_REMOVE:
    case ACT_PROBE:
        break;
    }
    return false;
}

int __wrap_fsync(int fd)
{
    struct disk_node *n = node_of(fd);
    if (!n)
        return fiber_proc() ? fail(EBADF) : __real_fsync(fd);
    if (!wait_turn())
        return fail(EIO);
    struct sim *s = disk_mounted->sim;
    bool job_dir = n->dir && disk_entry(n, "OWNER");
    if (forgotten(n, job_dir))
        return 0;
    if (sim_chance(s, disk_mounted->eio_per_mille)) {
        n->lost = !n->dir;
        return fail(EIO);
    }
    disk_sync(n);
    return 0;
}

// ---- names ----
int __wrap_mkdirat(int dir, const char *path, mode_t mode)
{
    if (!fiber_proc())
        return __real_mkdirat(dir, path, mode);
    if (!wait_turn())
        return fail(EIO);
    struct disk_node *n = node_of(dir);
    if (disk_entry(n, path))
        return fail(EEXIST);
    disk_make(disk_mounted, n, path, true);
    return 0;
}

int __wrap_mkdir(const char *path, mode_t mode)
{
    if (!fiber_proc())
        return __real_mkdir(path, mode);
    if (!wait_turn())
        return fail(EIO);
    char above[1024];
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 0;
    if (!slash || n >= sizeof above)
        return fail(ENOENT);
    memcpy(above, path, n);
    above[n] = 0;
    struct disk_node *dir = disk_find(disk_mounted, above);
    if (!dir)
        return fail(ENOENT);
    if (disk_entry(dir, slash + 1))
        return fail(EEXIST);
    disk_make(disk_mounted, dir, slash + 1, true);
    return 0;
}

static int rename_in(int fd, const char *from, const char *to, bool replace)
{
    struct disk *d = disk_mounted;
    if (!wait_turn())
        return fail(EIO);
    struct disk_node *dir = node_of(fd);
    if (!disk_entry(dir, from))
        return fail(ENOENT);
    if (!replace && disk_entry(dir, to))
        return fail(EEXIST);
    if (MUTATED(fence_marker) && begins(to, "attempt-"))
        return 0;
    if (MUTATED(fence_rename) && fiber_doing() == ACT_FENCE && begins(to, ".dead-"))
        return 0;
    if (d->on_rename)
        d->on_rename(d->watch_arg, dir, from, to);
    disk_move(d, dir, from, to);
    return 0;
}

int __wrap_renameat(int from_dir, const char *from, int to_dir, const char *to)
{
    return fiber_proc() ? rename_in(from_dir, from, to, true)
                        : __real_renameat(from_dir, from, to_dir, to);
}

int __wrap_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned int flags)
{
    return fiber_proc() ? rename_in(from_dir, from, to, false)
                        : __real_renameat2(from_dir, from, to_dir, to, flags);
}

int __wrap_unlinkat(int dir, const char *path, int flags)
{
    if (!fiber_proc())
        return __real_unlinkat(dir, path, flags);
    if (!wait_turn())
        return fail(EIO);
    struct disk_node *n = disk_entry(node_of(dir), path);
    if (!n)
        return fail(ENOENT);
    if (flags & AT_REMOVEDIR && n->now.n)
        return fail(ENOTEMPTY);
    disk_remove(disk_mounted, node_of(dir), path);
    return 0;
}

// ---- looking ----
static int fill(const struct disk_node *n, struct stat *st)
{
    if (!n)
        return fail(ENOENT);
    memset(st, 0, sizeof *st);
    st->st_dev = 1;
    st->st_ino = n->ino;
    st->st_mode = n->dir ? S_IFDIR : S_IFREG;
    st->st_size = n->len;
    return 0;
}

static bool dead(void)
{
    return fiber_proc()->dead;
}

int __wrap_stat(const char *path, struct stat *st)
{
    if (!fiber_proc())
        return __real_stat(path, st);
    return dead() ? fail(EIO) : fill(at(AT_FDCWD, path), st);
}

int __wrap_fstat(int fd, struct stat *st)
{
    if (!fiber_proc())
        return __real_fstat(fd, st);
    return dead() ? fail(EIO) : fill(node_of(fd), st);
}

int __wrap_fstatat(int dir, const char *path, struct stat *st, int flags)
{
    if (!fiber_proc())
        return __real_fstatat(dir, path, st, flags);
    return dead() ? fail(EIO) : fill(at(dir, path), st);
}

int __wrap_faccessat(int dir, const char *path, int mode, int flags)
{
    if (!fiber_proc())
        return __real_faccessat(dir, path, mode, flags);
    if (dead())
        return fail(EIO);
    return at(dir, path) ? 0 : fail(ENOENT);
}

// ---- bytes ----
static ssize_t read_at(const struct disk_node *f, void *to, size_t n, int64_t from)
{
    int64_t left = f->len > from ? f->len - from : 0;
    size_t got = (int64_t)n < left ? n : (size_t)left;
    if (dead())
        return fail(EIO);
    if (got)
        memcpy(to, f->data + from, got);
    return (ssize_t)got;
}

ssize_t __wrap_read(int fd, void *to, size_t n)
{
    if (!ours(fd))
        return __real_read(fd, to, n);
    struct disk_fd *f = &disk_mounted->fd[fd - DISK_FD0];
    ssize_t got = read_at(f->node, to, n, f->at);
    f->at += got > 0 ? got : 0;
    return got;
}

ssize_t __wrap_pread(int fd, void *to, size_t n, off_t from)
{
    return ours(fd) ? read_at(node_of(fd), to, n, from) : __real_pread(fd, to, n, from);
}

ssize_t __wrap_pwrite(int fd, const void *from, size_t n, off_t to)
{
    if (!ours(fd))
        return __real_pwrite(fd, from, n, to);
    if (!wait_turn())
        return fail(EIO);
    disk_write(disk_mounted, node_of(fd), from, (int64_t)n, to);
    return (ssize_t)n;
}

// ---- listing: the names as they are when it begins ----
struct listing {
    int fd, n, next;
    const char **names;
    struct dirent item;
};

// DIR is opaque: ours are only ever seen by these three.
static struct listing *listing_of(DIR *d)
{
    union {
        DIR *from;
        struct listing *to;
    } u = {.from = d};
    return u.to;
}

DIR *__wrap_fdopendir(int fd)
{
    const struct disk_node *n = node_of(fd);
    if (!n)
        return __real_fdopendir(fd);
    struct listing *l = calloc(1, sizeof *l);
    l->fd = fd;
    l->n = n->now.n;
    l->names = calloc((size_t)l->n + 1, sizeof *l->names);
    for (int i = 0; i < l->n; i++)
        l->names[i] = n->now.v[i].name;
    union {
        struct listing *from;
        DIR *to;
    } u = {.from = l};
    return u.to;
}

struct dirent *__wrap_readdir(DIR *d)
{
    if (!fiber_proc())
        return __real_readdir(d);
    struct listing *l = listing_of(d);
    if (dead()) {
        errno = EIO;
        return NULL;
    }
    if (l->next == l->n)
        return NULL;
    strncpy(l->item.d_name, l->names[l->next++], sizeof l->item.d_name - 1);
    return &l->item;
}

int __wrap_closedir(DIR *d)
{
    if (!fiber_proc())
        return __real_closedir(d);
    struct listing *l = listing_of(d);
    int rc = __wrap_close(l->fd);
    free(l->names);
    free(l);
    return rc;
}

ssize_t __wrap_getrandom(void *to, size_t n, unsigned int flags)
{
    if (!fiber_proc())
        return __real_getrandom(to, n, flags);
    unsigned char *b = to;
    for (size_t i = 0; i < n; i++)
        b[i] = (unsigned char)sim_word(disk_mounted->sim);
    return (ssize_t)n;
}
