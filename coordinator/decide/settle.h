// SPDX-License-Identifier: Apache-2.0
// The one place where consequences are drawn. Handlers of events record facts (a fault, a host that
// is reaped, a save that is committed) and mark whom they concern; at the end of the step settling
// decides what follows from them, until nothing changes any more. Attempts end and are freed here
// and nowhere else, so whoever holds one in a handler or a loop keeps it.
//
//   handlers ──► facts ──► settle ──┬─► fault: RECOVERING or a line of history, the ranks stop
//                                   ├─► the ranks have left after the last save: the hosts reap
//                                   ├─► nothing lives: the attempt ends, its job goes to its goal
//                                   └─► devices or jobs changed: a round of placement, and again
//
// It terminates. An attempt that is settled takes its fault and ends at most once; what is begun
// here has no facts yet. A round of placement that places or preempts nobody asks for no other one;
// after SETTLE_ROUNDS the rest waits for the next tick. Only those marked are visited.
// Inside coordinator/ only.
#pragma once
#include "coordinator/decide/coord_state.h"

void settle(struct coord *c);
