// SPDX-License-Identifier: Apache-2.0
// What the `weft run` of index 0 in an allocation does more than one that is alone: it finds what earlier
// starts left in the checkpoint folder, its coordinator listens for other hosts, and it writes the file by
// which the agents find it.
//
//   lead_find   the job's folder among those beneath checkpoint.dir → record and cluster id, as if this
//               node had run it before with its database lost (README.md of common/ckpt)
//   lead_open   an authority of this start alone, beside the database
//   lead_begin  its coordinator listens: the file, and a thread that looks after agents and the file
//   lead_end    the file says how it ended
//
// Inside coordinator/cli/ only, for verb_run.c and run_begin.c.
#pragma once
#include <pthread.h>
#include <stdatomic.h>

#include "coordinator/cli/own_coordinator.h"
#include "coordinator/cli/own_worker.h"
#include "coordinator/cli/run_history.h"
#include "coordinator/cli/several.h"
#include "coordinator/cli/verbs.h"

struct lead {
    struct several s; // s.a.kind NONE: it leads nobody, and all of these do nothing
    const struct verb *verb;
    struct own_worker *worker; // whose signals are read already
    struct leader_file file;
    char tls[4200], listen[64];
    char base[4096];            // folder of the job file
    char kind[16];              // of the job's devices
    int64_t devices;            // of the job
    const char *address;        // of its coordinator, on this node
    Weft__V1__WhyReply *before; // what the starts before this one did; null: nothing is known
    pthread_t thread;
    bool leads; // nobody else does, as far as can be seen, and the place is its own
    bool published, watches, ended;
    int over;             // an eventfd, for the thread
    int stop;             // an eventfd of the owner's: a 2 ends its worker at once
    atomic_bool stopping; // hosts that leave are expected to
    atomic_int code;      // with which this process ends whatever the job says; 0: none
};

// Prints what is wrong and returns an exit code.
int lead_find(struct lead *l, const struct job *job, const char *base);
int lead_open(struct lead *l, const char *folder, struct own_coordinator *o, struct err *e);
// `stop`: an eventfd of the owner's.
int lead_begin(struct lead *l, const struct own_coordinator *o, int stop, struct err *e);
// It was asked to stop, or its job has ended: hosts may leave.
void lead_stops(struct lead *l);
// Returns the exit code of the process, whose job came to `code`. Once more is fine.
int lead_end(struct lead *l, int code, int signal);
