// SPDX-License-Identifier: Apache-2.0
// Rank processes are spawned, heard, killed and reaped here. The agent decides, this carries out.
// Inside worker/ only.
//
//   STATE/ranks.lock   held shared by every living rank (each by a description of its own, opened
//                      for its spawn); whoever holds it alone has proof that none lives. Its text
//                      lists the processes, "pid start-time" a line, so that they can be killed.
//   RUNS/<job>.a<attempt>/        progress pages and sockets of an attempt (0700). Workers of one
//                                machine share RUNS, so that their ranks meet there
//   STATE/runs/<job>.a<attempt>/   names the pages that are ours; both go with Sync
//   STATE/jobs/<job>.a<attempt>/   logs (rank_logs.h)
//
// A rank prints into a pipe that never blocks it; what the pipe cannot take is lost. Spawning is
// the main thread's alone: a rank dies with the thread that spawned it (PR_SET_PDEATHSIG).
// Everything is called, and calls back, on that thread.
#pragma once
#include <stdint.h>

#include "common/attempt/page.h"
#include "common/base/err.h"
#include "proto/rank.pb-c.h"
#include "worker/agent/agent.h"
#include "worker/poll_loop.h"
#include "worker/rank_logs.h"

struct supervise;

struct supervise_ops {
    void *ctx;
    void (*frame)(void *ctx, int slot, const Weft__Rank__Frame *f);
    void (*page)(void *ctx, int slot, const struct page_view *v); // it changed
    // The process was reaped and all its frames and lines were taken. log: its last lines.
    void (*ended)(void *ctx, int slot, int code, int signal, const char *log);
};
struct supervise_config {
    struct poll_loop *loop; // borrowed
    struct logs *logs;      // borrowed: gets what is appended
    const char *state;      // the worker's directory, absolute
    const char *runs;       // RUNS, absolute (observe_runs)
    const char *rank;       // path of weft-rank
    const char *share;      // its --host
    struct supervise_ops ops;
};
// Kills what an earlier worker left and proves by ranks.lock that nothing lives.
int supervise_open(const struct supervise_config *c, struct supervise **out, struct err *e);
// Kills what still lives and proves it again. ERR_TIMEOUT names the pids that cannot be killed.
int supervise_prove(struct supervise *s, struct err *e);
void supervise_close(struct supervise *s); // kills and reaps what lives

int supervise_spawn(struct supervise *s, int slot, const struct agent_spawn *what, int *pid,
                    struct err *e);
void supervise_frame(struct supervise *s, int slot, const Weft__Rank__Frame *f);
void supervise_kill(struct supervise *s, int slot, int sig);
void supervise_signal_all(struct supervise *s, int sig); // every rank that lives
void supervise_look(struct supervise *s);                // reads the pages
void supervise_forget(struct supervise *s, const char *job, uint64_t attempt);
