// SPDX-License-Identifier: Apache-2.0
// The progress of work that this process does itself. On a terminal it is one line that is written over;
// elsewhere a line every few seconds; with --json nothing. An interrupt asks the work to end, a second
// one ends the process. Inside coordinator/cli/ only.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "coordinator/cli/live.h"

enum { BAR_LIVE_MS = 100, BAR_PLAIN_MS = 5000 }; // between two lines
struct bar {
    const char *what; // the word that begins the line; borrowed
    bool silent;
    struct live live;
    int64_t began_ns, shown_ns;
    uint64_t began; // what was done already when it was shown first
    bool counts;
};

void bar_begin(struct bar *b, const char *what, bool silent); // and listens for interrupts
// So much of `total` is done; 0: nobody knows of how much. Call it as often as you like.
void bar_show(struct bar *b, uint64_t done, uint64_t total, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
// The same of bytes, for who calls back: whether it is to end.
int bar_show_bytes(void *bar, uint64_t done, uint64_t total);
void bar_end(struct bar *b); // the line is gone
bool bar_interrupted(void);
