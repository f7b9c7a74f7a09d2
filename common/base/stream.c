// SPDX-License-Identifier: Apache-2.0
// A checksummed stream of bytes. See stream.h.
//
// What reads and writes the file knows nothing of digests, faults or the broken state: the wrappers
// at the end of this file add those. A file is read and written at the stream's own position
// (pread, pwrite), so a descriptor's shared offset is never looked at. Deliberately no buffering:
// callers move whole tensors and whole headers.
#include "common/base/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

enum { PIECE = 8 << 20, WRITEBACK_MIN = 1 << 20 };

// ---- the file ----------------------------------------------------------------------------------
static int read_file(struct stream *s, void *to, size_t len, size_t *got, struct err *e)
{
    ssize_t n;
    *got = 0;
    do
        n = pread(s->fd, to, len, (off_t)s->at);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return err_errno(e, ERR_IO, "%s: cannot read at byte %llu", s->name,
                         (unsigned long long)s->at);
    *got = (size_t)n;
    s->at += (uint64_t)n;
    return 0;
}

static int write_file(struct stream *s, const void *from, size_t len, struct err *e)
{
    const char *p = from;
    while (len) {
        ssize_t n = pwrite(s->fd, p, len < PIECE ? len : PIECE, (off_t)s->at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            errno = n ? errno : EIO;
            return err_errno(e, ERR_IO, "%s: cannot write at byte %llu", s->name,
                             (unsigned long long)s->at);
        }
        p += n;
        len -= (size_t)n;
        s->at += (uint64_t)n;
        // The disk begins while the next piece is copied, so that the sync at the end finds little
        // left to wait for. If this call does nothing, nothing is lost; if the writing fails, the
        // sync reports it.
        if (n >= WRITEBACK_MIN)
            (void)sync_file_range(s->fd, (off_t)s->at - n, (off_t)n, SYNC_FILE_RANGE_WRITE);
    }
    return 0;
}

// ---- opening -----------------------------------------------------------------------------------
static int open_file(struct stream *s, int dirfd, const char *path, int flags, struct err *e)
{
    *s = (struct stream){.fd = openat(dirfd, path, flags | O_CLOEXEC, 0600)};
    if (s->fd < 0) {
        int code = errno == EEXIST ? ERR_EXISTS : errno == ENOENT ? ERR_NOTFOUND : ERR_IO;
        return err_errno(e, code, "%s: cannot %s", path, flags & O_CREAT ? "create" : "open");
    }
    s->hash = xxh3_new();
    snprintf(s->name, sizeof s->name, "%s", path);
    return 0;
}

int stream_create(struct stream *s, int dirfd, const char *path, struct err *e)
{
    return open_file(s, dirfd, path, O_WRONLY | O_CREAT | O_EXCL, e);
}

int stream_open(struct stream *s, int dirfd, const char *path, struct err *e)
{
    return open_file(s, dirfd, path, O_RDONLY, e);
}

// ---- the wrapper: digest, faults, broken streams ------------------------------------------------
// True when this call is the one that the test wants to fail.
static bool fault_due(struct stream *s)
{
    struct stream_fault *f = s->fault;
    return f && f->countdown > 0 && --f->countdown == 0;
}

static int fault_fail(const struct stream *s, const char *verb, struct err *e)
{
    return err_set(e, s->fault->code, "%s: cannot %s: injected fault", s->name, verb);
}

static int refuse_broken(const struct stream *s, struct err *e)
{
    return s->broken ? err_set(e, ERR_IO, "%s: an earlier write or sync failed", s->name) : 0;
}

int stream_read(struct stream *s, void *to, size_t len, size_t *got, struct err *e)
{
    *got = 0;
    int rc = refuse_broken(s, e);
    if (rc)
        return rc;
    bool fault = fault_due(s);
    if (fault && s->fault->partial < len)
        len = s->fault->partial;
    rc = read_file(s, to, len, got, e);
    xxh3_update(s->hash, to, *got);
    return !rc && fault ? fault_fail(s, "read", e) : rc;
}

int stream_read_exact(struct stream *s, void *to, size_t len, struct err *e)
{
    char *p = to;
    while (len) {
        size_t got;
        int rc = stream_read(s, p, len, &got, e);
        if (rc)
            return rc;
        if (!got)
            return err_set(e, ERR_DATA, "%s: ends at byte %llu, %zu more expected", s->name,
                           (unsigned long long)s->at, len);
        p += got;
        len -= got;
    }
    return 0;
}

int stream_write(struct stream *s, const void *from, size_t len, struct err *e)
{
    int rc = refuse_broken(s, e);
    if (rc)
        return rc;
    bool fault = fault_due(s);
    if (fault && s->fault->partial < len)
        len = s->fault->partial;
    rc = write_file(s, from, len, e);
    if (!rc)
        xxh3_update(s->hash, from, len);
    if (!rc && fault)
        rc = fault_fail(s, "write", e);
    s->broken = rc != 0;
    return rc;
}

uint64_t stream_tell(const struct stream *s)
{
    return s->at;
}

void stream_digest_reset(struct stream *s)
{
    xxh3_reset(s->hash);
}

struct hash128 stream_digest(const struct stream *s)
{
    return xxh3_digest(s->hash);
}

int stream_sync(struct stream *s, struct err *e)
{
    int rc = refuse_broken(s, e);
    if (rc)
        return rc;
    if (fault_due(s))
        rc = fault_fail(s, "sync", e);
    else if (fsync(s->fd))
        rc = err_errno(e, ERR_IO, "%s: cannot sync", s->name);
    s->broken = rc != 0;
    return rc;
}

int stream_close(struct stream *s, struct err *e)
{
    if (!s->hash)
        return 0;
    int rc = refuse_broken(s, e);
    bool fault = !rc && fault_due(s);
    // Linux frees the descriptor whatever close answers, so it is never tried again.
    if (close(s->fd) && !rc)
        rc = err_errno(e, ERR_IO, "%s: cannot close", s->name);
    if (fault)
        rc = fault_fail(s, "close", e);
    xxh3_free(s->hash);
    *s = (struct stream){.fd = -1};
    return rc;
}
