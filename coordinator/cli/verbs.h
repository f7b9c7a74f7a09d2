// SPDX-License-Identifier: Apache-2.0
// The client's verbs: one function each, one table (main.c). A verb gets its parsed arguments
// (flags.h), prints on standard output and returns the exit code; what goes wrong is one line what,
// one line where, one line what to do, on standard error.
#pragma once
#include "coordinator/cli/flags.h"

enum client_exit {
    CLIENT_OK = 0,
    CLIENT_FAILED = 1, // the job failed, was cancelled or is held; verify or doctor found something
    CLIENT_USAGE = 2,  // usage or bad job file
    CLIENT_AWAY = 3,   // the coordinator is not reached
    CLIENT_REFUSED = 4, // it said no, or does not know the job
    CLIENT_INTERRUPTED = 130,
};

struct verb {
    const char *name;
    const char *args; // what follows the flags, for the usage line
    const char *doc;
    unsigned flags;  // FLAG_BIT(…) of those it takes
    int least, most; // arguments
    int (*run)(const struct verb *v, const struct args *a);
    const char *more; // for `weft help VERB`; may be null
    int act;          // of verb_act.c: weft.v1.Verb
};

int verb_plan(const struct verb *v, const struct args *a);
int verb_schema(const struct verb *v, const struct args *a);
int verb_ckpt(const struct verb *v, const struct args *a);
int verb_data(const struct verb *v, const struct args *a);
int verb_run(const struct verb *v, const struct args *a);
int verb_submit(const struct verb *v, const struct args *a);
int verb_jobs(const struct verb *v, const struct args *a);
int verb_status(const struct verb *v, const struct args *a);
int verb_workers(const struct verb *v, const struct args *a);
int verb_checkpoints(const struct verb *v, const struct args *a);
int verb_watch(const struct verb *v, const struct args *a);
int verb_logs(const struct verb *v, const struct args *a);
int verb_why(const struct verb *v, const struct args *a);
int verb_act(const struct verb *v, const struct args *a);
int verb_doctor(const struct verb *v, const struct args *a);
// Of the table in main.c: the shell completes its verbs and flags.
int print_completion(const struct verb *v, const struct args *a, const struct verb *verbs, int n);

// flags.c
void print_usage(const struct verb *v, FILE *to);
int usage(const struct verb *v, const char *what); // says what is wrong, returns CLIENT_USAGE
// cli_print.c: what went wrong, where, and what to do about it, a line each. `where` may be null.
void complain(const struct verb *v, const char *what, const char *where, const char *todo);
