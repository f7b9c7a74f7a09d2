// SPDX-License-Identifier: Apache-2.0
// What agents tell of attempts: storage acts done, ranks' frames, progress, ends, reaped. Every
// message is of an attempt that lives here on that very host, or it is answered so that the agent
// forgets it (Sync) or stops it (Stop).
#pragma once
#include "coordinator/attempt.h"

void frames_up(struct coord *c, struct host *host, const Weft__V1__Up *up);
// A registration: all that the agent knows.
void frames_here(struct coord *c, struct host *host, const Weft__V1__Register *r);
