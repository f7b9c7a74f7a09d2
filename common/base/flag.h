// SPDX-License-Identifier: Apache-2.0
// Command-line flags: reads them by a program's table, and says of a wrong one what would be right.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

// Whether one of the arguments is --help or -h.
bool flag_asks_help(int argc, char **argv);

// A program's flags are a table, and their values members of a struct.
enum flag_kind {
    FLAG_TEXT,     // const char *
    FLAG_NUMBER,   // int, from min to max
    FLAG_DURATION, // int64_t of nanoseconds, at least min milliseconds: "500ms", "10s", "2m", "1h"
    FLAG_SECONDS,  // the same, and a bare number is seconds: "3600"
    FLAG_SWITCH,   // bool: no value follows
    FLAG_LIST,     // const char *[max]; their count, an int, lies at `count`
};
struct flag_row {
    const char *name; // of one letter: -s; else --name
    enum flag_kind kind;
    size_t at; // of the member
    int min, max;
    size_t count;
};
enum { FLAG_ROWS_MAX = 32 };
// Reads the flags into the struct `to`. *rest: the first argument that is none of them, or argc.
int flags_read(const struct flag_row *rows, int nrows, int argc, char **argv, void *to, int *rest,
               struct err *e);
// The same where nothing may follow the flags.
int flags_read_all(const struct flag_row *rows, int nrows, int argc, char **argv, void *to,
                   struct err *e);
