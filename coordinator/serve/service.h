// SPDX-License-Identifier: Apache-2.0
// Between gRPC and the decider: which method may be called by whom, what of it is an event, what is
// answered by a reader, and how actions leave. Inside coordinator/ only.
//
// In a pass of its loop the owner calls service_take for each rpc event, service_planned, and
// service_tick when it is due, all into one coord_out; then it commits the rows in one transaction;
// then it calls service_act. Readers' calls are answered at the end of the pass, so that no client
// learns what is not durable yet.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/rpc/rpc.h"
#include "coordinator/decide/coord.h"
#include "coordinator/serve/planner.h"
#include "coordinator/store/db.h"

struct service;

struct service_options { // all borrowed
    struct rpc *rpc;
    struct coord *coord;
    struct db *db;
    struct planner *planner;
    const char *tls_dir; // with the cluster's authority, for Join; null: nobody joins
};
struct service *service_new(const struct service_options *o);
void service_free(struct service *s); // null is fine

extern const struct rpc_method service_methods[];
extern const int service_nmethods;

void service_take(struct service *s, struct rpc_event *ev, struct coord_out *out);
void service_planned(struct service *s, struct coord_out *out); // what the planner has done, and
                                                                // those who look for its data
int64_t service_due(const struct service *s); // when service_planned has something; 0: no time
void service_tick(struct service *s, struct coord_out *out);
void service_act(struct service *s, const struct coord_out *out);
// Called when the decider was made again from the rows. Streams end, and come back by themselves.
// `why`: calls that would change something, and workers, are refused with this reason; null:
// nothing is refused any more. `lost` (may be null): the pass whose rows could not be written, so
// that its calls are refused too.
void service_use_db(struct service *s, struct db *db); // in place of the one before
void service_restart(struct service *s, struct coord *coord, const char *why,
                     const struct coord_out *lost);
