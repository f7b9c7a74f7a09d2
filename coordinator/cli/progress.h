// SPDX-License-Identifier: Apache-2.0
// A job's progress on the screen, for watch and run. On a terminal it is one line that is written
// over; elsewhere a line for each state, event and evaluation, and a line of steps every few
// seconds; with --json a line of JSON for each update. Inside coordinator/cli/ only.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "proto/weft.pb-c.h"

struct progress {
    bool json, live; // live: standard output is a terminal
    bool open;       // a live line is on the screen
    char job[64], name[80], store[600];
    Weft__V1__JobState state;
    uint64_t event; // seq of the newest that was shown, or that the job had when it was first seen
    int64_t step, steps, checkpoint;
    double loss, accuracy, eval_loss; // accuracy is NaN if the model has none
    double speed; // the mean of late: of tokens where the model has such, else of samples
    bool tokens;
    char text[1024]; // why it waits, how it ended; "" while there is nothing to say
    bool reported, evaluated, unsaved;
    int64_t shown_ns, said_step; // of the last line of steps
    int64_t eta_ns, eta_step;    // when and at which step counting began; -1 if not yet
};

void progress_init(struct progress *p, bool json);
void progress_update(struct progress *p, const Weft__V1__WatchUpdate *u);
void progress_say(struct progress *p, const char *text); // to standard error, above the live line
// Prints the last line of an ended job, and returns the exit code.
int progress_end(struct progress *p);
