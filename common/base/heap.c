// SPDX-License-Identifier: Apache-2.0
// Memory of the heap; see heap.h.
#include "common/base/heap.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"

void *heap_alloc(size_t bytes)
{
    void *p = calloc(1, bytes);
    PRE(p != NULL);
    return p;
}

char *heap_strdup(const char *s)
{
    char *copy = strdup(s ? s : "");
    PRE(copy != NULL);
    return copy;
}

void heap_set(char **field, const char *s)
{
    char *copy = heap_strdup(s);
    free(*field);
    *field = copy;
}
