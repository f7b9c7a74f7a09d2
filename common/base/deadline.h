// SPDX-License-Identifier: Apache-2.0
// When a loop has to wake up: times of the monotonic clock, 0 for never.
#pragma once
#include <stdint.h>

static inline int64_t deadline_earlier(int64_t a, int64_t b)
{
    return !a || (b && b < a) ? b : a;
}
