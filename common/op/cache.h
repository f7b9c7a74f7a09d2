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

// The position of keys that attention is not to read: no query sees so far.
enum { CACHE_UNUSED = 1 << 30 };

// The newest position up to `last` whose place this is. A place that has no row yet has the position
// `unused`; 0: it stands right behind the last, so that no query that counts sees it, and its number is
// none that a text has not met. Places are filled from the first on.
static inline int32_t cache_position(int32_t last, int64_t place, int64_t places, int64_t unused)
{
    int64_t back = (last - place) % places;
    int64_t position = last - (back < 0 ? back + places : back);
    return (int32_t)(position >= 0 ? position : unused ? unused : last + 1);
}

// How many of a sample's keys there are up to the last that a query may see; at least one.
static inline int64_t cache_filled(const int32_t *positions, int64_t places)
{
    while (places > 1 && positions[places - 1] == CACHE_UNUSED)
        places--;
    return places;
}
