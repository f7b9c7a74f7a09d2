// SPDX-License-Identifier: Apache-2.0
// Time. Durations and deadlines are monotonic; wall time is for people and file names only.
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

int64_t clock_mono_ns(void);
int64_t clock_wall_ms(void);
void clock_sleep_ms(int64_t ms);
// Waits for a condition of clock_cond_init, as pthread_cond_wait does; false: the time is over.
void clock_cond_init(pthread_cond_t *c);
bool clock_cond_wait(pthread_cond_t *c, pthread_mutex_t *held, int64_t until_ns);
// Monotonic times of two processes may be compared where this is the same text; "": not known.
enum { CLOCK_BOOT = 40 };
void clock_boot(char out[CLOCK_BOOT]);

#define CLOCK_MS 1000000LL
#define CLOCK_S  1000000000LL
