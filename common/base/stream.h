// SPDX-License-Identifier: Apache-2.0
// A file that is written or read from its start, with a running checksum. The hash (xxh3-128) covers
// every byte that passed since the last stream_digest_reset(); `at` counts the bytes so far.
//
// To write a file durably: stream_write … → stream_sync → stream_close. A failed sync is final. The
// kernel may have dropped the pages that it could not write, so a second fsync could succeed
// without them; make a new file instead.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/base/hash.h"

// Tests only: fails the call number `countdown` (1: the next) of the wrapped operations with
// `code`; a write or read is cut short to `partial` bytes first. Zeroed: no faults.
struct stream_fault {
    int64_t countdown;
    int code;
    size_t partial;
};

struct stream {
    struct xxh3 *hash;          // null: closed
    struct stream_fault *fault; // borrowed, null in production
    char name[256];             // for messages
    int fd;
    uint64_t at;
    bool broken; // a sync or write failed: everything after fails too
};

int stream_create(struct stream *s, int dirfd, const char *path, struct err *e); // O_EXCL, 0600
int stream_open(struct stream *s, int dirfd, const char *path, struct err *e);   // to read

int stream_read(struct stream *s, void *to, size_t len, size_t *got, struct err *e); // got 0: end
int stream_read_exact(struct stream *s, void *to, size_t len, struct err *e); // short: ERR_DATA
int stream_write(struct stream *s, const void *from, size_t len, struct err *e);
uint64_t stream_tell(const struct stream *s);
void stream_digest_reset(struct stream *s);
struct hash128 stream_digest(const struct stream *s);
int stream_sync(struct stream *s, struct err *e);
// Frees the digest: take it before. A zeroed, closed or never opened stream is fine. A broken one
// is closed and answers ERR_IO; on a cleanup path pass a null `e`, to keep the first message.
int stream_close(struct stream *s, struct err *e);
