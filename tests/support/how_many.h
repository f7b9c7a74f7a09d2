// SPDX-License-Identifier: Apache-2.0
// How much of a long sweep is done. Under sanitizers (WEFT_SANITIZED: make asan, make tsan), which
// look for what is read and written out of place and not for numbers, a third of what make test does.
#pragma once
#include <stdbool.h>
#include <stdlib.h>

// Of random cases, from the first seed on: so many in make test, all with WEFT_LONG.
static inline int how_many(int usual, int all)
{
    return getenv("WEFT_LONG") ? all : getenv("WEFT_SANITIZED") ? (usual + 2) / 3 : usual;
}

// Whether a sanitizer's run leaves out the next case of a table: two of three.
static inline bool is_spared(void)
{
    static int turn;
    return getenv("WEFT_SANITIZED") && !getenv("WEFT_LONG") && turn++ % 3;
}
