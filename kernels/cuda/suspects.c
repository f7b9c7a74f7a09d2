// SPDX-License-Identifier: Apache-2.0
// Configurations under trial, by the files that say so. See suspects.h.
#include "kernels/cuda/suspects.h"

#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "common/base/folder.h"
#include "kernels/cuda/algos.h"

enum { NAME_SIZE = 32 };

static void print_lines(const struct suspects *s, const char *key, const char *choice,
                        struct buf *text)
{
    buf_printf(text, "%s = %s\n%s\n", key, choice, s->owner);
}

static void print_name(const char *text, size_t n, char name[NAME_SIZE])
{
    snprintf(name, NAME_SIZE, "suspect-%016llx", (unsigned long long)algos_digest(text, n));
}

static void find_file(const struct suspects *s, const char *key, const char *choice,
                      char path[PATH_MAX])
{
    struct buf text = {0};
    char name[NAME_SIZE];
    print_lines(s, key, choice, &text);
    print_name(text.data, text.len, name);
    snprintf(path, PATH_MAX, "%s/%s", s->folder, name);
    buf_clear(&text);
}

bool suspects_know(const struct suspects *s, const char *key, const char *choice)
{
    char path[PATH_MAX];
    if (!s->folder)
        return false;
    find_file(s, key, choice, path);
    return access(path, F_OK) == 0;
}

int suspects_put(const struct suspects *s, const char *key, const char *choice, struct err *e)
{
    struct buf text = {0};
    char name[NAME_SIZE];
    if (!s->folder)
        return 0;
    print_lines(s, key, choice, &text);
    print_name(text.data, text.len, name);
    int rc = folder_make(s->folder, e);
    rc = rc ? rc : folder_write(s->folder, name, buf_str(&text), FOLDER_LOOSE, e);
    buf_clear(&text);
    return rc;
}

void suspects_clear(const struct suspects *s, const char *key, const char *choice)
{
    char path[PATH_MAX];
    if (!s->folder)
        return;
    find_file(s, key, choice, path);
    (void)unlink(path);
}
