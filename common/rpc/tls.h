// SPDX-License-Identifier: Apache-2.0
// Credentials of both ends from PEM files that the core reads again when they change, and who a
// peer is. The files are checked here first: the core would start without them and fail every
// handshake. TLS is 1.2 at least, 1.3 is offered (the core's own rule). Inside common/rpc/ only.
#pragma once
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include "common/rpc/rpc.h"

bool tls_wanted(const struct rpc_tls *t);
// No TLS: insecure ones. A server needs all three files, a client at least ca.
int tls_server_credentials(const struct rpc_tls *t, grpc_server_credentials **out, struct err *e);
int tls_channel_credentials(const struct rpc_tls *t, grpc_channel_credentials **out, struct err *e);
// Role, name and address of a server's peer. `tls`: of the server.
void tls_peer(grpc_call *call, bool tls, struct rpc_peer *p);
