// SPDX-License-Identifier: Apache-2.0
// What readers are answered: from the decider's state, and a job's events from the rows. The
// service asks, and the client about a `weft run` that is over (cli/stored.h). Inside coordinator/ only.
#pragma once
#include "common/rpc/rpc.h"
#include "coordinator/decide/coord.h"
#include "coordinator/store/db.h"

// The reply, in the arena, to one of the unary calls that change nothing; null with `e`.
const ProtobufCMessage *answer_question(const struct coord *c, struct db *db,
                                        const struct rpc_method *m, const ProtobufCMessage *request,
                                        struct arena *a, struct err *e);
