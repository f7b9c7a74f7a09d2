// SPDX-License-Identifier: Apache-2.0
// Progress of this process's own work; see bar.h.
#include "coordinator/cli/bar.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/plain.h"
#include "coordinator/cli/cli_print.h"

enum { WIDTH = 24 };

static volatile sig_atomic_t interrupts;

static void note_interrupt(int sig)
{
    (void)sig;
    interrupts = 1;
}

bool bar_interrupted(void)
{
    return interrupts;
}

void bar_begin(struct bar *b, const char *what, bool silent)
{
    struct sigaction act = {.sa_handler = note_interrupt, .sa_flags = (int)SA_RESETHAND},
                     hangup = {0};
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    if (!sigaction(SIGHUP, NULL, &hangup) && hangup.sa_handler != SIG_IGN) // of nohup
        sigaction(SIGHUP, &act, NULL);
    *b = (struct bar){.what = what, .silent = silent};
    if (!silent)
        live_begin(&b->live);
    b->began_ns = b->shown_ns = clock_mono_ns();
}

static void draw_share(const struct bar *b, uint64_t done, uint64_t total, int64_t now,
                       struct buf *line)
{
    double share = done < total ? (double)done / (double)total : 1;
    char left[WORD_MAX];
    if (b->live.on) {
        buf_puts(line, " [");
        for (int i = 0; i < WIDTH; i++)
            buf_putc(line, i < (int)(share * WIDTH) ? '#' : '-');
        buf_putc(line, ']');
    }
    buf_printf(line, " %.0f %%", 100 * share);
    if (done > b->began && done < total)
        buf_printf(line, "  eta %s",
                   word_duration((double)(total - done) / (double)(done - b->began) *
                                     (double)(now - b->began_ns) / 1e9,
                                 left));
}

void bar_show(struct bar *b, uint64_t done, uint64_t total, const char *fmt, ...)
{
    int64_t now = clock_mono_ns(),
            every = (b->live.on ? BAR_LIVE_MS : BAR_PLAIN_MS) * INT64_C(1000000);
    struct buf line = {0}, shown = {0};
    va_list ap;
    if (!b->counts) {
        b->began = done;
        b->counts = true;
    }
    if (b->silent || now - b->shown_ns < every)
        return;
    buf_puts(&line, b->what);
    if (total)
        draw_share(b, done, total, now, &line);
    buf_puts(&line, "  ");
    va_start(ap, fmt);
    buf_vprintf(&line, fmt, ap);
    va_end(ap);
    plain_line(&shown, "%s", buf_str(&line));
    if (b->live.on)
        live_draw(&b->live, "", buf_str(&shown), shown.len);
    else
        put_out(&shown);
    b->shown_ns = now;
    buf_clear(&shown);
    buf_clear(&line);
}

int bar_show_bytes(void *bar, uint64_t done, uint64_t total)
{
    char part[WORD_MAX], all[WORD_MAX];
    bar_show(bar, done, total, "%s of %s", word_bytes((int64_t)done, part),
             word_bytes((int64_t)total, all));
    return bar_interrupted();
}

void bar_end(struct bar *b)
{
    live_erase(&b->live);
    fflush(stdout);
}
