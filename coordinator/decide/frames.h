// SPDX-License-Identifier: Apache-2.0
// What agents say about attempts: storage acts that are done, ranks' frames and progress, ranks that
// ended, hosts that are reaped. A message counts when it is about an attempt that this coordinator
// knows on that very host; else the agent is asked to forget the attempt (Sync) or to stop it
// (Stop). Inside coordinator/ only.
#pragma once
#include "coordinator/decide/attempt.h"

void frames_up(struct coord *c, struct host *host, const Weft__V1__Up *up);
// A registration: all that the agent knows.
void frames_here(struct coord *c, struct host *host, const Weft__V1__Register *r);
