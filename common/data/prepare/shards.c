// SPDX-License-Identifier: Apache-2.0
// Shards of tokens. See shards.h.
#include "common/data/prepare/shards.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/heap.h"
#include "common/data/array_format.h"

void shards_init(struct shards *s, int dir, int split, enum array_type type, uint64_t most,
                 const char *identity)
{
    *s = (struct shards){.dir = dir,
                         .split = split,
                         .type = type,
                         .most = most,
                         .identity = identity,
                         .fd = -1,
                         .hash = xxh3_new()};
}

void shards_clear(struct shards *s)
{
    if (s->hash && s->fd >= 0)
        close(s->fd);
    xxh3_free(s->hash);
    arena_clear(&s->names);
    *s = (struct shards){.fd = -1};
}

static const char *part_name(struct shards *s, const struct token_shard *shard)
{
    return arena_printf(&s->names, "%s.part", shard->file);
}

static int write_whole(int fd, const void *from, size_t len, off_t at)
{
    const char *p = from;
    while (len) {
        ssize_t n = pwrite(fd, p, len, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        p += n;
        at += n;
        len -= (size_t)n;
    }
    return 0;
}

static void fill_header(const struct shards *s, const struct token_shard *shard,
                        char head[SHARD_HEADER])
{
    bool wide = s->type == ARRAY_U32;
    uint32_t words[] = {wide ? LLMC_MAGIC_U32 : LLMC_MAGIC_U16, wide ? 7 : 1,
                        (uint32_t)shard->tokens};
    memset(head, 0, SHARD_HEADER);
    memcpy(head, words, sizeof words);
    strncpy(head + SHARD_IDENTITY, s->identity, SHARD_HEADER - SHARD_IDENTITY - 1);
}

static int write_header(struct shards *s, const struct token_shard *shard, struct err *e)
{
    char head[SHARD_HEADER];
    fill_header(s, shard, head);
    return write_whole(s->fd, head, sizeof head, 0)
               ? err_errno(e, ERR_IO, "cannot write %s", shard->file)
               : 0;
}

static struct token_shard *add_shard(struct shards *s)
{
    s->v = arena_grow(&s->names, s->v, sizeof *s->v, s->n, &s->cap);
    struct token_shard *shard = &s->v[s->n];
    *shard = (struct token_shard){
        .file = arena_printf(&s->names, "%s-%05d.bin", token_splits[s->split], s->n),
        .split = s->split};
    s->n++;
    return shard;
}

static int begin_shard(struct shards *s, struct err *e)
{
    if (s->n == TOKEN_SHARDS_MOST)
        return err_set(e, ERR_LIMIT, "more than %d shards: make them larger (--shard-tokens)",
                       TOKEN_SHARDS_MOST);
    struct token_shard *shard = add_shard(s);
    int flags = O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW;
    s->fd = openat(s->dir, part_name(s, shard), flags, 0666);
    xxh3_reset(s->hash);
    return s->fd < 0 ? err_errno(e, ERR_IO, "cannot write %s", shard->file) : 0;
}

int shards_complete(struct shards *s, struct err *e)
{
    if (s->fd < 0)
        return 0;
    struct token_shard *shard = &s->v[s->n - 1];
    int rc = write_header(s, shard, e);
    if (!rc && fsync(s->fd))
        rc = err_errno(e, ERR_IO, "cannot write %s", shard->file);
    shard->digest = xxh3_digest(s->hash);
    if (close(s->fd) && !rc)
        rc = err_errno(e, ERR_IO, "cannot write %s", shard->file);
    s->fd = -1;
    return rc;
}

int shards_add(struct shards *s, const void *ids, uint64_t n, const struct shard_mark *marks,
               size_t nmarks, bool *filled, struct err *e)
{
    const char *from = ids;
    size_t size = array_type_size(s->type), mark = 0;
    int rc = 0;
    for (uint64_t done = 0; done < n && !rc;) {
        rc = s->fd < 0 ? begin_shard(s, e) : 0;
        if (rc)
            return rc;
        struct token_shard *shard = &s->v[s->n - 1];
        uint64_t room = s->most - shard->tokens, take = n - done < room ? n - done : room;
        if (write_whole(s->fd, from + done * size, take * size,
                        (off_t)(SHARD_HEADER + shard->tokens * size)))
            return err_errno(e, ERR_IO, "cannot write %s", shard->file);
        xxh3_update(s->hash, from + done * size, take * size);
        shard->tokens += take;
        done += take;
        for (; mark < nmarks && marks[mark].end <= done; mark++) {
            shard->documents++;
            shard->bytes += marks[mark].bytes;
        }
        if (shard->tokens == s->most) {
            *filled = true;
            rc = shards_complete(s, e);
        }
    }
    return rc;
}

int shards_keep(struct shards *s, struct err *e)
{
    if (s->fd < 0)
        return 0;
    s->v[s->n - 1].digest = xxh3_digest(s->hash);
    return fsync(s->fd) ? err_errno(e, ERR_IO, "cannot write %s", s->v[s->n - 1].file) : 0;
}

// Holds a file's ids against the digest of those that were kept, and leaves the hash behind them.
static bool compare_ids(struct shards *s, int fd, const struct token_shard *shard)
{
    enum { PIECE = 1 << 20 };
    uint64_t left = shard->tokens * array_type_size(s->type);
    char *piece = heap_alloc(PIECE);
    off_t at = SHARD_HEADER;
    ssize_t n = 1;
    xxh3_reset(s->hash);
    while (left && n > 0) {
        n = pread(fd, piece, left < PIECE ? left : PIECE, at);
        if (n > 0) {
            xxh3_update(s->hash, piece, (size_t)n);
            at += n;
            left -= (uint64_t)n;
        }
    }
    free(piece);
    struct hash128 now = xxh3_digest(s->hash);
    return !left && hash128_equal(now, shard->digest);
}

// A file behind the ids that were kept of it is cut off and may grow again.
static bool reopen_shard(struct shards *s, const struct token_shard *shard)
{
    off_t end = SHARD_HEADER + (off_t)(shard->tokens * array_type_size(s->type));
    s->fd = openat(s->dir, part_name(s, shard), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    return s->fd >= 0 && compare_ids(s, s->fd, shard) && !ftruncate(s->fd, end);
}

static bool compare_complete(struct shards *s, const struct token_shard *shard)
{
    char wanted[SHARD_HEADER], head[SHARD_HEADER];
    off_t end = SHARD_HEADER + (off_t)(shard->tokens * array_type_size(s->type));
    int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    struct stat st;
    int fd = openat(s->dir, part_name(s, shard), flags);
    if (fd < 0)
        fd = openat(s->dir, shard->file, flags);
    if (fd < 0)
        return false;
    fill_header(s, shard, wanted);
    bool same = !fstat(fd, &st) && st.st_size == end &&
                pread(fd, head, sizeof head, 0) == sizeof head &&
                memcmp(head, wanted, sizeof head) == 0 && compare_ids(s, fd, shard);
    close(fd);
    return same;
}

int shards_continue(struct shards *s, const struct token_shard *was, bool complete, struct err *e)
{
    struct token_shard *shard = add_shard(s);
    shard->tokens = was->tokens;
    shard->documents = was->documents;
    shard->bytes = was->bytes;
    shard->digest = was->digest;
    if (complete || shard->tokens == s->most ? compare_complete(s, shard) : reopen_shard(s, shard))
        return 0;
    return err_set(e, ERR_DATA,
                   "%s: what was prepared of it is gone or was changed: remove the folder and "
                   "begin again",
                   shard->file);
}

int shards_name(struct shards *s, struct err *e)
{
    for (int i = 0; i < s->n; i++)
        if (renameat(s->dir, part_name(s, &s->v[i]), s->dir, s->v[i].file) && errno != ENOENT)
            return err_errno(e, ERR_IO, "cannot rename %s", s->v[i].file);
    return 0;
}
