// SPDX-License-Identifier: Apache-2.0
// The end of a process that this one has started.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

// Gives the process `grace_ns` to end by itself, then kills it, and reaps it. Returns false if it
// does not die even then, because a driver or a file system holds it.
bool child_end(pid_t pid, int64_t grace_ns, int *status);
