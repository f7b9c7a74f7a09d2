// SPDX-License-Identifier: Apache-2.0
// Whether the data of a submitted job is there, and its checkpoints may be where it wants them. Only
// workers see that, so before the decider gets a planned job those that could take it are asked
// (STORAGE_LOOK), for LOOK_S at most:
//
//   begin ──► asked ──► all have answered, or the time is over ──► next
//                └── cancel: its clients have gone
//
// The job is refused if all of them say that a rank could not open a file. Where some do, or do not
// answer, it is taken: ranks find out, and the job avoids a host that has not the data. Only a stream
// that was asked is heard, once a question. All functions are the owner's. Inside coordinator/ only.
#pragma once
#include "common/base/list.h"
#include "coordinator/decide/coord.h"
#include "coordinator/serve/planner.h"

enum { LOOK_S = 2 };

struct data_looks {
    struct list open;
    int n;
    uint64_t last_question; // its number, counted from anywhere
};
struct checked_job { // a job about which nothing more will be heard
    struct planned job;
    char notice[200]; // "": workers were asked, or there is nothing to ask
};

// Numbers of questions differ from those of an earlier coordinator process, which workers may still
// be answering.
void data_looks_init(struct data_looks *l);
void data_looks_clear(struct data_looks *l);
// Asks about a job that would run; it is taken. False: there is nothing to ask or, as its notice then
// says, nobody, or too much is being asked.
bool data_looks_begin(struct data_looks *l, struct rpc *rpc, const struct coord *c,
                      struct checked_job *about, int64_t now_ns);
// False: none of its questions was put to this stream so.
bool data_looks_hear(struct data_looks *l, uint64_t conn, const Weft__V1__StorageDone *d);
void data_looks_host_gone(struct data_looks *l, uint64_t conn);
void data_looks_cancel(struct data_looks *l, uint64_t call);
int64_t data_looks_due(const struct data_looks *l); // 0: nothing is open
bool data_looks_next(struct data_looks *l, int64_t now_ns, struct checked_job *out);
