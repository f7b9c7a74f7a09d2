// SPDX-License-Identifier: Apache-2.0
// Giving up: a process that must end, and cannot where its main thread waits for a device that has
// stopped: no call of a driver comes back from there, and nothing wakes it.
#pragma once
#include <stdint.h>

// Ends the process with this code, saying why, unless it has ended by itself by then. Any thread;
// the first call counts.
void give_up_after(int64_t ns, int code, const char *why);
