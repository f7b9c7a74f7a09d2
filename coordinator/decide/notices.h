// SPDX-License-Identifier: Apache-2.0
// Notices: what the receivers that a job names (`notify`) are sent when it started, stalled, is held,
// failed or succeeded. A receiver is a name; only who starts the coordinator knows its URL.
//
//   end of a step ──► row ──► COORD_POST ──► the owner sends it ──► COORD_EV_POSTED ──► row erased
//                      ▲                                                  │
//                      └────────── not taken: again after a pause ────────┘  given up: said in the history
//
// A notice is a row from the transaction that decided it until it was taken or given up: a restart
// neither loses nor repeats one, but for one whose answer this process did not live to write down.
// Inside coordinator/ only.
#pragma once
#include "coordinator/decide/coord_state.h"

enum {
    NOTICE_REASON = 1000, // bytes
    NOTICE_PAUSE_S = 5,   // of a receiver that took none, twice as long after each further one
    NOTICE_PAUSE_MOST_S = 600,
    NOTICE_HOURS = 6, // after so long it is given up
    NOTICE_ID = ID_LEN + 24,
};

struct notice {
    struct list link;
    char job[ID_LEN];
    uint64_t seq;   // of the job's newest event then
    char *receiver; // its name
    enum notice_kind kind;
    uint64_t attempt;
    int64_t step, t_ms; // step −1: none
    char *reason;
    int tries; // of this process
};
struct receiver {
    char name[64];
    struct notice *sent;    // not answered yet; null, or its job is gone
    char posted[NOTICE_ID]; // its id; "": no answer is to come
    int waiting;
    int64_t pause_ns, next_ns; // when it gets the next
    int64_t results[POST_RESULTS];
};

void notices_init(struct coord *c, const char *const *names, int n); // borrowed for this call only
void notices_free(struct coord *c);
int notice_load(struct coord *c, const struct row *row, struct err *e);
// Appends what is wrong with a job's receivers, names joined by blanks. `own`: it is of `weft run`.
void notices_refuse(const struct coord *c, const char *names, bool own, struct buf *no);
void notices_settle(struct coord *c); // the last of a step: makes those that are due, sends
void notices_answer(struct coord *c, const struct coord_event *ev);
void notices_sweep(struct coord *c);        // gives up those whose receiver is not here
int64_t notices_due(const struct coord *c); // 0: none waits
