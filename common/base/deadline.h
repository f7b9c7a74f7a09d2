// SPDX-License-Identifier: Apache-2.0
// When a loop has to wake up: times of the monotonic clock, 0 for never.
#pragma once
#include <stdint.h>

#include "common/base/clock.h"

static inline int64_t deadline_earlier(int64_t a, int64_t b)
{
    return !a || (b && b < a) ? b : a;
}

// For how many milliseconds poll() may wait: none for a time that is over, for ever (−1) for never.
// Parts of one count as one, so that nobody wakes too early and turns idly. After an hour it wakes.
static inline int deadline_wait_ms(int64_t at, int64_t now)
{
    enum { HOUR_MS = 3600 * 1000 };
    if (!at)
        return -1;
    if (at <= now)
        return 0;
    int64_t ms = (at - now - 1) / CLOCK_MS + 1;
    return ms < HOUR_MS ? (int)ms : HOUR_MS;
}
