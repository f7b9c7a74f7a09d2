// SPDX-License-Identifier: Apache-2.0
// What tests of processes need of the file system: a fresh folder beneath /tmp, and the paths of the
// programs that were built with the test.
#pragma once
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEMP_FOLDER_MAX = 64 };

// "/tmp/weft-NAME-XXXXXX"; 0, or −1 as a set-up returns it.
static inline int temp_folder_make(char dir[TEMP_FOLDER_MAX], const char *name)
{
    snprintf(dir, TEMP_FOLDER_MAX, "/tmp/weft-%s-XXXXXX", name);
    return mkdtemp(dir) ? 0 : -1;
}

// With all that is in it, locked or not.
static inline int temp_folder_remove(const char *dir)
{
    char line[2 * TEMP_FOLDER_MAX + 40];
    snprintf(line, sizeof line, "chmod -R u+rwX %s; rm -rf %s", dir, dir);
    return system(line);
}

static inline void test_program(char out[PATH_MAX]) // the test itself
{
    ssize_t n = readlink("/proc/self/exe", out, PATH_MAX - 1);
    out[n > 0 ? n : 0] = 0;
}

// A program by its path in the build folder; tests lie in BUILD/tests/unit.
static inline void built_program(const char *name, char out[PATH_MAX])
{
    char self[PATH_MAX];
    test_program(self);
    for (int i = 0; i < 3; i++)
        *strrchr(self, '/') = 0;
    if (snprintf(out, PATH_MAX, "%s/%s", self, name) >= PATH_MAX)
        abort();
}
