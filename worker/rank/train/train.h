// SPDX-License-Identifier: Apache-2.0
// Training, from an assignment to its end, on the process's main thread.
//
// process.c calls it once. It compiles, opens device and world, restores, agrees with the other
// ranks on the plan's hash (link_ready), runs the step loop and ends with the last checkpoint
// committed. One that is asked (assignment.only) restores parameters alone and answers (asked.h).
#pragma once
#include "common/base/err.h"
#include "worker/rank/link/assignment.h"

struct link;

enum train_end {
    TRAIN_FINISHED, // the last step is done and saved
    TRAIN_DRAINED,  // asked to stop: all ranks stopped at one step and saved
};

// Assignment and link are borrowed. After an error the world is closed (or aborted) and all threads
// are joined; the exit code follows from the error's code (rank_exit_code).
int train_run(const struct assignment *a, struct link *l, enum train_end *end, struct err *e);
