// SPDX-License-Identifier: Apache-2.0
// Two daemons of our own: a coordinator and a worker as children of `weft run`. A verb that asks about
// a run starts the coordinator alone.
// Inside coordinator/cli/ only.
//
//   daemons_start → daemons_start_worker → (wait; daemons_restart) again and again → daemons_drain
//   → daemons_stop
//
// Both hold the reading end of a lifeline, a pipe: its end of file tells them that we are gone,
// even by kill -9. A daemon that a signal ended or that exits with 70 is started again, later each
// time; one that ends otherwise, or fails eight times in a row, is given up. They are in process
// groups of their own, so a Ctrl-C at the terminal is ours alone. Orphaned ranks come to us (a
// subreaper), so that daemons_stop returns when no process is left.
#pragma once
#include <sys/types.h>

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

enum { OWN_COORDINATOR, OWN_WORKER, OWN_DAEMONS };

struct own_daemon {
    const char *name; // of its program
    char program[4096], log[4200];
    char *argv[24];
    pid_t pid;        // 0 while it does not run
    int failures;     // in a row
    int64_t begun_ns; // when it was started last
    int64_t next_ns;  // when to start it again
    bool wanted;      // is started again if it fails
    bool given_up;    // has ended by itself, with `code`
    int code;
};
struct own_daemons {
    struct own_daemon daemon[OWN_DAEMONS];
    int lifeline[2]; // we hold the writing end
    int ready[2];    // the worker writes to it once it has attached
    char sockets[200], address[256];
    char root[4096], state[OWN_DAEMONS][4200], devices[16];
};

// Starts the coordinator. `state` is .weft/NAME, absolute and locked by us. The worker will offer
// `devices` devices if `kind` is cpu, else all devices of that kind that this machine has.
int daemons_start(struct own_daemons *m, const char *state, const char *kind, int devices,
                  struct err *e);
// Until then nothing of the job runs.
int daemons_start_worker(struct own_daemons *m, struct err *e);
// For who needs the coordinator alone: it listens when this returns, or has not begun to within 5 s.
int daemons_await_coordinator(struct own_daemons *m, struct err *e);
// Reaps what has ended and starts it again. ERR_INTERNAL if a daemon is given up; `e` names its
// log.
int daemons_restart(struct own_daemons *m, struct err *e);
// When daemons_restart will have something to start, in monotonic time; 0: nothing.
int64_t daemons_due(const struct own_daemons *m);
// Whether the worker has attached to the coordinator since it was started first.
bool daemons_ready(const struct own_daemons *m);
// Asks the worker to save what runs and to end; daemons_drained says whether it has. Meanwhile
// daemons_restart is called as before.
void daemons_drain(struct own_daemons *m);
bool daemons_drained(const struct own_daemons *m);
bool daemons_listen(const char *socket_path); // whether somebody does there
// Ends both, gently if `grace_ms` allows, and removes the sockets. No process of ours is left.
void daemons_stop(struct own_daemons *m, int64_t grace_ms);
