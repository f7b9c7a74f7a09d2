// SPDX-License-Identifier: Apache-2.0
// See rank_output.h.
#include "worker/rank/lead/rank_output.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/plain.h"

enum { LOG_MAX = 8 << 20, SHOWN_MAX = 4000, PIECE = 16 << 10 };

static void open_log(struct rank_output *o)
{
    struct stat st;
    o->log = open(o->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    o->logged = o->log >= 0 && !fstat(o->log, &st) ? (size_t)st.st_size : 0;
}

void rank_output_open(struct rank_output *o, const char *dir, int rank, int pipe)
{
    *o = (struct rank_output){.pipe = pipe};
    snprintf(o->path, sizeof o->path, "%s/logs/rank-%04d.log", dir, rank);
    open_log(o);
}

static void rotate_log(struct rank_output *o)
{
    char old[sizeof o->path + 2];
    snprintf(old, sizeof old, "%s.1", o->path);
    close(o->log);
    (void)rename(o->path, old);
    open_log(o);
}

// "2026-01-02T03:04:05.678Z error rank …": people should see it.
static bool is_worth_showing(const char *line)
{
    const char *space = strchr(line, ' ');
    return space && (!strncmp(space + 1, "error ", 6) || !strncmp(space + 1, "warn ", 5));
}

static void keep_text(struct rank_output *o, const char *text, size_t n)
{
    if (o->log < 0)
        return;
    ssize_t wrote = write(o->log, text, n);
    o->logged += wrote > 0 ? (size_t)wrote : 0;
    if (o->logged > LOG_MAX)
        rotate_log(o);
}

static void show_text(struct rank_output *o, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (text[i] != '\n' && o->line.len < SHOWN_MAX) {
            buf_putc(&o->line, text[i]);
        } else if (text[i] == '\n') {
            if (is_worth_showing(buf_str(&o->line)))
                plain_error("%s", o->line.data);
            buf_reset(&o->line);
        }
    }
}

bool rank_output_take(struct rank_output *o)
{
    char text[PIECE];
    ssize_t n = o->pipe >= 0 ? read(o->pipe, text, sizeof text) : -1;
    if (n > 0) {
        keep_text(o, text, (size_t)n);
        show_text(o, text, (size_t)n);
    } else if (n == 0) { // nobody can write there any more
        close(o->pipe);
        o->pipe = -1;
    }
    return n > 0;
}

void rank_output_close(struct rank_output *o)
{
    if (o->pipe >= 0)
        close(o->pipe);
    if (o->log >= 0)
        close(o->log);
    buf_clear(&o->line);
    *o = (struct rank_output){.pipe = -1, .log = -1};
}
