// SPDX-License-Identifier: Apache-2.0
// An array in memory, so that a sanitizer sees whoever reads beyond its bytes. They are borrowed
// until array_close(); after a failure there is nothing to close.
#pragma once
#include <string.h>

#include "common/data/array.h"

static inline int parse_bytes(struct array *a, const void *bytes, size_t len, const char *name,
                              struct err *e)
{
    *a = (struct array){.path = strdup(name), .file = bytes, .file_len = len};
    int rc = array_parse(a, e);
    if (rc)
        array_close(a);
    return rc;
}
