// SPDX-License-Identifier: Apache-2.0
// The log. See log.h. Deliberately no buffering and no rotation: whoever reads standard error does
// that.
#include "common/base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/plain.h"

static int log_fd = STDERR_FILENO;
static atomic_int context_rank = -1;
static _Atomic int64_t context_step = -1;
static char context_job[80]; // set before threads start

void log_to(int fd)
{
    log_fd = fd;
}

void log_context(const char *job, int rank)
{
    snprintf(context_job, sizeof context_job, "%s", job ? job : "");
    context_rank = rank;
}

void log_step(int64_t step)
{
    context_step = step;
}

static const char *skip_word(const char *s)
{
    s += strcspn(s, " \n");
    return s + (*s == ' ');
}

// The text of a line of level error, behind its context; null for another line.
static const char *find_error_text(const char *line)
{
    static const char *const keys[] = {"job=", "rank=", "step="};
    const char *level = skip_word(line), *text = skip_word(skip_word(level));
    if (line[0] < '0' || line[0] > '9' || strncmp(level, "error ", 6) != 0)
        return NULL;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strncmp(text, keys[i], strlen(keys[i])) == 0)
            text = skip_word(text);
    return text;
}

void log_last_error(const char *log, char *out, size_t size)
{
    *out = 0;
    while (*log) {
        const char *text = find_error_text(log);
        if (text)
            snprintf(out, size, "%.*s", (int)strcspn(text, "\n"), text);
        log += strcspn(log, "\n");
        log += *log == '\n';
    }
}

static int put_prefix(char *line, size_t size, enum log_level level, const char *subsystem)
{
    static const char *const names[] = {"info", "warn", "error"};
    struct timespec t;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &t);
    gmtime_r(&t.tv_sec, &tm);
    size_t n = strftime(line, size, "%Y-%m-%dT%H:%M:%S", &tm);
    n += (size_t)snprintf(line + n, size - n, ".%03ldZ %s %s", t.tv_nsec / 1000000, names[level],
                          subsystem);
    if (context_job[0])
        n += (size_t)snprintf(line + n, size - n, " job=%s", context_job);
    if (context_rank >= 0)
        n += (size_t)snprintf(line + n, size - n, " rank=%d", context_rank);
    if (context_step >= 0)
        n += (size_t)snprintf(line + n, size - n, " step=%lld", (long long)context_step);
    n += (size_t)snprintf(line + n, size - n, " ");
    return (int)n;
}

void log_line(enum log_level level, const char *subsystem, const char *fmt, ...)
{
    int saved = errno;
    char line[2048];
    int n = put_prefix(line, sizeof line, level, subsystem);
    va_list ap;
    va_start(ap, fmt);
    int more = vsnprintf(line + n, sizeof line - (size_t)n, fmt, ap);
    va_end(ap);
    n = more < (int)sizeof line - n ? n + more : (int)sizeof line - 1;
    for (int i = 0; i < n; i++) // one event, one line, whatever a file name holds
        if ((unsigned char)line[i] < 0x20)
            line[i] = ' ';
    line[n < (int)sizeof line ? n : (int)sizeof line - 1] = 0;
    plain_mask(line);
    line[n < (int)sizeof line ? n : (int)sizeof line - 1] = '\n';
    ssize_t unused = write(log_fd, line, (size_t)n + 1);
    (void)unused; // nowhere left to say that the log cannot be written
    errno = saved;
}
