// SPDX-License-Identifier: Apache-2.0
// What concerns all living attempts at once: hosts that are lost, drain or come back, and time.
// None ends here (settle.h), so these loops keep what they stand on. Inside coordinator/ only.
#pragma once
#include "coordinator/attempt.h"

void attempts_host_lost(struct coord *c, struct host *host, const char *why);
void attempts_drain_host(struct coord *c, struct host *host, const char *why);
void attempts_hold(struct coord *c, struct host *host); // marks the host's devices that they hold
void attempts_tick(struct coord *c);
void attempts_afresh(struct coord *c, int64_t gap_ns); // all deadlines begin now
void attempts_free(struct coord *c);                   // with the coordinator
