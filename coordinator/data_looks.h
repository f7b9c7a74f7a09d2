// SPDX-License-Identifier: Apache-2.0
// Whether the data of a submitted job is there. Only workers see it, so before the decider gets a
// planned job those that could take it are asked (STORAGE_LOOK), for LOOK_S at most:
//
//   begin ──► asked ──► all have answered, or the time is over ──► next
//                └── cancel: its clients have gone
//
// A file that every one of them says it lacks refuses the job. Who is silent, or cannot tell, knows
// nothing: then the job is taken, with a notice of who lacks what. Only a stream that was asked is
// heard, once a question. All functions are the owner's.
#pragma once
#include "common/base/list.h"
#include "coordinator/coord.h"
#include "coordinator/planner.h"

enum { LOOK_S = 2 };

struct data_looks {
    struct list open;
    int n;
    uint64_t asks;
};
struct looked { // a job about which nothing more will be heard
    struct planned job;
    char notice[500]; // "": nothing is known to be missing
};

void data_looks_init(struct data_looks *l);
void data_looks_clear(struct data_looks *l);
// Asks about a job that would run; it is taken. False: there is nothing or nobody to ask.
bool data_looks_begin(struct data_looks *l, struct rpc *rpc, const struct coord *c,
                      const struct planned *job, int64_t now_ns);
void data_looks_hear(struct data_looks *l, uint64_t conn, const Weft__V1__StorageDone *d);
void data_looks_host_gone(struct data_looks *l, uint64_t conn);
void data_looks_cancel(struct data_looks *l, uint64_t call);
int64_t data_looks_due(const struct data_looks *l); // 0: nothing is open
bool data_looks_next(struct data_looks *l, int64_t now_ns, struct looked *out);
