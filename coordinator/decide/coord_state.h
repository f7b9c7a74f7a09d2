// SPDX-License-Identifier: Apache-2.0
// The state that the decider's files share. Inside coordinator/ only; the contract with the owner
// is coord.h.
#pragma once
#include "common/base/clock.h"
#include "common/base/list.h"
#include "common/base/map.h"
#include "common/job/job.h"
#include "coordinator/decide/coord.h"
#include "coordinator/decide/ids.h"
#include "coordinator/decide/placement.h"

struct host;
struct job_record;
struct receiver;

// A host is avoided for so long after a failure there, twice as long after each further one.
enum { AVOID_LEAST_S = 60, AVOID_MOST_S = 3600 };
enum { FAILED_MAX = 8 }; // see queue.c
// What jobs wanted and a set of hosts could not give. While the set gains no device it need not be
// searched again, so that thousands of jobs that want the same cost one search.
struct queue_failed {
    int n, next;
    struct place_want v[FAILED_MAX];
};
// What the last round says about jobs that come later and want a kind of devices.
struct queue_tail {
    // A job that stands behind `at` in the queue waits behind the job `first`; null: no job is known
    // to wait so.
    const struct job_record *at, *first;
    struct queue_failed never; // fit none of the known hosts, even when they are empty
};

struct coord {
    struct coord_config config;
    char cluster[ID_LEN];
    char boot[CLOCK_BOOT]; // of this machine: monotonic times in rows of another one mean nothing
    uint64_t draws;        // of the seed
    struct map by_id;      // job id → struct job_record
    struct list jobs;      // by seq
    struct list queue;     // those QUEUED: by priority, then seq
    int nqueued;           // in it
    int64_t wake_ns;       // when the first of them that the last round left to its backoff may go
                           // on; 0: none waits so
    struct queue_tail tails[JOB_DEVICE_KINDS];
    struct list dirty;      // those whose row is to be written
    struct list live;       // attempts
    struct list unsettled;  // those of them with something to settle
    struct map hosts_by_id; // host id → struct host
    struct list hosts;      // the same, by the time they were first seen
    struct map fenced;      // "host/incarnation" → struct fenced
    struct list fences;     // the same
    struct map conns;       // of the number in hex → struct conn
    struct map requests;    // id → struct request
    struct list answered;   // the same, oldest first
    struct list notices;    // struct notice, oldest first
    struct receiver *receivers;
    int nreceivers;
    bool stops; // notices that were not tried yet go at once
    uint64_t next_seq, next_audit;
    // When the database was found lost, or set back: hosts are asked what lies in their folders.
    int64_t lost_ms;
    int64_t marks; // counted on as rows are written; the file beside the database says how far
    bool unmarked, unmarked_saves; // rows, among them of checkpoints, were written since
    bool meta_dirty, hosts_dirty, had_meta;
    bool started;
    char read_only[200]; // why nothing can be written; "": it can
    bool round_due;      // something changed that may let a job be placed
    int64_t now_ns, wall_ms, stepped_ns;
    int64_t grace_ns;                   // until then hosts are still coming back
    int64_t swept_ns;                   // when history was last trimmed
    int64_t failures, committed, steps; // counters of /metrics
    int64_t restarts[FAULT_SIGNS + 1];  // the same, by fault_sign; the last: a host lost
    struct coord_out *out;              // of the step at hand
};

static inline int64_t ms_ns(int64_t ms)
{
    return ms * CLOCK_MS;
}
