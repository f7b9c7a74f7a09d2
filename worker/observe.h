// SPDX-License-Identifier: Apache-2.0
// What this host is: its devices, as a short-lived probe process finds them, its memory, which
// hosts share memory with it, and the address by which others reach it. Inside worker/ only.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/err.h"
#include "worker/agent/agent.h"

// Runs `rank --probe --kind KIND` and adds the devices that it finds, *n, to those in `about`. cpus
// > 0: the CPU counts as so many devices with an equal share of its memory each. The arena owns them.
int observe_devices(const char *rank, const char *kind, int cpus, struct arena *a,
                    Weft__V1__Register *about, int *n, struct err *e);
int64_t observe_memory(void); // bytes of this machine
// Where the ranks of this user's workers on this machine meet: $XDG_RUNTIME_DIR/weft/runs or
// /tmp/weft-<uid>/runs, 0700 and ours; else STATE/meet, which no other worker shares. Made.
int observe_runs(const char *state, char *out, size_t size, struct err *e);
// Machine id, network namespace and that folder: hosts with the same text share memory and network.
void observe_share(const char *runs, char *out, size_t size);
// The address by which other hosts reach this one (nothing is sent): the local one of the route to
// the coordinator at HOST:PORT; where that is on this machine, of the default route, else of the
// only interface. "": there is none, or several and nothing says which.
void observe_address(const char *coordinator, char *out, size_t size);
