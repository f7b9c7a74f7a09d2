// SPDX-License-Identifier: Apache-2.0
// One normally distributed number of a site of randomness.
#pragma once
#include "common/base/rand.h"

static inline float draw_normal(const struct rand_site *s, uint64_t index)
{
    float out;
    rand_normals(s, index, 1, &out);
    return out;
}
