// SPDX-License-Identifier: Apache-2.0
// A stream of bytes with a running checksum: five slots, and one wrapper that hashes and injects
// faults.
//
// Kinds: a file descriptor (write or read at a position of its own), a buf in memory. The hash
// (xxh3-128) covers every byte that passed since the last stream_digest_reset(). A stream is either
// written or read; `at` counts the bytes so far. To read a buf back, make another stream on it.
//
// To write a file durably: stream_write … → stream_sync → stream_close. A failed sync is final. The
// kernel may have dropped the pages that it could not write, so a second fsync could succeed
// without them; make a new file instead.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/hash.h"

struct stream;
struct stream_ops {
    int (*read)(struct stream *s, void *to, size_t len, size_t *got, struct err *e); // got 0: end
    int (*write)(struct stream *s, const void *from, size_t len, struct err *e);     // all of it
    int (*tell)(struct stream *s, uint64_t *at);
    int (*sync)(struct stream *s, struct err *e);
    int (*close)(struct stream *s, struct err *e);
};

// Tests only: fails the call number `countdown` (1: the next) of the wrapped operations with
// `code`; a write or read is cut short to `partial` bytes first. Zeroed: no faults.
struct stream_fault {
    int64_t countdown;
    int code;
    size_t partial;
    bool fired;
};

struct stream {
    const struct stream_ops *ops;
    struct xxh3 *hash;
    struct stream_fault *fault; // borrowed, null in production
    char name[256];             // for messages
    int fd;
    uint64_t at;
    struct buf *buf; // borrowed
    bool broken;     // a sync or write failed: everything after fails too
};

int stream_create(struct stream *s, int dirfd, const char *path, struct err *e); // O_EXCL, 0600
int stream_open(struct stream *s, int dirfd, const char *path, struct err *e);   // to read
void stream_buf(struct stream *s, struct buf *buf,
                const char *name); // writes append, reads consume

int stream_read(struct stream *s, void *to, size_t len, size_t *got, struct err *e);
int stream_read_exact(struct stream *s, void *to, size_t len, struct err *e); // short: ERR_DATA
int stream_write(struct stream *s, const void *from, size_t len, struct err *e);
uint64_t stream_tell(struct stream *s);
void stream_digest_reset(struct stream *s);
struct hash128 stream_digest(const struct stream *s);
int stream_sync(struct stream *s, struct err *e);
// Frees the digest: take it before. A zeroed, closed or never opened stream is fine. A broken one
// is closed and answers ERR_IO; on a cleanup path pass a null `e`, to keep the first message.
int stream_close(struct stream *s, struct err *e);
