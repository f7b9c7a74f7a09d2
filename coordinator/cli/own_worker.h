// SPDX-License-Identifier: Apache-2.0
// The worker of a `weft run` in this process, on its main thread, which also takes the signals:
//
//   SIGINT, SIGTERM, SIGHUP   the ranks save and end, and the worker with them; once more: at once.
//                             A hang-up that is ignored at the start (nohup) stays so
//   SIGTSTP (Ctrl-Z)          all ranks stop, then this process; on SIGCONT all of them continue
//
// Ranks die with the thread that started them, and that is the one that outlives all others. They are
// in process groups of their own, so what a terminal sends reaches them this way alone.
// Inside coordinator/cli/ only.
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "coordinator/cli/flags.h"

struct own_worker {
    const char *folder, *coordinator; // .weft/NAME; its coordinator's address
    bool cpu;                         // it offers `devices` CPU devices, else all the GPUs
    int devices;
    const struct args *args; // of the verb: --sink and --grace
    const char *tls, *name;  // of an agent: its certificate's folder, what people call its host
    int stop;                // an eventfd: to write 1 asks to stop as a signal does, 2 as two do
    int signals;             // set by own_worker_read_signals
    void (*attached)(void *ctx);
    void (*stopped)(void *ctx); // a signal asked to stop; may be null
    void *ctx;
    int signal;               // that asked first; 0: none did
    atomic_bool stops_itself; // set by the owner when it stops: the next signal asks for no more
    atomic_bool connected;    // to its coordinator, now
    struct worker_daemon *daemon; // null while it does not run
};
// Call this before any thread is started.
int own_worker_read_signals(struct own_worker *w, struct err *e);
// Runs it until it was asked to stop, or until it cannot continue: an error.
int own_worker_run(struct own_worker *w, struct err *e);
int64_t own_worker_grace(const struct args *a); // for ranks to save when it is asked to stop
// For who waits for something else before or after that, when `signals` is readable.
void own_worker_take_signals(struct own_worker *w);
// Waits so long for a signal. Whether one, now or before, asked to stop.
bool own_worker_asked_to_stop(struct own_worker *w, int wait_ms);
