// SPDX-License-Identifier: Apache-2.0
// Training: opening everything, the step loop, and the way out. See train.h.
//
// The host runs ahead: the feed reads step n+1 while step n computes, and the metrics of step n−1
// are looked at once step n is queued. So a bit raised in the control word of step n takes effect
// at the end of step n+1, on all ranks alike; nobody waits for it.
//
//   step n:  feed → inputs, hyper, control → run → metrics to the host
//            then step n−1's metrics: row, stop?, no_save?
//            then the boundary: evaluate, save
#include "worker/rank/train/train.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/attempt/page.h"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/ckpt/load.h"
#include "common/job/lr.h"
#include "common/model/model.h"
#include "worker/rank/exec/model_state.h"
#include "worker/rank/link/rank_link.h"
#include "worker/rank/save/saver.h"
#include "worker/rank/train/algorithms.h"
#include "worker/rank/train/evaluate.h"
#include "worker/rank/train/giveup.h"
#include "worker/rank/train/sampling.h"

enum {
    NONFINITE_MAX = 10,
    // The leader names a hang after hang_after. A collective gives up by itself after this many
    // times as long, and no sooner than COLL_NS: when it is the leader that hangs. A peer may be at
    // work for longer than hang_after before it comes to it.
    STALLS = 10,
};
#define COLL_NS  (300 * CLOCK_S)
#define START_NS (120 * CLOCK_S)
#define LOST_NS  (12 * CLOCK_S) // the ends of all ranks take less
#define AGREE_NS (5 * CLOCK_S)  // to end together; one that does not come is no reason to stay

// The words that travel between host and device each step, in staging memory.
struct words {
    float hyper[HYPER_SLOTS], control[CONTROL_SLOTS]; // down
    int32_t step;                                     // the same
    float metrics[METRIC_PARTS + MAX_PARTS];          // up
};

// What the host keeps of a step until its metrics are looked at.
struct in_flight {
    struct step_row row;
    struct words *words;
    struct event *fed;  // the batch was copied: the feed may have its memory back
    struct event *done; // the metrics are in `words`
    bool told;          // the row went out
    bool behind;        // the device had not come to its end when it was queued
    int64_t begun_ns;
};

struct trainer {
    const struct assignment *assignment;
    const struct job *job;
    struct link *link;
    struct arena arena;
    struct compiled compiled;
    struct device *device;
    int ordinal;                      // which of this host's it is
    bool apart;                       // it works by itself: the host can but wait for it
    struct exec_options exec_options; // backend, device, world: one place
    struct exec *exec;
    struct state state;
    struct dataset set;
    struct sampler sampler;
    struct inputs inputs;
    struct feed *feed;
    struct evaluation evaluation;
    struct sampling sampling;
    struct buf algorithms;    // as agreed; empty where there is no choice
    struct buf *texts;        // of the newest evaluation's samples,
    const char **sample_text; // as the row has them
    bool evaluates, samples;
    struct saver *_Atomic saver; // on_lost looks at it
    struct metrics *metrics;     // rank 0
    void *hyper, *control, *metrics_device;
    void *step; // null: the program draws no random numbers
    struct in_flight flight[2];
    int64_t ended_ns;   // when the newest step that ended was seen to have ended
    int nonfinite;      // in a row
    bool stop, no_save; // of the newest control word looked at
    int64_t saves_skipped, rows_lost;
};

// ---- opening -----------------------------------------------------------------------------------

static int open_compiled(struct trainer *t, struct err *e)
{
    struct buf dump = {0};
    int rc = model_compile(t->job, &t->arena, &t->compiled, &dump, e);
    if (rc && dump.len)
        log_error("compile", "%s", buf_str(&dump));
    buf_clear(&dump);
    t->exec_options.compiled = &t->compiled;
    if (!rc && mesh_ranks(&t->compiled.mesh) != t->assignment->ranks)
        return err_set(e, ERR_INVALID, "the mesh has %d devices, %d ranks were started",
                       mesh_ranks(&t->compiled.mesh), t->assignment->ranks);
    return rc;
}

// Said before the arena is touched: a machine without the memory would kill whom it likes.
static int check_fits(const struct trainer *t, struct err *e)
{
    struct device_info info;
    t->exec_options.backend->device.info(t->device, &info);
    uint64_t need = 0; // of the ranks that share the memory: those of other hosts are not known
    for (int r = 0; r < t->assignment->ranks; r++)
        if (r == t->assignment->rank || (info.shares_host && !t->assignment->listen))
            need += compiled_memory(&t->compiled, compiled_stage(&t->compiled, r))->arena;
    if (need <= info.memory)
        return 0;
    return err_set(
        e, ERR_INVALID, "the plan needs %.1f GiB of device memory on this %s, there are %.1f GiB",
        (double)need / 0x1p30, info.shares_host ? "host" : "device", (double)info.memory / 0x1p30);
}

// Ranks that were given no device take one after the other, and share where they are more.
static int choose_device(struct trainer *t, struct err *e)
{
    const struct assignment *a = t->assignment;
    t->ordinal = a->device;
    if (t->ordinal >= 0)
        return 0;
    int n = t->exec_options.backend->device.count(e);
    if (n < 1)
        return ERR_DEVICE;
    t->ordinal = a->rank % n;
    return 0;
}

// What may be thrown away: measurements that are made again.
static const char *cache_folder(char *out, size_t size)
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (base && *base == '/')
        snprintf(out, size, "%s/weft", base);
    else if (home && *home == '/')
        snprintf(out, size, "%s/.cache/weft", home);
    else
        return NULL;
    return out;
}

static int open_device(struct trainer *t, struct err *e)
{
    int rc = backend_load(job_device_kind(t->job->resources.kind), &t->exec_options.backend, e);
    rc = rc ? rc : choose_device(t, e);
    if (rc)
        return rc;
    char cache[4200];
    struct device_options o = {.ordinal = t->ordinal,
                               .threads = (int)t->job->resources.threads,
                               .deterministic = t->job->precision.deterministic,
                               .cache = cache_folder(cache, sizeof cache)};
    rc = t->exec_options.backend->device.open(&o, &t->device, e);
    t->exec_options.device = t->device;
    if (rc)
        return rc;
    struct device_info info;
    t->exec_options.backend->device.info(t->device, &info);
    t->apart = !info.shares_host;
    return check_fits(t, e);
}

// Any thread: the attempt is over, so nothing may wait on it any more.
static void on_lost(void *ctx, const char *why)
{
    struct trainer *t = ctx;
    if (t->exec_options.world)
        world_abort(t->exec_options.world, why);
    struct saver *saver = atomic_load(&t->saver);
    if (saver)
        saver_lost(saver, why);
    if (t->apart) // who waits for a device that stopped is woken by nothing
        give_up_after(LOST_NS, RANK_EXIT_LOST, why);
}

// Nobody is waited for any more: who was asked to stop before this may not come.
static bool is_over(void *link)
{
    return link_lost(link) || link_stop_requested(link);
}

static int open_world(struct trainer *t, struct err *e)
{
    const struct assignment *a = t->assignment;
    if (a->ranks == 1)
        return 0;
    int64_t deadline_ns = STALLS * a->hang_after_ns;
    struct world_options o = {.rank = a->rank,
                              .ranks = a->ranks,
                              .host = a->host,
                              .listen = a->listen,
                              .epoch = a->epoch,
                              .connect_ns = START_NS,
                              .deadline_ns = deadline_ns > COLL_NS ? deadline_ns : COLL_NS,
                              .progress = a->page,
                              .threads = t->apart ? 1 : (int)t->job->resources.threads,
                              .socket_dir = a->socket_dir,
                              .put = link_world_put,
                              .get = link_world_get,
                              .lost = is_over,
                              .ctx = t->link};
    memcpy(o.key, a->key, sizeof o.key);
    int rc = world_open(&o, &t->exec_options.world, e);
    if (rc && !link_lost(t->link) && link_stop_requested(t->link))
        rc = err_set(e, ERR_ABORTED, "asked to stop while the ranks met");
    return rc;
}

static int open_sampling(struct trainer *t, struct err *e)
{
    int64_t count = t->job->eval.sample.count;
    t->texts = arena_array(&t->arena, struct buf, count);
    t->sample_text = arena_array(&t->arena, const char *, count);
    return sampling_open(&t->sampling, &t->exec_options, t->exec, t->job, e);
}

static int open_data(struct trainer *t, struct err *e)
{
    const struct job *job = t->job;
    int rc = inputs_open_set(job, t->assignment->data_root, &job->data.train, &t->set, e);
    if (rc)
        return rc;
    t->sampler = (struct sampler){
        .n = t->set.n, .batch = (uint64_t)job->data.batch, .seed = (uint64_t)job->train.seed};
    rc = inputs_open(&t->inputs, &t->exec_options, t->exec, PROGRAM_TRAIN, &t->set, e);
    t->evaluates = t->compiled.nprograms > 1;
    if (!rc && t->evaluates)
        rc = evaluation_open(&t->evaluation, &t->exec_options, t->exec, job,
                             t->assignment->data_root, e);
    t->samples = t->compiled.nprograms > PROGRAM_SAMPLE;
    if (!rc && t->samples)
        rc = open_sampling(t, e);
    if (!rc && t->evaluates && t->assignment->rank == 0 && t->evaluation.sampler.left_out)
        log_info("data", "evaluations leave out the last %llu samples: they fill no batch",
                 (unsigned long long)t->evaluation.sampler.left_out);
    return rc;
}

static int open_exec(struct trainer *t, struct err *e)
{
    t->exec_options.rank = t->assignment->rank;
    t->exec_options.page = t->assignment->page;
    int rc = exec_open(&t->exec_options, &t->exec, e);
    if (rc)
        return rc;
    exec_buffer(t->exec, PROGRAM_TRAIN, "hyper", &t->hyper);
    exec_buffer(t->exec, PROGRAM_TRAIN, "control", &t->control);
    exec_buffer(t->exec, PROGRAM_TRAIN, "step", &t->step);
    exec_buffer(t->exec, PROGRAM_TRAIN, "metrics", &t->metrics_device);
    const struct backend *b = t->exec_options.backend;
    for (int i = 0; i < 2 && !rc; i++) {
        void *host = NULL;
        rc = b->memory.host_alloc(t->device, sizeof(struct words), &host, e);
        t->flight[i].words = host;
        rc = rc ? rc : b->event.create(t->device, &t->flight[i].fed, e);
        rc = rc ? rc : b->event.create(t->device, &t->flight[i].done, e);
    }
    return rc;
}

static int open_checkpoint(const struct trainer *t, struct store *store, struct load *load,
                           struct err *e)
{
    struct store_entry which;
    if (!store_entry_parse(t->assignment->restore, &which))
        return err_set(e, ERR_INTERNAL, "'%s' is no checkpoint's name", t->assignment->restore);
    int rc = store_open_beneath(store, t->assignment->checkpoint_root, t->assignment->store, e);
    return rc ? rc : load_open(load, store, which.epoch, which.step, e);
}

// Whether a step run twice gives the same bits.
static bool is_deterministic(const struct trainer *t)
{
    struct device_info info;
    t->exec_options.backend->device.info(t->device, &info);
    return info.deterministic;
}

static void tell_determinism(const struct trainer *t, const struct manifest_numerics *before)
{
    bool now = is_deterministic(t);
    if (before->deterministic != now)
        log_warn("numerics",
                 "the checkpoint's run was %sdeterministic, this one is%s "
                 "(precision.deterministic): from now on sums may round otherwise",
                 now ? "not " : "", now ? "" : " not");
}

static int restore(struct trainer *t, struct err *e)
{
    struct store store = {0};
    struct load load = {0};
    int rc = open_checkpoint(t, &store, &load, e);
    rc = rc ? rc : state_restore(&t->state, &load, e);
    if (!rc)
        tell_determinism(t, &load.manifest.numerics);
    load_close(&load);
    store_close(&store);
    if (rc)
        err_wrap(e, "cannot restore %s", t->assignment->restore);
    return rc;
}

// The record of the checkpoint that will be restored, the arena's; null: none, or none that may be
// used: it was chosen where other bits were allowed.
static int algorithms_before(struct trainer *t, const char **out, struct err *e)
{
    struct store store = {0};
    struct load load = {0};
    int rc = open_checkpoint(t, &store, &load, e);
    if (!rc && load.manifest.numerics.deterministic == is_deterministic(t))
        *out = arena_strdup(&t->arena, load.manifest.numerics.algorithms);
    load_close(&load);
    store_close(&store);
    return rc;
}

static int open_algorithms(struct trainer *t, struct err *e)
{
    const struct assignment *a = t->assignment;
    struct algorithms_options o = {.backend = t->exec_options.backend,
                                   .device = t->device,
                                   .exec = t->exec,
                                   .compiled = &t->compiled,
                                   .link = t->link,
                                   .rank = a->rank,
                                   .ranks = a->ranks};
    if (!o.backend->choice)
        return 0;
    int rc = a->restore ? algorithms_before(t, &o.before, e) : 0;
    return rc ? rc : algorithms_agree(&o, &t->algorithms, e);
}

// The plan's hash, and the algorithms' where there is a choice: all ranks must have the same.
static void agreed_hash(const struct trainer *t, char *out, size_t size)
{
    snprintf(out, size, "%s", t->compiled.hash);
    if (t->algorithms.len)
        snprintf(out + strlen(out), size - strlen(out), "-%08x",
                 hash_fnv1a32(buf_str(&t->algorithms)));
}

static int open_state(struct trainer *t, struct err *e)
{
    int rc = state_open(&t->state, &t->arena, &t->compiled, t->exec, t->assignment->rank, e);
    if (rc)
        return rc;
    return t->assignment->restore ? restore(t, e)
                                  : state_init(&t->state, (uint64_t)t->job->train.seed, e);
}

static int open_saver(struct trainer *t, struct err *e)
{
    struct saver *saver;
    int rc = saver_open(&(struct saver_options){.assignment = t->assignment,
                                                .link = t->link,
                                                .state = &t->state,
                                                .mesh = &t->compiled.mesh,
                                                .backend = t->exec_options.backend,
                                                .device = t->device,
                                                .algorithms = buf_str(&t->algorithms)},
                        &saver, e);
    if (rc)
        return rc;
    t->saver = saver;
    // From here on a lost leader ends what waits; if it is lost already, at once.
    link_on_lost(t->link, on_lost, t);
    return 0;
}

static void log_plan(const struct trainer *t)
{
    const struct memory *m = compiled_memory(&t->compiled, 0);
    if (t->assignment->rank == 0)
        log_info("plan",
                 "arena %.1f MiB a device: params %.1f grads %.1f optimizer %.1f copies %.1f "
                 "stash %.1f transient %.1f; %d instructions a step; hash %.12s",
                 (double)m->arena / 1048576, (double)m->params / 1048576,
                 (double)m->grads / 1048576, (double)m->optimizer / 1048576,
                 (double)m->copies / 1048576, (double)m->stash / 1048576,
                 (double)m->transient / 1048576,
                 compiled_program(&t->compiled, PROGRAM_TRAIN, 0)->ninstrs, t->compiled.hash);
}

static int open_all(struct trainer *t, struct err *e)
{
    int rc = open_compiled(t, e);
    rc = rc ? rc : open_device(t, e);
    rc = rc ? rc : open_world(t, e);
    rc = rc ? rc : open_exec(t, e);
    rc = rc ? rc : open_algorithms(t, e);
    rc = rc ? rc : open_data(t, e);
    rc = rc ? rc : open_state(t, e);
    rc = rc ? rc : open_saver(t, e);
    if (!rc && t->assignment->metrics)
        rc = metrics_open(t->assignment->metrics, t->assignment->run_id,
                          t->assignment->restore_step, &t->metrics, e);
    if (rc)
        return rc;
    rc = exec_check_memory(t->exec, e);
    if (rc)
        return rc;
    log_plan(t);
    page_state(t->assignment->page, RANK_READY);
    char hash[128];
    agreed_hash(t, hash, sizeof hash);
    return link_ready(t->link, hash, clock_mono_ns() + START_NS, e);
}

static void close_all(struct trainer *t)
{
    const struct backend *b = t->exec_options.backend;
    link_on_lost(t->link, NULL, NULL);
    feed_close(t->feed);
    saver_close(t->saver);
    metrics_close(t->metrics);
    evaluation_close(&t->evaluation);
    sampling_close(&t->sampling);
    for (int64_t k = 0; t->texts && k < t->job->eval.sample.count; k++)
        buf_clear(&t->texts[k]);
    buf_clear(&t->algorithms);
    inputs_close(&t->inputs);
    dataset_close(&t->set);
    for (int i = 0; i < 2; i++) {
        if (t->flight[i].fed)
            b->event.destroy(t->flight[i].fed);
        if (t->flight[i].done)
            b->event.destroy(t->flight[i].done);
        if (t->flight[i].words)
            b->memory.host_free(t->device, t->flight[i].words);
    }
    exec_close(t->exec);
    if (t->device) // it may have pinned the world's window
        b->device.close(t->device);
    world_close(t->exec_options.world);
    arena_clear(&t->arena);
}

// ---- one step ----------------------------------------------------------------------------------

static int put_scalars(struct trainer *t, int64_t step, struct words *w, struct err *e)
{
    const struct backend *b = t->exec_options.backend;
    struct stream_q *q = exec_stream(t->exec);
    hyper_at(t->job, step, w->hyper);
    w->control[CONTROL_STOP] = link_stop_requested(t->link);
    w->control[CONTROL_NO_SAVE] = saver_busy(t->saver);
    w->step = (int32_t)(uint32_t)step; // a word of the counter
    int rc = b->stream.copy(q, t->control, w->control, sizeof w->control, e);
    if (!rc && t->hyper) // a stage of nothing but frozen parameters has no update
        rc = b->stream.copy(q, t->hyper, w->hyper, sizeof w->hyper, e);
    return rc || !t->step ? rc : b->stream.copy(q, t->step, &w->step, sizeof w->step, e);
}

// Queues a step: everything the device needs, the program, the way back of its metrics. The memory
// of the step before last is free: its metrics were looked at. The batch goes in beside what still
// runs of the step before; nothing here waits for the device but collectives of the host.
static int queue_step(struct trainer *t, int64_t step, struct in_flight *f, struct err *e)
{
    const struct backend *b = t->exec_options.backend;
    struct stream_q *q = exec_stream(t->exec);
    struct batch batch;
    size_t bytes =
        sizeof(float) *
        (size_t)(METRIC_PARTS + compiled_program(&t->compiled, PROGRAM_TRAIN, 0)->nparts);
    bool done = false;
    f->begun_ns = clock_mono_ns();
    int rc = b->event.sync(t->flight[(step + 1) & 1].fed, e); // feed_next gives that batch back
    rc = rc ? rc : feed_next(t->feed, &batch, e);
    rc = rc ? rc : inputs_put(&t->inputs, &batch, e);
    rc = rc ? rc : b->event.record(exec_inputs(t->exec)->q, f->fed, e);
    rc = rc ? rc : put_scalars(t, step, f->words, e);
    rc = rc ? rc : exec_run(t->exec, PROGRAM_TRAIN, e);
    rc = rc ? rc : b->stream.copy(q, f->words->metrics, t->metrics_device, bytes, e);
    rc = rc ? rc : b->event.record(q, f->done, e);
    rc = rc ? rc : b->event.query(f->done, &done, e);
    f->behind = !done;
    return rc;
}

static void row_time(struct trainer *t, struct step_row *row, int64_t ns)
{
    row->step_ms = (double)ns / CLOCK_MS;
    row->tokens_per_s =
        t->set.seq ? (double)(t->job->data.batch * t->set.seq) * 1000 / row->step_ms : -1;
    row->samples_per_s = (double)t->job->data.batch * 1000 / row->step_ms;
}

// The host waits until a step's metrics have come. A device that runs behind its queue takes from
// one step's end to the next one's, if that was queued in time.
static int await(struct trainer *t, struct in_flight *f, struct err *e)
{
    int rc = t->exec_options.backend->event.sync(f->done, e);
    int64_t now = clock_mono_ns();
    if (!rc && f->behind) {
        row_time(t, &f->row, now - (f->begun_ns > t->ended_ns ? f->begun_ns : t->ended_ns));
        t->ended_ns = now;
        f->behind = false;
    }
    return rc;
}

static int run_step(struct trainer *t, int64_t step, struct in_flight *f, struct err *e)
{
    int rc = exec_step(t->exec, step + 1, e);
    rc = rc ? rc : queue_step(t, step, f, e);
    const struct program *p = compiled_program(&t->compiled, PROGRAM_TRAIN, 0);
    _Static_assert((int)ROW_PARTS >= (int)MAX_PARTS, "a row holds every part");
    f->row = (struct step_row){.step = step + 1,
                               .steps = t->job->train.steps,
                               .lr = lr_at(&t->job->schedule, step),
                               .nparts = p->nparts,
                               .part_name = p->part_name};
    row_time(t, &f->row, clock_mono_ns() - f->begun_ns);
    f->told = false;
    return rc;
}

// A file that cannot be written costs rows, never the run: one line when it begins, one when it
// ends.
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

// The row of a finished step goes out, once.
static void tell(struct trainer *t, struct in_flight *f)
{
    if (f->told)
        return;
    f->told = true;
    f->row.loss = f->words->metrics[METRIC_LOSS];
    for (int i = 0; i < f->row.nparts; i++)
        f->row.part[i] = f->words->metrics[METRIC_PARTS + i];
    f->row.grad_norm = sqrt((double)f->words->metrics[METRIC_SQNORM]);
    link_step_report(t->link, &f->row);
    if (t->metrics)
        write_row(t, &f->row);
}

// Looks at a finished step's metrics: the same numbers on every rank, so all decide alike.
static int look_at(struct trainer *t, struct in_flight *f, struct err *e)
{
    const float *m = f->words->metrics;
    int rc = await(t, f, e);
    if (rc)
        return rc;
    t->stop |= m[METRIC_STOP] > 0;
    t->no_save = m[METRIC_NO_SAVE] > 0;
    tell(t, f);
    if (isfinite(m[METRIC_LOSS]) && isfinite(m[METRIC_SQNORM])) {
        t->nonfinite = 0;
        return 0;
    }
    if (t->assignment->rank == 0)
        log_warn("train", "loss or gradient of step %lld is not finite: its update is dropped",
                 (long long)f->row.step);
    if (++t->nonfinite < NONFINITE_MAX)
        return 0;
    // All come to this at the same step: who left before the rest would make them lose a peer.
    (void)link_barrier(t->link, "nonfinite", f->row.step, clock_mono_ns() + AGREE_NS, NULL);
    return err_set(e, ERR_DATA, "loss or gradient is not finite for %d steps in a row, up to %lld",
                   NONFINITE_MAX, (long long)f->row.step);
}

static bool due(int64_t every, int64_t done)
{
    return every > 0 && done % every == 0;
}

// A line of the log is short: long texts come in pieces, their line breaks as \n.
static void log_sample(const char *text)
{
    enum { PIECE = 1000 };
    struct buf line = {0};
    for (const char *s = text; *s; s++) {
        bool begins = ((unsigned char)*s & 0xc0) != 0x80; // a character of UTF-8
        if (line.len >= PIECE && begins) {
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
}

// The texts are the trainer's until the next evaluation: the row is told before that.
static int take_samples(struct trainer *t, struct in_flight *f, struct err *e)
{
    int rc = sampling_run(&t->sampling, e);
    if (rc)
        return rc;
    int64_t count = t->job->eval.sample.count, wanted = t->job->eval.sample.tokens;
    for (int64_t k = 0; k < count; k++) {
        buf_reset(&t->texts[k]);
        sampling_text(&t->sampling, k, &t->texts[k]);
        t->sample_text[k] = buf_str(&t->texts[k]);
        if (t->assignment->rank == 0)
            log_sample(t->sample_text[k]);
    }
    if (t->assignment->rank == 0 && t->sampling.done < wanted)
        log_warn("sample", "ends after %lld of %lld tokens: the logits are not finite",
                 (long long)t->sampling.done, (long long)wanted);
    f->row.nsamples = (int)count;
    f->row.samples = t->sample_text;
    return 0;
}

static int evaluate(struct trainer *t, struct in_flight *f, struct err *e)
{
    f->row.evaluated = true;
    int rc = evaluation_run(&t->evaluation, &f->row.eval_loss, &f->row.eval_accuracy, e);
    for (int i = 0; i < f->row.nparts; i++)
        f->row.eval_part[i] = t->evaluation.part[i];
    return rc || !t->samples ? rc : take_samples(t, f, e);
}

// A rank that waits for the answer stands still for as long as the storage takes: that is no hang.
static int save(struct trainer *t, int64_t done, struct err *e)
{
    bool waits = !t->job->checkpoint.async;
    if (waits)
        page_state(t->assignment->page, RANK_SAVING);
    int rc = saver_begin(t->saver, done, done * t->job->data.batch, e);
    if (waits)
        page_state(t->assignment->page, RANK_RUNNING);
    return rc;
}

// Opens a checkpoint where one is due. Every rank comes to the same answer: no_save is the sum of
// step n−1, and what opened at the end of step n−1 is known to all.
static int save_if_due(struct trainer *t, int64_t done, struct err *e)
{
    if (!due(t->job->checkpoint.every, done))
        return 0;
    // Where all ranks waited for the answer, nothing can be open.
    bool too_soon = t->job->checkpoint.async && saver_opened_at(t->saver) == done - 1;
    if (t->no_save || too_soon) {
        if (t->assignment->rank == 0)
            log_warn("ckpt",
                     "skipped the checkpoint of step %lld: the one before %s (%lld skipped)",
                     (long long)done, too_soon ? "was of the step before" : "is still open",
                     (long long)++t->saves_skipped);
        return 0;
    }
    // A run that resumes from this checkpoint does not see the step again: its row goes out first.
    // While a device is behind nothing of its save is written: saver_poll comes after look_at.
    struct in_flight *f = &t->flight[(done - 1) & 1];
    if (!f->behind || !t->job->checkpoint.async) {
        int rc = await(t, f, e);
        if (rc)
            return rc;
        tell(t, f);
    }
    return save(t, done, e);
}

static int finish(struct trainer *t, int64_t done, struct err *e)
{
    page_state(t->assignment->page, RANK_SAVING);
    int rc = look_at(t, &t->flight[(done - 1) & 1], e);
    return rc ? rc : saver_finish(t->saver, done, done * t->job->data.batch, e);
}

static int loop(struct trainer *t, enum train_end *end, struct err *e)
{
    int64_t steps = t->job->train.steps, first = t->assignment->restore_step;
    page_state(t->assignment->page, RANK_RUNNING);
    for (int64_t n = first; n < steps; n++) {
        struct in_flight *f = &t->flight[n & 1];
        const char *lost = link_lost(t->link); // with no peers there is no world to be aborted
        log_step(n + 1);
        if (lost)
            return err_set(e, ERR_PEER, "%s", lost);
        int rc = run_step(t, n, f, e);
        if (!rc && n > first)
            rc = look_at(t, &t->flight[(n - 1) & 1], e);
        rc = rc ? rc : saver_poll(t->saver, e);
        bool last = n + 1 == steps;
        if (!rc && t->evaluates && (last || due(t->job->eval.every, n + 1)))
            rc = evaluate(t, f, e);
        if (rc)
            return rc;
        if (last || t->stop) {
            *end = last ? TRAIN_FINISHED : TRAIN_DRAINED;
            return finish(t, n + 1, e);
        }
        rc = save_if_due(t, n + 1, e);
        if (rc)
            return rc;
    }
    *end = TRAIN_FINISHED; // there was nothing left to do
    return 0;
}

static void train_ids(const void *ctx, uint64_t step, uint64_t first, size_t count, uint64_t *out)
{
    sampler_ids(ctx, step, first, count, out);
}

// A fault may be told long after the op that made it was queued: where the rank had come to is said
// too.
static void device_failed(const struct trainer *t, struct err *e)
{
    struct page_view at;
    struct device_info info = {.model = "not opened"};
    if (t->exec)
        exec_tell(t->exec);
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
    int rc = open_all(&t, e);
    if (!rc && a->restore_step < a->job->train.steps)
        rc = inputs_feed(&t.inputs, &t.set, train_ids, &t.sampler, (uint64_t)a->restore_step,
                         (uint64_t)a->job->train.steps, &t.feed, e);
    rc = rc ? rc : loop(&t, end, e);
    rc = rc ? rc : exec_check_memory(t.exec, e);
    if (rc == ERR_DEVICE)
        device_failed(&t, e);
    if (rc && t.exec_options.world)
        world_abort(t.exec_options.world, "this rank failed");
    close_all(&t);
    return rc;
}
