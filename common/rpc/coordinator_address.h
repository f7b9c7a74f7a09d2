// SPDX-License-Identifier: Apache-2.0
// Where the coordinator is, for whoever was not told: the flag, else WEFT_COORDINATOR, else
// MASTER_ADDR and MASTER_PORT (torchrun's), else the launch host of a Slurm job, else the
// Kubernetes service "weft-coordinator", else $XDG_RUNTIME_DIR/weft/coordinator.sock (root and who
// has none: /run/weft). The last is also where a coordinator listens that was not told.
#pragma once
#include <stddef.h>

#include "common/base/err.h"

enum { RPC_PORT = 7700 }; // where an environment names a host and no port

// `flag` may be null. ERR_INVALID: a port is no number, or the address is too long.
int coordinator_address(const char *flag, char *out, size_t size, struct err *e);
// The last of these places: the default socket.
int coordinator_address_default(char *out, size_t size, struct err *e);
