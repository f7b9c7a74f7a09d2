// SPDX-License-Identifier: Apache-2.0
// A job as the coordinator knows it: its row, its state, what it waits for, where its time goes.
//
//   QUEUED ──► STARTING ──► RUNNING ──┬──► DRAINING(goal) ──► SUCCEEDED QUEUED HELD CANCELLED
//     │  ▲        └──────────┬────────┴──► RECOVERING(goal) ─► STARTING QUEUED HELD FAILED
//     CANCELLED ▼  │                   └ (either)
//   HELD · CANCELLED      HELD, FAILED, CANCELLED ──resume──► QUEUED
//
// A move is one event row. The job's row is written once a step, whatever happened in it
// (job_flush). Memory is the heap's; the row is a protobuf-c message whose texts are the heap's.
#pragma once
#include "common/ckpt/commit.h"
#include "common/job/job.h"
#include "coordinator/coord_state.h"

typedef Weft__Rows__JobState job_state;
#define JOB(name) WEFT__ROWS__JOB_STATE__##name
enum { JOB_STATES = JOB(CANCELLED) + 1 };

enum job_wait {   // why a queued job is not placed; the story tells it
    WAIT_NEW,     // no round has seen it yet
    WAIT_BACKOFF, // until not_before
    WAIT_NEVER,   // the known hosts could not take it
    WAIT_DEVICES, // others hold what it needs
    WAIT_COMING,  // others that hold it are stopping
    WAIT_BEHIND,  // `behind` is first
};

struct ckpt_row { // what the store holds
    struct store_entry id;
    int state;
    bool bad, pinned;
    int64_t t_ms; // when its state last changed
};

struct attempt;
struct job_record {
    struct list link, queued, touched;
    struct coord *coord;
    Weft__Rows__Job *row;
    job_state stored; // what the store holds
    bool in_queue;

    bool parsed;
    struct job spec; // texts: only checkpoint.dir and the mesh's names, the heap's
    int budget;

    bool deciding; // `commit` is made
    struct commit commit;
    struct ckpt_row *ckpts; // by (epoch, step)
    int nckpts;

    struct attempt *attempt; // null: none
    bool saving;             // rank 0 waits for a save's answer: counted as such
    int64_t since_ckpt_ms;   // of running, in this attempt: what a failure would lose
    int64_t not_before_ns;   // 0: now
    int64_t flushed_ns;      // when last_step was last stored

    Weft__Rank__StepReport *report; // newest, or null
    bool evaluated;
    double eval_loss, eval_accuracy;

    enum job_wait wait;
    char behind[ID_LEN];
    char (*log_hosts)[ID_LEN]; // [row->ranks] of the newest attempt; null: none known
};

const char *job_state_name(job_state s); // "QUEUED"
bool job_state_ended(job_state s);
bool job_goes_before(const struct job_record *a, const struct job_record *b); // in the queue
bool job_can_move(job_state from, job_state to);

struct job_record *job_add(struct coord *c, Weft__Rows__Job *row); // takes the row
void job_forget(struct job_record *j);                             // leaves the tables and is freed
struct job_record *job_find(const struct coord *c, const char *id);
// `target`: an id, the newest job of a name, or a unique start of an id. Null with `e`.
struct job_record *job_of(const struct coord *c, const char *target, struct err *e);
// Parses the resolved text (once); ERR_INVALID with the first violation.
int job_spec(struct job_record *j, struct err *e);
void job_take_spec(struct job_record *j, const struct job *spec); // what is needed of a parsed one

struct job_note { // of an event
    const char *kind;
    int rank;         // −1: none
    const char *host; // name, or null
    int64_t step;     // −1: none
};
#define NOTE(what) ((struct job_note){.kind = (what), .rank = -1, .step = -1})
void job_event(struct job_record *j, const struct job_note *n, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
// PRE: the move is allowed. `goal` of DRAINING and RECOVERING, else JOB_NONE. Writes the event.
void job_move(struct job_record *j, job_state to, job_state goal, const struct job_note *n,
              const char *fmt, ...) __attribute__((format(printf, 5, 6)));
void job_goal(struct job_record *j, job_state goal, const struct job_note *n, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void job_touch(struct job_record *j);   // the row is to be written
void job_flush(struct job_record *j);   // writes it
void job_account(struct job_record *j); // counts the time up to now where the job is
void job_lost(struct job_record *j);    // what ran since the last checkpoint is to be done again
void job_save_state(struct job_record *j, bool saving);
void job_publish(struct job_record *j); // its status, to whoever watches
const char *
job_spends(const struct job_record *j); // what its time is counted as now; null: it has ended
int64_t job_lost_ms(const struct job_record *j); // what it would lose if it were stopped now
