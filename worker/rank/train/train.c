// SPDX-License-Identifier: Apache-2.0
// The step loop, and the way out. See train.h.
//
// The host runs ahead: the feed reads step n+1 while step n computes, and the metrics of step n−1
// are looked at once step n is queued. So a bit that is raised in the control word of step n takes
// effect at the end of step n+1, on all ranks alike; nobody waits for it.
//
//   step n:  feed → inputs, hyper, control → run → metrics to the host
//            then step n−1's metrics: row, stop?, no_save?
//            then the boundary: evaluate, save
#include "worker/rank/train/train.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/attempt/page.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/job/lr.h"
#include "worker/rank/train/asked.h"

enum { NONFINITE_MAX = 10 };
#define LOG_NS   (10 * CLOCK_S) // between two lines of the log that say where the run stands
#define LATE_NS  (60 * CLOCK_S) // how much later than another a rank may end an evaluation
#define AGREE_NS (5 * CLOCK_S)  // how long a rank that is about to fail waits for the others

static bool is_due(int64_t every, int64_t done)
{
    return every > 0 && done % every == 0;
}

// ---- one step ----------------------------------------------------------------------------------

static int put_scalars(struct trainer *t, int64_t step, struct words *w, struct err *e)
{
    const struct backend *b = t->exec_options.backend;
    struct stream_q *q = exec_stream(t->exec);
    hyper_at(t->job, step, t->updates + step - t->assignment->restore_step, w->hyper);
    w->control[CONTROL_STOP] = link_stop_requested(t->link);
    w->control[CONTROL_NO_SAVE] = saver_busy(t->saver);
    w->step = (int32_t)(uint32_t)step; // one word of the random numbers' counter
    int rc = b->stream.copy(q, t->control, w->control, sizeof w->control, e);
    if (!rc && t->hyper) // a stage of nothing but frozen parameters has no update
        rc = b->stream.copy(q, t->hyper, w->hyper, sizeof w->hyper, e);
    float *detail = w->metrics + t->metrics_slots;
    if (!rc && t->detail && detail_put(t->detail, detail))
        rc =
            b->stream.copy(q, t->detail_device, detail, sizeof(float) * (size_t)t->detail_slots, e);
    return rc || !t->step ? rc : b->stream.copy(q, t->step, &w->step, sizeof w->step, e);
}

// Waits for the feed. That time is lost only where the device has nothing to do meanwhile: the step
// before has ended, which is looked for without waiting.
static int wait_for_batch(struct trainer *t, int64_t step, struct in_flight *f, struct err *e)
{
    struct in_flight *before = &t->flight[(step + 1) & 1];
    bool idle = !before->behind;
    int64_t idle_ns = clock_mono_ns();
    int rc = 0;
    while (!rc && !feed_wait(t->feed, clock_mono_ns() + (idle ? CLOCK_S : CLOCK_MS)))
        if (!idle && !(rc = t->exec_options.backend->event.query(before->done, &idle, e)) && idle)
            before->ended_ns = idle_ns = clock_mono_ns();
    f->spent.input_ns = idle ? clock_mono_ns() - idle_ns : 0;
    return rc;
}

static int queue_batch(struct trainer *t, int64_t step, struct in_flight *f, struct err *e)
{
    const struct backend *b = t->exec_options.backend;
    struct batch batch;
    // feed_next() lets the feed read over the batch of the step before: its copy must be over.
    int rc = b->event.sync(t->flight[(step + 1) & 1].fed, e);
    if (!rc)
        rc = wait_for_batch(t, step, f, e);
    if (!rc)
        rc = feed_next(t->feed, &batch, e);
    if (!rc)
        rc = inputs_put(&t->inputs, &batch, e);
    return rc ? rc : b->event.record(exec_inputs(t->exec)->q, f->fed, e);
}

static int queue_metrics(struct trainer *t, struct in_flight *f, struct err *e)
{
    const struct backend *b = t->exec_options.backend;
    struct stream_q *q = exec_stream(t->exec);
    size_t bytes = sizeof(float) * (size_t)t->metrics_slots;
    bool done = false;
    int rc = b->stream.copy(q, f->words->metrics, t->metrics_device, bytes, e);
    if (!rc)
        rc = b->event.record(q, f->done, e);
    if (!rc)
        rc = b->event.query(f->done, &done, e);
    f->behind = !done;
    return rc;
}

// Queues all of a step. What `f` holds is of the step before last, whose metrics were looked at, so
// it may be written over. The step before may still run; only collectives that the host carries make
// this wait for the device.
static int queue_step(struct trainer *t, int64_t step, struct in_flight *f, struct err *e)
{
    f->begun_ns = clock_mono_ns();
    f->ended_ns = 0;
    f->spent = (struct spent){.checkpoint_ns = t->stalled_ns};
    t->stalled_ns = 0;
    bool detailed = t->detail && is_due(t->job->metrics.detail, step + 1);
    int rc = queue_batch(t, step, f, e);
    if (!rc)
        rc = put_scalars(t, step, f->words, e);
    if (!rc && detailed)
        rc = detail_begin(t->detail, e);
    int64_t before_ns = exec_communication_ns(t->exec);
    if (!rc)
        rc = exec_run(t->exec, PROGRAM_TRAIN, e);
    f->spent.communication_ns = before_ns < 0 ? -1 : exec_communication_ns(t->exec) - before_ns;
    if (!rc)
        rc = queue_metrics(t, f, e);
    if (!rc && detailed)
        rc = detail_end(t->detail, e);
    f->spent.step_ns = clock_mono_ns() - f->begun_ns + f->spent.checkpoint_ns;
    return rc;
}

// Waits until a step's metrics have come. A step that the device finished only after it was queued
// lasted from the end of the step before it, or from when it was queued if that was later.
static int wait_for_metrics(struct trainer *t, struct in_flight *f, struct err *e)
{
    int rc = t->exec_options.backend->event.sync(f->done, e);
    rc = rc ? rc : exec_check(t->exec, e);
    if (!rc && f->behind) {
        int64_t ended_ns = f->ended_ns ? f->ended_ns : clock_mono_ns();
        int64_t begun_ns = f->begun_ns > t->ended_ns ? f->begun_ns : t->ended_ns;
        f->spent.step_ns = ended_ns - begun_ns + f->spent.checkpoint_ns;
        t->ended_ns = ended_ns;
        f->behind = false;
    }
    return rc;
}

static int run_step(struct trainer *t, int64_t step, struct in_flight *f, struct err *e)
{
    int rc = exec_step(t->exec, step + 1, e);
    if (!rc)
        rc = queue_step(t, step, f, e);
    f->row = (struct step_row){.step = step + 1,
                               .steps = t->job->train.steps,
                               .lr = lr_at(&t->job->schedule, step),
                               .parts = {t->nparts, t->parts, f->part_value}};
    f->reported = false;
    return rc;
}

// Rows that cannot be written are lost; the run continues. One line of the log says when that begins,
// one when it ends.
static void write_row(struct trainer *t, const struct step_row *row)
{
    struct err e = {0};
    if (metrics_write(t->metrics, row, &e)) {
        if (t->rows_lost++ == 0)
            log_warn("metrics", "rows are lost from step %lld on: %s", (long long)row->step,
                     e.text);
    } else if (t->rows_lost) {
        log_warn("metrics", "rows lost: %lld, up to step %lld", (long long)t->rows_lost,
                 (long long)row->step - 1);
        t->rows_lost = 0;
    }
}

// The log says where the run stands: at the first and last step, at evaluations, and every ten
// seconds.
static void log_row(struct trainer *t, const struct step_row *r)
{
    int64_t now = clock_mono_ns();
    bool due = !t->logged_ns || r->evaluated || r->step == r->steps || now - t->logged_ns >= LOG_NS;
    char eval[80] = "", speed[40];
    if (!due || t->assignment->rank != 0)
        return;
    t->logged_ns = now;
    if (r->evaluated && isnan(r->eval_accuracy))
        snprintf(eval, sizeof eval, ", eval loss %.4g", r->eval_loss);
    else if (r->evaluated)
        snprintf(eval, sizeof eval, ", eval loss %.4g, accuracy %.2f %%", r->eval_loss,
                 100 * r->eval_accuracy);
    if (!r->steps)
        log_info("train", "no step to train%s", eval);
    else
        log_info("train", "step %lld of %lld: loss %.4g, %s%s", (long long)r->step,
                 (long long)r->steps, r->loss, row_speed_text(r, speed), eval);
}

static bool is_finite(const float *metrics)
{
    return isfinite(metrics[METRIC_LOSS]) && isfinite(metrics[METRIC_SQNORM]);
}

// Where the time of the steps since the newest row went, a step. What is not waiting is computation.
static void fill_times(const struct trainer *t, struct step_row *row)
{
    const struct spent *s = &t->since.spent;
    double ms = 1.0 / CLOCK_MS / (double)t->since.steps, batch = (double)t->job->data.batch;
    int64_t known = s->communication_ns < 0 ? 0 : s->communication_ns;
    int64_t rest = s->step_ns - s->input_ns - known - s->checkpoint_ns;
    row->step_ms = (double)s->step_ns * ms;
    row->input_ms = (double)s->input_ns * ms;
    row->communication_ms = s->communication_ns < 0 ? -1 : (double)known * ms;
    row->checkpoint_ms = (double)s->checkpoint_ns * ms;
    row->compute_ms = rest > 0 ? (double)rest * ms : 0;
    row->samples_per_s = batch * 1000 / row->step_ms;
    row->tokens_per_s = t->set.seq ? row->samples_per_s * (double)t->set.seq : -1;
    row->flops_per_s = t->use.flops * 1000 / row->step_ms;
    row->mfu = t->use.peak > 0 ? row->flops_per_s / t->use.peak : -1;
}

static void add_to_sums(struct trainer *t, const struct in_flight *f)
{
    struct spent *s = &t->since.spent;
    t->since.steps++;
    t->since.loss += f->row.loss;
    s->step_ns += f->spent.step_ns;
    s->input_ns += f->spent.input_ns;
    s->communication_ns += f->spent.communication_ns;
    s->checkpoint_ns += f->spent.checkpoint_ns;
}

// Sends the row of a finished step, once. The file gets those that are due.
static void report_row(struct trainer *t, struct in_flight *f)
{
    const float *metrics = f->words->metrics;
    struct step_row *row = &f->row;
    if (f->reported)
        return;
    f->reported = true;
    row->t_ms = clock_wall_ms();
    row->loss = metrics[METRIC_LOSS];
    for (int64_t i = 0; i < t->metrics_slots - METRIC_PARTS; i++)
        f->part_value[i] = (double)metrics[METRIC_PARTS + i];
    row->grad_norm = sqrt((double)metrics[METRIC_SQNORM]);
    row->dropped = t->dropped += !is_finite(metrics);
    add_to_sums(t, f);
    row->loss_mean = t->since.loss / (double)t->since.steps;
    fill_times(t, row);
    row->mean_ms = pace_add(&t->pace, (double)f->spent.step_ns / CLOCK_MS);
    row->memory_bytes = device_use_memory(&t->use, clock_mono_ns());
    row->memory_planned_bytes = t->use.planned;
    // The sums of a step travel with the next one.
    if (t->detail && is_due(t->job->metrics.detail, row->step - 1) &&
        row->step - 1 > t->assignment->restore_step)
        detail_take(t->detail, metrics + t->metrics_slots - t->detail_slots, row->step - 1);
    if (t->detail)
        row->detail = detail_row(t->detail);
    link_step_report(t->link, row);
    log_row(t, row);
    if (!row->evaluated && !f->last && is_finite(metrics) &&
        !is_due(t->job->train.log_every, row->step))
        return;
    if (t->metrics)
        write_row(t, row);
    if (t->detail)
        detail_written(t->detail);
    memset(&t->since, 0, sizeof t->since);
}

// Waits for a step's metrics and acts on them. They are the same numbers on every rank, so all ranks
// decide alike.
static int look_at_metrics(struct trainer *t, struct in_flight *f, struct err *e)
{
    const float *m = f->words->metrics;
    int rc = wait_for_metrics(t, f, e);
    if (rc)
        return rc;
    t->stop |= m[METRIC_STOP] > 0;
    t->no_save = m[METRIC_NO_SAVE] > 0;
    report_row(t, f);
    if (is_finite(m)) {
        t->nonfinite = 0;
        return 0;
    }
    if (t->assignment->rank == 0)
        log_warn("train", "loss or gradient of step %lld is not finite: its update is dropped",
                 (long long)f->row.step);
    // A job whose last step is dropped has not got the result that it was asked for.
    bool last = f->row.step == f->row.steps;
    if (++t->nonfinite < NONFINITE_MAX && !last)
        return 0;
    // All ranks come here at the same step. They wait for each other, because one that ended before
    // the rest would be a lost peer to them.
    (void)link_barrier(t->link, "nonfinite", f->row.step, clock_mono_ns() + AGREE_NS, NULL);
    return err_set(e, ERR_DATA,
                   "loss or gradient is not finite for %d step%s in a row, up to %s%lld",
                   t->nonfinite, t->nonfinite == 1 ? "" : "s", last ? "the last, " : "",
                   (long long)f->row.step);
}

// Lines of the log are short: a long text becomes several lines, and its line breaks become \n.
static void log_sample(const char *prompt, const char *text)
{
    enum { PIECE = 1000 };
    struct buf whole = {0}, line = {0};
    buf_printf(&whole, "%s%s", prompt, text);
    for (const char *s = buf_str(&whole); *s; s++) {
        bool begins_character = ((unsigned char)*s & 0xc0) != 0x80; // of UTF-8
        if (line.len >= PIECE && begins_character) {
            log_info("sample", "%s", buf_str(&line));
            buf_reset(&line);
        }
        if (*s == '\n')
            buf_puts(&line, "\\n");
        else
            buf_putc(&line, *s);
    }
    log_info("sample", "%s", buf_str(&line));
    buf_clear(&line);
    buf_clear(&whole);
}

// The row borrows the trainer's texts, which the next evaluation changes; it is sent before that.
static int take_samples(struct trainer *t, struct in_flight *f, struct err *e)
{
    int rc = sampling_take(&t->sampling, e);
    if (rc)
        return rc;
    int64_t count = t->job->eval.sample.count, wanted = t->job->eval.sample.tokens;
    for (int64_t k = 0; k < count; k++) {
        buf_reset(&t->texts[k]);
        sampling_text(&t->sampling, k, &t->texts[k]);
        t->sample_text[k] = buf_str(&t->texts[k]);
        if (t->assignment->rank == 0)
            log_sample(t->job->eval.sample.prompt, t->sample_text[k]);
    }
    if (t->assignment->rank == 0 && t->sampling.done < wanted)
        log_warn("sample", "each sample ends after %lld of %lld tokens: the logits are not finite",
                 (long long)t->sampling.done, (long long)wanted);
    f->row.nsamples = (int)count;
    f->row.samples = t->sample_text;
    f->row.sample_prompt = t->job->eval.sample.prompt;
    return 0;
}

// Whether samples follow this evaluation. The step alone decides that, so that a run that was
// resumed takes them where it would have.
static bool is_sampling_due(const struct job *job, int64_t done)
{
    bool last = done == job->train.steps;
    return last || done / job->eval.every % job->eval.sample.every == 0;
}

static int run_evaluation(struct trainer *t, struct in_flight *f, int64_t done, struct err *e)
{
    f->row.evaluated = true;
    int rc = evaluation_run(&t->evaluation, &f->row.eval_loss, &f->row.eval_accuracy, e);
    f->row.eval_parts = (struct row_parts){t->neval_parts, t->eval_parts, t->evaluation.mean + 1};
    return rc || !t->samples || !is_sampling_due(t->job, done) ? rc : take_samples(t, f, e);
}

// The boundary after a step; f: that step's row, null at the first boundary.
static struct save_point make_point(const struct trainer *t, int64_t done,
                                    const struct in_flight *f)
{
    return (struct save_point){.step = done,
                               .samples = (int64_t)sampler_drawn(&t->sampler, (uint64_t)done),
                               .updates = t->updates + done - t->assignment->restore_step,
                               .evaluated = f && f->row.evaluated,
                               .eval_loss = f ? f->row.eval_loss : 0};
}

// A rank that waits for the answer stands still for as long as the storage takes: that is no hang.
static int begin_save(struct trainer *t, int64_t done, const struct in_flight *f, struct err *e)
{
    const struct save_point at = make_point(t, done, f);
    bool waits = !t->job->checkpoint.async;
    if (waits)
        page_state(t->assignment->page, RANK_SAVING);
    int64_t begun_ns = clock_mono_ns();
    int rc = saver_begin(t->saver, &at, e);
    if (!f || !f->behind) // else the device had a step to run meanwhile
        t->stalled_ns += clock_mono_ns() - begun_ns;
    if (waits)
        page_state(t->assignment->page, RANK_RUNNING);
    return rc;
}

// Opens a checkpoint where one is due and the one before is done. Every rank comes to the same
// answer: no_save is a sum over the ranks. It is as old as the control word of step n−1, so a save
// that was opened at the end of step n−1 is not in it; but every rank knows of that one.
static int save_if_due(struct trainer *t, int64_t done, struct err *e)
{
    if (!is_due(t->job->checkpoint.every, done))
        return 0;
    // Where saves are not async all ranks have waited for the one before, so none is open.
    bool too_soon = t->job->checkpoint.async && saver_opened_at(t->saver) == done - 1;
    if (t->no_save || too_soon) {
        if (t->assignment->rank == 0)
            log_warn("ckpt",
                     "skipped the checkpoint of step %lld: the one before %s (%lld skipped)",
                     (long long)done, too_soon ? "was of the step before" : "is still open",
                     (long long)++t->saves_skipped);
        return 0;
    }
    // A run that resumes from this checkpoint does not run the step again, so the step's row must be
    // out before the save is written. Where the device is behind that is so without waiting here: an
    // async save is written after saver_poll(), which follows look_at_metrics().
    struct in_flight *f = &t->flight[(done - 1) & 1];
    if (!t->job->checkpoint.async) {
        int rc = wait_for_metrics(t, f, e);
        if (rc)
            return rc;
        report_row(t, f);
    }
    return begin_save(t, done, f, e);
}

static int finish_training(struct trainer *t, int64_t done, struct err *e)
{
    struct in_flight *f = &t->flight[(done - 1) & 1];
    const struct save_point at = make_point(t, done, f);
    page_state(t->assignment->page, RANK_SAVING);
    f->last = true;
    int rc = look_at_metrics(t, f, e);
    return rc ? rc : saver_finish(t->saver, &at, e);
}

// A job without steps evaluates what it begins with. It saves nothing: the row is its result, and the
// job has succeeded once the leader has it. No rank ends before the rest, as a lost peer would.
static int evaluate_once(struct trainer *t, struct err *e)
{
    struct step_row *row = &t->flight[0].row;
    int64_t begun_ns = clock_mono_ns();
    *row = (struct step_row){.loss = (double)NAN,
                             .loss_mean = (double)NAN,
                             .grad_norm = (double)NAN,
                             .lr = (double)NAN,
                             .tokens_per_s = -1,
                             .communication_ms = -1,
                             .mfu = -1};
    int rc = run_evaluation(t, &t->flight[0], 0, e);
    rc = rc ? rc : link_barrier(t->link, "evaluated", 0, clock_mono_ns() + LATE_NS, e);
    if (rc)
        return rc;
    row->t_ms = clock_wall_ms();
    row->step_ms = (double)(clock_mono_ns() - begun_ns) / CLOCK_MS;
    row->memory_bytes = device_use_memory(&t->use, clock_mono_ns());
    row->memory_planned_bytes = t->use.planned;
    link_step_report(t->link, row);
    log_row(t, row);
    if (t->metrics)
        write_row(t, row);
    return 0;
}

static int run_steps(struct trainer *t, enum train_end *end, struct err *e)
{
    int64_t steps = t->job->train.steps, first = t->assignment->restore_step;
    page_state(t->assignment->page, RANK_RUNNING);
    if (!steps) {
        *end = TRAIN_FINISHED;
        return evaluate_once(t, e);
    }
    if (t->job->checkpoint.first && !t->assignment->restore) {
        int rc = begin_save(t, first, NULL, e);
        if (rc)
            return rc;
    }
    for (int64_t n = first; n < steps; n++) {
        struct in_flight *f = &t->flight[n & 1];
        const char *lost = link_lost(t->link); // a rank without peers has no world to abort
        log_step(n + 1);
        if (lost)
            return err_set(e, ERR_PEER, "%s", lost);
        int rc = run_step(t, n, f, e);
        if (!rc && n > first)
            rc = look_at_metrics(t, &t->flight[(n - 1) & 1], e);
        if (!rc)
            rc = saver_poll(t->saver, e);
        bool last = n + 1 == steps;
        if (!rc && t->evaluates && (last || is_due(t->job->eval.every, n + 1)))
            rc = run_evaluation(t, f, n + 1, e);
        if (rc)
            return rc;
        if (last || t->stop) {
            *end = last ? TRAIN_FINISHED : TRAIN_DRAINED;
            return finish_training(t, n + 1, e);
        }
        if (!f->behind) // people need not wait for the next step
            report_row(t, f);
        rc = save_if_due(t, n + 1, e);
        if (rc)
            return rc;
    }
    *end = TRAIN_FINISHED; // there was nothing left to do
    return 0;
}

static void pick_samples(const void *ctx, uint64_t step, uint64_t first, size_t count,
                         uint64_t *out)
{
    sampler_ids(ctx, step, first, count, out);
}

// A fault may be reported long after the op that caused it was queued, so the message also says how
// far the rank had come.
static void explain_device_failure(const struct trainer *t, struct err *e)
{
    struct page_view at;
    struct device_info info = {.model = "not opened"};
    if (t->exec)
        exec_show(t->exec);
    page_read(t->assignment->page, &at);
    if (t->device)
        t->exec_options.backend->device.info(t->device, &info);
    err_wrap(e, "rank %d, %s device %d (%s), step %lld", t->assignment->rank,
             job_device_kind(t->job->resources.kind), t->ordinal, info.model, (long long)at.step);
}

int train_run(const struct assignment *a, struct link *l, enum train_end *end, struct err *e)
{
    struct trainer t = {.assignment = a, .job = a->job, .link = l};
    page_state(a->page, RANK_STARTING);
    int rc = trainer_open(&t, e);
    if (!rc && a->only)
        rc = asked_run(&t, e);
    else if (!rc && a->restore_step < a->job->train.steps)
        rc = inputs_feed(&t.inputs, &t.set, pick_samples, &t.sampler, (uint64_t)a->restore_step,
                         (uint64_t)a->job->train.steps, &t.feed, e);
    if (!rc && !a->only)
        rc = run_steps(&t, end, e);
    if (!rc)
        rc = exec_check_memory(t.exec, e);
    if (rc == ERR_DEVICE)
        explain_device_failure(&t, e);
    if (rc && t.exec_options.world)
        world_abort(t.exec_options.world, "this rank failed");
    trainer_close(&t);
    return rc;
}
