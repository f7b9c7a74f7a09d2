// SPDX-License-Identifier: Apache-2.0
// The tables of words.h.
#include "coordinator/decide/words.h"

#include <string.h>

#include "common/base/err.h"
#include "common/job/job.h"

static const char *const events[EVENT_KINDS] = {
    [EVENT_SUBMITTED] = "submitted", [EVENT_PLACED] = "placed",       [EVENT_FENCE] = "fence",
    [EVENT_BEGUN] = "begun",         [EVENT_RESTORED] = "restored",   [EVENT_STARTED] = "started",
    [EVENT_COMMITTED] = "committed", [EVENT_ABORTED] = "aborted",     [EVENT_FINISHED] = "finished",
    [EVENT_FAILED] = "failed",       [EVENT_LOST] = "lost",           [EVENT_HANG] = "hang",
    [EVENT_PREEMPTED] = "preempted", [EVENT_DRAINED] = "drained",     [EVENT_WAITS] = "waits",
    [EVENT_QUEUED] = "queued",       [EVENT_HELD] = "held",           [EVENT_RESUMED] = "resumed",
    [EVENT_CANCELLED] = "cancelled", [EVENT_SUCCEEDED] = "succeeded", [EVENT_FOUND] = "found",
    [EVENT_REMOVED] = "removed",     [EVENT_ADOPTED] = "adopted",     [EVENT_DELETED] = "deleted",
    [EVENT_UNUSED] = "unused",       [EVENT_CHANGED] = "changed",     [EVENT_DROPPED] = "dropped",
    [EVENT_UNSENT] = "unsent",
};
static const char *const notices[NOTICE_KINDS] = {
    [NOTICE_STARTED] = "started", [NOTICE_STALLED] = "stalled",     [NOTICE_HELD] = "held",
    [NOTICE_FAILED] = "failed",   [NOTICE_SUCCEEDED] = "succeeded",
};
static const char *const posts[POST_RESULTS] = {
    [POST_TAKEN] = "taken", [POST_FAILED] = "failed", [POST_REFUSED] = "refused"};
static const char *const times[TIME_KINDS] = {
    [TIME_QUEUED] = "queued",         [TIME_STARTING] = "starting",
    [TIME_RUNNING] = "running",       [TIME_LOST] = "lost",
    [TIME_RECOVERING] = "recovering", [TIME_DRAINING] = "draining",
    [TIME_CHECKPOINT] = "checkpoint", [TIME_HELD] = "held",
    [TIME_FAILED] = "failed",         [TIME_CANCELLED] = "cancelled",
    [TIME_UNKNOWN] = "unknown",
};
static const char *const signs[FAULT_SIGNS] = {
    [SIGN_NONE] = "",           [SIGN_EXIT] = "exit",   [SIGN_SIGNAL] = "signal",
    [SIGN_STORAGE] = "storage", [SIGN_START] = "start", [SIGN_HANG] = "hang",
};
static const char *const verbs[AUDIT_VERBS] = {
    [AUDIT_NONE] = "?",
    [AUDIT_CANCEL] = "cancel",
    [AUDIT_HOLD] = "hold",
    [AUDIT_PREEMPT] = "preempt",
    [AUDIT_RESUME] = "resume",
    [AUDIT_CORDON] = "cordon",
    [AUDIT_UNCORDON] = "uncordon",
    [AUDIT_DRAIN] = "drain",
    [AUDIT_ADOPT] = "adopt",
    [AUDIT_DELETE] = "delete",
    [AUDIT_SUBMIT] = "submit",
    [AUDIT_JOIN] = "join",
    [AUDIT_ACT_ON_HOST] = "act on a host",
};
static const char *const host_states[HOST_STATES] = {
    [HOST_READY] = "ready",       [HOST_AWAY] = "away",       [HOST_CORDONED] = "cordoned",
    [HOST_DRAINING] = "draining", [HOST_DRAINED] = "drained", [HOST_FENCED] = "fenced",
};
static const char *const fence_reasons[FENCE_REASONS] = {
    [FENCE_LEASE] = "not heard for a lease",
    [FENCE_TWIN] = "another process of this host registered later",
};
static const char *const job_states[JOB_STATES] = {
    [JOB_NONE] = "NONE",           [JOB_QUEUED] = "QUEUED",       [JOB_STARTING] = "STARTING",
    [JOB_RUNNING] = "RUNNING",     [JOB_DRAINING] = "DRAINING",   [JOB_RECOVERING] = "RECOVERING",
    [JOB_HELD] = "HELD",           [JOB_SUCCEEDED] = "SUCCEEDED", [JOB_FAILED] = "FAILED",
    [JOB_CANCELLED] = "CANCELLED",
};

#define WORDS(name, kind, table)                                         \
    const char *name(kind k)                                             \
    {                                                                    \
        PRE((int)k >= 0 && (size_t)k < sizeof(table) / sizeof *(table)); \
        return (table)[k];                                               \
    }
WORDS(event_word, int, events)
WORDS(notice_word, int, notices)
WORDS(post_word, enum post_result, posts)
WORDS(time_word, enum time_kind, times)
WORDS(sign_word, enum fault_sign, signs)
WORDS(audit_word, int, verbs)
WORDS(host_state_word, enum host_state, host_states)
WORDS(fence_word, int, fence_reasons)

const char *job_state_word(enum job_state s)
{
    return (int)s >= 0 && s < JOB_STATES ? job_states[s] : "?";
}

enum audit_verb audit_verb_of(Weft__V1__Verb v)
{
    bool is_one = (int)v > AUDIT_NONE && (int)v < AUDIT_SUBMIT;
    return is_one ? (enum audit_verb)v : AUDIT_NONE;
}

bool audit_verb_is_of_hosts(enum audit_verb v)
{
    return v == AUDIT_CORDON || v == AUDIT_UNCORDON || v == AUDIT_DRAIN;
}

int device_kind_of_word(const char *word)
{
    int kind = 0; // its words are common/job's
    while (kind < JOB_DEVICE_KINDS && strcmp(job_device_kind(kind), word) != 0)
        kind++;
    return kind;
}
