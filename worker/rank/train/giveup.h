// SPDX-License-Identifier: Apache-2.0
// Giving up: a process must end, but its main thread waits for a device that has stopped. No call
// of the driver returns then, and nothing wakes that thread. Inside worker/rank/train/ only.
#pragma once
#include <stdint.h>

// Ends the process with this code, saying why, unless it has ended by itself by then. Any thread;
// the first call counts.
void give_up_after(int64_t ns, int code, const char *why);
