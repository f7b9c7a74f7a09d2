// SPDX-License-Identifier: Apache-2.0
// Transports of devices, as NCCL's would be: they take device pointers, start and wait return at
// once, and a collective takes place when the device comes to it. For late.c's devices; the bytes
// go through a world.
//
// event_transport has a stream for each communicator, behind events: what is started goes on beside
// the computation and completes by an event. inline_transport puts a collective on the
// computation's own stream, where a graph may hold it: a rank does its collectives strictly one
// after the other, which ends only where the starts of all ranks lie in one order (transport.h).
#pragma once
#include <stdatomic.h>

#include "worker/collective/transport.h"

extern const struct transport event_transport, inline_transport;

// Of all ranks of this process since the last look: calls of start, collectives that took place,
// fabrics that were told of an abort.
struct late_transport_counts {
    int starts, done, aborts;
};
struct late_transport_counts late_transport_counts(void);
