// SPDX-License-Identifier: Apache-2.0
// The client's verbs: a function each, and one table in main.c. A verb gets its parsed arguments
// (flags.h), prints on standard output and returns the exit code. What goes wrong is reported on
// standard error in three lines: what, where, and what to do. Inside coordinator/cli/ only.
#pragma once
#include <stdio.h>

#include "coordinator/cli/flags.h"

enum client_exit {
    CLIENT_OK = 0,
    CLIENT_FAILED = 1, // the job failed, was cancelled or is held; verify or doctor found something
    CLIENT_USAGE = 2,  // usage or bad job file
    CLIENT_AWAY = 3,   // the coordinator is not reached
    CLIENT_REFUSED = 4, // the coordinator said no, or does not know the job
    CLIENT_INTERRUPTED = 130,
};

struct verb {
    const char *name;
    const char *args; // what follows the flags, for the usage line
    const char *doc;
    flag_set flags;  // the FLAG_BIT(…) of those that it takes
    int least, most; // how many arguments
    int (*run)(const struct verb *v, const struct args *a);
    const char *more; // for `weft help VERB`; may be null
    int act;          // for verb_act.c: the weft.v1.Verb to send
};

int verb_up(const struct verb *v, const struct args *a);
// up_member.c: the process that verb_up starts on a host.
int up_member(const struct verb *v);
int verb_render(const struct verb *v, const struct args *a);
int verb_plan(const struct verb *v, const struct args *a);
int verb_model(const struct verb *v, const struct args *a);
int verb_schema(const struct verb *v, const struct args *a);
int verb_ckpt(const struct verb *v, const struct args *a);
int verb_export(const struct verb *v, const struct args *a);
int verb_import(const struct verb *v, const struct args *a);
int verb_data(const struct verb *v, const struct args *a);
int verb_plot(const struct verb *v, const struct args *a);
int verb_run(const struct verb *v, const struct args *a);
int verb_sbatch(const struct verb *v, const struct args *a);
int verb_submit(const struct verb *v, const struct args *a);
int verb_jobs(const struct verb *v, const struct args *a);
int verb_status(const struct verb *v, const struct args *a);
int verb_workers(const struct verb *v, const struct args *a);
int verb_checkpoints(const struct verb *v, const struct args *a);
int verb_watch(const struct verb *v, const struct args *a);
int verb_metrics(const struct verb *v, const struct args *a);
int verb_logs(const struct verb *v, const struct args *a);
int verb_why(const struct verb *v, const struct args *a);
int verb_act(const struct verb *v, const struct args *a);
int verb_delete(const struct verb *v, const struct args *a);
int verb_eval(const struct verb *v, const struct args *a);
int verb_generate(const struct verb *v, const struct args *a);
int verb_doctor(const struct verb *v, const struct args *a);
// manual.c: a verb's page for man(1), and that of them all; `exits` says what exit codes mean.
void print_verb_manual(const struct verb *v);
void print_manual(const struct verb *verbs, int n, const char *exits);
// completion.c; `verbs` is the table in main.c, whose verbs and flags the shell completes.
int print_completion(const struct verb *v, const struct args *a, const struct verb *verbs, int n);

// flags.c
void print_usage(const struct verb *v, FILE *to);
// Says that a verb's first word is none of the `n` known ones, and returns CLIENT_USAGE.
int refuse_word(const struct verb *v, const char *word, const char *const *known, int n);
int usage(const struct verb *v, const char *what); // says what is wrong, returns CLIENT_USAGE
// cli_print.c: what went wrong, where, and what to do about it, a line each. `where` may be null.
void complain(const struct verb *v, const char *what, const char *where, const char *todo);
