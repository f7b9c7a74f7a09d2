// SPDX-License-Identifier: Apache-2.0
// Progress, live or line by line; see progress.h.
#include "coordinator/cli/progress.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/attempt/frame.h"
#include "common/base/clock.h"
#include "common/base/heap.h"
#include "common/base/plain.h"
#include "coordinator/cli/bar.h"
#include "coordinator/cli/message_json.h"

enum {
    LIVE_MS = 200,  // between two pictures
    EVENTS_MS = 50, // the same where an event is to be shown
    READ_MS = 50,   // in which rows of before are read at a turn
    READ_AT_END_MS = 60000,
    AGAIN_MS = 2000, // until the rows since are read
    AGAIN_AFTER_FAILURE_MS = 10000,
};

void progress_init(struct progress *p, bool json)
{
    *p = (struct progress){.json = json, .step = -1, .checkpoint = -1};
    p->said_step = p->eta_step = -1;
    if (!json)
        live_begin(&p->live);
    if (p->live.on) {
        p->curve = heap_alloc(sizeof *p->curve);
        job_curve_init(p->curve);
    }
}

// What was to be printed above it is.
static void take_picture_away(struct progress *p)
{
    live_draw(&p->live, buf_str(&p->above), "", 0);
    buf_reset(&p->above);
}

void progress_clear(struct progress *p)
{
    if (p->above.len)
        take_picture_away(p);
    if (p->curve)
        job_curve_clear(p->curve);
    free(p->curve);
    p->curve = NULL;
    buf_clear(&p->above);
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
static void describe_steps(const struct progress *p, int64_t now, struct buf *out)
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
}

static void describe_results(const struct progress *p, struct buf *out)
{
    if (p->evaluated && (isnan(p->accuracy) || !p->steps)) // a decoder has no accuracy
        buf_printf(out, "  eval loss %.4g", p->eval_loss);
    if (p->evaluated && !isnan(p->accuracy))
        buf_printf(out, "  accuracy %.2f %%", 100 * p->accuracy);
    if (p->checkpoint >= 0)
        buf_printf(out, "  checkpoint %lld", (long long)p->checkpoint);
    if (*p->text)
        buf_printf(out, "  %.*s", (int)strcspn(p->text, "\n"), p->text);
}

// What the job does now, and where a step's time goes.
static void describe_phase(const struct progress *p, struct buf *out)
{
    static const struct {
        enum curve_key key;
        const char *word;
    } parts[] = {{CURVE_COMPUTE_MS, "compute"},
                 {CURVE_INPUT_MS, "input"},
                 {CURVE_COMMUNICATION_MS, "communication"},
                 {CURVE_CHECKPOINT_MS, "saving"}};
    static const char *const phases[] = {
        [WEFT__V1__JOB_STATE__QUEUED] = "waits for devices",
        [WEFT__V1__JOB_STATE__STARTING] = "prepares: plan, data, checkpoint",
        [WEFT__V1__JOB_STATE__DRAINING] = "saves and stops",
        [WEFT__V1__JOB_STATE__RECOVERING] = "ends its ranks, to continue from a checkpoint"};
    const double *newest = p->curve->newest;
    double step_ms = newest[CURVE_STEP_MS];
    bool runs = p->state == WEFT__V1__JOB_STATE__RUNNING;
    size_t state = (size_t)p->state;
    if (runs)
        buf_puts(out, !p->steps ? "evaluates" : p->stepped ? "trains" : "is at its first step");
    else if (!p->left && state < sizeof phases / sizeof *phases && phases[state])
        buf_puts(out, phases[state]);
    if (p->attempt > 1 && !p->left && job_ended(p->state) < 0)
        buf_printf(out, " (attempt %llu)", (unsigned long long)p->attempt);
    if (!(step_ms > 0) || !(p->left || job_ended(p->state) >= 0 || (runs && p->stepped)))
        return;
    buf_printf(out, "%s%.3g %s a step", out->len ? "  " : "",
               step_ms < 1000 ? step_ms : step_ms / 1000, step_ms < 1000 ? "ms" : "s");
    const char *before = ": ";
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        double share = 100 * newest[parts[i].key] / step_ms;
        if (!(share >= 0.5)) // or it is not known
            continue;
        buf_printf(out, "%s%s %.0f %%", before, parts[i].word, share);
        before = ", ";
    }
}

static void describe_device(const struct progress *p, struct buf *out)
{
    const double *newest = p->curve->newest;
    char word[WORD_MAX];
    if (newest[CURVE_MFU] >= 0)
        buf_printf(out, "  MFU %.1f %%", 100 * newest[CURVE_MFU]);
    if (newest[CURVE_MEMORY] > 0)
        buf_printf(out, "  memory %s", word_bytes((int64_t)newest[CURVE_MEMORY], word));
    if (newest[CURVE_MEMORY] > 0 && newest[CURVE_PLANNED] > 0)
        buf_printf(out, " of %s planned", word_bytes((int64_t)newest[CURVE_PLANNED], word));
}

// ---- printing ----

// The curves, and three lines; or one line where there is little room.
static void draw_picture(const struct progress *p, int64_t now, struct buf *out)
{
    enum { LEAST_COLUMNS = 40, LEAST_LINES = 12, WORDS = 5, MOST_CHART = 9 };
    struct buf line = {0};
    int columns = screen_columns(), left = screen_lines() - WORDS;
    bool roomy = columns >= LEAST_COLUMNS && left >= LEAST_LINES - WORDS;
    const struct chart_text t = {.columns = columns - LIVE_MARGIN,
                                 .lines = left > MOST_CHART ? MOST_CHART : left,
                                 .colour = screen_colours()};
    if (roomy)
        job_curve_draw(p->curve, &t, out);
    describe_steps(p, now, &line);
    if (roomy) {
        plain_line(out, "%s", buf_str(&line));
        buf_reset(&line);
        describe_phase(p, &line);
        if (line.len)
            plain_line(out, "%s", buf_str(&line));
        buf_reset(&line);
        describe_device(p, &line);
    }
    describe_results(p, &line);
    const char *rest = buf_str(&line);
    rest += strspn(rest, " ");
    if (*rest)
        plain_line(out, "%s", rest);
    buf_clear(&line);
}

static void show_picture(struct progress *p, int64_t now)
{
    struct buf out = {0};
    draw_picture(p, now, &out);
    live_draw(&p->live, buf_str(&p->above), buf_str(&out), out.len);
    buf_reset(&p->above);
    p->shown_ns = now;
    p->changed = false;
    buf_clear(&out);
}

static void show_line(struct progress *p, int64_t now)
{
    struct buf line = {0};
    describe_steps(p, now, &line);
    describe_results(p, &line);
    buf_putc(&line, '\n');
    put_out(&line);
    p->shown_ns = now;
    p->said_step = p->step;
}

// What stays above the picture comes with the next one, so that the screen is never without.
static void show_above(struct progress *p, struct buf *out)
{
    if (!p->curve) {
        put_out(out);
        return;
    }
    buf_append(&p->above, out->data, out->len);
    buf_clear(out);
    p->changed = true;
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
    show_above(p, &out);
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
    show_above(p, &line);
}

// Prints in a line of its own that saves fail: the line of the job may have no room for the reason.
static void show_unsaved(struct progress *p, const Weft__V1__JobStatus *s)
{
    char since[WORD_MAX];
    struct buf line = {0};
    if (s->unsaved && !p->unsaved) {
        plain_line(&line, "not saved since %s: %s", word_time(s->unsaved_since_ms, since),
                   s->unsaved_why);
        show_above(p, &line);
    }
    p->unsaved = s->unsaved > 0;
}

// Returns whether the state, or what is said about it, has changed.
static bool take_status(struct progress *p, const Weft__V1__JobStatus *s)
{
    bool moved = s->state != p->state;
    bool changed = moved || strncmp(s->text, p->text, sizeof p->text - 1) != 0;
    if (p->curve && !p->state)
        p->curve->whole = s->step <= 0; // there is nothing of before
    if (s->attempt != p->attempt)
        p->stepped = false;
    p->attempt = s->attempt;
    snprintf(p->job, sizeof p->job, "%s", s->job);
    snprintf(p->name, sizeof p->name, "%s", s->name);
    snprintf(p->store, sizeof p->store, "%s", s->store);
    p->state = s->state;
    p->failure = s->failure;
    p->step = s->step;
    p->steps = s->steps;
    p->checkpoint = s->checkpoint_step;
    p->checkpoint_attempt = (int64_t)s->checkpoint_attempt;
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
    p->reported = p->stepped = r->steps > 0;
    p->loss = r->loss;
    p->step_ms = r->step_ms;
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
    p->changed = true;
    if (p->curve) {
        if (u->report)
            job_curve_report(p->curve, p->attempt, u->report);
        progress_turn(p);
        return;
    }
    bool first = p->said_step < 0 && u->report; // shown at once
    bool due = first || (now - p->shown_ns >= BAR_PLAIN_MS * CLOCK_MS && p->step != p->said_step);
    if (worth || due)
        show_line(p, now);
}

void progress_turn(struct progress *p)
{
    if (!p->curve || !p->state)
        return;
    struct job_curve *c = p->curve;
    int64_t now = clock_mono_ns(), pause = (p->above.len ? EVENTS_MS : LIVE_MS) * CLOCK_MS,
            again = (c->failed ? AGAIN_AFTER_FAILURE_MS : AGAIN_MS) * CLOCK_MS;
    if (c->whole && p->changed && now - c->whole_ns >= again)
        job_curve_again(c);
    p->changed |= job_curve_read(c, p->link, p->job, p->store, READ_MS * CLOCK_MS);
    now = clock_mono_ns();
    if ((p->changed && now - p->shown_ns >= pause) || live_is_stale(&p->live))
        show_picture(p, now);
}

int64_t progress_pause_ns(const struct progress *p)
{
    if (!p->curve)
        return CLOCK_S;
    return (p->changed || !p->curve->whole ? EVENTS_MS : LIVE_MS) * CLOCK_MS;
}

void progress_say(struct progress *p, const char *text)
{
    take_picture_away(p);
    p->changed = true;
    plain_error("%s", text);
}

void progress_leave(struct progress *p)
{
    p->left = true;
    if (p->curve && p->state)
        show_picture(p, clock_mono_ns());
    if (p->live.lines)
        plain_puts(stdout, "\n");
    p->live.lines = 0;
    fflush(stdout);
}

int progress_end(struct progress *p)
{
    struct buf out = {0};
    if (!p->curve) // the last change of state has been printed as a line of its own
        return job_ended(p->state);
    job_curve_again(p->curve);
    for (int64_t until = clock_mono_ns() + READ_AT_END_MS * CLOCK_MS;
         p->state && !p->curve->whole && clock_mono_ns() < until;)
        progress_turn(p);
    draw_picture(p, clock_mono_ns(), &out);
    take_picture_away(p);
    plain_picture(stdout, buf_str(&out), out.len); // lines that are not cut
    fflush(stdout);
    buf_clear(&out);
    return job_ended(p->state);
}
