// SPDX-License-Identifier: Apache-2.0
// The element types of arrays in files. See array.h.
#include "common/data/array.h"

static const struct {
    const char *name;
    size_t size;
    bool is_int;
} types[ARRAY_TYPE_COUNT] = {
#define X(name, text, bytes, integer) [ARRAY_##name] = {text, bytes, integer},
    ARRAY_TYPES(X)
#undef X
};

const char *array_type_name(enum array_type t)
{
    return types[t].name;
}

size_t array_type_size(enum array_type t)
{
    return types[t].size;
}

bool array_type_is_int(enum array_type t)
{
    return types[t].is_int;
}
