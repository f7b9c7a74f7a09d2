// SPDX-License-Identifier: Apache-2.0
// Logs of ranks. See rank_logs.h.
#include "worker/rank_logs.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/attempt/frame.h"
#include "common/base/arena.h"
#include "common/base/folder.h"
#include "common/base/heap.h"
#include "common/base/list.h"
#include "common/base/system.h"
#include "common/ckpt/store.h"

enum { LINE_MAX_BYTES = 64 << 10, CHUNK_MAX = 256 << 10, TURN_BYTES = 512 << 10 };

struct follower {
    struct list link;
    uint64_t ask;
    int rank;         // −1: all
    uint64_t attempt; // 0: all
    char *job;
};
struct rank_log { // a log that was there when it was asked for
    int rank;
    uint64_t attempt;
};
struct allowance { // what may still be sent of a rank: newer attempts have taken their part
    int rank, lines;
    size_t bytes;
};
struct log_reading { // of what is kept, for one ask: a log at a time, when there is room
    struct list link;
    struct arena arena;
    uint64_t ask;
    const char *job;
    int lines;
    bool follow;
    struct rank_log *logs; // the newest attempt's first
    int n, cap, at;        // at: the next to be sent
    struct allowance *ranks;
    int nranks, cap_ranks;
};
struct logs {
    char *jobs;
    struct logs_ops ops;
    struct list followers, readings;
};

// ---- files ----

// Finds the file that was full last, and returns its number; 0: none was full.
static int64_t find_full(const char *path, char *out, size_t size)
{
    char dir[4400];
    struct dirent *it;
    int64_t newest = 0;
    snprintf(dir, sizeof dir, "%s", path);
    char *name = strrchr(dir, '/');
    PRE(name != NULL);
    *name++ = 0;
    size_t len = strlen(name);
    DIR *d = opendir(dir);
    while (d && (it = readdir(d))) {
        char *end;
        if (strncmp(it->d_name, name, len) || it->d_name[len] != '.')
            continue;
        long long n = strtoll(it->d_name + len + 1, &end, 10);
        newest = !*end && n > newest ? n : newest;
    }
    if (d)
        closedir(d);
    snprintf(out, size, "%s.%lld", path, (long long)newest);
    return newest;
}

int log_file_open(struct log_file *f, const char *jobs, const char *job, uint64_t attempt, int rank,
                  struct err *e)
{
    char dir[4300], full[4500];
    struct stat st;
    memset(f, 0, sizeof *f);
    f->fd = -1;
    int n = snprintf(dir, sizeof dir, "%s/%s.a%llu", jobs, job, (unsigned long long)attempt);
    if (n >= (int)sizeof dir)
        return err_set(e, ERR_INVALID, "the path %s is too long", jobs);
    int rc = folder_make(dir, e);
    if (rc)
        return rc;
    snprintf(f->path, sizeof f->path, "%s/rank-%04d.log", dir, rank);
    f->fd = open(f->path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (f->fd < 0)
        return err_errno(e, ERR_IO, "cannot open %s", f->path);
    f->size = fstat(f->fd, &st) ? 0 : st.st_size;
    f->full = find_full(f->path, full, sizeof full);
    f->attempt = attempt;
    return 0;
}

static void rotate_file(struct log_file *f)
{
    char full[4500], older[4500];
    snprintf(older, sizeof older, "%s.%lld", f->path, (long long)f->full);
    snprintf(full, sizeof full, "%s.%lld", f->path, (long long)f->full + 1);
    if (rename(f->path, full))
        return; // it stays full until it can be
    if (f->full)
        (void)unlink(older);
    close(f->fd);
    f->fd = open(f->path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    f->size = 0;
    f->full++;
}

size_t log_file_append(struct log_file *f, const char *text, size_t len)
{
    size_t done = 0;
    while (done < len && f->fd >= 0) {
        if (f->size >= LOG_FILE_MAX)
            rotate_file(f);
        size_t room = f->size < LOG_FILE_MAX ? (size_t)(LOG_FILE_MAX - f->size) : 0,
               n = len - done < room ? len - done : room;
        ssize_t wrote = n && f->fd >= 0 ? write(f->fd, text + done, n) : 0;
        if (wrote <= 0)
            break; // a full disk takes lines, never a rank
        f->size += wrote;
        done += (size_t)wrote;
    }
    return done;
}

void log_file_close(struct log_file *f)
{
    system_close(&f->fd);
    buf_clear(&f->line);
}

// ---- tails ----

// The last `max` bytes of a file, in front of what is in `out`. Returns the file's size.
static int64_t read_end(const char *path, size_t max, struct buf *out)
{
    struct stat st = {0};
    struct buf b = {0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    if (!fstat(fd, &st) && max > 0) {
        size_t size = (size_t)st.st_size, n = size < max ? size : max;
        buf_reserve(&b, n + 1);
        ssize_t got = pread(fd, b.data, n, (off_t)(size - n));
        b.len = got > 0 ? (size_t)got : 0;
        buf_append(&b, buf_str(out), out->len);
        buf_reset(out);
        buf_append(out, b.data, b.len);
    }
    buf_clear(&b);
    close(fd);
    return st.st_size;
}

static size_t start_of_last(const struct buf *b, int lines)
{
    size_t at = b->len;
    if (at > 0 && b->data[at - 1] == '\n')
        at--;
    for (int n = 0; at > 0; at--)
        if (b->data[at - 1] == '\n' && ++n == lines)
            break;
    return at;
}

int64_t log_tail(const char *path, int lines, size_t max, struct buf *out)
{
    char full[4500];
    struct buf b = {0};
    int64_t nfull = find_full(path, full, sizeof full);
    int64_t end = nfull * LOG_FILE_MAX + read_end(path, max, &b);
    if (b.len < max)
        (void)read_end(full, max - b.len, &b);
    bool cut = (int64_t)b.len < end;
    size_t at = lines > 0 ? start_of_last(&b, lines) : 0;
    if (cut && at == 0) { // begins in the middle of a line
        const char *nl = memchr(buf_str(&b), '\n', b.len);
        at = nl ? (size_t)(nl - b.data) + 1 : 0;
    }
    buf_append(out, buf_str(&b) + at, b.len - at);
    buf_clear(&b);
    return end;
}

// ---- folders ----

static bool parse_attempt(const char *name, const char *job, uint64_t *attempt)
{
    size_t n = strlen(job);
    char *end;
    if (strncmp(name, job, n) || strncmp(name + n, ".a", 2))
        return false;
    *attempt = strtoull(name + n + 2, &end, 10);
    return end != name + n + 2 && !*end && *attempt <= ATTEMPT_MAX;
}

static int compare_newer_first(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

// The attempts of which there are logs, the newest first; `only` is one of them, or 0 for all.
static int list_attempts(const char *jobs, const char *job, uint64_t only, uint64_t *attempts,
                         int max)
{
    DIR *d = opendir(jobs);
    struct dirent *it;
    uint64_t attempt;
    int n = 0;
    while (d && n < max && (it = readdir(d)))
        if (parse_attempt(it->d_name, job, &attempt) && (!only || attempt == only))
            attempts[n++] = attempt;
    if (d)
        closedir(d);
    if (n)
        qsort(attempts, (size_t)n, sizeof *attempts, compare_newer_first);
    return n;
}

static bool find_oldest_dir(const char *jobs, char *out, size_t size, int *count)
{
    DIR *d = opendir(jobs);
    struct dirent *it;
    struct stat st;
    struct timespec oldest = {0};
    *count = 0;
    while (d && (it = readdir(d))) {
        if (it->d_name[0] == '.' || fstatat(dirfd(d), it->d_name, &st, 0) || !S_ISDIR(st.st_mode))
            continue;
        bool older = st.st_mtim.tv_sec < oldest.tv_sec ||
                     (st.st_mtim.tv_sec == oldest.tv_sec && st.st_mtim.tv_nsec < oldest.tv_nsec);
        if ((*count)++ && !older)
            continue;
        oldest = st.st_mtim;
        snprintf(out, size, "%s/%s", jobs, it->d_name);
    }
    if (d)
        closedir(d);
    return *count > 0;
}

void log_trim(const char *jobs)
{
    char dir[4700];
    int count;
    while (find_oldest_dir(jobs, dir, sizeof dir, &count) && count > LOG_JOBS_KEPT)
        folder_remove(dir);
}

// ---- asking ----

struct logs *logs_new(const char *jobs, const struct logs_ops *ops)
{
    struct logs *l = heap_alloc(sizeof *l);
    l->jobs = heap_strdup(jobs);
    l->ops = *ops;
    list_init(&l->followers);
    list_init(&l->readings);
    return l;
}

static void free_follower(struct follower *f)
{
    list_remove(&f->link);
    free(f->job);
    free(f);
}

static void reading_free(struct log_reading *r)
{
    list_remove(&r->link);
    arena_clear(&r->arena);
    free(r);
}

void logs_drop_all(struct logs *l)
{
    list_for_each (it, &l->followers)
        free_follower(list_entry(it, struct follower, link));
    list_for_each (it, &l->readings)
        reading_free(list_entry(it, struct log_reading, link));
}

void logs_free(struct logs *l)
{
    if (!l)
        return;
    logs_drop_all(l);
    free(l->jobs);
    free(l);
}

struct log_tail_source { // of lines, and who asked for them
    uint64_t ask, attempt;
    int rank;
    int64_t end; // position behind the last of them
};

static void send_text(struct logs *l, const struct log_tail_source *from, char *text, size_t len,
                      bool whole)
{
    while (len > 0) {
        size_t n = len;
        if (n > CHUNK_MAX) { // whole lines, if they are not longer
            const char *nl = memrchr(text, '\n', CHUNK_MAX);
            n = nl ? (size_t)(nl - text) + 1 : CHUNK_MAX;
        }
        V1_NEW(LogChunk, log_chunk, c);
        c.ask = from->ask;
        c.rank = from->rank;
        c.attempt = from->attempt;
        c.text.data = (uint8_t *)text;
        c.text.len = n;
        text += n;
        len -= n;
        c.ends_at = from->end - (int64_t)len;
        if (whole || !l->ops.lags(l->ops.ctx))
            l->ops.say(l->ops.ctx, &c);
    }
}

static struct allowance *find_allowance(struct log_reading *r, int rank)
{
    for (int i = 0; i < r->nranks; i++)
        if (r->ranks[i].rank == rank)
            return &r->ranks[i];
    r->ranks = arena_grow(&r->arena, r->ranks, sizeof *r->ranks, r->nranks, &r->cap_ranks);
    r->ranks[r->nranks] = (struct allowance){rank, r->lines, LOG_TAIL_MAX};
    return &r->ranks[r->nranks++];
}

// Sends the end of one log, as much as may still be sent of its rank; returns how many bytes.
static size_t send_tail(struct logs *l, struct log_reading *r, const struct rank_log *k)
{
    struct allowance *a = find_allowance(r, k->rank);
    struct log_tail_source from = {r->ask, k->attempt, k->rank, 0};
    struct buf b = {0};
    char path[5000];
    if (a->bytes == 0 || (r->lines > 0 && a->lines <= 0))
        return 0;
    snprintf(path, sizeof path, "%s/%s.a%llu/rank-%04d.log", l->jobs, r->job,
             (unsigned long long)k->attempt, k->rank);
    from.end = log_tail(path, a->lines, a->bytes, &b);
    size_t sent = b.len;
    send_text(l, &from, b.data, b.len, true);
    for (size_t i = 0; i < b.len; i++)
        a->lines -= r->lines > 0 && b.data[i] == '\n';
    a->bytes -= sent < a->bytes ? sent : a->bytes;
    buf_clear(&b);
    return sent;
}

static void list_logs_of(const struct logs *l, struct log_reading *r, int rank, uint64_t attempt)
{
    char dir[4300];
    struct dirent **names;
    int its, end;
    snprintf(dir, sizeof dir, "%s/%s.a%llu", l->jobs, r->job, (unsigned long long)attempt);
    int n = scandir(dir, &names, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        const char *name = names[i]->d_name;
        end = 0;
        if (sscanf(name, "rank-%d.log%n", &its, &end) == 1 && end == (int)strlen(name) &&
            (rank < 0 || rank == its)) {
            r->logs = arena_grow(&r->arena, r->logs, sizeof *r->logs, r->n, &r->cap);
            r->logs[r->n++] = (struct rank_log){its, attempt};
        }
        free(names[i]);
    }
    if (n >= 0)
        free(names);
}

static void begin_reading(struct logs *l, const Weft__V1__LogAsk *ask)
{
    uint64_t attempts[LOG_JOBS_KEPT];
    struct log_reading *r = heap_alloc(sizeof *r);
    r->ask = ask->ask;
    r->job = arena_strdup(&r->arena, ask->job);
    r->lines = ask->lines;
    r->follow = ask->follow;
    int n = strchr(ask->job, '/')
                ? 0
                : list_attempts(l->jobs, ask->job, ask->attempt, attempts, LOG_JOBS_KEPT);
    for (int i = 0; i < n; i++)
        list_logs_of(l, r, ask->rank, attempts[i]);
    list_append(&l->readings, &r->link);
}

static void end_reading(struct logs *l, struct log_reading *r)
{
    V1_NEW(LogChunk, log_chunk, last);
    last.ask = r->ask;
    last.end = true;
    if (!r->follow)
        l->ops.say(l->ops.ctx, &last);
    reading_free(r);
}

bool logs_waiting(const struct logs *l)
{
    return !list_empty(&l->readings);
}

void logs_resume(struct logs *l)
{
    size_t sent = 0;
    while (logs_waiting(l) && sent < TURN_BYTES && !l->ops.lags(l->ops.ctx)) {
        struct log_reading *r = list_entry(l->readings.next, struct log_reading, link);
        if (r->at < r->n)
            sent += send_tail(l, r, &r->logs[r->at++]);
        list_remove(&r->link); // readers take turns
        list_append(&l->readings, &r->link);
        if (r->at == r->n)
            end_reading(l, r);
    }
}

void logs_ask(struct logs *l, const Weft__V1__LogAsk *ask)
{
    list_for_each (it, &l->followers)
        if (list_entry(it, struct follower, link)->ask == ask->ask)
            free_follower(list_entry(it, struct follower, link));
    list_for_each (it, &l->readings)
        if (list_entry(it, struct log_reading, link)->ask == ask->ask)
            reading_free(list_entry(it, struct log_reading, link));
    if (ask->stop)
        return;
    begin_reading(l, ask);
    if (ask->follow) {
        struct follower *f = heap_alloc(sizeof *f);
        f->ask = ask->ask;
        f->rank = ask->rank;
        f->attempt = ask->attempt;
        f->job = heap_strdup(ask->job);
        list_append(&l->followers, &f->link);
    }
    logs_resume(l);
}

// Whether what this follower is sent of a log will hold its end too.
static bool is_still_read(const struct logs *l, uint64_t ask, int rank, uint64_t attempt)
{
    for (struct list *it = l->readings.next; it != &l->readings; it = it->next) {
        const struct log_reading *r = list_entry(it, struct log_reading, link);
        for (int i = r->at; r->ask == ask && i < r->n; i++)
            if (r->logs[i].rank == rank && r->logs[i].attempt == attempt)
                return true;
    }
    return false;
}

// Sends the first `len` bytes of what waits in f->line, with which the log ends.
static void send_to_followers(struct logs *l, const char *job, int rank, struct log_file *f,
                              size_t len)
{
    const int64_t end = f->full * LOG_FILE_MAX + f->size - (int64_t)(f->line.len - len);
    list_for_each (it, &l->followers) {
        struct follower *to = list_entry(it, struct follower, link);
        const struct log_tail_source from = {to->ask, f->attempt, rank, end};
        if (!strcmp(to->job, job) && (to->rank < 0 || to->rank == rank) &&
            (!to->attempt || to->attempt == f->attempt) &&
            !is_still_read(l, to->ask, rank, f->attempt))
            send_text(l, &from, f->line.data, len, false);
    }
    f->line.len -= len;
    memmove(f->line.data, f->line.data + len, f->line.len);
}

void logs_appended(struct logs *l, const char *job, int rank, struct log_file *f, const char *text,
                   size_t len)
{
    logs_resume(l); // it ends, and so goes before a rank that may print without a pause
    buf_append(&f->line, text, len);
    const char *nl = memrchr(buf_str(&f->line), '\n', f->line.len);
    size_t whole = nl ? (size_t)(nl - f->line.data) + 1 : 0;
    if (!whole && f->line.len > LINE_MAX_BYTES)
        whole = f->line.len;
    if (whole)
        send_to_followers(l, job, rank, f, whole);
}

void logs_flush(struct logs *l, const char *job, int rank, struct log_file *f)
{
    if (f->line.len)
        send_to_followers(l, job, rank, f, f->line.len);
}
