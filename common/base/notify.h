// SPDX-License-Identifier: Apache-2.0
// What a daemon says about itself to systemd.
#pragma once
#include <stdint.h>

// "READY=1", "STOPPING=1". Without NOTIFY_SOCKET, or when nobody listens: nothing happens.
void notify_service(const char *state);
// How long systemd waits at most for the next "WATCHDOG=1"; 0: it does not wait for any.
int64_t notify_watchdog_ns(void);
