// SPDX-License-Identifier: Apache-2.0
// The running worker: it feeds the agent what happens and carries out what it decides. Everything is
// on the thread that runs the loop but storage acts and gRPC, which hand over by descriptors.
// Inside worker/ and for `weft run`, which has a worker of its own.
//
//   worker_daemon_open → worker_daemon_turn, until it says that all is over → worker_daemon_close
//
// The caller's loop may watch descriptors of the caller's too. Ranks are started by the thread that
// calls, which outlives them: a rank dies with the thread that started it.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/rpc/rpc.h"
#include "worker/agent/agent.h"
#include "worker/home.h"
#include "worker/poll_loop.h"

extern const struct rpc_method hosts_attach, hosts_join;

struct worker_daemon_config {
    struct home *home;        // borrowed, open
    const char *coordinator;  // address
    struct rpc_tls tls;       // null pointers: none
    const char *rank;         // path of weft-rank
    const char *runs;         // where ranks meet (observe_runs)
    const char *const *sinks; // NAME=COMMAND
    int nsinks;
    void (*sinks_wait)(const char *names); // as of sinks_close; may be null
    struct agent_config agent;             // all but seed and incarnation
};
struct worker_daemon;

// The configuration is borrowed. The caller has blocked its signals before: threads are started.
int worker_daemon_open(const struct worker_daemon_config *c, struct poll_loop *loop,
                       struct worker_daemon **out, struct err *e);
// Waits for what happens next, and does what follows from it. False: it was asked to stop and has, or
// was fenced.
bool worker_daemon_turn(struct worker_daemon *d);
void worker_daemon_stop(struct worker_daemon *d); // its ranks save and end; once more: at once
void worker_daemon_signal_ranks(struct worker_daemon *d, int sig); // every one that lives
bool worker_daemon_attached(const struct worker_daemon *d);        // ever, since it was opened
bool worker_daemon_connected(const struct worker_daemon *d);       // now
// Lets what was said last leave. Ranks that live are killed. Returns the exit code of weft-worker;
// null is fine.
int worker_daemon_close(struct worker_daemon *d);
