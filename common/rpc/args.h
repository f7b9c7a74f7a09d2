// SPDX-License-Identifier: Apache-2.0
// The core's channel arguments: a list to add to, and what both ends set. Inside common/rpc/ only.
#pragma once
#include <grpc/grpc.h>
#include <stdint.h>

enum { CHANNEL_ARGS_MAX = 24, KEEPALIVE_LEAST_MS = 200 };

// a->args has room for CHANNEL_ARGS_MAX.
void args_int(grpc_channel_args *a, const char *key, int value);
void args_text(grpc_channel_args *a, const char *key, const char *value); // borrowed
void args_pointer(grpc_channel_args *a, const char *key, void *value,
                  const grpc_arg_pointer_vtable *vtable);
int args_keepalive_ms(int64_t keepalive_ns); // with the default
void args_common(grpc_channel_args *a, int keepalive_ms);
