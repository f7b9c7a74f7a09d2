// SPDX-License-Identifier: Apache-2.0
// What a run leaves; see run_file.h.
#include "coordinator/cli/run_file.h"

#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "common/base/folder.h"

enum { FILE_ROOM = 128 };

int run_file_write(const char *root, const char *name, const char *kind, bool own,
                   const void *bytes, size_t len, struct err *e)
{
    char dir[PATH_MAX], file[FILE_ROOM];
    int fd;
    if (snprintf(dir, sizeof dir, "%s/.weft", root) >= (int)sizeof dir)
        return err_set(e, ERR_INVALID, "%.60s…: the path is too long", root);
    int rc = folder_make(dir, e);
    rc = rc ? rc : folder_open(root, ".weft", own, &fd, e);
    if (rc)
        return rc;
    snprintf(file, sizeof file, "%s.%s", name, kind);
    rc = folder_write_at(fd, ".", file, bytes, len, 0600, FOLDER_DURABLE, e);
    if (rc)
        err_wrap(e, "%s", dir);
    close(fd);
    return rc;
}

int run_file_read(const char *root, const char *name, const char *kind, size_t most,
                  struct buf *out, struct err *e)
{
    char file[FILE_ROOM];
    int fd, rc = folder_open(root, ".weft", true, &fd, e);
    if (rc)
        return rc;
    snprintf(file, sizeof file, "%s.%s", name, kind);
    rc = folder_read_whole(fd, file, true, most, out, e);
    if (rc)
        err_wrap(e, "%s/.weft/%s", root, file);
    close(fd);
    return rc;
}
