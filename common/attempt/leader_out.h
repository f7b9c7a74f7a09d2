// SPDX-License-Identifier: Apache-2.0
// What a leader answers to an event: a list of actions, to be carried out in this order.
// Inside common/attempt/ only.
//
//   action             carries            means
//   LEADER_SEND        rank, frame        send the frame to this rank; rank −1: to all of them
//   LEADER_RECORDS                        records of checkpoints have changed: a leader that keeps
//                                         rows makes them durable before anything after this leaves
//   LEADER_REPORT      report             rank 0 reported a step
//   LEADER_ABORTED     id, text, failed,  this checkpoint was given up, and why; failed: by the
//                      again, late        storage or who writes to it; again: the ranks try once
//                                         more; late: saves fail for longer than it has patience
//   LEADER_LOST        id, text           before this save somebody removed the folder with earlier
//                                         checkpoints, which text names
//   LEADER_COMMITTED   id                 this checkpoint is committed
//   LEADER_NOTE        text               for the job's history, from rank 0
//   LEADER_READY                          all ranks are ready and their plans agree
//   LEADER_CULPRIT     culprit            the attempt has failed, and who did it
//
// What may end the attempt (COMMITTED, READY, CULPRIT) comes last, and at most one of it in a list:
// the owner may free the leader while it carries that one out. Everything lies in the arena, or is
// borrowed from the event or the leader, and is valid until the next event.
#pragma once
#include "common/base/arena.h"
#include "common/ckpt/store.h"
#include "proto/rank.pb-c.h"

// Who made an attempt fail, and how. The first that a leader names is the only one.
enum culprit_kind {
    CULPRIT_EXITED,  // it ended with a code that nobody else is the cause of
    CULPRIT_DIED,    // it was killed by a signal (0: not known which)
    CULPRIT_HUNG,    // it made no progress for too long
    CULPRIT_GAVE_UP, // it says that somebody else is the cause, and nobody came forward
    CULPRIT_ABSENT,  // it has not joined in time; others may be missing too
    CULPRIT_PLANS,   // no single rank: they do not run the same plan
    CULPRIT_LEFT,    // no single rank: all have left before the last checkpoint was committed
    CULPRIT_FENCED,  // no single rank: the folder knows a greater attempt, this attempt is over
    CULPRIT_KINDS
};
struct culprit {
    enum culprit_kind kind;
    int rank; // −1: no single one
    int code, signal;
    int unreached;   // of GAVE_UP: the rank, alive, that it did not find at its address; −1: none
    const char *log; // its last lines, or null
    char text[1200]; // "rank 2 on host b (running, step 17, …) hangs: no progress for 3.0 s"
};

enum leader_action_kind {
    LEADER_SEND,
    LEADER_RECORDS,
    LEADER_REPORT,
    LEADER_ABORTED,
    LEADER_LOST,
    LEADER_COMMITTED,
    LEADER_NOTE,
    LEADER_READY,
    LEADER_CULPRIT,
};
struct leader_action {
    enum leader_action_kind kind;
    int rank;
    const Weft__Rank__Frame *frame;
    const Weft__Rank__StepReport *report;
    struct store_entry id;
    const char *text;
    bool failed, again, late;
    const struct culprit *culprit;
};
struct leader_out {
    struct arena *arena; // the caller's
    int n, cap;
    struct leader_action *v;
};
