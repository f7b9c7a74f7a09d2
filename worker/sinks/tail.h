// SPDX-License-Identifier: Apache-2.0
// A job's metrics.jsonl, read as it grows: the rows that hold for an attempt that begins or runs.
//
// A row holds if no newer attempt, this one included, has begun at its step or before; a row of an older
// attempt behind a newer one's is a zombie's. Which attempts began where is looked up once, when the
// attempt begins: from then on only its own rows count. A half line waits until it is whole.
// Inside worker/sinks/ only.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/base/buf.h"
#include "common/base/err.h"

struct tail_attempt {
    uint64_t attempt;
    int64_t first; // its smallest step
};
struct tail_attempts { // zeroed: none
    struct tail_attempt *v;
    int n;
};
struct tail {
    const char *path;                     // borrowed, as the next
    const struct tail_attempts *attempts; // in the order of their numbers
    uint64_t own;                         // the attempt that runs
    uint64_t newest;                      // of the rows so far
    bool superseded; // a row of an attempt newer than `own` was seen: it is over
    int fd;          // −1: not open
    ino_t inode;
    int64_t end; // of what was read into `text`
    struct buf text;
    size_t at;          // of the next line in it
    bool skips, warned; // what comes belongs to a line that is too long; that was said
};
struct tail_row {
    const char *line; // with its newline; valid until the next call
    size_t len;
    int64_t step, end; // end: the position behind it in the file
    uint64_t attempt;
};

// Looks through the file, which need not be there. `own` begins behind the step `resumed_at`.
void tail_look(const char *path, uint64_t own, int64_t resumed_at, struct tail_attempts *out);
void tail_attempts_clear(struct tail_attempts *a);
// Reads from the position `from` on. A zeroed tail but for path, attempts, own and fd −1.
void tail_seek(struct tail *t, int64_t from, uint64_t newest);
bool tail_next(struct tail *t, struct tail_row *out); // false: no more now
void tail_close(struct tail *t);
