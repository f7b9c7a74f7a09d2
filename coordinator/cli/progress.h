// SPDX-License-Identifier: Apache-2.0
// A job's progress on the screen, for watch and run. On a terminal the last lines are the job's curves
// and numbers, written over a few times a second (live.h); on one of under 40 columns or 12 lines it is a
// single line. Events stay above them, and the last picture when all is over. Elsewhere it is a line for
// each state, event and evaluation, and a line of steps every few seconds; with --json a line of JSON
// for each update. Inside coordinator/cli/ only.
//
//   progress_init → link is set → progress_update for each update, progress_turn at least every
//   progress_pause_ns → progress_end, or progress_leave where the job continues → progress_clear
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "coordinator/cli/job_curve.h"
#include "coordinator/cli/live.h"

struct progress {
    bool json;
    struct live live;
    struct job_curve *curve;     // null: standard output is no terminal
    const struct cli_link *link; // borrowed; whom to ask for what was measured before
    bool changed;                // since the last picture
    struct buf above;            // to be printed with the next one, above it
    char job[64], name[80], store[600];
    Weft__V1__JobState state;
    int failure; // the exit code that says why it failed; 0: none does
    uint64_t attempt;
    uint64_t event; // seq of the newest that was shown, or that the job had when it was first seen
    int64_t step, steps, checkpoint, checkpoint_attempt;
    double loss, accuracy, eval_loss; // accuracy is NaN if the model has none
    double step_ms;                   // of the newest; 0: not known
    double speed; // the mean of late: of tokens where the model has such, else of samples
    bool tokens;
    char text[1024]; // why it waits, how it ended; "" while there is nothing to say
    bool reported, evaluated, unsaved;
    bool left;                   // nobody runs it: it waits for no devices
    bool stepped;                // in this attempt, as far as it was watched
    int64_t shown_ns, said_step; // of the last line of steps
    int64_t eta_ns, eta_step;    // when and at which step counting began; -1 if not yet
};

void progress_init(struct progress *p, bool json);
void progress_update(struct progress *p, const Weft__V1__WatchUpdate *u);
void progress_turn(struct progress *p);
int64_t progress_pause_ns(const struct progress *p);
void progress_say(struct progress *p, const char *text); // to standard error, above the picture
// Prints the last picture of an ended job, and returns the exit code.
int progress_end(struct progress *p);
void progress_leave(struct progress *p); // prints the last picture of one that continues later
void progress_clear(struct progress *p);
