// SPDX-License-Identifier: Apache-2.0
// Solo: what replaces a coordinator when there is none, a directory seen by all ranks.
//
//   DIR/lock         held by rank 0 for life (flock); its pid is inside
//   DIR/id           job, cluster and run id, made once; the job's identity and its hash
//   DIR/job.yaml     the resolved job, as the newest attempt runs it: its mesh may change
//   DIR/state        the newest epoch and what it restores; durable before the address appears
//   DIR/saved        the step of the newest checkpoint, see saved_step.h
//   DIR/metrics.jsonl, DIR/logs/
//   DIR/epoch-E/     key (0600), address (appears whole, last), sock, page-RRRR
//
// Rank 0: solo_lead → solo_leader_start → solo_publish → … → solo_close. Others: solo_find until it
// works.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/ckpt/store.h"
#include "common/job/job.h"
#include "worker/rank/lead/rank_cores.h"
#include "worker/rank/link/assignment.h"

struct solo_options {
    const char *dir, *job_file;
    const char *const *overrides;
    int noverrides;
    int of;             // --of: how many ranks the job must have; 0: not given
    int rank;           // −1: spawn all
    const char *host;   // null: named after this machine and its network namespace
    const char *listen; // HOST:PORT, for ranks of other hosts
    bool fresh;         // --new: another job may take DIR over
    int parent;         // pid of the process that spawned this one; 0: none
};

struct solo {
    char dir[4000], epoch_dir[4050];
    char host[RANK_HOST_MAX];
    int lock_fd, unix_fd, tcp_fd; // the last two go to the leader
    char tcp_addr[200];           // "tcp:…" or ""
    struct job job;
    struct store store;
    struct store_entry *scan; // good committed checkpoints; the attempt's arena
    int nscan;
    int64_t had_step;    // of the newest checkpoint that DIR knew of before this attempt; 0: none
    bool had_is_damaged; // it is there, and cannot be used
    const char *changes; // how the job differs from the one that DIR had; null: it does not
    bool finished;       // the last step's checkpoint is there: nothing to do
};

// Parses and checks the job, for any rank. `violations` (may be null) gets all that is wrong, a line
// each; the error names the first. text and hash are the resolved job's; base_dir is set absolute.
int solo_job(const struct solo_options *o, struct arena *a, struct job *job, const char **text,
             char hash[65], struct buf *violations, struct err *e);
// Takes DIR for rank 0: lock, ids, fence, choice of the checkpoint, key, sockets. Fills in what
// Assign carries. A finished job is no error: there is no key and no socket then.
int solo_lead(const struct solo_options *o, struct solo *s, struct assignment *a, struct err *e);
// Whether the job names no threads and has not begun: then solo_settle_threads decides them by the
// cores of all ranks, before any is assigned, and DIR and the assignment tell the number.
bool solo_threads_are_open(const struct solo *s);
int solo_settle_threads(struct solo *s, struct assignment *a, const struct rank_cores *cores,
                        struct err *e);
int solo_publish(const struct solo *s, const struct assignment *a, struct err *e);
void solo_close(struct solo *s); // removes address, key and socket; zeroed is fine if lock_fd is −1

// Another rank: finds the newest epoch's leader and joins; tries again until the deadline or a
// pending SIGTERM or SIGINT (ERR_ABORTED). *finished: DIR says that the job is done.
int solo_find(const struct solo_options *o, struct solo *s, int64_t deadline_ns, int *fd,
              bool *finished, struct err *e);
// Host text of this process: "NAME-<machine>-<network namespace>".
void solo_host(const struct solo_options *o, char *out, size_t size);
