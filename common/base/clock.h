// SPDX-License-Identifier: Apache-2.0
// Time. Durations and deadlines are monotonic; wall time is for people and file names only.
#pragma once
#include <stdint.h>

int64_t clock_mono_ns(void);
int64_t clock_wall_ms(void);
void clock_sleep_ms(int64_t ms);

#define CLOCK_MS 1000000LL
#define CLOCK_S  1000000000LL
