// SPDX-License-Identifier: Apache-2.0
// What concerns all living attempts at once: hosts that are lost, drain or come back, and time.
// No attempt is ended or freed here (settle.h does that), so the loops over all of them are safe.
// Inside coordinator/ only.
#pragma once
#include "coordinator/decide/attempt.h"

void attempts_host_lost(struct coord *c, struct host *host, const char *why);
void attempts_drain_host(struct coord *c, struct host *host, const char *why);
void attempts_hold(struct coord *c, struct host *host); // marks which of its devices are held
void attempts_tick(struct coord *c);
void attempts_renew_leases(struct coord *c, int64_t gap_ns); // this process stood still so long
void attempts_free(struct coord *c);                         // when the coordinator ends
