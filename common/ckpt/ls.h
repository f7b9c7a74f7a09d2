// SPDX-License-Identifier: Apache-2.0
// What `weft ckpt ls DIR` and `weft ckpt verify DIR` say, as structs and as text or JSON. DIR is a
// job's checkpoint directory, a directory of such, or (verify) one checkpoint. Offline, read only.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/err.h"

struct ls_item {
    int64_t step, attempt; // −1: unused
    const char *dir;       // path
    uint64_t bytes;        // of the shard files
    int shards;
    bool committed; // under its final name and sealed: it has a COMMIT
    bool unused;    // its name is none that weft gives: nobody ever loads it, errors says so
    bool aside;     // set aside: a person went back behind it
    bool evaluated; // at its step, with this loss
    double eval_loss;
    bool best; // the least of the job's that are ok, the oldest of equals
    bool ok;   // opens (ls); every byte is what was written (verify)
    int nerrors;
    const char **errors;
};
struct ls {
    struct arena arena;
    int n, cap;
    struct ls_item *items; // a job's together, newest first
    bool deep;             // verified
};

// ERR_NOTFOUND when DIR is no directory. A damaged checkpoint is a result, not an error.
int ls_collect(struct ls *l, const char *dir, bool deep, struct err *e);
void ls_clear(struct ls *l);
// Every one under a final name is ok, none is unused, and (verify) there is at least one.
bool ls_ok(const struct ls *l);
void ls_print_text(const struct ls *l, struct buf *out);
// {"checkpoints": [{step, attempt, dir, bytes, shards, committed, unused, aside, eval_loss (null: not
// evaluated), best, ok, errors}]}
void ls_print_json(const struct ls *l, struct buf *out);
