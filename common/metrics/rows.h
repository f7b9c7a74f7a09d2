// SPDX-License-Identifier: Apache-2.0
// Rows of metrics.jsonl, read. A row is a line of JSON with a step and the attempt that wrote it.
//
// Attempts append to one file and take nothing back, so one rule says which rows hold, the same for
// every reader: a row ends the validity of all rows before it whose step is not below its own, and a
// row of an older attempt than the newest one seen is no row (its writer was not known to be dead).
// So each step has one row at most, in the order of steps, without a gap at a resume.
//
// A file of a million rows is read in less than a second: no tree is made of a row; its members are
// looked through once, and the numbers asked for are taken. What is no whole row is passed over.
//
//   rows_init → rows_read, as often as the file may have grown → rows_clear
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/err.h"

enum {
    ROW_KEYS_MAX = 64,
    ROW_BYTES_MAX = 16 << 20, // a longer line is no row
};

struct row {
    int64_t step;
    uint64_t attempt; // 0: it does not say
    int64_t at;       // its first byte's position in the file
    int64_t bytes;    // with its line break
};
struct rows {
    int nkeys;
    const char *key[ROW_KEYS_MAX]; // borrowed
    struct row *row;
    double *value; // nkeys of each row; NaN: it has no such number
    size_t n, cap;
    uint64_t attempt; // the newest one seen
    size_t unchanged; // rows that were there before the last rows_read, and still hold
    int64_t at;       // where the first line begins that was not read yet
    int64_t left_out; // lines that are no rows
};

// One line by itself, its line break included; whether it holds is the caller's to know. False: it is no row.
bool rows_read_line(const char *line, size_t bytes, struct row *out);
// Opens metrics.jsonl of a job's folder, which must be a regular file of its own; *fd is −1: there is none.
int rows_open(int folder, int *fd, struct err *e);
// A key is the name of a member, or of members within members, with a dot between them:
// "detail.groups.embed.weight_norm". `keys` is borrowed.
void rows_init(struct rows *r, const char *const *keys, int nkeys);
// Reads all whole lines from r->at on.
int rows_read(struct rows *r, int fd, struct err *e);
// One line, its line break included. False: it is no row, or void.
bool rows_add(struct rows *r, const char *line, size_t bytes);
// The whole lines of a piece of the file, which begins at r->at. Returns how many bytes they are.
size_t rows_add_lines(struct rows *r, const char *piece, size_t len);
// Frees the rows' places, for who has taken them: those that come are judged as if they were still there.
void rows_forget(struct rows *r);
static inline double rows_value(const struct rows *r, size_t i, int key)
{
    return r->value[i * (size_t)r->nkeys + (size_t)key];
}
// The text of row i, without its line break, the arena's.
int rows_text(const struct rows *r, int fd, size_t i, struct arena *a, const char **out,
              struct err *e);
void rows_clear(struct rows *r);
