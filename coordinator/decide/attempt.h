// SPDX-License-Identifier: Apache-2.0
// One placement of a job, from the storage probe to the last process reaped.
//
//   WRITE ─► RENAME ─► READ ─► FENCE ─► START ─► RUN ──► END ──► STOP ─► (over)
//     └─────────┴────────┴───────┘ no Start has gone out: over at once, nothing to reap
//
//   WRITE    every host writes a nonce into the job's folder,
//   RENAME   one host renames the folder of nonces,
//   READ     every host reads all of them: they see one storage
//   FENCE    one host makes the attempt's marker and lists what is committed. Its answer and the
//            checkpoint to continue from are durable before the first Start
//   START    every host gets its Start, until it has been heard of; the ranks agree on the plan
//   RUN      all ranks are ready
//   END      the last checkpoint is committed, the ranks leave by themselves
//   STOP     every host is asked to stop its ranks, again after each registration, until it has
//            confirmed that no process of the attempt lives, or is fenced
//
// Only facts are recorded here; settle.h decides what follows from them. What a phase asks of a host
// goes out once a stream (attempt_host.sent), and again on a new stream. Inside coordinator/ only.
#pragma once
#include "coordinator/decide/host.h"
#include "coordinator/decide/job_record.h"

enum attempt_phase {
    PHASE_WRITE,
    PHASE_RENAME,
    PHASE_READ,
    PHASE_FENCE,
    PHASE_START,
    PHASE_RUN,
    PHASE_END,
    PHASE_STOP,
};

struct attempt_host {
    struct host *host;
    char incarnation[ID_LEN];
    char nonce[ID_LEN];
    bool done;    // with the storage phase at hand
    bool back;    // its agent has said what it knows of the attempt
    bool started; // its agent has the Start
    bool reaped;
    uint64_t sent; // the stream on which the phase's message last went out
};
struct placed_rank {
    int host, device;
};
struct leader;
enum fault_kind {
    FAULT_RANK,    // a rank died, hung, or ended with a code of its own: costs budget
    FAULT_OUTSIDE, // a host, a daemon, a peer: costs nothing
    FAULT_HOST,    // a host's disk, memory or device, a signal from outside: the host is avoided
    FAULT_CONFIG,  // no restart can help
    FAULT_DATA,    // bad data, or a bad checkpoint: the previous one first
};
struct fault { // that ends an attempt
    enum fault_kind kind;
    enum event_kind event; // FAILED, LOST or HANG
    int rank;              // −1: none
    const char *host;
    enum fault_sign sign;
    int code;        // of EXIT and SIGNAL
    const char *log; // its last lines, or null
    char text[1400];
};
struct attempt {
    struct list link; // of coord.live
    struct list unsettled;
    const struct fault *fault; // of the step at hand: what settling decides about; null: none
    struct job_record *job;
    enum attempt_phase phase;
    int nhosts, nranks;
    struct attempt_host *hosts; // in the order of ranks
    struct placed_rank *ranks;
    struct leader *leader;
    int64_t deadline_ns;  // of the phase; 0: none
    int64_t grace_ms;     // of STOP
    char reason[200];     // of STOP
    bool finished;        // the save of the last step is committed
    bool final_aborted;   // it could not be written
    int64_t dropped;      // updates that its history has, of those that were not finite
    bool out_of_patience; // none could for longer than the job waits
};

struct rank_place { // of rank i
    struct host *host;
    int device;
};
void attempt_begin(struct job_record *j,
                   const struct rank_place *places); // → STARTING, PHASE_WRITE
void attempt_restore(struct job_record *j);   // from the row, after a restart; in no phase yet
void attempt_free(struct attempt *at);        // null is fine
void attempt_name_places(struct attempt *at); // of its ranks, for people: hosts may have new names

void attempt_enter(struct attempt *at, enum attempt_phase phase); // END and STOP: attempt_leave
void attempt_drive(struct attempt *at); // sends what the phase still has to
bool attempt_asks(const struct attempt *at, const struct attempt_host *h); // is an answer missing?
int64_t attempt_limit_s(enum attempt_phase phase);                         // 0: none

// ---- facts; settle.h draws the consequences at the end of the step ----
void attempt_settle(struct attempt *at); // marks it: settling looks at it
// The attempt is over because of it. The first fault of a step is the one that counts: what follows
// it in the same step are its consequences.
void attempt_fault(struct attempt *at, const struct fault *f);
void attempt_reaped(struct attempt *at, struct attempt_host *h); // its devices are given back
bool attempt_is_over(const struct attempt *at);                  // it ends, no process lives
void attempt_end(struct attempt *at);                            // settling alone: frees it

struct attempt_host *attempt_find_host(const struct attempt *at, const struct host *host);
bool attempt_all_back(const struct attempt *at);
void attempt_hold(struct attempt *at); // marks the devices that it holds
