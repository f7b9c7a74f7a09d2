// SPDX-License-Identifier: Apache-2.0
// The words that leave the coordinator: in rows, on the wire, in `--json` and in metrics. Inside,
// each is an enum; here each is spelled once.
// Inside coordinator/ only.
#pragma once
#include <stdbool.h>

#include "proto/weft.pb-c.h"

// The states of a job are numbers on the wire, so these are the wire's own.
enum job_state {
    JOB_NONE = WEFT__V1__JOB_STATE__JOB_NONE, // not a job yet; also: no goal
    JOB_QUEUED = WEFT__V1__JOB_STATE__QUEUED,
    JOB_STARTING = WEFT__V1__JOB_STATE__STARTING,
    JOB_RUNNING = WEFT__V1__JOB_STATE__RUNNING,
    JOB_DRAINING = WEFT__V1__JOB_STATE__DRAINING,
    JOB_RECOVERING = WEFT__V1__JOB_STATE__RECOVERING,
    JOB_HELD = WEFT__V1__JOB_STATE__HELD,
    JOB_SUCCEEDED = WEFT__V1__JOB_STATE__SUCCEEDED,
    JOB_FAILED = WEFT__V1__JOB_STATE__FAILED,
    JOB_CANCELLED = WEFT__V1__JOB_STATE__CANCELLED,
    JOB_STATES
};

// What an event of a job's history is about: the column `kind` of its row.
enum event_kind {
    EVENT_SUBMITTED, // somebody submitted it
    EVENT_PLACED,    // its ranks have devices
    EVENT_FENCE,     // a greater attempt was met: ours grows
    EVENT_BEGUN,     // it starts at step 0: nothing was saved
    EVENT_RESTORED,  // it continues from a checkpoint
    EVENT_STARTED,   // all ranks are ready
    EVENT_COMMITTED, // a checkpoint is complete
    EVENT_ABORTED,   // a checkpoint could not be written
    EVENT_REMOVED,   // somebody removed its checkpoint folder
    EVENT_UNUSED,    // a checkpoint lies in the folder and is not used
    EVENT_FINISHED,  // the last step is done and saved
    EVENT_FAILED,    // a rank failed, or the job did
    EVENT_LOST,      // a host or a peer was lost
    EVENT_HANG,      // no rank moves
    EVENT_PREEMPTED, // by a job of a greater priority
    EVENT_DRAINED,   // because its host drains
    EVENT_WAITS,     // for its backoff
    EVENT_QUEUED,    // back in the queue
    EVENT_HELD,
    EVENT_RESUMED,
    EVENT_CANCELLED,
    EVENT_SUCCEEDED,
    EVENT_FOUND,   // its folder was found after a lost database
    EVENT_ADOPTED, // a person took a found job as theirs
    EVENT_DELETED, // somebody wants it gone: its folder is removed first
    EVENT_CHANGED, // it continues with another text
    EVENT_DROPPED, // the loss or gradient of a step is not finite
    EVENT_UNSENT,  // a receiver that it names did not get a notice
    EVENT_KINDS
};

// What a receiver gets a notice of (notices.h), and how a try to send one ended.
enum notice_kind {
    NOTICE_STARTED,
    NOTICE_STALLED,
    NOTICE_HELD,
    NOTICE_FAILED,
    NOTICE_SUCCEEDED,
    NOTICE_KINDS
};
enum post_result { POST_TAKEN, POST_FAILED, POST_REFUSED, POST_RESULTS }; // refused: for good

// What a job's time is spent on.
enum time_kind {
    TIME_QUEUED,
    TIME_STARTING,
    TIME_RUNNING,
    TIME_LOST, // ran, and is done again: no checkpoint followed
    TIME_RECOVERING,
    TIME_DRAINING,
    TIME_CHECKPOINT, // rank 0 waits for the answer to a save
    TIME_HELD,
    TIME_FAILED,    // until somebody resumes it
    TIME_CANCELLED, // the same
    TIME_UNKNOWN,   // the coordinator's machine was off: nobody measured it
    TIME_KINDS
};

// How a failure looks: the same one at the same step, three times in a row, fails the job. A
// diagnosis begins with it, and with the number of an exit or a signal.
enum fault_sign {
    SIGN_NONE, // it does not count as the same
    SIGN_EXIT,
    SIGN_SIGNAL,
    SIGN_STORAGE,
    SIGN_START, // a rank was not heard of
    SIGN_HANG,
    FAULT_SIGNS
};

// What was asked for, as the audit says it. Those before SUBMIT are the verbs of Act and have the
// wire's numbers.
enum audit_verb {
    AUDIT_NONE,
    AUDIT_CANCEL = WEFT__V1__VERB__CANCEL,
    AUDIT_HOLD = WEFT__V1__VERB__HOLD,
    AUDIT_PREEMPT = WEFT__V1__VERB__PREEMPT,
    AUDIT_RESUME = WEFT__V1__VERB__RESUME,
    AUDIT_CORDON = WEFT__V1__VERB__CORDON,
    AUDIT_UNCORDON = WEFT__V1__VERB__UNCORDON,
    AUDIT_DRAIN = WEFT__V1__VERB__DRAIN,
    AUDIT_ADOPT = WEFT__V1__VERB__ADOPT,
    AUDIT_DELETE = WEFT__V1__VERB__DELETE,
    AUDIT_SUBMIT,
    AUDIT_JOIN,
    AUDIT_ACT_ON_HOST, // refused to a client before it was read
    AUDIT_VERBS
};

// How a host is, as people see it.
enum host_state {
    HOST_READY,
    HOST_AWAY,
    HOST_CORDONED, // takes no more ranks
    HOST_DRAINING, // its ranks are leaving
    HOST_DRAINED,
    HOST_FENCED, // given up: its incarnation never comes back
    HOST_STATES
};

// Why an incarnation of a host was fenced.
enum fence_reason { FENCE_LEASE, FENCE_TWIN, FENCE_REASONS };

const char *job_state_word(enum job_state s); // "QUEUED"
const char *event_word(int k);                // enum event_kind; a column calls it
const char *notice_word(int k);               // enum notice_kind; a column calls it
const char *post_word(enum post_result r);
const char *time_word(enum time_kind k);
const char *sign_word(enum fault_sign s);
const char *audit_word(int v);                   // enum audit_verb
enum audit_verb audit_verb_of(Weft__V1__Verb v); // NONE: no such verb
bool audit_verb_is_of_hosts(enum audit_verb v);  // the others are about a job
const char *host_state_word(enum host_state s);
const char *fence_word(int r);             // enum fence_reason
int device_kind_of_word(const char *word); // enum job_device_kind, or the count: it is none
