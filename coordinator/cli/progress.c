// SPDX-License-Identifier: Apache-2.0
// Progress, live or line by line; see progress.h.
#include "coordinator/cli/progress.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/attempt/frame.h"
#include "common/base/clock.h"
#include "common/base/plain.h"
#include "coordinator/cli/bar.h"
#include "coordinator/cli/message_json.h"

void progress_init(struct progress *p, bool json)
{
    *p = (struct progress){
        .json = json, .live = !json && screen_columns() > 0, .step = -1, .checkpoint = -1};
    p->said_step = p->eta_step = -1;
}

static void clear_live_line(struct progress *p)
{
    if (p->open)
        plain_erase_line(stdout);
    p->open = false;
}

// ---- text ----

// The time that is left at the present speed, measured in steps between two lines.
static void describe_eta(const struct progress *p, int64_t now, struct buf *out)
{
    char word[WORD_MAX];
    int64_t done = p->step - p->eta_step;
    if (p->state != WEFT__V1__JOB_STATE__RUNNING || p->eta_step < 0 || done <= 0)
        return;
    double rate = (double)done / (double)(now - p->eta_ns) * 1e9;
    buf_printf(out, "  eta %s", word_duration((double)(p->steps - p->step) / rate, word));
}

// What matters least comes last: a terminal may have no room for it.
static void describe_job(const struct progress *p, int64_t now, struct buf *out)
{
    char word[WORD_MAX];
    buf_printf(out, "%s %s", p->name, word_state(p->state));
    if (p->step >= 0)
        buf_printf(out, "  step %lld/%lld", (long long)p->step, (long long)p->steps);
    describe_eta(p, now, out);
    if (p->reported) {
        buf_printf(out, "  loss %.4g  %s %s/s", p->loss, word_rate(p->speed, word),
                   p->tokens ? "tokens" : "samples");
    }
    if (p->evaluated && (isnan(p->accuracy) || !p->steps)) // a decoder has no accuracy
        buf_printf(out, "  eval loss %.4g", p->eval_loss);
    if (p->evaluated && !isnan(p->accuracy))
        buf_printf(out, "  accuracy %.2f %%", 100 * p->accuracy);
    if (p->checkpoint >= 0)
        buf_printf(out, "  checkpoint %lld", (long long)p->checkpoint);
    if (*p->text)
        buf_printf(out, "  %.*s", (int)strcspn(p->text, "\n"), p->text);
}

static void show_line(struct progress *p, int64_t now)
{
    struct buf line = {0};
    describe_job(p, now, &line);
    int columns = (int)line.len;
    if (p->live)
        columns = screen_columns() - 1;
    if (p->live)
        plain_erase_line(stdout);
    plain_printf(stdout, "%.*s%s", columns, buf_str(&line), p->live ? "" : "\n");
    fflush(stdout);
    p->open = p->live;
    p->shown_ns = now;
    p->said_step = p->step;
    buf_clear(&line);
}

// What a model writes may hold newlines: the lines that follow are set off, so that none looks like
// one of ours.
static void put_indented(struct buf *out, const char *text)
{
    for (; *text; text++) {
        buf_putc(out, *text);
        if (*text == '\n')
            buf_puts(out, "    ");
    }
}

static void show_samples(struct progress *p, const Weft__Rank__StepReport *r)
{
    struct buf out = {0};
    for (size_t k = 0; k < r->n_samples; k++) {
        buf_printf(&out, "sample after step %lld: ", (long long)r->step);
        put_indented(&out, r->sample_prompt);
        put_indented(&out, r->samples[k]);
        buf_putc(&out, '\n');
    }
    clear_live_line(p);
    plain_put(stdout, buf_str(&out), out.len);
    fflush(stdout);
    buf_clear(&out);
}

static const char *format_clock(int64_t t_ms,
                                char out[WORD_MAX]) // the time of day, without the date
{
    const char *space = strchr(word_time(t_ms, out), ' ');
    return space ? space + 1 : out;
}

static void show_event(struct progress *p, const Weft__V1__Event *e)
{
    char at[WORD_MAX];
    struct buf line = {0};
    char step[32] = "";
    if (e->step >= 0)
        snprintf(step, sizeof step, " (step %lld)", (long long)e->step);
    plain_line(&line, "%s  %s %s%s%s%s%.*s%s", format_clock(e->t_ms, at), word_state(e->state),
               e->kind, *e->host ? " on " : "", e->host, *e->text ? ": " : "",
               (int)strcspn(e->text, "\n"), e->text, step);
    clear_live_line(p);
    plain_put(stdout, buf_str(&line), line.len);
    fflush(stdout);
    buf_clear(&line);
}

// Prints in a line of its own that saves fail: the line of the job may have no room for the reason.
static void show_unsaved(struct progress *p, const Weft__V1__JobStatus *s)
{
    char since[WORD_MAX];
    struct buf line = {0};
    if (s->unsaved && !p->unsaved) {
        plain_line(&line, "not saved since %s: %s", word_time(s->unsaved_since_ms, since),
                   s->unsaved_why);
        clear_live_line(p);
        plain_put(stdout, buf_str(&line), line.len);
    }
    p->unsaved = s->unsaved > 0;
    buf_clear(&line);
}

// Returns whether the state, or what is said about it, has changed.
static bool take_status(struct progress *p, const Weft__V1__JobStatus *s)
{
    bool moved = s->state != p->state;
    bool changed = moved || strncmp(s->text, p->text, sizeof p->text - 1) != 0;
    snprintf(p->job, sizeof p->job, "%s", s->job);
    snprintf(p->name, sizeof p->name, "%s", s->name);
    snprintf(p->store, sizeof p->store, "%s", s->store);
    p->state = s->state;
    p->step = s->step;
    p->steps = s->steps;
    p->checkpoint = s->checkpoint_step;
    if (s->reported) {
        p->reported = true;
        p->loss = s->loss;
        p->tokens = s->tokens_per_s > 0;
        p->speed = p->tokens ? s->tokens_per_s : s->samples_per_s;
    }
    if (s->evaluated) {
        p->evaluated = true;
        p->accuracy = s->eval_accuracy;
        p->eval_loss = s->eval_loss;
    }
    snprintf(p->text, sizeof p->text, "%s", s->text);
    if (moved)
        p->eta_step = -1;
    return changed;
}

// Returns whether the report holds an evaluation.
static bool take_report(struct progress *p, const Weft__Rank__StepReport *r, int64_t now)
{
    p->step = r->steps ? r->step : -1;
    p->steps = r->steps;
    p->reported = r->steps > 0;
    p->loss = r->loss;
    p->tokens = r->tokens_per_s > 0;
    p->speed = frame_mean_speed(r, p->tokens ? r->tokens_per_s : r->samples_per_s);
    if (p->eta_step < 0) {
        p->eta_step = r->step;
        p->eta_ns = now;
    }
    if (r->evaluated) {
        p->evaluated = true;
        p->accuracy = r->eval_accuracy;
        p->eval_loss = r->eval_loss;
    }
    return r->evaluated;
}

void progress_update(struct progress *p, const Weft__V1__WatchUpdate *u)
{
    int64_t now = clock_mono_ns();
    bool worth = false;
    if (p->json) {
        struct buf line = {0};
        json_message(&line, false, &u->base);
        put_out(&line);
    }
    if (u->event)
        p->event = u->event->seq;
    else if (u->status && !p->event)
        p->event = u->status->newest_event;
    if (u->status)
        worth = take_status(p, u->status);
    if (u->report)
        worth |= take_report(p, u->report, now);
    if (p->json)
        return;
    if (u->event)
        show_event(p, u->event);
    if (u->status)
        show_unsaved(p, u->status);
    if (u->report && u->report->n_samples)
        show_samples(p, u->report);
    int64_t every = (p->live ? BAR_LIVE_MS : BAR_PLAIN_MS) * CLOCK_MS;
    bool first = p->said_step < 0 && u->report; // shown at once
    bool due = first || (now - p->shown_ns >= every && p->step != p->said_step);
    if (worth || due || (p->live && !p->open && p->state))
        show_line(p, now);
}

void progress_say(struct progress *p, const char *text)
{
    clear_live_line(p);
    plain_error("%s", text);
}

int progress_end(struct progress *p)
{
    int rc = job_ended(p->state);
    if (!p->live) // the last change of state has been printed as a line of its own
        return rc;
    clear_live_line(p);
    struct buf line = {0};
    describe_job(p, clock_mono_ns(), &line);
    plain_printf(stdout, "%s\n", buf_str(&line));
    fflush(stdout);
    buf_clear(&line);
    return rc;
}
