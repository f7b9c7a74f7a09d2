// SPDX-License-Identifier: Apache-2.0
// The log: one line an event on standard error, or where log_to() says, as
// "2026-01-02T03:04:05.678Z info ckpt job=a rank=1 step=7 text". Every line carries what
// log_context() set. Lines are written with one write(2), so processes may share the descriptor.
// Safe from any thread; log_context belongs to the main one.
#pragma once
#include <stddef.h>
#include <stdint.h>

enum log_level { LOG_INFO, LOG_WARN, LOG_ERROR };

void log_to(int fd);                         // before threads start
void log_context(const char *job, int rank); // null and −1 leave the key out
void log_step(int64_t step);                 // −1 leaves the key out

void log_line(enum log_level level, const char *subsystem, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

// Copies what the last line of level error says, out of a piece of a log; "" if none is there.
void log_last_error(const char *log, char *out, size_t size);

#define log_info(sub, ...)  log_line(LOG_INFO, sub, __VA_ARGS__)
#define log_warn(sub, ...)  log_line(LOG_WARN, sub, __VA_ARGS__)
#define log_error(sub, ...) log_line(LOG_ERROR, sub, __VA_ARGS__)
