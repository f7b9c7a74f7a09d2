// SPDX-License-Identifier: Apache-2.0
// Reads a committed checkpoint. Opening checks the seal, the manifest and every file's length; each
// byte that comes out of load_read was hashed in the same read, and a bad one fails the call naming
// file and tensor: what is in the destination then is not to be used.
//
// Regions are read by intersecting them with the checkpoint's slices, so how it was cut when it was
// written does not matter. One thread at a time per `struct load`.
#pragma once
#include "common/base/arena.h"
#include "common/ckpt/manifest.h"
#include "common/ckpt/store.h"

struct load {
    struct arena arena;
    struct manifest manifest;
    int dirfd;
    char name[64];        // "step-00000200.e3"
    unsigned char *chunk; // read buffer
};

// ERR_NOTFOUND: no such checkpoint. ERR_DATA, ERR_CORRUPT: damaged. ERR_IO: the system refused.
int load_open(struct load *l, const struct store *s, int64_t epoch, int64_t step, struct err *e);
void load_close(struct load *l); // a zeroed or closed one is fine

// Fills `to` with box `b` of the tensor, in row-major order of the box.
int load_read(struct load *l, const char *tensor, enum dtype dtype, const struct box *b, void *to,
              struct err *e);
// Reads and checks every byte of every file. Calls `bad` (may be null) for each fault found and
// goes on; returns the first fault's code.
int load_verify(struct load *l, void (*bad)(void *arg, const struct err *e), void *arg,
                struct err *e);

// The newest checkpoint that opens and, with `deep`, verifies. `refused` (may be null) is told of
// each one passed over, and should log a line. ERR_NOTFOUND: there is none to try;
// the newest one's error when there are some and all are bad.
int load_open_newest_good(struct load *l, const struct store *s, bool deep,
                          void (*refused)(void *arg, struct store_entry which, const struct err *e),
                          void *arg, struct err *e);
