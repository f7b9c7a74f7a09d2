// SPDX-License-Identifier: Apache-2.0
// What `weft run` knows of its job between two runs: .weft/NAME/job, replaced by rename.
// Inside coordinator/cli/ only.
//
//   request 32 hex digits: the submission's id, so that a killed run submits once
//   hash    64 hex digits of the resolved job
//   job     its id, once the coordinator has said it
//   state   its last known state's name
//   store   its checkpoint folder
//   base    the folder of the job file when the job was started, or submitted last
//   step    the step that it had come to, once it has trained one
//
// A line that begins with a space continues the one before: a path may hold line breaks.
//
// Beside it lies `resolved`, the job as it was started, so that a change can be named.
//
// The folder is locked for a run's life (.weft/NAME/lock, which holds the pid).
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/id.h"

struct record {
    char dir[4096]; // .weft/NAME, absolute
    int lock;       // -1 while it is not ours
    bool there;     // a record was there when it was opened
    bool damaged;   // then it was not whole
    char request[ID_LEN], hash[65], job[65], state[32], store[4096], step[24], base[4096];
};

// Whether a record is there, as long as nobody holds the folder. Makes nothing.
bool record_is_there(const char *base_dir, const char *name);
// The names of those that are there, by the alphabet, up to a handful: "a, b, …". Empty: there is none.
void record_list(const char *base_dir, struct buf *out);
// The checkpoint folder of the job that was started here by this name, from "./" on where it lies beside
// the job file. False: nothing is known of it. Takes no lock, and makes nothing.
bool record_find_store(const char *base_dir, const char *name, char out[4096]);
// A checkpoint as verbs are given it, with its @STEP taken off (ckpt/source.h): a path that is there, or
// the folder of a job that was run here.
const char *record_find_checkpoint(const char *text, struct arena *a, int64_t *step);
// Makes and locks the folder beside the job file, and reads the record that is there. ERR_EXISTS if
// another run holds the lock; `e` names its pid.
int record_open(struct record *r, const char *base_dir, const char *name, struct err *e);
// Whether the folder of the job file was moved, or copied, to `base_dir` since. What lies in it is
// looked for there from now on.
bool record_follow(struct record *r, const char *base_dir);
// Whether a record of this job lies in the folder of before too, so that this one is its copy.
bool record_is_copy(const struct record *r, const char *name);
// Takes the job's checkpoint folder as the coordinator says it; false: it is not there, as before the
// first attempt begins, or where the job's folder was moved since.
bool record_take_store(struct record *r, const char *store);
int record_write(struct record *r, struct err *e);
// Moves all that is there into DIR/old-…, which leaves the record empty.
int record_aside(struct record *r, struct err *e);
// Removes all that is there but what record_aside() kept, what is known of the job last.
int record_remove(struct record *r, struct err *e);
void record_close(struct record *r);
