// SPDX-License-Identifier: Apache-2.0
// What goes down streams. Clients that follow are watchers of a job's state and readers of logs that
// hosts send; the other streams are workers'. Who does not read loses its stream, a client with
// RESOURCE_EXHAUSTED: the coordinator never waits. Inside coordinator/ only.
#pragma once
#include "common/base/list.h"
#include "common/rpc/rpc.h"
#include "coordinator/decide/coord.h"
#include "coordinator/store/db.h"

struct streams {
    struct rpc *rpc;
    const struct coord *coord;
    struct db *db; // of the events that a watcher asks for; null: there are none
    struct list watchers, tails;
    uint64_t asks; // numbers of log questions
    int n, ntails;
};
void streams_init(struct streams *s, struct rpc *rpc, const struct coord *coord, struct db *db);
void streams_clear(struct streams *s);
// Every call ends with UNAVAILABLE, so that the client asks again; then `coord` is who is asked.
void streams_end(struct streams *s, const struct coord *coord, const char *why);

// A client's new call; refusals are answered here.
void streams_watch(struct streams *s, uint64_t call, const Weft__V1__JobRequest *q);
void streams_logs(struct streams *s, uint64_t call, const Weft__V1__LogsRequest *q);
void streams_closed(struct streams *s, uint64_t call); // the client's call has ended

void streams_publish(struct streams *s, const char *job, const Weft__V1__WatchUpdate *u);
void streams_chunk(struct streams *s, uint64_t conn, const char *host, const Weft__V1__LogChunk *c);
void streams_host_gone(struct streams *s, uint64_t conn);
void streams_host_here(struct streams *s); // one has registered: who follows may have waited for it

// A worker that does not read loses its stream, so that nobody waits for its answer. When it comes
// back it gets everything again. What is sent to a stream that has ended is dropped.
void streams_send_down(struct rpc *r, uint64_t conn, const Weft__V1__Down *down);
// Which code of gRPC a client gets for an error of ours.
enum rpc_code streams_error_code(const struct err *e);
