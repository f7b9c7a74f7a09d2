// SPDX-License-Identifier: Apache-2.0
// See host_stream.h.
#include "coordinator/host_stream.h"

#include "common/base/log.h"

void host_stream_send(struct rpc *r, uint64_t conn, const Weft__V1__Down *down)
{
    struct err e = {0};
    if (!rpc_send(r, conn, &down->base, &e))
        return;
    log_warn("service", "a worker reads too slowly: %s", e.text);
    rpc_cancel(r, conn);
}
