// SPDX-License-Identifier: Apache-2.0
// The client's verbs: one function each, one table (main.c). A verb gets its own arguments, prints
// on standard output and returns the exit code; what goes wrong is one line what, one line where,
// one line what to do, on standard error.
#pragma once

enum client_exit { // design §10
    CLIENT_OK = 0,
    CLIENT_FAILED = 1, // verify found something wrong
    CLIENT_USAGE = 2,  // usage or bad job file
};

struct verb {
    const char *name;
    const char *args; // for the usage line
    const char *doc;
    int (*run)(const struct verb *v, int argc, char **argv); // argv[0]: the first argument
};

int verb_plan(const struct verb *v, int argc, char **argv);
int verb_schema(const struct verb *v, int argc, char **argv);
int verb_ckpt(const struct verb *v, int argc, char **argv);
int verb_data(const struct verb *v, int argc, char **argv);

int usage(const struct verb *v, const char *what); // prints it, returns CLIENT_USAGE
