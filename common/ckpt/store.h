// SPDX-License-Identifier: Apache-2.0
// The directory of one job's checkpoints, DIR/NAME-<id8>/, and every durable act in it.
//
//   OWNER                   cluster id, job id, resolved job, threads; appears whole, is replaced whole
//                           when the job continues with another text
//   attempt-A               the fence of attempt A: the random id of who made it
//   .tmp-step-00000200.a3   a checkpoint being written
//   step-00000200.a3        a committed one; never changes
//   aside-step-00000300.a3  one that a person went back behind: nothing reads or removes it
//   tokenizer               the files of the tokenizer that the model was trained with
//   .dead-*  .trash-*       fenced, aborted or deleted; store_sweep removes them
//
// A fence of A makes attempt-A first and only then renames what older attempts have open. So a process
// of an older attempt either finds the fence when it looks, or finds its directory gone when it
// renames. Everything that must survive is fsynced here, and a failed fsync is final: ERR_IO, never
// tried again on that file. Nothing is kept in memory but the open directory, and several processes
// may work in it at once. README.md in this folder has the whole protocol.
#pragma once
#include "common/base/arena.h"
#include "common/base/err.h"
#include "common/ckpt/manifest.h"

// Attempts are 1 to ATTEMPT_MAX. A greater one was never given by weft, whoever names it: a file, a
// frame or a row. The limit leaves room for an attempt a second for thirty years.
enum { ATTEMPT_MAX = 1000000000 };
// The folder in it with the files of the tokenizer that the model was trained with, if it has any.
#define STORE_TOKENIZER "tokenizer"

struct store {
    int fd; // the job's directory
    char path[1000];
};
struct store_owner {
    const char *cluster, *job, *name, *resolved; // the resolved job's text
    int64_t threads; // that the job has, where its text names none; 0: not decided yet
};
struct store_entry {
    int64_t attempt, step;
};

// All paths lie beneath `root` (base/root.h; null or empty: there is none); a relative one starts
// there. Makes (durably) DIR and the job's directory, or finds it and gives its OWNER this text of
// the job; ERR_EXISTS: it belongs to another job.
int store_make(struct store *s, const char *root, const char *dir, const struct store_owner *owner,
               struct err *e);
// As store_make(), but the job's directory is `path` itself, for which no name is made.
int store_make_at(struct store *s, const char *path, const struct store_owner *owner,
                  struct err *e);
// Opens the directory of a job that is there already; ERR_NOTFOUND: it is not. ERR_EXISTS: it
// belongs to another job.
int store_find(struct store *s, const char *root, const char *dir, const struct store_owner *owner,
               struct err *e);
// An existing job's directory by its own path; no owner is checked, nothing is made.
int store_open(struct store *s, const char *root, const char *path, struct err *e);
// For a directory that somebody removed while it was open: makes it again, with its owner and the
// fence of `attempt`, or opens the one that another rank has made again. Does nothing while it is
// there; one that was moved away, or whose file system is no longer mounted, is not made. *removed
// says whether it had been removed and now holds no checkpoint.
int store_make_again(struct store *s, const char *root, const struct store_owner *owner,
                     int64_t attempt, const char *attempt_id, bool *removed, struct err *e);
void store_close(struct store *s); // a zeroed or closed store is fine
int store_read_owner(const struct store *s, struct arena *a, struct store_owner *out,
                     struct err *e);

void store_entry_name(int64_t attempt, int64_t step, char out[64]); // "step-00000200.a3"
bool store_entry_parse(const char *name, struct store_entry *out);
bool store_entry_ok(uint64_t attempt, int64_t step);                 // can a checkpoint have these?
int store_entry_compare(struct store_entry a, struct store_entry b); // by (attempt, step)

// ERR_FENCED, with *greatest, when a greater attempt is there or this one has another id:
// fence again with 1 + *greatest. ERR_INVALID: the attempt, or one that is there, is beyond ATTEMPT_MAX.
// Repeating a fence that succeeded succeeds. On success what store_scan lists is durable.
int store_fence(struct store *s, int64_t attempt, const char *attempt_id, int64_t *greatest,
                struct err *e);
// ERR_FENCED when an attempt greater than `attempt` is there, as a marker or as that of a checkpoint;
// *greatest (may be null) is set: 0, none. ERR_INVALID: a marker is beyond ATTEMPT_MAX.
int store_check_attempt(const struct store *s, int64_t attempt, int64_t *greatest, struct err *e);
// The committed checkpoints, newest (greatest attempt, then step) first.
int store_scan(const struct store *s, struct arena *a, struct store_entry **out, int *n,
               struct err *e);
// The newest of a step. ERR_NOTFOUND names the steps that are there.
int store_find_step(const struct store *s, int64_t step, struct store_entry *out, struct err *e);
// What begins like a checkpoint's name and is none, so that nobody ever loads it; it is reported.
#define STORE_UNUSED_WHY "its name is none that weft gives to a checkpoint"
int store_list_unused(const struct store *s, struct arena *a, const char ***out, int *n,
                      struct err *e);

// Opens (makes, if first) the directory of a checkpoint being written; *tmp is the caller's.
int store_begin(struct store *s, int64_t attempt, int64_t step, int *tmp, struct err *e);
// After a rank's shard is synced: makes its name durable (the checkpoint's directory, its parent).
int store_sync_shard(struct store *s, int tmp, struct err *e);
// The writer: seals and names the checkpoint. Already there: durable again, then success.
// ERR_FENCED: a greater attempt exists. ERR_DATA: a shard is missing or has another length.
int store_commit(struct store *s, const struct manifest *m, struct err *e);
int store_abort(struct store *s, int64_t attempt, int64_t step, struct err *e); // absent is fine
// Durably gone from the scan, then unlinked. Absent is fine.
int store_delete(struct store *s, int64_t attempt, int64_t step, struct err *e);
// Removes the whole folder, with all that is in it, durably: it loses its name first. One that
// store_find() did not find has a path too: then what is left of an earlier removal goes. ERR_EXISTS:
// another folder lies there meanwhile. *absent, which may be null: there was nothing to remove.
int store_destroy(struct store *s, const char *root, bool *absent, struct err *e);
// Durably takes every checkpoint out of the scan that was saved after `from`, which stays: it is
// called aside-step-… from now on. That of an older attempt and a later step goes too. ERR_FENCED: a
// greater attempt than `attempt` has begun, whose checkpoints stay.
int store_set_aside(struct store *s, int64_t attempt, struct store_entry from, struct err *e);
// Renames what begins with `prefix` so that the next sweep removes it: all of it, or what was changed
// before the entry `mark` was. Best effort.
void store_discard(struct store *s, const char *prefix, const char *mark);
// Removes .dead-* and .trash-*, and what (attempt, steps below `step`) left open. Best effort.
void store_sweep(struct store *s, int64_t attempt, int64_t step);
