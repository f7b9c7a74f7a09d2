// SPDX-License-Identifier: Apache-2.0
// See sink.h.
#include "worker/sinks/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/child.h"
#include "common/base/clock.h"
#include "common/base/heap.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/system.h"
#include "common/ckpt/durable.h"

#define FIRST_RESTART_NS (1 * CLOCK_S)
#define LAST_RESTART_NS  (256 * CLOCK_S)
#define SAVE_NS          (5 * CLOCK_S)  // between two writes of the place
#define HANGS_NS         (60 * CLOCK_S) // without taking a row that waits
#define SILENT_NS        (10 * CLOCK_S) // after its start, of a process that does not report
#define TERM_NS          (500 * CLOCK_MS)
enum { UNSENT_MAX = 64 << 10, LAST_LINES = 5, TURN_READS = 16 };

// ---- the place ----

// The folder is in the hands of whoever may write to the job's: no link in it is followed.
static int open_folder(const struct sink *s)
{
    return open(s->folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static void read_file(const struct sink *s, char *out, size_t size)
{
    struct stat st;
    int folder = open_folder(s), fd = -1;
    ssize_t n = -1;
    if (folder >= 0)
        fd = openat(folder, s->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode))
        n = read(fd, out, size - 1);
    out[n > 0 ? n : 0] = 0;
    system_close(&fd);
    system_close(&folder);
}

static int write_file(const struct sink *s, const struct buf *text, struct err *e)
{
    char tmp[80];
    snprintf(tmp, sizeof tmp, ".%s.new", s->name);
    (void)mkdir(s->folder, 0700); // alone: a job's folder that was deleted is not made again
    int folder = open_folder(s);
    if (folder < 0)
        return err_errno(e, ERR_IO, "cannot open %s, a folder and no link", s->folder);
    (void)unlinkat(folder, tmp, 0);
    int rc = durable_write_file(folder, tmp, text->data, text->len, e);
    if (!rc && renameat(folder, tmp, folder, s->name))
        rc = err_errno(e, ERR_IO, "cannot rename %s in %s", tmp, s->folder);
    if (rc)
        (void)unlinkat(folder, tmp, 0);
    else
        rc = durable_fsync(folder, s->folder, e);
    close(folder);
    return rc;
}

static void read_place(struct sink *s)
{
    char text[256];
    struct arena a = {0};
    struct json *json;
    int64_t attempt;
    s->stored = (struct sink_place){0};
    read_file(s, text, sizeof text);
    if (!json_parse(&a, text, strlen(text), &json, NULL) && json->type == JSON_OBJECT &&
        !json_get_int(json, "attempt", &attempt, NULL) &&
        !json_get_int(json, "step", &s->stored.step, NULL) &&
        !json_get_int(json, "byte", &s->stored.byte, NULL) && s->stored.byte >= 0)
        s->stored.attempt = (uint64_t)attempt;
    else
        s->stored = (struct sink_place){0};
    s->saved = s->stored;
    s->high = s->stored.step;
    arena_clear(&a);
}

static void save_place(struct sink *s, int64_t now)
{
    struct buf text = {0};
    struct err e = {0};
    if (s->saved.byte == s->stored.byte)
        return;
    buf_printf(&text, "{\"attempt\":%llu,\"step\":%lld,\"byte\":%lld}\n",
               (unsigned long long)s->stored.attempt, (long long)s->stored.step,
               (long long)s->stored.byte);
    int rc = write_file(s, &text, &e);
    if (rc && s->saved_ns >= 0) // the next start gives some rows again
        log_warn("sink", "job=%s sink=%s cannot note what it has: %s", s->job, s->name, e.text);
    if (!rc)
        s->saved = s->stored;
    s->saved_ns = rc ? -now : now;
    buf_clear(&text);
}

static void store_rows(struct sink *s, int64_t upto)
{
    if (upto <= s->reported)
        return;
    s->stored = s->window[(upto - 1) % SINK_WINDOW];
    s->high = s->stored.step > s->high ? s->stored.step : s->high;
    s->reported = upto;
}

// ---- its process ----

static void put_off(struct sink *s, int64_t now)
{
    s->start_ns = now + s->pause_ns;
    s->pause_ns = s->pause_ns < LAST_RESTART_NS ? 2 * s->pause_ns : LAST_RESTART_NS;
}

static int make_pipes(int in[2], int out[2], int err[2])
{
    int *const all[] = {in, out, err};
    for (int i = 0; i < 3; i++) {
        all[i][0] = all[i][1] = -1;
        if (pipe2(all[i], O_CLOEXEC))
            return -1;
    }
    return fcntl(in[1], F_SETFL, O_NONBLOCK) || fcntl(out[0], F_SETFL, O_NONBLOCK) ||
           fcntl(err[0], F_SETFL, O_NONBLOCK);
}

static void start_process(struct sink *s, int64_t now)
{
    int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1};
    bool made = !make_pipes(in, out, err);
    const struct child_file files[] = {{in[0], 0}, {out[1], 1}, {err[1], 2}, {-1, -1}};
    const struct child_start start = {.program = s->launcher, .argv = s->argv, .files = files};
    if (!made || child_start(&start, &s->pid)) {
        log_warn("sink", "job=%s sink=%s cannot start %s: %s", s->job, s->name, s->launcher,
                 strerror(errno));
        s->pid = 0;
        put_off(s, now);
    }
    system_close(&in[0]);
    system_close(&out[1]);
    system_close(&err[1]);
    s->in = in[1];
    s->out = out[0];
    s->err = err[0];
    if (!s->pid) {
        system_close(&s->in);
        system_close(&s->out);
        system_close(&s->err);
        return;
    }
    s->began_ns = s->moved_ns = now;
    s->given = s->reported = 0;
    s->reports = s->hangs = s->closed = false;
    buf_reset(&s->report);
    buf_reset(&s->last);
    buf_reset(&s->unsent);
    buf_puts(&s->unsent, s->header);
    tail_seek(&s->tail, s->stored.byte, s->stored.attempt);
}

static void keep_last(struct sink *s, const char *text, size_t len)
{
    buf_append(&s->last, text, len);
    if (s->last.len <= SINK_WORDS_KEPT)
        return;
    size_t over = s->last.len - SINK_WORDS_KEPT;
    memmove(s->last.data, s->last.data + over, SINK_WORDS_KEPT);
    s->last.len = SINK_WORDS_KEPT;
}

// A line of its standard output: a report, or words as on its standard error.
static void hear_line(struct sink *s, const char *line, size_t len)
{
    char number[24] = "";
    snprintf(number, sizeof number, "%.*s", (int)(len < sizeof number ? len : sizeof number), line);
    size_t digits = strspn(number, "0123456789");
    if (!digits || digits != len || digits > 18) {
        keep_last(s, line, len);
        keep_last(s, "\n", 1);
        return;
    }
    int64_t n = strtoll(number, NULL, 10);
    s->reports = true;
    store_rows(s, n < s->given ? n : s->given); // more than it was given it cannot have
}

static void hear_reports(struct sink *s)
{
    char text[4096];
    ssize_t n;
    for (int i = 0; s->out >= 0 && i < TURN_READS && (n = read(s->out, text, sizeof text)) != -1;
         i++) {
        if (n == 0) {
            system_close(&s->out);
            break;
        }
        buf_append(&s->report, text, (size_t)n);
        size_t at = 0;
        char *end;
        while ((end = memchr(s->report.data + at, '\n', s->report.len - at))) {
            hear_line(s, s->report.data + at, (size_t)(end - s->report.data) - at);
            at = (size_t)(end - s->report.data) + 1;
        }
        if (!at && s->report.len > SINK_WORDS_KEPT) // no report is as long
            at = s->report.len;
        memmove(s->report.data, s->report.data + at, s->report.len - at);
        s->report.len -= at;
    }
}

static void hear_words(struct sink *s)
{
    char text[4096];
    ssize_t n;
    for (int i = 0; s->err >= 0 && i < TURN_READS && (n = read(s->err, text, sizeof text)) != -1;
         i++) {
        if (n == 0)
            system_close(&s->err);
        else
            keep_last(s, text, (size_t)n);
    }
}

// The last lines of what it printed, into the worker's log.
static void log_last(struct sink *s)
{
    size_t at =
        s->last.len && s->last.data[s->last.len - 1] == '\n' ? s->last.len - 1 : s->last.len;
    if (!s->last.len)
        return;
    for (int n = 0; at > 0; at--)
        if (s->last.data[at - 1] == '\n' && ++n == LAST_LINES)
            break;
    for (char *line = s->last.data + at; line < s->last.data + s->last.len;) {
        char *end = memchr(line, '\n', (size_t)(s->last.data + s->last.len - line));
        size_t len = end ? (size_t)(end - line) : (size_t)(s->last.data + s->last.len - line);
        log_warn("sink", "job=%s sink=%s it printed: %.*s", s->job, s->name,
                 (int)(len < 300 ? len : 300), line);
        line += len + 1;
    }
    buf_reset(&s->last);
}

static void forget_process(struct sink *s)
{
    (void)kill(-s->pid, SIGKILL); // what it started goes with it
    s->pid = 0;
    system_close(&s->in);
    system_close(&s->out);
    system_close(&s->err);
    buf_reset(&s->unsent);
}

static bool is_over(struct sink *s, int *status)
{
    return waitpid(s->pid, status, WNOHANG) == s->pid;
}

static void take_death(struct sink *s, int status, int64_t now)
{
    hear_reports(s);
    hear_words(s);
    bool well = s->closed && WIFEXITED(status) && !WEXITSTATUS(status);
    if (well && !s->reports)
        store_rows(s, s->given);
    if (!well) {
        if (now - s->began_ns > LAST_RESTART_NS)
            s->pause_ns = FIRST_RESTART_NS;
        log_warn("sink", "job=%s sink=%s ended with %s %d; it is started again in %lld s", s->job,
                 s->name, WIFSIGNALED(status) ? "signal" : "exit code",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
                 (long long)(s->pause_ns / CLOCK_S));
        log_last(s);
    }
    forget_process(s);
    s->closed = well;
    if (!well)
        put_off(s, now);
}

// ---- rows ----

// False: there are no more rows now.
static bool take_row(struct sink *s)
{
    struct tail_row row;
    if (!tail_next(&s->tail, &row))
        return false;
    if (!s->rewinds && row.step <= s->high)
        return true; // it cannot take a step back
    buf_append(&s->unsent, row.line, row.len);
    s->window[s->given++ % SINK_WINDOW] = (struct sink_place){row.attempt, row.step, row.end};
    return true;
}

// Puts rows into the pipe until it or the window is full. True: all that there are.
static bool give_rows(struct sink *s, int64_t now)
{
    for (;;) {
        while (s->unsent.len < UNSENT_MAX && s->given - s->reported < SINK_WINDOW && take_row(s))
            ;
        if (!s->unsent.len)
            return s->given - s->reported < SINK_WINDOW;
        ssize_t n = write(s->in, s->unsent.data, s->unsent.len);
        if (n < 0 && errno == EPIPE) { // it has ended, or does without rows
            int status;
            system_close(&s->in);
            (void)child_end(s->pid, TERM_NS, &status);
            if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
                log_warn("sink", "job=%s sink=%s had closed its input, and was killed", s->job,
                         s->name);
            take_death(s, status, now);
        }
        if (n <= 0)
            return false;
        s->moved_ns = now;
        s->hangs = false;
        memmove(s->unsent.data, s->unsent.data + n, s->unsent.len - (size_t)n);
        s->unsent.len -= (size_t)n;
    }
}

static void look_for_hang(struct sink *s, int64_t now)
{
    bool waits = s->unsent.len || s->given - s->reported >= SINK_WINDOW;
    if (!waits || s->hangs || now - s->moved_ns < HANGS_NS)
        return;
    s->hangs = true;
    log_warn("sink",
             "job=%s sink=%s has taken nothing for %lld s; rows wait in metrics.jsonl, and "
             "training continues",
             s->job, s->name, (long long)((now - s->moved_ns) / CLOCK_S));
    log_last(s);
}

bool sink_turn(struct sink *s, int64_t now, bool ending)
{
    int status;
    ending = ending || s->tail.superseded;
    if (s->pid) {
        hear_reports(s);
        hear_words(s);
        if (is_over(s, &status))
            take_death(s, status, now);
    }
    if (!s->pid && !s->closed && now >= s->start_ns)
        start_process(s, now);
    if (s->pid && s->in >= 0 && give_rows(s, now) && ending) {
        system_close(&s->in);
        s->closed = true;
    }
    if (s->pid && !s->reports && !s->unsent.len && now - s->began_ns >= SILENT_NS)
        store_rows(s, s->given);
    if (s->pid)
        look_for_hang(s, now);
    if (s->stored.byte != s->saved.byte && now - llabs(s->saved_ns) >= SAVE_NS)
        save_place(s, now);
    return s->closed && !s->pid;
}

// ---- life ----

void sink_begin(struct sink *s, int64_t now)
{
    s->window = heap_alloc(sizeof *s->window * SINK_WINDOW);
    s->in = s->out = s->err = -1;
    s->start_ns = now;
    s->pause_ns = FIRST_RESTART_NS;
    read_place(s);
}

int sink_polls(const struct sink *s, struct pollfd out[3])
{
    int n = 0;
    if (s->in >= 0 && s->unsent.len)
        out[n++] = (struct pollfd){.fd = s->in, .events = POLLOUT};
    if (s->out >= 0)
        out[n++] = (struct pollfd){.fd = s->out, .events = POLLIN};
    if (s->err >= 0)
        out[n++] = (struct pollfd){.fd = s->err, .events = POLLIN};
    return n;
}

void sink_end(struct sink *s)
{
    int status = 0;
    struct tail_row row;
    int64_t left = 0;
    if (s->pid) {
        (void)kill(-s->pid, SIGTERM);
        (void)child_end(s->pid, TERM_NS, &status);
        hear_reports(s);
        hear_words(s);
        log_warn("sink", "job=%s sink=%s did not end, and was killed", s->job, s->name);
        log_last(s);
        forget_process(s);
    }
    save_place(s, clock_mono_ns());
    tail_seek(&s->tail, s->stored.byte, s->stored.attempt);
    while (tail_next(&s->tail, &row))
        left += s->rewinds || row.step > s->high;
    if (left)
        log_warn("sink",
                 "job=%s sink=%s has not taken %lld rows; metrics.jsonl has them, and the next "
                 "attempt gives them",
                 s->job, s->name, (long long)left);
    tail_close(&s->tail);
    free(s->window);
    buf_clear(&s->unsent);
    buf_clear(&s->report);
    buf_clear(&s->last);
}
