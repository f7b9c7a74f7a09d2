// SPDX-License-Identifier: Apache-2.0
// Logs of ranks. See rank_logs.h.
#include "worker/rank_logs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/arena.h"
#include "common/base/folder.h"
#include "common/base/list.h"
#include "common/ckpt/store.h"

enum { LINE_MAX_BYTES = 64 << 10, CHUNK_MAX = 256 << 10 };

struct follower {
    struct list link;
    uint64_t ask;
    int rank;       // −1: all
    uint64_t epoch; // 0: all
    char *job;
    size_t left_out; // bytes, since the last note about that
};
struct logs {
    char *jobs;
    logs_say *say;
    void *ctx;
    struct list followers;
};

// ---- files ----

int log_file_open(struct log_file *f, const char *jobs, const char *job, uint64_t epoch, int rank,
                  struct err *e)
{
    char dir[4300];
    struct stat st;
    memset(f, 0, sizeof *f);
    f->fd = -1;
    int n = snprintf(dir, sizeof dir, "%s/%s.e%llu", jobs, job, (unsigned long long)epoch);
    if (n >= (int)sizeof dir)
        return err_set(e, ERR_INVALID, "the path %s is too long", jobs);
    if (mkdir(dir, 0700) && errno != EEXIST)
        return err_errno(e, ERR_IO, "cannot make %s", dir);
    snprintf(f->path, sizeof f->path, "%s/rank-%04d.log", dir, rank);
    f->fd = open(f->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (f->fd < 0)
        return err_errno(e, ERR_IO, "cannot open %s", f->path);
    f->size = fstat(f->fd, &st) ? 0 : st.st_size;
    f->epoch = epoch;
    return 0;
}

static void rotate_file(struct log_file *f)
{
    char old[4500];
    snprintf(old, sizeof old, "%s.1", f->path);
    (void)rename(f->path, old);
    close(f->fd);
    f->fd = open(f->path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    f->size = 0;
}

void log_file_append(struct log_file *f, const char *text, size_t len)
{
    while (len > 0 && f->fd >= 0) {
        size_t room = (size_t)(LOG_FILE_MAX - f->size), n = len < room ? len : room;
        ssize_t wrote = n ? write(f->fd, text, n) : 0;
        if (wrote < 0)
            return; // a full disk takes lines, never a rank
        f->size += wrote;
        text += wrote;
        len -= (size_t)wrote;
        if (f->size >= LOG_FILE_MAX)
            rotate_file(f);
    }
}

void log_file_close(struct log_file *f)
{
    if (f->fd >= 0)
        close(f->fd);
    f->fd = -1;
    buf_clear(&f->line);
}

// ---- tails ----

// The last `max` bytes of a file, in front of what is in `out`.
static void read_end(const char *path, size_t max, struct buf *out)
{
    struct stat st;
    struct buf b = {0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
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

void log_tail(const char *path, int lines, size_t max, struct buf *out)
{
    char old[4500];
    struct buf b = {0};
    snprintf(old, sizeof old, "%s.1", path);
    read_end(path, max, &b);
    bool cut = b.len >= max;
    if (b.len < max) {
        size_t had = b.len;
        read_end(old, max - b.len, &b);
        cut = b.len - had >= max - had;
    }
    size_t at = lines > 0 ? start_of_last(&b, lines) : 0;
    if (cut && at == 0) { // begins in the middle of a line
        const char *nl = memchr(buf_str(&b), '\n', b.len);
        at = nl ? (size_t)(nl - b.data) + 1 : 0;
    }
    buf_append(out, buf_str(&b) + at, b.len - at);
    buf_clear(&b);
}

// ---- folders ----

static bool epoch_of(const char *name, const char *job, uint64_t *epoch)
{
    size_t n = strlen(job);
    char *end;
    if (strncmp(name, job, n) || strncmp(name + n, ".e", 2))
        return false;
    *epoch = strtoull(name + n + 2, &end, 10);
    return end != name + n + 2 && !*end && *epoch <= EPOCH_MAX;
}

static int newer_first(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

// The epochs of which there are logs, the newest first; `only` is one of them, or 0 for all.
static int list_epochs(const char *jobs, const char *job, uint64_t only, uint64_t *epochs, int max)
{
    DIR *d = opendir(jobs);
    struct dirent *it;
    uint64_t epoch;
    int n = 0;
    while (d && n < max && (it = readdir(d)))
        if (epoch_of(it->d_name, job, &epoch) && (!only || epoch == only))
            epochs[n++] = epoch;
    if (d)
        closedir(d);
    if (n)
        qsort(epochs, (size_t)n, sizeof *epochs, newer_first);
    return n;
}

static bool oldest_dir(const char *jobs, char *out, size_t size, int *count)
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
    while (oldest_dir(jobs, dir, sizeof dir, &count) && count > LOG_JOBS_KEPT)
        folder_remove(dir);
}

// ---- asking ----

struct logs *logs_new(const char *jobs, logs_say *say, void *ctx)
{
    struct logs *l = calloc(1, sizeof *l);
    PRE(l != NULL);
    l->jobs = strdup(jobs);
    l->say = say;
    l->ctx = ctx;
    list_init(&l->followers);
    return l;
}

static void follower_free(struct follower *f)
{
    list_remove(&f->link);
    free(f->job);
    free(f);
}

void logs_drop_all(struct logs *l)
{
    list_for_each (it, &l->followers)
        follower_free(list_entry(it, struct follower, link));
}

void logs_free(struct logs *l)
{
    if (!l)
        return;
    logs_drop_all(l);
    free(l->jobs);
    free(l);
}

struct source { // of lines, and who asked for them
    uint64_t ask, epoch;
    int rank;
};

// How many bytes were left out.
static size_t send_text(struct logs *l, const struct source *from, char *text, size_t len,
                        bool must)
{
    size_t left_out = 0;
    while (len > 0) {
        size_t n = len;
        if (n > CHUNK_MAX) { // whole lines, if they are not longer
            const char *nl = memrchr(text, '\n', CHUNK_MAX);
            n = nl ? (size_t)(nl - text) + 1 : CHUNK_MAX;
        }
        Weft__V1__LogChunk c;
        weft__v1__log_chunk__init(&c);
        c.ask = from->ask;
        c.rank = from->rank;
        c.epoch = from->epoch;
        c.text.data = (uint8_t *)text;
        c.text.len = n;
        left_out += l->say(l->ctx, &c, must) ? 0 : n;
        text += n;
        len -= n;
    }
    return left_out;
}

struct allowance { // what may still be sent of a rank: newer attempts have taken their part
    int rank, lines;
    size_t bytes;
};
struct tails {
    struct logs *logs;
    const Weft__V1__LogAsk *ask;
    struct arena arena;
    struct allowance *ranks;
    int n, cap;
};

static struct allowance *find_allowance(struct tails *t, int rank)
{
    for (int i = 0; i < t->n; i++)
        if (t->ranks[i].rank == rank)
            return &t->ranks[i];
    t->ranks = arena_grow(&t->arena, t->ranks, sizeof *t->ranks, t->n, &t->cap);
    t->ranks[t->n] = (struct allowance){rank, t->ask->lines, LOG_TAIL_MAX};
    return &t->ranks[t->n++];
}

static int count_lines(const struct buf *b)
{
    int n = 0;
    for (size_t i = 0; i < b->len; i++)
        n += b->data[i] == '\n';
    return n;
}

static void send_tail(struct tails *t, const char *path, int rank, uint64_t epoch)
{
    struct allowance *a = find_allowance(t, rank);
    const struct source from = {t->ask->ask, epoch, rank};
    struct buf b = {0};
    if (a->bytes == 0 || (t->ask->lines > 0 && a->lines <= 0))
        return;
    log_tail(path, a->lines, a->bytes, &b);
    if (b.len)
        (void)send_text(t->logs, &from, b.data, b.len, true);
    a->lines -= t->ask->lines > 0 ? count_lines(&b) : 0;
    a->bytes -= b.len < a->bytes ? b.len : a->bytes;
    buf_clear(&b);
}

static void send_tails_of(struct tails *t, uint64_t epoch)
{
    char dir[4300], path[5000];
    struct dirent **names;
    int rank, end;
    snprintf(dir, sizeof dir, "%s/%s.e%llu", t->logs->jobs, t->ask->job, (unsigned long long)epoch);
    int n = scandir(dir, &names, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        const char *name = names[i]->d_name;
        end = 0;
        snprintf(path, sizeof path, "%s/%s", dir, name);
        if (sscanf(name, "rank-%d.log%n", &rank, &end) == 1 && end == (int)strlen(name) &&
            (t->ask->rank < 0 || t->ask->rank == rank))
            send_tail(t, path, rank, epoch);
        free(names[i]);
    }
    if (n >= 0)
        free(names);
}

static void stop_following(struct logs *l, uint64_t ask)
{
    list_for_each (it, &l->followers)
        if (list_entry(it, struct follower, link)->ask == ask)
            follower_free(list_entry(it, struct follower, link));
}

void logs_ask(struct logs *l, const Weft__V1__LogAsk *ask)
{
    uint64_t epochs[LOG_JOBS_KEPT];
    Weft__V1__LogChunk last;
    stop_following(l, ask->ask);
    if (ask->stop)
        return;
    if (!strchr(ask->job, '/')) {
        struct tails t = {.logs = l, .ask = ask};
        int n = list_epochs(l->jobs, ask->job, ask->epoch, epochs, LOG_JOBS_KEPT);
        for (int i = 0; i < n; i++)
            send_tails_of(&t, epochs[i]);
        arena_clear(&t.arena);
    }
    if (ask->follow) {
        struct follower *f = calloc(1, sizeof *f);
        PRE(f != NULL);
        f->ask = ask->ask;
        f->rank = ask->rank;
        f->epoch = ask->epoch;
        f->job = strdup(ask->job);
        list_append(&l->followers, &f->link);
        return;
    }
    weft__v1__log_chunk__init(&last);
    last.ask = ask->ask;
    last.rank = ask->rank;
    last.end = true;
    l->say(l->ctx, &last, true);
}

// A gap is announced before what comes next.
static void send_to_follower(struct logs *l, struct follower *f, const struct source *from,
                             char *text, size_t len)
{
    char note[100];
    if (f->left_out) {
        int n = snprintf(note, sizeof note, "[weft: %zu bytes left out, they came too fast]\n",
                         f->left_out);
        if (send_text(l, from, note, (size_t)n, false)) {
            f->left_out += len;
            return;
        }
    }
    f->left_out = send_text(l, from, text, len, false);
}

static void send_to_followers(struct logs *l, const char *job, int rank, uint64_t epoch, char *text,
                              size_t len)
{
    list_for_each (it, &l->followers) {
        struct follower *f = list_entry(it, struct follower, link);
        const struct source from = {f->ask, epoch, rank};
        if (len && !strcmp(f->job, job) && (f->rank < 0 || f->rank == rank) &&
            (!f->epoch || f->epoch == epoch))
            send_to_follower(l, f, &from, text, len);
    }
}

void logs_appended(struct logs *l, const char *job, int rank, struct log_file *f, const char *text,
                   size_t len)
{
    buf_append(&f->line, text, len);
    const char *nl = memrchr(buf_str(&f->line), '\n', f->line.len);
    size_t whole = nl ? (size_t)(nl - f->line.data) + 1 : 0;
    if (!whole && f->line.len > LINE_MAX_BYTES)
        whole = f->line.len;
    send_to_followers(l, job, rank, f->epoch, f->line.data, whole);
    memmove(f->line.data, f->line.data + whole, f->line.len - whole);
    f->line.len -= whole;
}

void logs_flush(struct logs *l, const char *job, int rank, struct log_file *f)
{
    send_to_followers(l, job, rank, f->epoch, f->line.data, f->line.len);
    buf_reset(&f->line);
}
