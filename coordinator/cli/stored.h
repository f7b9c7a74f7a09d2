// SPDX-License-Identifier: Apache-2.0
// What is stored of a `weft run` that is not under way, for verbs that read: the rows of its database
// are loaded into a decider that decides nothing, and questions are answered from it. Nothing is
// written and no process is started. Inside coordinator/cli/ only.
#pragma once
#include "common/rpc/rpc.h"
#include "proto/weft.pb-c.h"

struct stored;
int stored_open(struct stored **out, const char *folder, struct err *e);
void stored_close(struct stored *s); // null is fine
// As rpc_ask: *reply is the caller's to free. ERR_REFUSED with *code.
int stored_ask(struct stored *s, const struct rpc_method *m, const ProtobufCMessage *request,
               ProtobufCMessage **reply, enum rpc_code *code, struct err *e);
// Gives what the job's ranks wrote to `say`, as the coordinator's Logs do to a client that does not
// follow.
int stored_logs(struct stored *s, const Weft__V1__LogsRequest *request,
                void (*say)(void *ctx, const Weft__V1__LogLines *lines), void *ctx,
                enum rpc_code *code, struct err *e);
