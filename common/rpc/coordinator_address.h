// SPDX-License-Identifier: Apache-2.0
// Where the coordinator is. The first of these that is there:
//
//   the flag
//   WEFT_COORDINATOR
//   MASTER_ADDR and MASTER_PORT, as torchrun sets them
//   the launch host of a Slurm job, SLURM_LAUNCH_NODE_IPADDR
//   the Kubernetes service "weft-coordinator"
//   $XDG_RUNTIME_DIR/weft/coordinator.sock; /run/weft for root and where that is not set
//
// A coordinator without an address of its own listens at the last.
#pragma once
#include <stddef.h>

#include "common/base/err.h"

enum { RPC_PORT = 7700 }; // where an environment names a host and no port

// `flag` may be null. ERR_INVALID: a port is no number, or the address is too long.
int coordinator_address(const char *flag, char *out, size_t size, struct err *e);
// The last of these: the default socket.
int coordinator_address_default(char *out, size_t size, struct err *e);
