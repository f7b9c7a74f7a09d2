// SPDX-License-Identifier: Apache-2.0
// The end of a process that this one has started.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

// Reaps it: it has `grace_ns` to end by itself, then it is killed. False: it does not die, since a
// driver or a file system holds it; it is left to itself.
bool child_end(pid_t pid, int64_t grace_ns, int *status);
