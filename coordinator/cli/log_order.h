// SPDX-License-Identifier: Apache-2.0
// Lines of the logs of several ranks, attempts and hosts, brought into the order of their times. A
// line without a time, which a library wrote, stays behind the line of its rank that came before it.
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
    uint64_t epoch;
    const char *host, *text;
    size_t len;
};
struct log_rank {               // what was read of it
    char at[LOG_STAMP + 1];     // the time of the line that came last
    char newest[LOG_STAMP + 1]; // of all that came
    char until[LOG_STAMP + 1];  // an earlier reading came so far: what is not younger was shown
};
struct log_order {
    struct arena arena, lines_arena;
    struct log_rank *ranks;
    int nranks;
    struct log_line *lines;
    int n, cap;
};

// Takes the lines that were not shown in an earlier reading.
void log_order_add(struct log_order *o, const Weft__V1__LogLines *m);
// Sorts what came since the last emptying; the caller shows o->lines[0 … n) and empties it.
void log_order_sort(struct log_order *o);
void log_order_empty(struct log_order *o);
// All is read anew: what came so far is passed over. Returns whether anything had come.
bool log_order_again(struct log_order *o);
void log_order_clear(struct log_order *o);
