// SPDX-License-Identifier: Apache-2.0
// Which code of gRPC a client gets for an error of ours. Inside coordinator/ only.
#pragma once
#include "common/base/err.h"
#include "common/rpc/rpc.h"

enum rpc_code client_error_code(const struct err *e);
