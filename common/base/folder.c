// SPDX-License-Identifier: Apache-2.0
// Small files; see folder.h.
#include "common/base/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/url.h"

bool folder_name_ok(const char *name)
{
    static const char set[] = "abcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t n = strlen(name);
    return n >= 1 && n <= 63 && strspn(name, set) == n && !strchr("._-", *name);
}

int folder_find_home(const char *variable, const char *usual, const char *name, char *out,
                     size_t size, struct err *e)
{
    const char *given = getenv(variable), *home = getenv("HOME");
    int n;
    if (given && *given == '/')
        n = snprintf(out, size, "%s/%s", given, name);
    else if (home && *home == '/')
        n = snprintf(out, size, "%s/%s/%s", home, usual, name);
    else
        return err_set(e, ERR_NOTFOUND, "there is no HOME with an absolute path");
    return n < (int)size ? 0 : err_set(e, ERR_INVALID, "the path %s is too long", out);
}

int folder_find_state(const char *name, char *out, size_t size, struct err *e)
{
    char ours[64];
    struct err why = {0};
    snprintf(ours, sizeof ours, "weft/%s", name);
    if (geteuid() == 0) {
        int n = snprintf(out, size, "/var/lib/%s", ours);
        return n < (int)size ? 0 : err_set(e, ERR_INVALID, "the path %s is too long", out);
    }
    if (folder_find_home("XDG_STATE_HOME", ".local/state", ours, out, size, &why))
        return err_set(e, ERR_INVALID, "--state is needed: %s", why.text);
    return 0;
}

int folder_make(const char *path, struct err *e)
{
    char at[PATH_MAX];
    if (url_refuse(path, e))
        return ERR_INVALID;
    if (snprintf(at, sizeof at, "%s", path) >= (int)sizeof at)
        return err_set(e, ERR_INVALID, "the path %s is too long", path);
    for (char *p = strchr(at + 1, '/'); p; p = strchr(p + 1, '/')) {
        *p = 0;
        if (mkdir(at, 0755) && errno != EEXIST)
            return err_errno(e, ERR_INVALID, "cannot make %s", at);
        *p = '/';
    }
    if (mkdir(at, 0700) && errno != EEXIST)
        return err_errno(e, ERR_INVALID, "cannot make %s", at);
    return 0;
}

// `own`: whether it is this user's alone.
static int check_folder(const struct stat *st, const char *path, bool own, struct err *e)
{
    if (!S_ISDIR(st->st_mode))
        return S_ISLNK(st->st_mode)
                   ? err_set(e, ERR_INVALID,
                             "%s is no folder but a link, which anybody may have put there", path)
                   : err_set(e, ERR_IO, "%s is no folder", path);
    if (own && st->st_uid != geteuid())
        return err_set(e, ERR_INVALID,
                       "%s belongs to user %u and this is user %u: what lies there is not believed",
                       path, (unsigned)st->st_uid, (unsigned)geteuid());
    if (own && st->st_mode & (S_IWGRP | S_IWOTH))
        return err_set(e, ERR_INVALID,
                       "others may write to %s: what lies there is not believed; if all of it is "
                       "yours: chmod go-w %s",
                       path, path);
    return 0;
}

int folder_check_own(const char *path, bool may_link, struct err *e)
{
    struct stat st;
    if ((may_link ? stat : lstat)(path, &st))
        return err_errno(e, ERR_INVALID, "cannot look at %s", path);
    return check_folder(&st, path, true, e);
}

int folder_make_own(const char *path, struct err *e)
{
    if (mkdir(path, 0700) && errno != EEXIST)
        return err_errno(e, ERR_IO, "cannot make %s", path);
    return folder_check_own(path, false, e);
}

int folder_open(const char *above, const char *name, bool own, int *fd, struct err *e)
{
    char path[PATH_MAX];
    struct stat st;
    *fd = -1;
    if (snprintf(path, sizeof path, "%s/%s", above, name) >= (int)sizeof path)
        return err_set(e, ERR_INVALID, "%.60s…: the path is too long", above);
    *fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int why = errno;
    if (*fd < 0 && why == ENOENT)
        return err_set(e, ERR_NOTFOUND, "there is no %s", path);
    int failed =
        *fd < 0 ? lstat(path, &st) : fstat(*fd, &st); // which kind it is errno does not say
    int rc = failed ? err_errno(e, ERR_INVALID, "cannot look at %s", path)
                    : check_folder(&st, path, own, e);
    errno = why;
    if (!rc && *fd < 0)
        rc = err_errno(e, ERR_INVALID, "cannot open %s", path);
    if (rc && *fd >= 0) {
        close(*fd);
        *fd = -1;
    }
    return rc;
}

static int sync_at(int dirfd, const char *path, struct err *e)
{
    int fd = openat(dirfd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = fd < 0 || fsync(fd) ? err_errno(e, ERR_IO, "cannot sync %s", path) : 0;
    if (fd >= 0)
        close(fd);
    return rc;
}

int folder_sync(const char *path, struct err *e)
{
    return sync_at(AT_FDCWD, path, e);
}

int folder_write(const char *dir, const char *name, const char *text, enum folder_lasting lasting,
                 struct err *e)
{
    return folder_write_bytes(dir, name, text, strlen(text), 0600, lasting, e);
}

// Opens what becomes DIR/name: a new file, whatever was left or laid there by others.
static int open_new(int dirfd, const char *dir, const char *name, mode_t mode, char tmp[PATH_MAX],
                    int *fd, struct err *e)
{
    if (snprintf(tmp, PATH_MAX, "%s/.%s.new", dir, name) >= PATH_MAX)
        return err_set(e, ERR_INVALID, "the path %s is too long", dir);
    unlinkat(dirfd, tmp, 0);
    *fd = openat(dirfd, tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    return *fd < 0 ? err_errno(e, ERR_IO, "cannot make %s", tmp) : 0;
}

int folder_check_write(const char *dir, const char *name, struct err *e)
{
    char path[PATH_MAX], tmp[PATH_MAX];
    struct stat st;
    int fd, rc = open_new(AT_FDCWD, dir, name, 0600, tmp, &fd, e);
    if (rc)
        return rc;
    close(fd);
    unlink(tmp);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return !*name || (!lstat(path, &st) && S_ISDIR(st.st_mode))
               ? err_set(e, ERR_INVALID, "%s is a folder, and is to be a file", path)
               : 0;
}

static bool write_all(int fd, const char *bytes, size_t len)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = write(fd, bytes + at, len - at);
        if (n < 0 && errno != EINTR)
            return false;
        at += n > 0 ? (size_t)n : 0;
    }
    return true;
}

int folder_write_at(int dirfd, const char *dir, const char *name, const void *bytes, size_t len,
                    mode_t mode, enum folder_lasting lasting, struct err *e)
{
    char path[PATH_MAX], tmp[PATH_MAX];
    int fd, rc = open_new(dirfd, dir, name, mode, tmp, &fd, e);
    if (rc)
        return rc;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (!write_all(fd, bytes, len) || (lasting == FOLDER_DURABLE && fsync(fd)))
        rc = err_errno(e, ERR_IO, "cannot write %s", tmp);
    close(fd);
    if (!rc && renameat(dirfd, tmp, dirfd, path))
        rc = err_errno(e, ERR_IO, "cannot rename %s", tmp);
    if (rc)
        unlinkat(dirfd, tmp, 0);
    return rc || lasting == FOLDER_LOOSE ? rc : sync_at(dirfd, dir, e);
}

int folder_write_bytes(const char *dir, const char *name, const void *bytes, size_t len,
                       mode_t mode, enum folder_lasting lasting, struct err *e)
{
    return folder_write_at(AT_FDCWD, dir, name, bytes, len, mode, lasting, e);
}

int folder_read(const char *dir, const char *name, char *out, size_t size, struct err *e)
{
    char path[PATH_MAX];
    out[0] = 0;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(e, errno == ENOENT ? ERR_NOTFOUND : ERR_IO, "cannot open %s", path);
    ssize_t n = read(fd, out, size - 1);
    close(fd);
    if (n < 0)
        return err_errno(e, ERR_IO, "cannot read %s", path);
    out[n] = 0;
    return 0;
}

int folder_read_fd(int fd, const char *name, size_t most, struct buf *out, struct err *e)
{
    enum { PIECE = 65536 };
    const size_t before = out->len;
    int rc = 0;
    for (ssize_t n = 1; !rc && n;) {
        buf_reserve(out, PIECE);
        n = read(fd, out->data + out->len, PIECE);
        if (n < 0 && errno != EINTR)
            rc = err_errno(e, ERR_IO, "cannot read %s", name);
        out->len += n > 0 ? (size_t)n : 0;
        if (out->len - before > most)
            rc = err_set(e, ERR_LIMIT, "%s has over %zu bytes", name, most);
    }
    buf_reserve(out, 0);
    out->data[out->len] = 0;
    return rc;
}

int folder_read_whole(int dirfd, const char *path, bool regular, size_t most, struct buf *out,
                      struct err *e)
{
    struct stat st;
    // Opening a pipe that nobody writes must not wait; reading may.
    int fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc = 0;
    if (fd < 0)
        return err_errno(e, errno == ENOENT ? ERR_NOTFOUND : ERR_IO, "cannot open %s", path);
    if (fstat(fd, &st) || (!S_ISREG(st.st_mode) && fcntl(fd, F_SETFL, 0))) {
        rc = err_errno(e, ERR_IO, "cannot look at %s", path);
    } else if (S_ISDIR(st.st_mode) || (regular && !S_ISREG(st.st_mode))) {
        errno = S_ISDIR(st.st_mode) ? EISDIR : EINVAL;
        rc = err_set(e, ERR_DATA, "%s is no regular file", path);
    } else if (S_ISREG(st.st_mode) && st.st_size > (off_t)most) {
        rc = err_set(e, ERR_LIMIT, "%s has %jd bytes, over %zu", path, (intmax_t)st.st_size, most);
    }
    if (!rc)
        rc = folder_read_fd(fd, path, most, out, e);
    int why = errno;
    close(fd);
    errno = why;
    return rc;
}

void folder_remove(const char *path)
{
    DIR *d = opendir(path);
    struct dirent *it;
    while (d && (it = readdir(d)))
        if (strcmp(it->d_name, ".") && strcmp(it->d_name, ".."))
            (void)unlinkat(dirfd(d), it->d_name, 0);
    if (d)
        closedir(d);
    (void)rmdir(path);
}

int folder_lock(const char *dir, int *fd, struct err *e)
{
    char path[PATH_MAX], pid[32] = "";
    int rc = 0;
    *fd = -1;
    if (folder_check_own(dir, true, e))
        return ERR_INVALID;
    snprintf(path, sizeof path, "%s/lock", dir);
    *fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (*fd < 0)
        return err_errno(e, ERR_INVALID, "cannot open %s", path);
    if (flock(*fd, LOCK_EX | LOCK_NB)) {
        if (errno != EWOULDBLOCK)
            rc = err_errno(e, ERR_IO, "cannot lock %s", path);
        else if (!(rc = folder_read(dir, "lock", pid, sizeof pid, e)))
            rc = err_set(e, ERR_EXISTS, "%s is in use by pid %.*s", dir, (int)strcspn(pid, "\n"),
                         pid);
    } else {
        int n = snprintf(pid, sizeof pid, "%d\n", (int)getpid());
        if (pwrite(*fd, pid, (size_t)n, 0) != n || ftruncate(*fd, n)) // a full disk has room for it
            rc = err_errno(e, ERR_IO, "cannot write %s", path);
    }
    if (rc) {
        close(*fd);
        *fd = -1;
    }
    return rc;
}
