// SPDX-License-Identifier: Apache-2.0
// Reads a committed checkpoint. Opening checks the seal, the manifest, that it is of the job and
// cluster that the folder's OWNER names (where there is one), and every file's length. Each byte
// that load_read returns was hashed in the same read. When a digest differs the call fails and
// names file and tensor; the destination must then not be used.
//
// A region is read by intersecting it with the checkpoint's slices, so it does not matter how the
// tensors were cut when they were written. One thread at a time per `struct load`.
#pragma once
#include "common/base/arena.h"
#include "common/ckpt/manifest.h"
#include "common/ckpt/store.h"

struct load {
    struct arena arena;
    struct manifest manifest;
    int dirfd;
    char name[64];             // "step-00000200.a3"
    char digest[COMMIT_BYTES]; // of MANIFEST.json, as its seal has it
    unsigned char *chunk;      // read buffer
};

// ERR_NOTFOUND: no such checkpoint. ERR_DATA, ERR_CORRUPT: damaged. ERR_IO: the system refused.
int load_open(struct load *l, const struct store *s, int64_t attempt, int64_t step, struct err *e);
void load_close(struct load *l); // a zeroed or closed one is fine

// Fills `to` with box `b` of the tensor, in row-major order of the box. ERR_DATA: the checkpoint has
// no such tensor, or it is of another dtype or shape than the caller's.
int load_read(struct load *l, const char *tensor, enum dtype dtype, const struct shape *global,
              const struct box *b, void *to, struct err *e);
// For a tensor that is too large to be had at once: every byte of it is read and checked; then boxes
// of it are read as often as need be, each from the same files without another digest.
int load_check(struct load *l, const struct manifest_tensor *t, struct err *e);
int load_read_part(struct load *l, const struct manifest_tensor *t, const struct box *b, void *to,
                   struct err *e);
// As load_read(), but reads no more than what lies in the tensor: the rest of `to` stays as it is.
int load_read_within(struct load *l, const struct manifest_tensor *t, const struct box *b, void *to,
                     struct err *e);
// Reads the heads of all files alone: each is what was written and says what the manifest says.
int load_check_heads(struct load *l, struct err *e);
// Reads and checks every byte of every file. Calls `bad` (may be null) for each fault found and
// continues; returns the first fault's code.
int load_verify(struct load *l, void (*bad)(void *arg, const struct err *e), void *arg,
                struct err *e);

// How many damaged checkpoints are remembered, at most, while a good one is looked for.
enum { DAMAGED_MAX = 64 };
// The newest checkpoint that opens and passes the check. `refused` (may be null) is called for each one
// that is left out, and should log a line. ERR_NOTFOUND: there is none to try. When all are bad, the
// newest one's error.
int load_open_newest(struct load *l, const struct store *s,
                     int (*check)(struct load *l, struct err *e),
                     void (*refused)(void *arg, struct store_entry which, const struct err *e),
                     void *arg, struct err *e);
// The same, and the check is load_verify().
int load_open_newest_good(struct load *l, const struct store *s,
                          void (*refused)(void *arg, struct store_entry which, const struct err *e),
                          void *arg, struct err *e);
// Makes the checkpoint of a step the newest, for `attempt`: what was saved after it is set
// aside once every byte of it was read. That may take so long that another attempt has begun:
// ERR_FENCED. ERR_INVALID: there is none of that step, or it is damaged.
int load_make_newest(struct store *s, int64_t attempt, int64_t step, struct err *e);
