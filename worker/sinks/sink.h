// SPDX-License-Identifier: Apache-2.0
// One sink of one attempt: a process that gets rows of metrics, started again when it dies.
// Inside worker/sinks/ only.
//
// A row is stored once the sink has reported it, by a number alone on a line of its standard output: how
// many rows of this process are durable; it reports 0 as its first act. Of a process that has not
// reported for 10 s after its start, a row is stored once it is in the pipe. What is stored is remembered
// in STORE/sinks/NAME as {"attempt","step","byte"}; what is not is given again, to the next process or
// the next attempt.
//
//   sink_begin → sink_turn … until it says that it is done → sink_end
#pragma once
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/base/buf.h"
#include "worker/sinks/tail.h"

enum { SINK_WINDOW = 4096 };     // rows that a process has not reported
enum { SINK_WORDS = 64 };        // of its command
enum { SINK_WORDS_KEPT = 4096 }; // bytes of what it printed last

struct sink_place { // of the last row that is stored
    uint64_t attempt;
    int64_t step, byte;
};
struct sink {
    const char *name, *job, *folder; // folder: STORE/sinks
    const char *header;              // a line
    const char *launcher;            // path of weft-sink
    char **argv;                     // of the launcher
    bool rewinds;                    // it takes a step again that an older attempt had
    struct tail tail;
    struct sink_place stored, saved;
    int64_t high; // the greatest step that was ever stored
    int64_t saved_ns;

    pid_t pid;         // 0: none
    int in, out, err;  // −1: closed
    struct buf unsent; // header and rows on their way into the pipe
    struct buf report; // half a line of its standard output
    struct buf last;   // what it printed last
    bool reports;
    int64_t given, reported;    // rows, by this process
    struct sink_place *window;  // of the rows that are given and not stored: [n % SINK_WINDOW]
    int64_t start_ns, pause_ns; // when to start it, and how long to wait after its next death
    int64_t began_ns, moved_ns; // this process; the last row that it took
    bool hangs;                 // it was reported
    bool closed;                // it was given all that there is, and its input has ended
};

void sink_begin(struct sink *s, int64_t now);
// Everything that can be done now without waiting. With `ending` it is given what is left, and its input
// ends. True: nothing is left to do for it.
bool sink_turn(struct sink *s, int64_t now, bool ending);
int sink_polls(const struct sink *s, struct pollfd out[3]); // what it waits for
// Ends the process if it lives, and reports rows that were not stored.
void sink_end(struct sink *s);
