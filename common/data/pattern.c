// SPDX-License-Identifier: Apache-2.0
// Files by pattern. See pattern.h.
#include "common/data/pattern.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/path.h"
#include "common/base/root.h"

static const char special[] = "*?[";

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool is_there(const char *root, const char *path)
{
    int fd = -1;
    struct err e = {0};
    if (root_open(root, path, O_PATH, 0, &fd, &e))
        return false;
    close(fd);
    return true;
}

static int collect_matches(DIR *dir, const char *folder, const char *name, struct arena *a,
                           const char ***files, int *n)
{
    int cap = 0;
    struct dirent *d;
    errno = 0;
    while ((d = readdir(dir))) {
        if (fnmatch(name, d->d_name, FNM_PERIOD) == 0) {
            *files = arena_grow(a, *files, sizeof **files, *n, &cap);
            (*files)[(*n)++] = arena_printf(a, "%s%s", folder, d->d_name);
        }
        errno = 0;
    }
    return errno;
}

// Whether the text has a character that makes it a pattern.
static bool is_pattern(const char *path)
{
    return path[strcspn(path, special)] != 0;
}

int pattern_files(const char *root, const char *path, struct arena *a, const char ***files, int *n,
                  struct err *e)
{
    const char *name = path_name(path);
    const char *folder = arena_printf(a, "%.*s", (int)(name - path), path);
    int fd = -1;
    *n = 0;
    *files = NULL;
    if (!is_pattern(path) || is_there(root, path)) {
        *files = arena_array(a, const char *, 1);
        (*files)[(*n)++] = path;
        return 0;
    }
    if (is_pattern(folder))
        return err_set(e, ERR_INVALID,
                       "%s: a pattern stands in a folder's name: only the last "
                       "part of a path may be one",
                       path);
    int rc = root_open(root, *folder ? folder : ".", O_RDONLY | O_DIRECTORY, 0, &fd, e);
    if (rc)
        return rc;
    DIR *dir = fdopendir(fd);
    if (!dir) {
        rc = err_errno(e, ERR_IO, "cannot read the folder of %s", path);
        close(fd);
        return rc;
    }
    errno = collect_matches(dir, folder, name, a, files, n);
    if (errno)
        rc = err_errno(e, ERR_IO, "cannot read the folder of %s", path);
    else if (*n == 0)
        rc = err_set(e, ERR_NOTFOUND, "%s: no file matches", path);
    else
        qsort(*files, (size_t)*n, sizeof **files, compare_names);
    closedir(dir);
    return rc;
}
