// SPDX-License-Identifier: Apache-2.0
// Writes a .npz file, as numpy.load() reads it: a zip archive of .npy files that are stored as they are,
// in zip64 form, so that neither a file nor the whole has a limit of 4 GB.
// Inside common/weights/ only.
#pragma once
#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/stream.h"
#include "common/op/op.h"

struct npz {
    struct stream file;
    struct buf central;
    uint64_t entries, at,
        bytes; // of the array that is open: where its entry begins, its bytes so far
    uint32_t crc;
    char name[256];
};
int npz_open(struct npz *z, int dirfd, const char *name, struct err *e);
// An array of f32, C order: npz_begin, npz_put with its bytes, npz_end.
int npz_begin(struct npz *z, const char *name, const struct shape *shape, struct err *e);
int npz_put(struct npz *z, const void *bytes, uint64_t n, struct err *e);
int npz_end(struct npz *z, struct err *e);
// Writes the table of contents, syncs and closes; with an earlier error `rc` it closes and returns that.
int npz_close(struct npz *z, int rc, struct err *e);
