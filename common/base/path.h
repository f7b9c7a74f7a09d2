// SPDX-License-Identifier: Apache-2.0
// Parts of a path, as it is written.
#pragma once
#include <stdio.h>
#include <string.h>

// What stands behind the last '/', or all of it.
static inline const char *path_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

// The folder that it lies in: "." where it has no '/'. As much of it as there is room for.
static inline void path_folder(const char *path, char *out, size_t size)
{
    const char *slash = strrchr(path, '/');
    int len = slash && slash != path ? (int)(slash - path) : 1;
    snprintf(out, size, "%.*s", len, slash ? path : ".");
}
