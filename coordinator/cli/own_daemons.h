// SPDX-License-Identifier: Apache-2.0
// Two daemons of our own: a coordinator and a worker as children of `weft run`.
//
//   daemons_start → (poll daemons_fd; daemons_turn …) → daemons_drain → daemons_stop
//
// Both hold the reading end of a lifeline: its end of file tells them that we are gone, kill -9
// included. A daemon that a signal ended or that exits with 70 is started again, later each time;
// one that ends otherwise, or fails eight times in a row, is given up. They are in process groups
// of their own, so a Ctrl-C at the terminal is ours alone. Orphaned ranks come to us (a subreaper),
// so that daemons_stop returns when no process is left.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

enum { OWN_COORDINATOR, OWN_WORKER, OWN_DAEMONS };

struct own_daemon {
    const char *name; // of the program
    char program[4096], log[4200];
    char *argv[24];
    int pid;          // 0: does not run
    int failures;     // in a row
    int64_t begun_ns; // the last start
    int64_t next_ns;  // when to start it again
    bool wanted;      // restarted when it fails
    bool given_up;    // ended by itself with `code`
    int code;
};
struct own_daemons {
    struct own_daemon daemon[OWN_DAEMONS];
    int lifeline[2]; // we hold the writing end
    char sockets[200], address[256];
    char root[4096], state[OWN_DAEMONS][4200], devices[16];
};

// `state`: .weft/NAME, absolute and locked by us. The worker offers as many CPU devices as
// `devices`; of another kind all that this machine has.
int daemons_start(struct own_daemons *m, const char *state, const char *kind, int devices,
                  struct err *e);
// Reaps and restarts what ended. ERR_INTERNAL: a daemon is given up; `e` names its log.
int daemons_turn(struct own_daemons *m, struct err *e);
int64_t
daemons_due(const struct own_daemons *m); // monotonic: when daemons_turn has something to start; 0
// The worker saves what runs and ends; true once it has (daemons_turn goes on meanwhile).
void daemons_drain(struct own_daemons *m);
bool daemons_drained(const struct own_daemons *m);
// Ends both, in order if `grace_ms` allows, and removes the sockets. No process of ours is left.
void daemons_stop(struct own_daemons *m, int64_t grace_ms);
