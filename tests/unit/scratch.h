// SPDX-License-Identifier: Apache-2.0
// A folder of a test's own beneath /tmp, and paths in it.
#pragma once
#include <stdatomic.h>
#include <stdio.h>

#include "tests/support/temp_folder.h"
#include "tests/unit/unit.h"

struct scratch {
    char dir[TEMP_FOLDER_MAX];
};

static inline void scratch_make(struct scratch *s)
{
    assert_int_equal(temp_folder_make(s->dir, "test"), 0);
}

static inline void scratch_remove(struct scratch *s)
{
    assert_int_equal(temp_folder_remove(s->dir), 0);
}

// DIR/rest. The text holds until RING more were asked for.
static inline const char *scratch_path(const struct scratch *s, const char *rest)
{
    enum { RING = 16 };
    static char path[RING][300];
    static atomic_uint next;
    char *out = path[atomic_fetch_add(&next, 1) % RING];
    snprintf(out, sizeof path[0], "%s/%s", s->dir, rest);
    return out;
}

static inline void scratch_write(const char *path, const void *bytes, size_t len)
{
    FILE *f = fopen(path, "wbe");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static inline int count_lines(const char *path)
{
    FILE *f = fopen(path, "re");
    int n = 0;
    assert_non_null(f);
    for (int c; (c = fgetc(f)) != EOF;)
        n += c == '\n';
    fclose(f);
    return n;
}
