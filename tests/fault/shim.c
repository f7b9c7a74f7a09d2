// SPDX-License-Identifier: Apache-2.0
// libfaultshim.so, an LD_PRELOAD library: counts a program's file calls below one directory, writes
// each down, and at a chosen one stops the program, cuts the power or lets the call fail.
//
//   FAULT_DIR    calls on paths below it count (needed; absolute, without symbolic links)
//   FAULT_LOG    each call is appended as "NUMBER KIND PATH", the path relative to FAULT_DIR,
//                before it is carried out
//   FAULT_ARM    counting begins with the first call whose path contains this text
//   FAULT_MATCH  only calls whose path contains this text count
//   FAULT_KIND   only calls of this kind count: open create read write sync rename mkdir unlink
//                link truncate close
//   FAULT_AT     the number of the call meant, "N", or "N+" for it and all after it
//   FAULT_WHEN   before (the default) or after the call is carried out; of kill, stop and power
//   FAULT_DO     kill | stop | power: SIGKILL, SIGSTOP, or a shutdown of FAULT_DIR's xfs that loses
//                what was not flushed, and then SIGKILL
//                EIO | ENOSPC | EROFS: the call fails and is not carried out (a close is)
//                short: a write takes half of what it is given
//                slow: the call waits SLOW_S seconds first
//                wait: the call waits until the file FAULT_UNTIL is there; other threads go on
//
// Everything goes to the kernel by syscall(), so nothing here calls back into what it replaces.
// Deliberately absent: calls made inside the C library (stdio, opendir), which the checkpoint code
// does not write with.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

// From the kernel's xfs_fs.h, whose other contents want xfsprogs' headers.
#define XFS_IOC_GOINGDOWN         _IOR('X', 125, uint32_t)
#define XFS_GOING_FLAGS_NOFLUSHED 2u

enum { PATH_ROOM = 2 * PATH_MAX, SLOW_S = 5 };

static struct {
    const char *dir, *arm, *match, *kind, *doing, *until;
    int log;
    long at;
    bool and_after, when_after, armed;
    long count;
    pthread_mutex_t lock;
} fault = {.log = -1, .lock = PTHREAD_MUTEX_INITIALIZER};

struct call {
    bool meant; // the fault is for this one
    const char *doing;
};

__attribute__((constructor)) static void set_up(void)
{
    const char *log = getenv("FAULT_LOG"), *at = getenv("FAULT_AT"), *when = getenv("FAULT_WHEN");
    fault.arm = getenv("FAULT_ARM");
    fault.match = getenv("FAULT_MATCH");
    fault.kind = getenv("FAULT_KIND");
    fault.doing = getenv("FAULT_DO");
    fault.until = getenv("FAULT_UNTIL");
    fault.at = at ? strtol(at, NULL, 10) : 0;
    fault.and_after = at && strchr(at, '+');
    fault.when_after = when && !strcmp(when, "after");
    fault.armed = !fault.arm;
    if (log)
        fault.log = (int)syscall(SYS_openat, AT_FDCWD, log,
                                 O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    fault.dir = getenv("FAULT_DIR"); // last: from here on calls count
}

// ---- paths ----
static void path_of_fd(int fd, char out[PATH_ROOM])
{
    char link[40];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long n = syscall(SYS_readlinkat, AT_FDCWD, link, out, PATH_ROOM - 1);
    out[n > 0 ? n : 0] = 0;
}

static void path_at(int dirfd, const char *name, char out[PATH_ROOM])
{
    if (*name == '/') {
        snprintf(out, PATH_ROOM, "%s", name);
        return;
    }
    if (dirfd == AT_FDCWD) {
        if (syscall(SYS_getcwd, out, (long)PATH_MAX) < 0)
            *out = 0;
    } else {
        path_of_fd(dirfd, out);
    }
    size_t n = strlen(out);
    snprintf(out + n, PATH_ROOM - n, "/%s", name);
}

// The part below FAULT_DIR, or null.
static const char *below(const char *path)
{
    size_t n = fault.dir ? strlen(fault.dir) : 0;
    if (!n || strncmp(path, fault.dir, n) || (path[n] && path[n] != '/'))
        return NULL;
    return path[n] ? path + n + 1 : ".";
}

// ---- the fault ----
static void stop_here(const char *doing)
{
    if (!strcmp(doing, "power")) {
        uint32_t flags = XFS_GOING_FLAGS_NOFLUSHED;
        long fd = syscall(SYS_openat, AT_FDCWD, fault.dir, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || syscall(SYS_ioctl, fd, XFS_IOC_GOINGDOWN, &flags))
            abort(); // not an xfs of ours: the test must not go on as if the power had gone
    }
    // To this very thread: another one would take it while this one goes on to the call.
    syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), strcmp(doing, "stop") ? SIGKILL : SIGSTOP);
}

static bool is_stop(const char *doing)
{
    return !strcmp(doing, "kill") || !strcmp(doing, "stop") || !strcmp(doing, "power");
}

static void wait_for_file(const char *path)
{
    while (path && syscall(SYS_faccessat, AT_FDCWD, path, F_OK))
        usleep(1000);
}

static void write_down(const char *kind, const char *path)
{
    char line[PATH_ROOM + 64];
    int n = snprintf(line, sizeof line, "%ld %s %s\n", fault.count, kind, path);
    if (fault.log >= 0)
        syscall(SYS_write, fault.log, line, (size_t)n);
}

static struct call begin(const char *kind, const char *whole)
{
    struct call c = {.doing = fault.doing ? fault.doing : ""};
    const char *path = below(whole);
    if (!path)
        return c;
    pthread_mutex_lock(&fault.lock);
    fault.armed = fault.armed || strstr(path, fault.arm);
    if (fault.armed && (!fault.match || strstr(path, fault.match)) &&
        (!fault.kind || !strcmp(fault.kind, kind))) {
        fault.count++;
        write_down(kind, path);
        c.meant = fault.count == fault.at || (fault.and_after && fault.count > fault.at);
    }
    pthread_mutex_unlock(&fault.lock);
    if (c.meant && is_stop(c.doing) && !fault.when_after)
        stop_here(c.doing);
    if (c.meant && !strcmp(c.doing, "slow"))
        sleep(SLOW_S);
    if (c.meant && !strcmp(c.doing, "wait"))
        wait_for_file(fault.until);
    return c;
}

// The errno that the call is to fail with, or 0.
static int refused(const struct call *c)
{
    static const struct {
        const char *name;
        int code;
    } codes[] = {{"EIO", EIO}, {"ENOSPC", ENOSPC}, {"EROFS", EROFS}};
    for (size_t i = 0; c->meant && i < sizeof codes / sizeof *codes; i++)
        if (!strcmp(c->doing, codes[i].name))
            return codes[i].code;
    return 0;
}

static size_t shortened(const struct call *c, size_t len)
{
    return c->meant && len > 1 && !strcmp(c->doing, "short") ? (len + 1) / 2 : len;
}

static long end(const struct call *c, long rc)
{
    int saved = errno;
    if (c->meant && is_stop(c->doing) && fault.when_after)
        stop_here(c->doing);
    errno = saved;
    return rc;
}

// One call of up to five arguments: what all but reading, writing and closing have in common.
static long carry_out(const char *kind, const char *path, long number, const long arg[5])
{
    struct call c = begin(kind, path);
    int code = refused(&c);
    if (code) {
        errno = code;
        return -1;
    }
    return end(&c, syscall(number, arg[0], arg[1], arg[2], arg[3], arg[4]));
}
#define CARRY_OUT(kind, path, number, ...) \
    carry_out(kind, path, number, (const long[5]){__VA_ARGS__})
#define POINTER(p) ((long)(uintptr_t)(p))

// ---- opening ----
static int open_at(int dirfd, const char *name, int flags, mode_t mode)
{
    char path[PATH_ROOM];
    path_at(dirfd, name, path);
    return (int)CARRY_OUT(flags & O_CREAT ? "create" : "open", path, SYS_openat, dirfd,
                          POINTER(name), flags, mode);
}

int open(const char *name, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return open_at(AT_FDCWD, name, flags, mode);
}

int openat(int dirfd, const char *name, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    return open_at(dirfd, name, flags, mode);
}

int close(int fd)
{
    char path[PATH_ROOM];
    path_of_fd(fd, path);
    struct call c = begin("close", path);
    int code = refused(&c);
    long rc = syscall(SYS_close, fd); // the kernel frees it whatever it answers
    if (code) {
        errno = code;
        return -1;
    }
    return (int)end(&c, rc);
}

// ---- bytes ----
static ssize_t move(const char *kind, long number, int fd, long data, size_t len, off_t at)
{
    char path[PATH_ROOM];
    path_of_fd(fd, path);
    struct call c = begin(kind, path);
    int code = refused(&c);
    if (code) {
        errno = code;
        return -1;
    }
    return end(&c, syscall(number, fd, data, shortened(&c, len), at));
}

ssize_t read(int fd, void *to, size_t len)
{
    return move("read", SYS_read, fd, POINTER(to), len, 0);
}

ssize_t pread(int fd, void *to, size_t len, off_t at)
{
    return move("read", SYS_pread64, fd, POINTER(to), len, at);
}

ssize_t write(int fd, const void *from, size_t len)
{
    return move("write", SYS_write, fd, POINTER(from), len, 0);
}

ssize_t pwrite(int fd, const void *from, size_t len, off_t at)
{
    return move("write", SYS_pwrite64, fd, POINTER(from), len, at);
}

int fsync(int fd)
{
    char path[PATH_ROOM];
    path_of_fd(fd, path);
    return (int)CARRY_OUT("sync", path, SYS_fsync, fd);
}

int fdatasync(int fd)
{
    char path[PATH_ROOM];
    path_of_fd(fd, path);
    return (int)CARRY_OUT("sync", path, SYS_fdatasync, fd);
}

int ftruncate(int fd, off_t len)
{
    char path[PATH_ROOM];
    path_of_fd(fd, path);
    return (int)CARRY_OUT("truncate", path, SYS_ftruncate, fd, len);
}

// ---- names ----
int renameat2(int from, const char *old, int to, const char *name, unsigned flags)
{
    char path[PATH_ROOM];
    path_at(from, old, path);
    return (int)CARRY_OUT("rename", path, SYS_renameat2, from, POINTER(old), to, POINTER(name),
                          (long)flags);
}

int renameat(int from, const char *old, int to, const char *name)
{
    return renameat2(from, old, to, name, 0);
}

int rename(const char *old, const char *name)
{
    return renameat2(AT_FDCWD, old, AT_FDCWD, name, 0);
}

int linkat(int from, const char *old, int to, const char *name, int flags)
{
    char path[PATH_ROOM];
    path_at(to, name, path);
    return (int)CARRY_OUT("link", path, SYS_linkat, from, POINTER(old), to, POINTER(name), flags);
}

int link(const char *old, const char *name)
{
    return linkat(AT_FDCWD, old, AT_FDCWD, name, 0);
}

int mkdirat(int dirfd, const char *name, mode_t mode)
{
    char path[PATH_ROOM];
    path_at(dirfd, name, path);
    return (int)CARRY_OUT("mkdir", path, SYS_mkdirat, dirfd, POINTER(name), mode);
}

int mkdir(const char *name, mode_t mode)
{
    return mkdirat(AT_FDCWD, name, mode);
}

int unlinkat(int dirfd, const char *name, int flags)
{
    char path[PATH_ROOM];
    path_at(dirfd, name, path);
    return (int)CARRY_OUT("unlink", path, SYS_unlinkat, dirfd, POINTER(name), flags);
}

int unlink(const char *name)
{
    return unlinkat(AT_FDCWD, name, 0);
}

int rmdir(const char *name)
{
    return unlinkat(AT_FDCWD, name, AT_REMOVEDIR);
}
