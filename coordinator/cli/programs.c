// SPDX-License-Identifier: Apache-2.0
// Finding our other programs; see programs.h.
#include "coordinator/cli/programs.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int search_path(const char *name, char *out, size_t size)
{
    const char *path = getenv("PATH");
    for (const char *s = path ? path : "/usr/bin:/bin"; *s;) {
        size_t n = strcspn(s, ":");
        if (n && (size_t)snprintf(out, size, "%.*s/%s", (int)n, s, name) < size &&
            access(out, X_OK) == 0)
            return 0;
        s += n + (s[n] == ':');
    }
    return ERR_NOTFOUND;
}

int find_program(const char *name, char *out, size_t size, struct err *e)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n > 0) {
        self[n] = 0;
        *strrchr(self, '/') = 0;
        if ((size_t)snprintf(out, size, "%s/%s", self, name) < size && access(out, X_OK) == 0)
            return 0;
    }
    if (search_path(name, out, size) == 0)
        return 0;
    return err_set(e, ERR_NOTFOUND, "%s is neither beside weft (%s) nor in PATH", name, self);
}
