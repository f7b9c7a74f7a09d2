// SPDX-License-Identifier: Apache-2.0
// A server and the health service inside it, as its two files see them. All is the rpc thread's.
// Inside common/rpc/ only.
#pragma once
#include "common/base/map.h"
#include "common/rpc/call.h"
#include "common/rpc/rate_limit.h"

struct rpc_server {
    struct rpc *r;
    struct list link; // in r->servers
    grpc_server *core;
    const struct rpc_method *methods;
    int nmethods;
    bool tls, serving, closing;
    bool failed, down; // never listened; the core is done with it
    int ncalls, max_calls, max_peers;
    struct list calls;
    struct list asking; // calls whose request is not here yet, the oldest first
    int64_t request_ns; // how long that may be so when others come
    struct rate rate;   // caller → how often it may call
    struct map peers;   // address → struct peer_calls: peers with open calls
    int npeers;
    struct guard *guard; // with TLS; null: none
    struct loop_tag down_tag;
};

// The health service's method at `path`, or null.
const struct rpc_method *health_method(grpc_slice path);
bool health_is(const struct rpc_method *m);
void health_emit(struct call *c, enum rpc_event_kind kind, ProtobufCMessage *m); // a call's emit
void health_changed(struct rpc_server *s);
