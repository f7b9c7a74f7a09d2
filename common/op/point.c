// SPDX-License-Identifier: Apache-2.0
// Names of points. See point.h.
#include "common/op/point.h"

const char *point_name(enum point p)
{
    static const char *const names[POINT_COUNT] = {
#define X(id, name) [POINT_##id] = #name,
        POINT_TABLE(X)
#undef X
    };
    return names[p];
}
