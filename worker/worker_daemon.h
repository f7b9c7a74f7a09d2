// SPDX-License-Identifier: Apache-2.0
// The running worker: one loop that feeds the agent what happens and carries out what it decides.
// Everything is on the main thread but storage acts and gRPC, which hand over by descriptors.
// Inside worker/ only.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/rpc/rpc.h"
#include "worker/agent/agent.h"
#include "worker/home.h"

extern const struct rpc_method hosts_attach, hosts_join;

struct worker_daemon_config {
    struct home *home;         // borrowed, open
    const char *coordinator;   // address
    struct rpc_tls tls;        // null pointers: none
    const char *rank;          // path of weft-rank
    const char *runs;          // where ranks meet (observe_runs)
    struct agent_config agent; // all but seed and incarnation
    int ready_fd;              // gets the host's id when the worker has attached first; −1: none
    int parent_fd;             // its end of file ends this worker at once; −1: none
};
// Until asked to stop or fenced: *code is the exit code. Signals SIGTERM and SIGINT are blocked by
// the caller, before any thread. An error: it could not begin.
int worker_daemon_run(const struct worker_daemon_config *c, int *code, struct err *e);
