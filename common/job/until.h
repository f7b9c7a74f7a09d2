// SPDX-License-Identifier: Apache-2.0
// When a training is to stop: train.until, "2h" from now, or "23:40" of the clock, the next time that
// it shows it.
#pragma once
#include <stdbool.h>
#include <stdint.h>

bool until_ok(const char *text);
// Milliseconds since 1970 where it is `now_ms`; the clock is that of the local time zone.
int64_t until_end_ms(const char *text, int64_t now_ms);
// Of squeue's %L, "1-02:03:04", "2:03:04", "53:07": seconds; −1: it says none ("UNLIMITED").
int64_t until_read_time_left(const char *text);
