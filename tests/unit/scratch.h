// SPDX-License-Identifier: Apache-2.0
// A folder of a test's own beneath /tmp, and paths in it.
#pragma once
#include <stdio.h>
#include <stdlib.h>

#include "tests/unit/unit.h"

struct scratch {
    char dir[64];
};

static inline void scratch_make(struct scratch *s)
{
    snprintf(s->dir, sizeof s->dir, "/tmp/weft-test-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
}

static inline void scratch_remove(struct scratch *s)
{
    char line[100];
    snprintf(line, sizeof line, "chmod -R u+rwX %s; rm -rf %s", s->dir, s->dir);
    assert_int_equal(system(line), 0);
}

// DIR/rest. The text holds until eight more were asked for on this thread.
static inline const char *scratch_path(const struct scratch *s, const char *rest)
{
    static _Thread_local char path[8][300];
    static _Thread_local int next;
    next = (next + 1) % 8;
    snprintf(path[next], sizeof path[next], "%s/%s", s->dir, rest);
    return path[next];
}
