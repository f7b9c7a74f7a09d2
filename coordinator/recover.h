// SPDX-License-Identifier: Apache-2.0
// What follows when an attempt fails: which goal, at what cost, after what wait.
#pragma once
#include "coordinator/attempt.h"

enum fault_kind {
    FAULT_RANK,    // a rank died, hung, or ended with a code of its own: costs budget
    FAULT_OUTSIDE, // a host, a daemon, a peer: costs nothing
    FAULT_CONFIG,  // no restart can help
    FAULT_DATA,    // bad data, or a bad checkpoint: the previous one first
};
struct fault {
    enum fault_kind kind;
    enum event_kind event; // FAILED, LOST or HANG
    int rank;              // −1: none
    const char *host;
    const char *sign; // "exit 71": the same at the same step three times fails the job; null: none
    const char *log;  // its last lines, or null
    char text[1200];
};
// The attempt is over because of it; when it stops already, the story only gets the event.
void recover_fault(struct attempt *at, const struct fault *told);
// Nothing of the attempt lives any more: the job moves on to its goal.
void recover_over(struct job_record *j);
void recover_forgive(struct job_record *j); // `resume`: counts begin anew
