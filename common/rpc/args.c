// SPDX-License-Identifier: Apache-2.0
// Channel arguments. See args.h.
#include "common/rpc/args.h"

#include "common/base/clock.h"
#include "common/base/err.h"
#include "common/rpc/rpc.h"

static grpc_arg *add_arg(grpc_channel_args *a, const char *key, grpc_arg_type type)
{
    PRE(a->num_args < CHANNEL_ARGS_MAX);
    grpc_arg *arg = &a->args[a->num_args++];
    arg->type = type;
    arg->key = (char *)(uintptr_t)key; // the core copies
    return arg;
}

void args_int(grpc_channel_args *a, const char *key, int value)
{
    add_arg(a, key, GRPC_ARG_INTEGER)->value.integer = value;
}

void args_text(grpc_channel_args *a, const char *key, const char *value)
{
    add_arg(a, key, GRPC_ARG_STRING)->value.string = (char *)(uintptr_t)value;
}

void args_pointer(grpc_channel_args *a, const char *key, void *value,
                  const grpc_arg_pointer_vtable *vtable)
{
    grpc_arg *arg = add_arg(a, key, GRPC_ARG_POINTER);
    arg->value.pointer.p = value;
    arg->value.pointer.vtable = vtable;
}

int args_keepalive_ms(int64_t keepalive_ns)
{
    enum { USUAL_MS = 5000, HOUR_MS = 3600 * 1000 };
    int64_t ms = keepalive_ns ? keepalive_ns / CLOCK_MS : USUAL_MS;
    return ms < KEEPALIVE_LEAST_MS ? KEEPALIVE_LEAST_MS : ms > HOUR_MS ? HOUR_MS : (int)ms;
}

void args_common(grpc_channel_args *a, int keepalive_ms)
{
    args_int(a, GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, RPC_MESSAGE_MAX);
    args_int(a, GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0); // see packet.h
    args_int(a, GRPC_ARG_KEEPALIVE_TIME_MS, keepalive_ms);
    args_int(a, GRPC_ARG_KEEPALIVE_TIMEOUT_MS, keepalive_ms);
    args_int(a, GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    // Probing for bandwidth pings and sets timers with every read; our messages are small.
    args_int(a, GRPC_ARG_HTTP2_BDP_PROBE, 0);
    // By default pings end, silently, on a quiet stream.
    args_int(a, GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
}
