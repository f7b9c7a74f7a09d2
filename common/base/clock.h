// SPDX-License-Identifier: Apache-2.0
// Time. Durations and deadlines are monotonic; wall time is for people and file names only.
#pragma once
#include <stdint.h>

int64_t clock_mono_ns(void);
int64_t clock_wall_ms(void);
void clock_sleep_ms(int64_t ms);
// Monotonic times of two processes may be compared where this is the same text; "": not known.
enum { CLOCK_BOOT = 40 };
void clock_boot(char out[CLOCK_BOOT]);

#define CLOCK_MS 1000000LL
#define CLOCK_S  1000000000LL
