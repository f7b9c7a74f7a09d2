// SPDX-License-Identifier: Apache-2.0
// The life of a rank as others see it: the states on its progress page and how it ends. Words that
// ranks, agents and the coordinator share.
#pragma once
#include <stdbool.h>

#include "common/base/rank_max.h"

enum { RANK_HOST_MAX = 128 };
enum { FOUND_MAX = 2000 }; // jobs that one host reports after a lost database
// Devices of one kind that a worker offers.
enum { HOST_DEVICES_MAX = 1024 };
// Kinds of devices of which it says why it offers none.
enum { HOST_LACKS_MAX = 4 };

// progress_page.state. A rank in RUNNING must change its page within hang_after of the longest
// step; the other states have a deadline of their own (watch.h).
#define RANK_STATES(X)                                                                            \
    X(STARTING, "starting") /* compiles, opens the device, joins the world, loads a checkpoint */ \
    X(READY, "ready")       /* waits for the others' plan hashes */                               \
    X(RUNNING, "running")   /* steps, evaluates */                                                \
    X(SAVING, "saving")     /* between steps or after the last: waits for a save's answer */      \
    X(ENDED, "ended")       /* about to exit */
enum rank_state {
#define X(id, text) RANK_##id,
    RANK_STATES(X)
#undef X
        RANK_STATE_COUNT
};
const char *rank_state_text(int state); // never null

// How a rank ends: its exit code.
enum rank_exit {
    RANK_EXIT_DONE = 0,
    RANK_EXIT_DATA = 65,
    RANK_EXIT_ABSENT = 66,
    RANK_EXIT_DAMAGED =
        67, // the checkpoint that it restores; the job's own failure is RANK_EXIT_DATA
    RANK_EXIT_LOST = 69,
    RANK_EXIT_INTERNAL = 70,
    RANK_EXIT_DEVICE = 71,
    RANK_EXIT_HOST = 74,
    RANK_EXIT_DRAINED = 75,
    RANK_EXIT_CONFIG = 78,
};
// The exit code of an ERR_* (base/err.h); 0 for 0.
int rank_exit_code(int err);
// Whether the rank itself is what went wrong: it is not done, nobody asked it to stop, and it did
// not give up because of another rank, which is then the cause.
bool rank_exit_is_cause(int code);
// Whether the same job on the same files would end so again: starting it once more does not help.
bool rank_exit_is_lasting(int code);
// Whether the machine is what went wrong, not the job: its device, disk, memory or network.
bool rank_exit_is_of_host(int code);
// Whether a signal that ended a rank blames the machine: it came from a person or the system, or it
// says that a mapped file could not be read. All others are the program's own faults.
bool rank_signal_is_of_host(int signal);
const char *rank_exit_text(int code); // "lost a peer"; where no more is known "failed"
