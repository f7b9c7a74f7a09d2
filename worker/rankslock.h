// SPDX-License-Identifier: Apache-2.0
// ranks.lock: the proof that no rank of this worker lives (README.md, "Locks").
// Inside worker/ only.
#pragma once
#include <stdbool.h>
#include <sys/types.h>

#include "common/base/err.h"

// A file description of its own, locked shared, to be passed to one rank; −1 with `e`.
int rankslock_share(const char *path, struct err *e);
// Writes down that a process lives, so that a later worker finds it. alone: no other one lives, so
// the record begins again.
int rankslock_record(const char *path, pid_t pid, bool alone, struct err *e);
// Takes the lock alone, killing what is recorded, and lets go of it with an empty record.
// ERR_TIMEOUT: something holds it and does not die.
int rankslock_prove(const char *path, int64_t wait_ns, struct err *e);
