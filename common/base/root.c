// SPDX-License-Identifier: Apache-2.0
// Paths beneath a root; see root.h.
#include "common/base/root.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

// openat2 fails with EAGAIN when a rename elsewhere kept it from checking a ".."; it is tried again.
enum { TRIES = 64 };

static bool has_no_root(const char *root)
{
    return !root || !*root;
}

static int leaves_root(const char *root, const char *path, struct err *e)
{
    int rc = err_set(e, ERR_INVALID, "path '%s' leaves the root %s", path, root);
    errno = EXDEV;
    return rc;
}

// Fills `e` from errno, which keeps its value.
static int report_failure(const char *act, const char *path, struct err *e)
{
    int saved = errno;
    int code = saved == ENOENT || saved == ENOTDIR       ? ERR_NOTFOUND
               : saved == ELOOP || saved == ENAMETOOLONG ? ERR_INVALID // no storage mends that
                                                         : ERR_IO;
    err_errno(e, code, "cannot %s %s", act, path);
    errno = saved;
    return code;
}

// Whether a path goes above where it starts, symbolic links aside: the kernel sees to those. It does
// not see to what follows a part that is not there yet.
static bool goes_above(const char *path)
{
    int depth = 0;
    while (*path) {
        size_t n = strcspn(path, "/");
        if (n == 2 && path[0] == '.' && path[1] == '.')
            depth--;
        else if (n > 0 && !(n == 1 && path[0] == '.'))
            depth++;
        if (depth < 0)
            return true;
        path += n + (path[n] == '/');
    }
    return false;
}

int root_relative(const char *root, const char *path, const char **out, struct err *e)
{
    *out = path;
    if (has_no_root(root))
        return 0;
    if (*path != '/')
        return goes_above(path) ? leaves_root(root, path, e) : 0;
    size_t n = strlen(root);
    while (n && root[n - 1] == '/')
        n--;
    if (strncmp(path, root, n) != 0 || (path[n] && path[n] != '/'))
        return leaves_root(root, path, e);
    const char *rest = path + n + strspn(path + n, "/");
    *out = *rest ? rest : ".";
    return goes_above(rest) ? leaves_root(root, path, e) : 0;
}

static int open_beneath(const char *root, const char *rest, const struct open_how *how)
{
    int dir = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return -1;
    long fd = -1;
    for (int i = 0; i < TRIES; i++) {
        fd = syscall(SYS_openat2, dir, rest, how, sizeof *how);
        if (fd >= 0 || errno != EAGAIN)
            break;
    }
    int saved = errno;
    close(dir);
    errno = saved;
    return (int)fd;
}

int root_open(const char *root, const char *path, int flags, mode_t mode, int *fd, struct err *e)
{
    flags |= O_CLOEXEC;
    if (has_no_root(root)) {
        *fd = open(path, flags, mode);
        return *fd < 0 ? report_failure("open", path, e) : 0;
    }
    *fd = -1;
    const char *rest;
    int rc = root_relative(root, path, &rest, e);
    if (rc)
        return rc;
    struct open_how how = {.flags = (unsigned)flags,
                           .mode = flags & (O_CREAT | O_TMPFILE) ? mode : 0,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    *fd = open_beneath(root, rest, &how);
    if (*fd >= 0)
        return 0;
    if (errno == EXDEV)
        return leaves_root(root, path, e);
    if (errno == ENOSYS)
        return err_set(e, ERR_UNSUPPORTED,
                       "this kernel has no openat2: no path can be held beneath the root %s", root);
    int saved = errno;
    rc = report_failure("open", path, e);
    if (*path != '/') // a relative path: say beneath which root it was looked for
        err_wrap(e, "beneath %s", root);
    errno = saved;
    return rc;
}

// The directory above the last part of `rest`, opened; *name is that part, within `text`.
static int open_above(const char *root, const char *rest, char text[PATH_MAX], const char **name,
                      int *dir, struct err *e)
{
    size_t len = strlen(rest);
    while (len > 1 && rest[len - 1] == '/')
        len--;
    if (len >= PATH_MAX)
        return err_set(e, ERR_INVALID, "the path %.200s… is too long", rest);
    snprintf(text, PATH_MAX, "%.*s", (int)len, rest);
    char *slash = strrchr(text, '/');
    *name = slash ? slash + 1 : text;
    if (slash)
        *slash = 0;
    return root_open(root, slash ? text : ".", O_PATH | O_DIRECTORY, 0, dir, e);
}

int root_mkdir(const char *root, const char *path, mode_t mode, bool *there, struct err *e)
{
    char text[PATH_MAX];
    const char *name = text, *rest;
    int dir;
    if (has_no_root(root)) {
        *there = mkdir(path, mode) != 0;
        return *there && errno != EEXIST ? report_failure("make", path, e) : 0;
    }
    int rc = root_relative(root, path, &rest, e);
    if (rc)
        return rc;
    if ((rc = open_above(root, rest, text, &name, &dir, e))) {
        err_wrap(e, "cannot make %s", path);
        return rc;
    }
    *there = mkdirat(dir, name, mode) != 0;
    if (*there && errno != EEXIST)
        rc = report_failure("make", path, e);
    close(dir);
    return rc;
}

int root_join(const char *root, const char *path, char *out, size_t size, struct err *e)
{
    bool as_is = has_no_root(root) || *path == '/';
    size_t n = as_is ? 0 : strlen(root);
    while (n && root[n - 1] == '/')
        n--;
    int len = snprintf(out, size, "%.*s%s%s", (int)n, as_is ? "" : root, as_is ? "" : "/", path);
    return len >= 0 && (size_t)len < size
               ? 0
               : err_set(e, ERR_INVALID, "the path %.200s… is too long", path);
}
