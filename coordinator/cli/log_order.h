// SPDX-License-Identifier: Apache-2.0
// Lines of the logs of several ranks, attempts and hosts, each once, in the order of their times. A
// line without a time, which a library wrote, stays behind the line of its rank that came before it.
// Inside coordinator/cli/ only.
//
// A log may be read several times, from other beginnings. What was shown is known by its position in
// the log of its rank and attempt, so nothing is shown twice, and bytes that never came are counted.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "proto/weft.pb-c.h"

enum { LOG_STAMP = 24 }; // "2026-01-02T03:04:05.678Z"

struct log_line {
    char stamp[LOG_STAMP + 1]; // "" if no line with a time came before it
    int order;                 // in which it came
    int rank;
    uint64_t attempt;
    int64_t left_out; // bytes of its rank's log before it that did not come
    const char *host, *text;
    size_t len;
};
struct log_source { // the log of one rank in one attempt
    uint64_t attempt;
    int64_t shown;          // the position behind the last line that was taken
    char at[LOG_STAMP + 1]; // the time of the last line that had one
};
struct log_rank {
    struct log_source *sources;
    int n, cap;
    uint64_t first; // `some`: attempts before this one were not asked for
};
struct log_order {
    struct arena arena, lines_arena;
    bool some;  // the first reading is of the last lines only: what lies before them is not wanted
    bool again; // it is not the first reading any more
    struct log_rank *ranks;
    int nranks;
    struct log_line *lines;
    int n, cap;
};

// Takes the lines that did not come in an earlier reading.
void log_order_add(struct log_order *o, const Weft__V1__LogLines *m);
// Sorts what came since the last emptying; the caller shows o->lines[0 … n) and empties it.
void log_order_sort(struct log_order *o);
void log_order_empty(struct log_order *o);
// Forgets what has come, since all is read again. Returns whether anything had come.
bool log_order_again(struct log_order *o);
void log_order_clear(struct log_order *o);
