// SPDX-License-Identifier: Apache-2.0
// What APPEND and RING mean by a place of a cache: rows of keys lie in a ring, the row of position p
// at place p mod places.
#pragma once
#include <stdint.h>

// Positions from 0 on.
static inline int64_t cache_place(int32_t position, int64_t places)
{
    return position % places;
}

// The newest position up to `last` whose place this is. A place that has no row yet stands right
// behind the last: no query that counts sees it, and its number is none that a text has not met.
static inline int32_t cache_position(int32_t last, int64_t place, int64_t places)
{
    int64_t back = (last - place) % places;
    int64_t position = last - (back < 0 ? back + places : back);
    return (int32_t)(position < 0 ? last + 1 : position);
}
