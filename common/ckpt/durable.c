// SPDX-License-Identifier: Apache-2.0
// Durable acts in one directory. See durable.h.
#include "common/ckpt/durable.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/stream.h"
#include "common/base/system.h"

int durable_fsync(int fd, const char *what, struct err *e)
{
    return fsync(fd) ? err_errno(e, ERR_IO, "fsync of %s", what) : 0;
}

int durable_list(int dirfd, int (*each)(void *arg, const char *name, struct err *e), void *arg,
                 struct err *e)
{
    int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = 0;
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        rc = err_errno(e, ERR_IO, "cannot list the checkpoint directory");
        system_close(&fd);
        return rc;
    }
    while (!rc) {
        errno = 0;
        struct dirent *item = readdir(d);
        if (!item) {
            rc = errno ? err_errno(e, ERR_IO, "cannot list the checkpoint directory") : 0;
            break;
        }
        if (strcmp(item->d_name, ".") != 0 && strcmp(item->d_name, "..") != 0)
            rc = each(arg, item->d_name, e);
    }
    closedir(d);
    return rc;
}

int durable_write_file(int dirfd, const char *name, const void *data, size_t len, struct err *e)
{
    struct stream s = {0};
    int rc = stream_create(&s, dirfd, name, e);
    if (rc)
        return rc;
    rc = stream_write(&s, data, len, e);
    if (!rc)
        rc = stream_sync(&s, e);
    if (rc) {
        stream_close(&s, NULL);
        return rc;
    }
    return stream_close(&s, e);
}

// RENAME_NOREPLACE where the file system has it. Elsewhere a file is linked, since link() refuses
// an existing name; and rename() refuses to replace a directory that is not empty, which a
// committed one never is.
int durable_rename_new(int dirfd, const char *from, const char *to, struct err *e)
{
    int rc = renameat2(dirfd, from, dirfd, to, RENAME_NOREPLACE);
    if (rc && (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP)) {
        struct stat st;
        rc = fstatat(dirfd, from, &st, AT_SYMLINK_NOFOLLOW);
        if (!rc && S_ISDIR(st.st_mode))
            rc = renameat(dirfd, from, dirfd, to);
        else if (!rc && !(rc = linkat(dirfd, from, dirfd, to, 0)))
            unlinkat(dirfd, from, 0);
    }
    if (!rc)
        return 0;
    return err_errno(e, errno == EEXIST || errno == ENOTEMPTY ? ERR_EXISTS : ERR_IO,
                     "cannot rename %s to %s", from, to);
}

enum { TREE_DEPTH = 8 }; // of folders in a folder of ours

struct tree {
    int dir, depth;
};

static int remove_tree(int dirfd, const char *name, int depth, struct err *e);

static int remove_member(void *arg, const char *name, struct err *e)
{
    const struct tree *t = arg;
    if (!unlinkat(t->dir, name, 0) || errno == ENOENT)
        return 0;
    return remove_tree(t->dir, name, t->depth - 1, e);
}

// Follows no links.
static int remove_tree(int dirfd, const char *name, int depth, struct err *e)
{
    struct tree t = {openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW), depth};
    if (t.dir < 0)
        return errno == ENOENT ? 0 : err_errno(e, ERR_IO, "cannot remove %s", name);
    int rc = depth > 0
                 ? durable_list(t.dir, remove_member, &t, e)
                 : err_set(e, ERR_LIMIT, "%s: folders lie more than %d deep", name, TREE_DEPTH);
    close(t.dir);
    if (!rc && unlinkat(dirfd, name, AT_REMOVEDIR) && errno != ENOENT)
        rc = err_errno(e, ERR_IO, "cannot remove %s", name);
    return rc;
}

int durable_remove_tree(int dirfd, const char *name, struct err *e)
{
    const struct tree t = {dirfd, TREE_DEPTH + 1};
    return remove_member((void *)(uintptr_t)&t, name, e);
}
