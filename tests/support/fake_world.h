// SPDX-License-Identifier: Apache-2.0
// Worlds whose ranks are threads of one process: the same operations without processes, sockets
// or memfds, to test the order of calls. When every rank that is still there waits and none can
// move, that is a deadlock: all of them get ERR_INTERNAL with who waits in what, at once and
// without a deadline. Two ranks that enter different operations get ERR_INTERNAL naming both, as
// they do on every transport.
#pragma once
#include "worker/collective/collective.h"

struct fake;
struct fake *fake_new(int ranks); // null when there is no memory
// One call a rank, from the thread that drives it; none waits for the others.
struct world *fake_world(struct fake *f, int rank);
void fake_free(struct fake *f); // after every opened world is closed
