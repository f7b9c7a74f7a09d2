// SPDX-License-Identifier: Apache-2.0
// When a loop has to wake up: times of the monotonic clock, 0 for never.
#pragma once
#include <stdint.h>

#include "common/base/clock.h"

static inline int64_t deadline_earlier(int64_t a, int64_t b)
{
    return !a || (b && b < a) ? b : a;
}

// Returns how many milliseconds poll() may wait: 0 for a time that is over, −1 (for ever) if there
// is none. It is rounded up, so that a loop does not wake too early and spin, and is an hour at
// most.
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
