// SPDX-License-Identifier: Apache-2.0
// See tail.h.
#include "worker/sinks/tail.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/system.h"
#include "common/metrics/rows.h"

enum { PIECE = 256 << 10, ATTEMPTS_MAX = 4096 };

static void open_file(struct tail *t)
{
    struct stat st;
    t->fd = open(t->path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (t->fd < 0)
        return;
    if (fstat(t->fd, &st) || !S_ISREG(st.st_mode)) {
        close(t->fd);
        t->fd = -1;
        return;
    }
    t->inode = st.st_ino;
    if (st.st_size < t->end) // it was cut, or is another: what it has is looked at whole
        tail_seek(t, 0, 0);
}

// Somebody removed the file, and its rows were written again.
static bool was_replaced(const struct tail *t)
{
    struct stat st;
    return !stat(t->path, &st) && st.st_ino != t->inode;
}

// Reads more behind what is left of `text`; false: there is none now.
static bool read_more(struct tail *t)
{
    if (t->fd < 0)
        open_file(t);
    if (t->fd < 0)
        return false;
    memmove(t->text.data, t->text.data + t->at, t->text.len - t->at);
    t->text.len -= t->at;
    t->at = 0;
    if (t->text.len > ROW_BYTES_MAX) {
        if (!t->warned)
            log_warn("sink", "%s: a line is longer than %d bytes, and is left out", t->path,
                     ROW_BYTES_MAX);
        t->warned = t->skips = true;
        t->text.len = 0;
    }
    buf_reserve(&t->text, PIECE);
    ssize_t n = pread(t->fd, t->text.data + t->text.len, PIECE - 1, t->end);
    if (n > 0) {
        t->text.len += (size_t)n;
        t->end += n;
        return true;
    }
    if (n == 0 && was_replaced(t)) {
        close(t->fd);
        t->fd = -1;
        t->end -= (int64_t)t->text.len;
        t->text.len = 0;
    }
    return false;
}

void tail_seek(struct tail *t, int64_t from, uint64_t newest)
{
    buf_reserve(&t->text, PIECE);
    t->text.len = t->at = 0;
    t->skips = false;
    t->end = from;
    t->newest = newest;
}

// A row by its own words, whether it holds or not.
static bool next_line(struct tail *t, struct tail_row *out)
{
    for (;;) {
        char *line = t->text.data + t->at;
        char *end = memchr(line, '\n', t->text.len - t->at);
        if (!end && !read_more(t))
            return false;
        if (!end)
            continue;
        struct row row;
        bool rest = t->skips;
        t->skips = false;
        out->line = line;
        out->len = (size_t)(end - line) + 1;
        t->at += out->len;
        out->end = t->end - (int64_t)(t->text.len - t->at);
        if (rest || out->len > ROW_BYTES_MAX || !rows_read_line(line, out->len, &row))
            continue;
        out->step = row.step;
        out->attempt = row.attempt;
        return true;
    }
}

bool tail_next(struct tail *t, struct tail_row *out)
{
    while (!t->superseded && next_line(t, out)) {
        bool holds = out->attempt >= t->newest;
        t->newest = holds ? out->attempt : t->newest;
        t->superseded = out->attempt > t->own;
        for (int i = 0; i < t->attempts->n; i++)
            holds = holds && (t->attempts->v[i].attempt <= out->attempt ||
                              out->step < t->attempts->v[i].first);
        if (holds && !t->superseded)
            return true;
    }
    return false;
}

static void note_attempt(struct tail_attempts *a, uint64_t attempt, int64_t step)
{
    for (int i = 0; i < a->n; i++) {
        if (a->v[i].attempt != attempt)
            continue;
        a->v[i].first = step < a->v[i].first ? step : a->v[i].first;
        return;
    }
    if (a->n == ATTEMPTS_MAX)
        return;
    struct tail_attempt *more = realloc(a->v, sizeof *more * (size_t)(a->n + 1));
    PRE(more != NULL);
    a->v = more;
    a->v[a->n++] = (struct tail_attempt){attempt, step};
}

void tail_look(const char *path, uint64_t own, int64_t resumed_at, struct tail_attempts *out)
{
    struct tail t = {.path = path, .own = own, .fd = -1, .warned = true}; // those who read on warn
    struct tail_row row;
    uint64_t newest = 0;
    *out = (struct tail_attempts){0};
    tail_seek(&t, 0, 0);
    while (next_line(&t, &row)) {
        if (row.attempt >= newest && row.attempt < own)
            note_attempt(out, row.attempt, row.step);
        newest = row.attempt > newest ? row.attempt : newest;
    }
    tail_close(&t);
    note_attempt(out, own, resumed_at + 1);
}

void tail_attempts_clear(struct tail_attempts *a)
{
    free(a->v);
    *a = (struct tail_attempts){0};
}

void tail_close(struct tail *t)
{
    system_close(&t->fd);
    buf_clear(&t->text);
}
