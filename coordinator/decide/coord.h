// SPDX-License-Identifier: Apache-2.0
// The coordinator's decider: everything the coordinator knows, and what it does about each event.
// No I/O, no clock, no threads: time and messages arrive in the event, and what is to be done
// leaves as rows to write and actions to carry out. Inside coordinator/ only.
//
//   event ──► coord_step ──► out.rows     one transaction, durable first
//                        └─► out.actions  then these, in order
//
// The owner (coord_daemon.c; the simulator) may batch: several coord_step into one coord_out, one
// transaction, then all actions. A transaction that fails sends nothing and ends the process:
// memory is then ahead of the disk and only a restart from the rows is right.
//
// After a restart the owner feeds every stored row to coord_load and then calls coord_started.
// Readers (status, jobs, …) are functions of the state and never change it.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/err.h"
#include "common/base/id.h"
#include "coordinator/decide/row.h"
#include "proto/planner.pb-c.h"
#include "proto/weft.pb-c.h"

struct coord;

enum { COORD_LEASE_S = 10 }; // after so long without a word a host is given up

struct coord_config {
    unsigned char seed[32]; // of all ids, nonces and keys: random in main, given in tests
    const char *cluster;    // its id, from the state directory; null: coord_started makes a new one
    int64_t marks;          // coord_marks of what was durable last; 0: not known
    bool restored;          // a person says that the rows are an older copy
    const char *boot;       // of this machine (clock_boot): now_ns of events counts from it
    int64_t lease_ns;       // 0: COORD_LEASE_S
    int64_t heartbeat_ns;   // 0: 2 s
    int64_t keep_ended_ms;  // ended jobs, their events and rows; 0: 30 days
    int keep_ended;         // jobs of one user, the oldest go; 0: 20000
    int keep_events;        // a job, the oldest dropped; 0: 2000
    int keep_requests;      // answers that a repeat gets, for a day at most; 0: 200000
    int keep_notices;       // that wait for one receiver; 0: 1000
    const char *const *receivers; // of notices: names that jobs may name
    int nreceivers;
};

struct coord *coord_new(const struct coord_config *c);
void coord_free(struct coord *c); // null is fine
// Rows come kind after kind.
int coord_load(struct coord *c, const struct row *row, struct err *e);

enum coord_event_kind {
    COORD_EV_UP,       // conn said `up`
    COORD_EV_GONE,     // conn's stream has ended
    COORD_EV_FOUND,    // conn said `up`, an answer to FIND: facts
    COORD_EV_SUBMIT,   // call, who, role, submit, facts
    COORD_EV_ACT,      // call, who, role, act
    COORD_EV_TICK,     // time passed; at least every 100 ms while anything is open (coord_due)
    COORD_EV_REPLACED, // target: a host whose certificate another host uses now
    COORD_EV_POSTED,   // target: a receiver; id: of COORD_POST; posted, result: why not taken
    COORD_EV_AUDIT, // who, role, verb, target, result: a call decided elsewhere gets its audit row
    COORD_EVENTS
};
struct coord_event {
    enum coord_event_kind kind;
    int64_t now_ns;  // monotonic; all deadlines
    int64_t wall_ms; // since 1970; rows and people
    uint64_t conn;   // of a worker's stream; never used again
    const Weft__V1__Up *up;
    uint64_t call;          // to answer by
    const char *who, *role; // of a call, and who: whose certificate a stream has; "": none
    const Weft__V1__SubmitRequest *submit;
    Weft__Plan__JobFacts *const *facts; // of the submitted job, or of each that was found
    int from, to;                       // FOUND: of the list, those that this step takes
    const Weft__V1__ActRequest *act;
    enum audit_verb verb;
    const char *target, *result;
    enum post_result posted;
    const char *id;     // POSTED
    const char *notice; // SUBMIT: for the reply; may be null
};

enum coord_action_kind {
    COORD_SEND,   // down to conn
    COORD_DROP,   // end conn's stream after what was sent: code PERMISSION_DENIED or ABORTED, text
    COORD_REPLY,  // reply (SubmitReply or ActReply) to call
    COORD_REFUSE, // call: not done; `code` (RPC_*: invalid, not found, failed precondition) and
                  // text
    COORD_POST,   // text, a notice in JSON, to `receiver`; job: the notice's id
    COORD_PUBLISH // to whoever watches `job`: update (borrowed status, event or report)
};
struct coord_action {
    enum coord_action_kind kind;
    uint64_t conn, call;
    const Weft__V1__Down *down;
    const ProtobufCMessage *reply;
    int code; // gRPC's number
    const char *text;
    const char *job, *receiver;
    const Weft__V1__WatchUpdate *update;
};
struct coord_out { // all memory is the arena's
    struct arena *arena;
    int nrows, cap_rows;
    struct row *rows;
    int nactions, cap_actions;
    struct coord_action *actions;
};

// Once, after the rows: begins the grace of one lease, makes the cluster id if there is none.
void coord_started(struct coord *c, int64_t now_ns, int64_t wall_ms, struct coord_out *out);
// Called in place of coord_started where the rows may be read but nothing can be written. From then
// on only readers and coord_free may be called; whoever reads is shown `why`.
void coord_read_only(struct coord *c, int64_t now_ns, int64_t wall_ms, const char *why);
void coord_step(struct coord *c, const struct coord_event *ev, struct coord_out *out);
int64_t coord_due(const struct coord *c); // when the next TICK does something; 0: nothing is open

// ---- readers; results lie in the arena ----
// Whether the answer to a mutating call with this id is kept: its repeat does nothing.
bool coord_has_answered(const struct coord *c, const char *request_id);
const char *coord_cluster(const struct coord *c);
// Grows at every start, with every row of a checkpoint, and in each minute with other rows. Who keeps it
// beside the rows, after they are durable, finds out when they are an older copy.
int64_t coord_marks(const struct coord *c);
// A copy, the heap's, of the text of the job that `target` names, and the threads that it has by now.
// Null: it names none.
char *coord_copy_text(const struct coord *c, const char *target, int *threads);
// Whether the host behind this stream was asked which jobs lie in its folders, and has not answered.
bool coord_awaits_found(const struct coord *c, uint64_t conn);
// At most `max` jobs (0: any number) that were submitted after number `after`.
Weft__V1__JobsReply *coord_jobs(const struct coord *c, bool all, uint64_t after, size_t max,
                                struct arena *a);
// Null: nothing matches, or more than one does; `e` says which. `target` as in ActRequest.
Weft__V1__JobStatus *coord_status(const struct coord *c, const char *target, struct arena *a,
                                  struct err *e);
// Fills in all but `events`, which the database holds.
Weft__V1__WhyReply *coord_why(const struct coord *c, const char *target, int64_t now_ns,
                              struct arena *a, struct err *e);
Weft__V1__WorkersReply *coord_workers(const struct coord *c, int64_t now_ns, struct arena *a);
Weft__V1__CheckpointsReply *coord_checkpoints(const struct coord *c, const char *target,
                                              struct arena *a, struct err *e);
// A question to any host about a job's folder, and the streams that it may be put to: at most max.
// Returns how many these are, or −1 with `e`; texts are the job's, for this call.
int coord_row_question(const struct coord *c, const char *target, Weft__V1__Storage *to,
                       uint64_t *conns, int max, struct err *e);
// The streams of the hosts that hold logs of a job; rank −1, attempt 0: of all. Returns how many (at
// most max), or −1 with `e`.
int coord_log_hosts(const struct coord *c, const char *target, int rank, uint64_t attempt,
                    uint64_t *conns, int max, char job[ID_LEN], struct err *e);
struct coord_stream { // of a host that is here
    uint64_t conn;
    const char *name;
};
// The hosts with devices of a kind (enum job_device_kind); returns how many.
int coord_streams(const struct coord *c, int kind, struct arena *a, struct coord_stream **out);
// Whether another host may take the place of this one under their certificate: it is away, nothing
// of it is known to run, and nobody has taken it out of use.
bool coord_host_gives_way(const struct coord *c, const char *host);
struct coord_counts { // for /metrics
    int64_t jobs[JOB_STATES], hosts[HOST_STATES];
    int64_t devices, devices_busy;
    int64_t committed, failures, steps;
    bool writable; // false: the database cannot be written
    int64_t
        restarts[FAULT_SIGNS + 1]; // by how the attempt before failed; the last: its host was lost
};
enum host_room_of { HOST_ROOM_STATE, HOST_ROOM_CHECKPOINTS, HOST_ROOMS };
struct coord_room {   // of a host that is here, for /metrics
    const char *host; // its name
    const char *folder;
    int64_t free, size; // bytes of the folder's file system
};
int coord_rooms(const struct coord *c, struct arena *a, struct coord_room **out);
struct coord_receiver { // of notices, for /metrics
    const char *name;   // the coordinator's
    int64_t waiting, results[POST_RESULTS];
};
int coord_receivers(const struct coord *c, struct arena *a, struct coord_receiver **out);
// It is to stop soon: a notice that was not tried yet waits no longer, though its receiver took none before.
void coord_stops(struct coord *c);
bool coord_has_unsent(const struct coord *c); // a notice was not tried yet, or is on its way
// What a step report says besides, for /metrics; times in ms a step, negative: not known.
struct job_rates {
    bool known;
    double grad_norm, input_ms, compute_ms, communication_ms, checkpoint_ms;
};
// A job that has not ended, for /metrics. Texts are the job's.
struct coord_job {
    const char *id, *name;
    int64_t step; // -1: none
    int restarts;
    bool reported, evaluated; // the numbers below are known
    double loss, tokens_per_s, samples_per_s, eval_loss;
    struct job_rates rates;
    int64_t spent_ms[TIME_KINDS];
    int64_t saved_ms; // when its newest checkpoint was committed; 0: none is
};
int coord_live_jobs(const struct coord *c, struct arena *a, struct coord_job **out);
void coord_count(const struct coord *c, struct coord_counts *out);
