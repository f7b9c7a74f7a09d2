// SPDX-License-Identifier: Apache-2.0
// What goes down a worker's stream. Inside coordinator/ only.
#pragma once
#include "common/rpc/rpc.h"
#include "proto/weft.pb-c.h"

// A worker that does not read loses its stream, so that nobody waits for its answer. When it comes
// back it is told everything anew. What is sent to a stream that has ended is dropped.
void host_stream_send(struct rpc *r, uint64_t conn, const Weft__V1__Down *down);
