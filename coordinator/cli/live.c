// SPDX-License-Identifier: Apache-2.0
// Lines that are written over; see live.h.
#include "coordinator/cli/live.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "common/base/plain.h"
#include "common/base/utf8.h"
#include "coordinator/cli/cli_print.h"

static volatile sig_atomic_t continued; // since the lines were drawn
static volatile sig_atomic_t below;     // and then stood still behind a line break of ours

static void note_continue(int sig)
{
    (void)sig;
    continued = 1;
}

// What the shell says then begins a line of its own.
static void stop_below(int sig)
{
    int saved = errno;
    struct sigaction usual = {.sa_handler = SIG_DFL}, ours;
    sigset_t this, before;
    plain_end_line();
    below = 1;
    sigemptyset(&this);
    sigaddset(&this, sig);
    sigaction(sig, &usual, &ours);
    raise(sig);
    pthread_sigmask(SIG_UNBLOCK, &this, &before); // here it stops, until SIGCONT
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    sigaction(sig, &ours, NULL);
    errno = saved;
}

void live_begin(struct live *l)
{
    static char drawn_at_once[1 << 16];
    struct sigaction stop = {.sa_handler = stop_below, .sa_flags = SA_RESTART},
                     go = {.sa_handler = note_continue, .sa_flags = SA_RESTART}, before;
    *l = (struct live){.on = screen_columns() > 0};
    if (!l->on)
        return;
    setvbuf(stdout, drawn_at_once, _IOFBF, sizeof drawn_at_once);
    sigaction(SIGCONT, &go, NULL);
    if (!sigaction(SIGTSTP, NULL, &before) && before.sa_handler == SIG_DFL)
        sigaction(SIGTSTP, &stop, NULL);
}

static bool is_in_front(void)
{
    pid_t front = tcgetpgrp(STDOUT_FILENO); // -1: it is not our session's terminal
    return front < 0 || front == getpgrp();
}

bool live_is_stale(const struct live *l)
{
    return l->on && (continued || l->columns != screen_columns() || l->height != screen_lines());
}

void live_erase(struct live *l)
{
    int columns = screen_columns(), rows = 0;
    // A terminal that became narrower has broken the long lines.
    for (int i = 0; i < l->lines && columns > 0; i++)
        rows += 1 + (l->width[i] > 0 ? (l->width[i] - 1) / columns : 0);
    if (rows && !continued && is_in_front())
        plain_erase_lines(stdout, rows);
    else if (rows && continued && !below)
        plain_puts(stdout, "\n"); // somebody stopped it from elsewhere: the picture stays
    l->lines = 0;
}

// The most columns that a character takes: those of wide scripts take two. The drawing characters of our
// own pictures are narrow.
static int count_columns(const char *s, size_t n)
{
    unsigned code = utf8_decode(s, n);
    bool drawing = (code >= 0x2500 && code < 0x25a0) || (code >= 0x2800 && code < 0x2900);
    return code < 0x1100 || drawing ? 1 : 2;
}

// Appends what of a line fits; returns its width.
static int cut_line(const char *p, const char *end, int columns, struct buf *out)
{
    int used = 0;
    bool colour = false;
    while (p < end) {
        bool mark = *p > 0 && *p <= PLAIN_NO_COLOUR; // of a picture
        size_t n = mark ? 1 : plain_character(p, (size_t)(end - p));
        int width = mark || !n ? 0 : count_columns(p, n);
        if (used + width > columns)
            break;
        colour = mark ? *p != PLAIN_NO_COLOUR : colour;
        n = n ? n : 1;
        buf_append(out, p, n);
        used += width;
        p += n;
    }
    if (colour)
        buf_putc(out, PLAIN_NO_COLOUR);
    return used;
}

void live_draw(struct live *l, const char *above, const char *picture, size_t len)
{
    struct buf out = {0};
    const char *end = is_in_front() ? picture + len : picture;
    live_erase(l);
    plain_puts(stdout, above);
    continued = below = 0;
    l->columns = screen_columns();
    l->height = screen_lines();
    for (const char *p = picture; p < end && l->lines < LIVE_LINES; p++) {
        const char *from = p;
        while (p < end && *p != '\n')
            p++;
        if (l->lines)
            buf_putc(&out, '\n');
        l->width[l->lines++] = cut_line(from, p, l->columns - LIVE_MARGIN, &out);
    }
    plain_picture(stdout, buf_str(&out), out.len);
    fflush(stdout);
    buf_clear(&out);
}
