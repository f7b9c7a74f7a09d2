// SPDX-License-Identifier: Apache-2.0
// See client_error.h.
#include "coordinator/client_error.h"

enum rpc_code client_error_code(const struct err *e)
{
    static const enum rpc_code codes[ERR_COUNT] = {
        [ERR_INVALID] = RPC_INVALID_ARGUMENT,        [ERR_NOTFOUND] = RPC_NOT_FOUND,
        [ERR_REFUSED] = RPC_UNAUTHENTICATED,         [ERR_EXISTS] = RPC_FAILED_PRECONDITION,
        [ERR_LIMIT] = RPC_RESOURCE_EXHAUSTED,        [ERR_FENCED] = RPC_PERMISSION_DENIED,
        [ERR_UNSUPPORTED] = RPC_FAILED_PRECONDITION,
    };
    PRE(e->code > 0 && e->code < ERR_COUNT);
    return codes[e->code] ? codes[e->code] : RPC_INTERNAL;
}
