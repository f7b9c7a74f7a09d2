// SPDX-License-Identifier: Apache-2.0
// A job's history as text; see why_text.h.
#include "coordinator/cli/why_text.h"

#include <stdio.h>
#include <string.h>

#include "coordinator/cli/cli_print.h"

// The share of the time in which the job ran, of all in which it was meant to; below 0: there was none.
double why_goodput(const Weft__V1__WhyReply *r)
{
    static const char *const others[] = {"held", "failed", "cancelled", "unknown"};
    int64_t all = 0, running = 0;
    for (size_t i = 0; i < r->n_spent; i++) {
        const Weft__V1__Spent *spent = r->spent[i];
        bool counts = true;
        for (size_t k = 0; k < sizeof others / sizeof *others; k++)
            counts = counts && strcmp(others[k], spent->what) != 0;
        all += counts ? spent->ms : 0;
        running += strcmp(spent->what, "running") == 0 ? spent->ms : 0;
    }
    return all > 0 ? (double)running / (double)all : -1;
}

// The event of a rank's end has the last lines of its log behind its own first line.
static void print_logs(const Weft__V1__WhyReply *r, struct buf *out)
{
    for (size_t i = 0; i < r->n_events; i++) {
        const Weft__V1__Event *e = r->events[i];
        const char *rest = strchr(e->text, '\n');
        char when[40] = "before the first step";
        if (!rest || !rest[1])
            continue;
        if (e->step >= 0)
            snprintf(when, sizeof when, "at step %lld", (long long)e->step);
        buf_printf(out, "last lines of rank %d, %s:%s%s", e->rank, when, rest,
                   rest[strlen(rest) - 1] == '\n' ? "" : "\n");
    }
}

// Whether it says no more than that a checkpoint was saved.
static bool is_routine(const Weft__V1__Event *e)
{
    char usual[64];
    snprintf(usual, sizeof usual, "checkpoint of step %lld", (long long)e->step);
    return strcmp(e->kind, "committed") == 0 && strcmp(e->text, usual) == 0;
}

// How many events from `first` on are one row: several checkpoints in a row, else one.
static size_t count_folded(const Weft__V1__WhyReply *r, size_t first)
{
    enum { LEAST = 3 };
    size_t n = first;
    while (n < r->n_events && is_routine(r->events[n]) &&
           r->events[n]->state == r->events[first]->state)
        n++;
    return n - first >= LEAST ? n - first : 1;
}

// "40 checkpoints: steps 100 to 4000, every 100"
static void add_folded(struct table *t, Weft__V1__Event *const *e, size_t n)
{
    int64_t every = e[1]->step - e[0]->step;
    char apart[32] = "";
    for (size_t i = 1; i < n; i++)
        if (e[i]->step - e[i - 1]->step != every)
            every = 0;
    if (every)
        snprintf(apart, sizeof apart, ", every %lld", (long long)every);
    table_add(t, "%zu checkpoints: steps %lld to %lld%s", n, (long long)e[0]->step,
              (long long)e[n - 1]->step, apart);
}

static void print_events(const Weft__V1__WhyReply *r, bool full, struct buf *out)
{
    struct table t;
    char at[WORD_MAX], since[WORD_MAX];
    int64_t before = r->n_events ? r->events[0]->t_ms : 0; // of the line above
    table_init(&t, "WHEN >SINCE STATE EVENT >STEP WHERE WHAT");
    for (size_t i = 0, n; i < r->n_events; i += n) {
        n = full ? 1 : count_folded(r, i);
        const Weft__V1__Event *e = r->events[i], *last = r->events[i + n - 1];
        table_add(&t, "%s", word_time(e->t_ms, at));
        table_add(&t, "%s", word_duration((double)(e->t_ms - before) / 1000, since));
        before = last->t_ms;
        table_add(&t, "%s", word_state(e->state));
        table_add(&t, "%s", e->kind);
        if (last->step >= 0)
            table_add(&t, "%lld", (long long)last->step);
        else
            table_add(&t, "-");
        if (e->rank >= 0)
            table_add(&t, "%s%srank %d", e->host, *e->host ? " " : "", e->rank);
        else
            table_add(&t, "%s", e->host);
        if (n > 1)
            add_folded(&t, &r->events[i], n);
        else
            table_add(&t, "%.*s", (int)strcspn(e->text, "\n"), e->text);
    }
    table_print(&t, out);
    print_logs(r, out);
}

static void print_spent(const Weft__V1__WhyReply *r, struct buf *out)
{
    enum { BAR = 40 };
    char word[WORD_MAX];
    double goodput = why_goodput(r), all = 0;
    for (size_t i = 0; i < r->n_spent; i++)
        all += r->spent[i]->ms > 0 ? (double)r->spent[i]->ms : 0;
    if (all <= 0) {
        buf_puts(out, "time: none yet\n");
        return;
    }
    buf_printf(out, "time: %s in all", word_duration(all / 1000, word));
    if (goodput >= 0)
        buf_printf(out, ", goodput %.1f %%", 100 * goodput);
    buf_putc(out, '\n');
    for (size_t i = 0; i < r->n_spent; i++) {
        double share = (double)r->spent[i]->ms / all;
        if (share <= 0)
            continue;
        buf_printf(out, "  %-10s  %8s  %3.0f %%%s", r->spent[i]->what,
                   word_duration((double)r->spent[i]->ms / 1000, word), 100 * share,
                   share * BAR >= 0.5 ? "  " : "");
        for (int k = 0; k < (int)(share * BAR + 0.5); k++)
            buf_puts(out, "█");
        buf_putc(out, '\n');
    }
}

static void print_head(const Weft__V1__JobStatus *s, struct buf *out)
{
    struct buf before = {0};
    buf_printf(&before, "%s (%s): %s", s->name, s->job, word_state(s->state));
    if (s->step >= 0)
        buf_printf(&before, " at step %lld of %lld", (long long)s->step, (long long)s->steps);
    buf_printf(&before, ", attempt %llu, %d restarts%s", (unsigned long long)s->attempt,
               s->restarts, *s->text ? ": " : "");
    print_lines(out, buf_str(&before), s->text);
    buf_clear(&before);
    print_threads(s, "threads: ", out);
}

void why_print(const Weft__V1__WhyReply *r, bool full, struct buf *out)
{
    if (r->status)
        print_head(r->status, out);
    if (r->trimmed)
        buf_puts(out, "older events were dropped\n");
    print_events(r, full, out);
    print_spent(r, out);
    if (*r->next)
        print_lines(out, "next: ", r->next);
}
