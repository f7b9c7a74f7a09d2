// SPDX-License-Identifier: Apache-2.0
// A job as the coordinator knows it: its state, what it waits for, where its time goes.
//
//             ┌───────────────────────────────────────────────┐
//             ▼                                               │ (goal QUEUED, or no device is free)
//   NONE ─► QUEUED ─► STARTING ─► RUNNING ─► DRAINING(goal) ──┼─► SUCCEEDED · HELD · CANCELLED
//             │  ▲        ▲ │        │           ▲            │
//             │  │        │ ├────────┼───────────┘            │
//             │  │        │ └────────┴─────► RECOVERING(goal) ┴─► HELD · FAILED · CANCELLED
//             │  │        └────────────────────────┘ (goal STARTING)
//             │  └── resume ── HELD · FAILED · CANCELLED;  continue ── these and SUCCEEDED
//             └──────────────► HELD · CANCELLED
//
// A held job may be cancelled too. DRAINING and RECOVERING wait until no process of the attempt
// lives; then the job goes to its goal. A move is one event row. The job's own row is written once a
// step, whatever happened in it. Inside coordinator/ only.
#pragma once
#include "common/ckpt/commit.h"
#include "coordinator/decide/coord_state.h"
#include "coordinator/decide/row.h"

enum job_wait {   // why a queued job is not placed; job_status.c says it
    WAIT_NEW,     // no round has seen it yet
    WAIT_BACKOFF, // until not_before_ns
    WAIT_NEVER,   // the known hosts could not take it
    WAIT_DEVICES, // others hold what it needs
    WAIT_COMING,  // others that hold it are stopping
    WAIT_BEHIND,  // the job `behind` is first and has reserved what this one could use
};

struct placed { // one rank on one device
    char host[ID_LEN], incarnation[ID_LEN];
    int device;
    bool reaped; // its host has confirmed that no process lives, or was fenced
};

enum untidy { // what attempts left in the job's folder since its last fence
    TIDY,
    UNTIDY,          // an attempt has ended: what it was writing
    UNTIDY_AND_OPEN, // and a host of it was lost, where ranks may live: its attempt is fenced first
};

struct checkpoint_record { // what the database holds
    char job[ID_LEN];
    struct store_entry id;
    enum commit_state state;
    bool bad, scored;
    double loss;   // of an evaluation at its step, where it is scored
    int64_t t_ms;  // when its state last changed
    char why[200]; // ABORTED
};

struct job_report { // the newest of rank 0
    bool known, evaluated;
    double loss, tokens_per_s, samples_per_s;
    double eval_loss, eval_accuracy; // of the newest evaluation
};

struct attempt;
struct job_record {
    struct list link, queued, touched;
    struct coord *coord;

    // ---- what it waits for; these lie close together: a round looks at them in thousands ----
    int kind; // of devices: enum job_device_kind
    bool in_queue;
    enum job_wait wait;
    int64_t not_before_ns; // 0: now
    char behind[ID_LEN];
    struct place_want want; // ranks 0: not filled in yet

    // ---- durable: the columns of its row; texts are the heap's and never null ----
    enum job_state state;
    enum job_state goal; // of DRAINING and RECOVERING, else NONE
    uint64_t seq;        // order of submission, the queue's tie-break
    int64_t priority, steps;
    int ranks, max_hosts; // max_hosts 0: any number
    char *checkpoint_dir;
    int64_t keep, keep_every, patience_ns; // of checkpoints
    bool keep_best;                        // the same
    char *source;                          // checkpoint.from; empty: none
    bool source_steps;                     // steps are counted on from its step
    int64_t budget, budget_ns;             // restarts within so long
    int64_t backoff_ns, backoff_most_ns, hang_after_ns;
    int threads;       // of a device; 0: not decided yet
    char *threads_why; // who decided them, by what; "": the job names them
    char id[ID_LEN], run_id[ID_LEN], job_hash[65];
    char *name, *owner;        // owner: who submitted
    char *resolved, *base_dir; // base_dir: what relative paths start from; "": the worker's roots
    char *found;               // the host that found it again; "": a person made or adopted it
    char *unlike;    // of a found one: keys that make its text another training than its newest
                     // checkpoint is of; it is not adopted then. "": none
    char *goal_why;  // a person's words for the next event
    char *diagnosis; // of the newest failure
    int64_t submitted_ms, queued_ms, ended_ms;
    uint64_t attempt; // greatest used; only grows
    char attempt_id[ID_LEN];
    unsigned char key[32];
    struct placed *placement; // [nplaced]; nplaced is `ranks` while there is an attempt, else 0
    int nplaced;
    bool must_resume; // its text was changed and it had a checkpoint: it fails if there is none now
    bool goes_back;   // the next fence makes the checkpoint of from_step the newest
    int64_t from_step;
    bool trusts_folder; // the next fence's list counts, whatever rows know: the database was lost
    bool fenced;   // the fence of `attempt` has answered and `restore` is chosen: ranks may start
    char *restore; // the checkpoint that the attempt continues from; "": none
    char *store;   // its checkpoint folder, as the fence's host names it; "": not known
    enum untidy untidy;
    bool deleting;                  // it is forgotten once a worker has removed its folder
    int unsaved;                    // saves in a row that the storage failed
    int64_t unsaved_ms, unsaved_ns; // when the first of them did, by both clocks
    char *unsaved_why;              // of the newest
    char *removed;              // how checkpoints of it were lost to somebody's hand; "": none were
    char *mesh, *tags, *notify; // "{dp: 2}"; the others joined by blanks
    bool start_noticed;         // since a person submitted or resumed it
    int64_t stalled_at;         // it stalled, and was not further since; 0: it did not
    int64_t restore_step, last_step;
    int64_t committed_step; // the newest acknowledged; −1: none
    uint64_t committed_attempt;

    int64_t *failures_ms; // [nfailures] of those that cost budget, within its window
    int nfailures;
    bool committed_since; // since the last rank failure a checkpoint was committed, and is there
    int64_t same_failure_step;
    int same_failures, restarts;  // the first: the same failure at that step, in a row
    int no_progress, failure;     // attempts in a row without a step; exit code of why it FAILED, 0
    int64_t not_before_ms;        // backoff
    int64_t spent_ms[TIME_KINDS]; // where its time went
    int64_t counted_ns;           // until when that is counted; 0: not begun
    int64_t counted_ms;           // the wall clock then
    char counted_boot[CLOCK_BOOT]; // of the machine whose monotonic clock counted_ns is
    int64_t since_ckpt_ms;         // of running, not saved since: what a failure would lose
    uint64_t events;               // number of the newest event
    struct job_report report;      // what it has come to
    // ---- of this process's life ----
    struct job_rates rates; // of the newest report
    int last_sign;          // enum fault_sign of its newest attempt, FAULT_SIGNS: its host was lost
    char *last_fault;       // how its newest attempt failed; "": none has, or before this process
    uint64_t stalls;        // an attempt that hung, or led nowhere, in this step; 0: none
    enum job_state stored;  // what the database holds
    uint64_t tidy_conn;     // of the host that was asked to tidy its folder; 0: none
    int nabsent;            // hosts, one after another, that see no folder of it to delete
    bool has_news, absent;  // to be published after this step; no host that is here sees its folder
    struct avoided {        // a life of a worker where a rank could not open the job's data
        char incarnation[ID_LEN];
        int64_t wait_ns, until_ns; // then it tries again where devices are free
    } * avoided;                   // not durable: found out again, each by a rank that fails
    int navoided;
    char *avoided_why; // which data, where, why: of the newest

    struct checkpoint_record *checkpoints; // by (attempt, step)
    int ncheckpoints;

    struct attempt *live;      // its attempt; null: none
    bool saving;               // rank 0 waits for a save's answer: counted as such
    int64_t flushed_ns;        // when last_step was last stored
    char (*log_hosts)[ID_LEN]; // [ranks] of the newest attempt; null: none known
};

bool job_state_ended(enum job_state s);
bool job_goes_before(const struct job_record *a, const struct job_record *b); // in the queue
static inline int job_exit_code(const struct job_record *j) // of the client that waits for it
{
    return j->state == JOB_FAILED || j->state == JOB_CANCELLED || j->state == JOB_HELD;
}

// A job that knows nothing of itself yet: `state` NONE, texts empty. Its id and seq are set before
// job_add puts it into the tables.
struct job_record *job_new(struct coord *c);
void job_add(struct job_record *j);
void jobs_enter_queue(struct coord *c); // once, after a restart: those that wait
// A new job, in the tables, and not yet in any state. known_id: of a job that is found again;
// null: a new one.
struct job_record *job_create(struct coord *c, const Weft__Plan__JobFacts *facts,
                              const char *known_id, const char *owner, const char *base_dir);
// The job continues with another text of the same identity. PRE: it has no attempt and is not queued.
void job_change(struct job_record *j, const Weft__Plan__JobFacts *facts);
void job_forget(struct job_record *j); // leaves the tables and is freed; PRE: it has no attempt
struct job_record *job_find(const struct coord *c, const char *id);
// `target`: an id, the newest job of a name, or a unique start of an id. Null with `e`. A found job
// has its name only where no job that a person made has it, and no other found one.
struct job_record *job_of(const struct coord *c, const char *target, struct err *e);

struct job_note { // of an event
    enum event_kind kind;
    int rank;         // −1: none
    const char *host; // name, or null
    int64_t step;     // −1: none
};
#define NOTE(what) ((struct job_note){.kind = EVENT_##what, .rank = -1, .step = -1})
void job_event(struct job_record *j, const struct job_note *n, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
// PRE: the move is allowed. `goal` of DRAINING and RECOVERING, else JOB_NONE. Writes the event.
void job_move(struct job_record *j, enum job_state to, enum job_state goal,
              const struct job_note *n, const char *fmt, ...) __attribute__((format(printf, 5, 6)));
void job_goal(struct job_record *j, enum job_state goal, const struct job_note *n, const char *fmt,
              ...) __attribute__((format(printf, 4, 5)));
void job_touch(struct job_record *j);   // the row is to be written
void job_flush(struct job_record *j);   // writes it
void job_account(struct job_record *j); // counts the time up to now where the job is
// After a restart. The monotonic clock runs while this process is away, so the time until now
// belongs to the job's state. After another boot nothing has measured it: it is TIME_UNKNOWN, as
// long as the wall clock says, which may have been set meanwhile.
void job_count_on(struct job_record *j);
int64_t job_uncounted_ms(const struct job_record *j, int64_t now_ns); // since it was last counted
void job_lost(struct job_record *j); // what ran since the last checkpoint is to be done again
void job_save_state(struct job_record *j, bool saving);
void job_saved(struct job_record *j);                     // the storage works, or nobody tries
void job_unsaved(struct job_record *j, const char *why);  // the storage has failed a save
void job_removed(struct job_record *j, const char *what); // somebody removed its checkpoints
// What every act on its checkpoints says; the text is borrowed from the job.
void job_fill_storage(const struct job_record *j, Weft__V1__StorageOp op, Weft__V1__Storage *to);
void job_publish(struct job_record *j); // its status, at the end of the step, to whoever watches
// A rank could not open its data there. Returns for how many seconds the job avoids the host.
int64_t job_avoid(struct job_record *j, const char *incarnation, const char *why);
const struct avoided *job_find_avoided(const struct job_record *j, const char *incarnation);
void job_stop_avoiding(struct job_record *j, const char *incarnation); // null: every host
// What the job's time is counted as at present; TIME_KINDS once it has succeeded.
enum time_kind job_spends(const struct job_record *j);
int64_t job_lost_ms(const struct job_record *j); // what it would lose if it were stopped now
