// SPDX-License-Identifier: Apache-2.0
// The progress line; see status.h.
#include "worker/rank/lead/status.h"

#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/attempt/life.h"
#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/plain.h"
#include "worker/rank/link/assignment.h"

enum { TTY_MS = 100, PLAIN_MS = 10000 };

void status_init(struct status *s, int fd)
{
    memset(s, 0, sizeof *s);
    pthread_mutex_init(&s->mutex, NULL);
    s->fd = fd;
    s->tty = isatty(fd) == 1;
    s->saved_step = -1;
}

static void write_text(struct status *s, const struct buf *text)
{
    struct pollfd p = {.fd = s->fd, .events = POLLOUT};
    if (poll(&p, 1, 0) != 1 || !(p.revents & POLLOUT))
        return;
    ssize_t n = write(s->fd, text->data, text->len);
    (void)n;
}

// "1h02m", "3m05s", "12s"
static void put_duration(struct buf *b, double seconds)
{
    long t = seconds < 0 || seconds > 1e8 ? 0 : (long)seconds;
    if (t >= 3600)
        buf_printf(b, "%ldh%02ldm", t / 3600, t / 60 % 60);
    else if (t >= 60)
        buf_printf(b, "%ldm%02lds", t / 60, t % 60);
    else
        buf_printf(b, "%lds", t);
}

static void put_evaluation(struct buf *b, const struct step_row *r)
{
    if (isnan(r->eval_accuracy))
        buf_printf(b, "  eval loss %.4f", r->eval_loss);
    else
        buf_printf(b, "  eval %.2f %%", 100 * r->eval_accuracy);
}

// Prints one line of text, past the progress line.
static void print_line(struct status *s, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static void print_line(struct status *s, const char *fmt, ...)
{
    struct buf b = {0}, text = {0};
    va_list ap;
    pthread_mutex_lock(&s->mutex);
    if (s->drawn)
        buf_putc(&b, '\n');
    s->drawn = false;
    va_start(ap, fmt);
    buf_vprintf(&text, fmt, ap);
    va_end(ap);
    plain_append(&b, buf_str(&text), text.len);
    buf_clear(&text);
    buf_putc(&b, '\n');
    write_text(s, &b);
    buf_clear(&b);
    pthread_mutex_unlock(&s->mutex);
}

static void draw_line(struct status *s, int64_t now)
{
    const struct step_row *r = &s->row;
    struct buf b = {0};
    char speed[40];
    buf_printf(&b, "%sstep %lld/%lld  loss %.4f  %s", s->tty ? "\r" : "", (long long)r->step,
               (long long)r->steps, r->loss, row_speed_text(r, speed));
    if (s->evaluated)
        put_evaluation(&b, &s->eval);
    if (r->step > s->first_step && r->steps > r->step) {
        double each = (double)(now - s->first_ns) / 1e9 / (double)(r->step - s->first_step);
        buf_puts(&b, "  ETA ");
        put_duration(&b, each * (double)(r->steps - r->step));
    }
    buf_puts(&b, s->tty ? "\033[K" : "\n");
    write_text(s, &b);
    buf_clear(&b);
    s->drawn = s->tty;
    s->last_ns = now;
}

void status_row(struct status *s, const struct step_row *row)
{
    int64_t now = clock_mono_ns();
    pthread_mutex_lock(&s->mutex);
    s->row = *row;
    s->row.nsamples = 0; // the texts are the caller's
    if (row->evaluated) {
        s->eval = s->row;
        s->evaluated = true;
    }
    if (!s->any) {
        s->first_ns = now;
        s->first_step = row->step;
    }
    int64_t every = (s->tty ? TTY_MS : PLAIN_MS) * CLOCK_MS;
    if (!s->any || row->evaluated || row->step == row->steps || now - s->last_ns >= every)
        draw_line(s, now);
    s->any = true;
    pthread_mutex_unlock(&s->mutex);
    for (int k = 0; k < row->nsamples; k++)
        print_line(s, "sample after step %lld: %s%s", (long long)row->step,
                   row->sample_prompt ? row->sample_prompt : "", row->samples[k]);
}

void status_saved(struct status *s, int64_t step)
{
    pthread_mutex_lock(&s->mutex);
    s->saved_step = step;
    pthread_mutex_unlock(&s->mutex);
}

static void say_evaluation(struct status *s)
{
    const struct step_row *r = &s->eval;
    if (isnan(r->eval_accuracy))
        print_line(s, "evaluation after step %lld: loss %.4f", (long long)r->step, r->eval_loss);
    else
        print_line(s, "evaluation after step %lld: accuracy %.2f %%, loss %.4f", (long long)r->step,
                   100 * r->eval_accuracy, r->eval_loss);
}

void status_finish(struct status *s, int code, const char *dir, const char *store)
{
    if (code == RANK_EXIT_DONE)
        print_line(s, "done after %lld steps, loss %.4f", (long long)s->row.step, s->row.loss);
    else if (code == RANK_EXIT_DRAINED)
        print_line(s, "stopped; run the same command again to continue");
    else
        print_line(s, "ended with %d (%s)%s", code, rank_exit_text(code),
                   rank_exit_is_lasting(code) ? "" : "; run the same command again to continue");
    if (s->evaluated)
        say_evaluation(s);
    if (s->saved_step >= 0)
        print_line(s, "checkpoint  %s (step %lld)", store, (long long)s->saved_step);
    print_line(s, "metrics     %s/metrics.jsonl", dir);
    print_line(s, "logs, state %s", dir);
    pthread_mutex_destroy(&s->mutex);
}
