// SPDX-License-Identifier: Apache-2.0
// The last lines of standard output's terminal, written over while something goes on. They stand on the
// normal screen below all that was printed, the cursor at their end; nothing is switched that would have
// to be switched back, so the process may end at any moment. Lines are cut to the terminal's width.
//
// Where the process is stopped and continued, or runs in the background, what a shell wrote meanwhile
// stays: the lines are left where they are, and drawn again below it once the process is in front. A
// terminal is asked its size at each turn, so no signal of a new size is needed.
// Inside coordinator/cli/ only.
#pragma once
#include <stdbool.h>
#include <stddef.h>

enum {
    LIVE_LINES = 16,
    LIVE_MARGIN =
        3, // columns that stay free: a Ctrl-C shows there as ^C, and must not break the line
};
struct live {
    bool on;               // standard output is a terminal that can be written over
    int lines;             // on the screen now
    int width[LIVE_LINES]; // of each
    int columns, height;   // of the terminal when they were drawn
};

void live_begin(struct live *l);
// Writes whole lines, which stay, and a picture below them over the one that was there. The picture is
// for plain_picture(), and plain otherwise.
void live_draw(struct live *l, const char *above, const char *picture, size_t len);
// Takes the lines away, for what is printed instead; that flushes.
void live_erase(struct live *l);
// Whether the lines do not fit the terminal, or stand elsewhere, since they were drawn.
bool live_is_stale(const struct live *l);
