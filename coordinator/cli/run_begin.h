// SPDX-License-Identifier: Apache-2.0
// What a `weft run` starts or continues: the job that the command gives beside the record of the one
// that was started here before. Nothing runs yet. Inside coordinator/cli/ only, for verb_run.c.
#pragma once
#include <stdatomic.h>

#include "common/job/job.h"
#include "coordinator/cli/cli_link.h"
#include "coordinator/cli/own_coordinator.h"
#include "coordinator/cli/own_worker.h"
#include "coordinator/cli/progress.h"
#include "coordinator/cli/run_lead.h"
#include "coordinator/cli/run_record.h"
#include "coordinator/cli/time_limit.h"

enum { RUN_START_OVER = 4300 };
struct run {
    const struct verb *verb;
    const struct args *args;
    struct arena arena;
    struct job job;
    struct buf resolved;
    char base[4096];
    struct lead lead;                // of the others of an allocation, if it is in one
    const char *place;               // where .weft/NAME lies: `base`, or this node's own folder
    char start_over[RUN_START_OVER]; // what to do to start over, for messages
    struct record record;
    bool changed;        // the job continues with another text than it was started with
    const char *changes; // then: the keys with the settings of both; null: none
    struct own_coordinator coordinator;
    struct own_worker worker;
    struct cli_link link;
    struct cli_link_stream stream;
    struct progress progress;
    struct time_limit limit;
    bool late;             // it is stopped for its time limit
    atomic_int stops;      // how often a signal asked to stop
    int attached;          // these are readable once the worker has attached, …
    int halted;            // … a stop was asked for, or the worker has ended
    int worker_over;       // … the worker has ended, and with it every rank
    int client_over;       // … the client has no more to say
    int rc;                // then: the exit code
    bool threads_open;     // the job file does not name its threads
    char threads_why[120]; // as of SubmitRequest; "": the job file names them
};

// Returns an exit code; what is wrong has been printed. Reads and checks the job, takes the record's
// folder, and decides whether the job starts, continues as it was, or continues changed.
int run_begin(struct run *r);
int run_report_failure(const struct run *r, const struct err *e, const char *todo, int code);
