// SPDX-License-Identifier: Apache-2.0
// Copies bytes in units as large as both addresses allow; the dtype does not matter.
// Inside kernels/cuda/ only.
#pragma once
#include "kernels/cuda/launch.h"

// Returns the largest unit, a power of two up to 16, that divides all of some addresses, distances
// and lengths in bytes. `bits` is all of them joined by |.
static inline int unit_of(uint64_t bits)
{
    int unit = 16;
    while (bits & (uint64_t)(unit - 1))
        unit /= 2;
    return unit;
}

// Copies unit `from_at` of one side to unit `to_at` of the other.
DEVICE void unit_copy(void *to, int64_t to_at, const void *from, int64_t from_at, int unit)
{
    if (unit == 16)
        ((uint4 *)to)[to_at] = ((const uint4 *)from)[from_at];
    else if (unit == 8)
        ((uint2 *)to)[to_at] = ((const uint2 *)from)[from_at];
    else if (unit == 4)
        ((uint32_t *)to)[to_at] = ((const uint32_t *)from)[from_at];
    else if (unit == 2)
        ((uint16_t *)to)[to_at] = ((const uint16_t *)from)[from_at];
    else
        ((uint8_t *)to)[to_at] = ((const uint8_t *)from)[from_at];
}
