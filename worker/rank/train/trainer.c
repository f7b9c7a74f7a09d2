// SPDX-License-Identifier: Apache-2.0
// Opening and closing what a rank trains with. See trainer.h.
#include "worker/rank/train/trainer.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/attempt/page.h"
#include "common/base/clock.h"
#include "common/base/folder.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/ckpt/load.h"
#include "common/data/job_set.h"
#include "common/explain/device_models.h"
#include "common/job/prompt.h"
#include "common/job/threads.h"
#include "common/language/model_facts.h"
#include "common/plan/nccl_memory.h"
#include "worker/rank/train/algorithms.h"
#include "worker/rank/train/take_source.h"

// The leader ends an attempt of which a rank has made no progress for hang_after. In case the leader
// itself hangs, a collective gives up too: after HANGS times hang_after, and no sooner than
// COLLECTIVE_NS, since a peer may well compute for longer than hang_after before it comes to it.
enum { HANGS = 10 };
#define COLLECTIVE_NS (300 * CLOCK_S)
#define START_NS      (120 * CLOCK_S) // for the ranks to connect, and again to agree on the plan
#define LOST_NS       (12 * CLOCK_S)  // longer than a rank takes to end by itself

static struct compile_options compiled_so(const struct trainer *t)
{
    return (struct compile_options){.only = (enum program_kind)t->assignment->only,
                                    .rows = t->assignment->rows,
                                    .context = t->assignment->context};
}

static int open_compiled(struct trainer *t, struct err *e)
{
    struct buf dump = {0};
    const struct compile_options o = compiled_so(t);
    int rc = plan_compile(t->job, &o, &t->arena, &t->compiled, &dump, e);
    if (rc == ERR_INTERNAL && dump.len) // a bug of weft: whoever mends it needs the program
        log_error("compile", "%s", buf_str(&dump));
    buf_clear(&dump);
    t->exec_options.compiled = &t->compiled;
    if (!rc && mesh_ranks(&t->compiled.mesh) != t->assignment->ranks)
        return err_set(e, ERR_INVALID, "the job's mesh has %d devices, but %d ranks were started",
                       mesh_ranks(&t->compiled.mesh), t->assignment->ranks);
    return rc;
}

// What would fit into `memory` bytes, each for a rank: of a program that is asked, `weft generate` and
// `weft eval` have flags for it.
static void print_fit(const struct trainer *t, uint64_t memory, uint64_t libraries, char *out,
                      size_t size)
{
    const struct device_model d = {.memory = memory, .libraries = libraries};
    const struct compile_options o = compiled_so(t);
    int64_t rows = o.only ? plan_rows_that_fit(t->job, &o, &d) : 0, context = 0;
    rows -= rows % t->assignment->ranks;
    if (!rows && o.only == PROGRAM_FILL)
        context = plan_context_that_fits(t->job, &o, &d);
    if (!o.only)
        snprintf(out, size, "`weft plan --device here:memory=%lluMiB` says what would make it fit",
                 (unsigned long long)(memory >> 20));
    else if (rows)
        snprintf(out, size, "--batch %lld fits", (long long)rows);
    else if (context)
        snprintf(out, size, "--batch 1 --context %lld fits", (long long)context);
    else
        snprintf(out, size, "not one row of it fits: give a --mesh that cuts the model");
}

static uint64_t find_arena(const struct trainer *t, int rank)
{
    return compiled_memory(&t->compiled, compiled_stage(&t->compiled, rank))->arena;
}

// Refuses a plan that needs more memory than there is, before the arena is touched: touching it would
// make the kernel kill some process of its own choice.
static int check_fits(const struct trainer *t, struct err *e)
{
    struct device_info info;
    char fit[120], of_them[64] = "";
    t->exec_options.backend->device.info(t->device, &info);
    // Of a device's own memory its libraries need some too, as `weft plan` says.
    uint64_t libraries = info.shares_host ? 0 : device_model_libraries(info.model);
    uint64_t need = libraries + find_arena(t, t->assignment->rank);
    int sharers = 1;
    // The ranks that share this memory. With several hosts it is not known which ones do, so only
    // this rank is counted.
    for (int r = 0; r < t->assignment->ranks && info.shares_host && !t->assignment->listen; r++)
        if (r != t->assignment->rank) {
            need += find_arena(t, r);
            sharers++;
        }
    if (need <= info.memory)
        return 0;
    if (libraries)
        snprintf(of_them, sizeof of_them, ", %.1f of it for libraries", (double)libraries / 0x1p30);
    print_fit(t, info.memory / (uint64_t)sharers, libraries, fit, sizeof fit);
    return err_set(e, ERR_INVALID,
                   "the plan needs %.1f GiB of device memory%s, but this %s has %.1f GiB: %s",
                   (double)need / 0x1p30, of_them, info.shares_host ? "host" : "device",
                   (double)info.memory / 0x1p30, fit);
}

static int open_device(struct trainer *t, struct err *e)
{
    int rc = backend_load(job_device_kind(t->job->resources.kind), &t->exec_options.backend, e);
    if (rc)
        return rc;
    t->ordinal = t->assignment->device;
    char cache[4200]; // for timings, which can be made again
    bool cached = !folder_find_home("XDG_CACHE_HOME", ".cache", "weft", cache, sizeof cache, NULL);
    struct device_options o = {.ordinal = t->ordinal,
                               .threads = threads_of(t->job),
                               .deterministic = t->job->precision.deterministic,
                               .cache = cached ? cache : NULL};
    rc = t->exec_options.backend->device.open(&o, &t->device, e);
    t->exec_options.device = t->device;
    if (rc)
        return rc;
    struct device_info info;
    t->exec_options.backend->device.info(t->device, &info);
    t->runs_alone = !info.shares_host;
    return check_fits(t, e);
}

// ---- the end of the attempt ----

// The process must end, but its main thread waits for a device that has stopped: no call of the
// driver returns, and nothing wakes that thread. Nothing is cleared here, because that would wait
// for the device as well.
static void *end_without_device(void *why)
{
    clock_sleep_ms(LOST_NS / CLOCK_MS);
    log_error("rank", "the device does not answer, so the process ends without closing it: %s",
              (char *)why);
    _exit(RANK_EXIT_LOST);
}

// Ends the process after LOST_NS, and logs why, unless it has ended by itself before. Calls after the
// first do nothing.
static void end_process_later(const char *why)
{
    static atomic_flag begun = ATOMIC_FLAG_INIT;
    static char kept[400];
    pthread_t thread;
    if (atomic_flag_test_and_set(&begun))
        return;
    snprintf(kept, sizeof kept, "%s", why);
    if (!pthread_create(&thread, NULL, end_without_device, kept))
        pthread_detach(thread);
}

// The attempt is over: ends whatever waits for other ranks or the leader. Runs on any thread.
static void on_lost(void *ctx, const char *why)
{
    struct trainer *t = ctx;
    if (t->exec_options.world)
        world_abort(t->exec_options.world, why);
    struct saver *saver = atomic_load(&t->saver);
    if (saver)
        saver_lost(saver, why);
    if (t->runs_alone) // nothing wakes a thread that waits for a stopped device
        end_process_later(why);
}

// What the world asks of the link.
static int put_key(void *link, const char *key, const char *value, struct err *e)
{
    return link_kv_put(link, key, value, e);
}

static int get_key(void *link, const char *key, char *value, size_t size, int64_t deadline_ns,
                   struct err *e)
{
    return link_kv_get(link, key, value, size, deadline_ns, e);
}

static void note_unreached(void *link, int rank)
{
    link_unreached(link, rank);
}

// Whether to give up connecting to the peers. Once a stop was requested some of them may have ended
// already, and would be waited for in vain.
static bool is_over(void *link)
{
    return link_lost(link) || link_stop_requested(link);
}

static int open_world(struct trainer *t, struct err *e)
{
    const struct assignment *a = t->assignment;
    if (a->ranks == 1)
        return 0;
    int64_t deadline_ns = HANGS * a->hang_after_ns;
    struct world_options o = {.rank = a->rank,
                              .ranks = a->ranks,
                              .host = a->host,
                              .listen = a->listen,
                              .plain = t->job->resources.network == JOB_TRUSTED,
                              .attempt = a->attempt,
                              .connect_ns = START_NS,
                              .deadline_ns =
                                  deadline_ns > COLLECTIVE_NS ? deadline_ns : COLLECTIVE_NS,
                              .progress = a->page,
                              .threads = t->runs_alone ? 1 : threads_of(t->job),
                              .socket_dir = a->socket_dir,
                              .put = put_key,
                              .get = get_key,
                              .lost = is_over,
                              .unreached = note_unreached,
                              .ctx = t->link};
    memcpy(o.key, a->key, sizeof o.key);
    int rc = world_open(&o, &t->exec_options.world, e);
    if (rc && !link_lost(t->link) && link_stop_requested(t->link))
        rc = err_set(e, ERR_ABORTED, "asked to stop while the ranks connected to each other");
    return rc;
}

// Devices that share their memory with the host have nothing else.
static int choose_transport(struct trainer *t, struct err *e)
{
    static const enum transport_wish wishes[] = {[JOB_COLLECTIVES_AUTO] = TRANSPORT_AUTO,
                                                 [JOB_COLLECTIVES_NCCL] = TRANSPORT_DEVICES,
                                                 [JOB_COLLECTIVES_HOST] = TRANSPORT_HOST};
    if (t->exec_options.world)
        snprintf(t->collectives, sizeof t->collectives, "hosts");
    if (!t->exec_options.world || !t->runs_alone)
        return 0;
    const struct transport_options o = {.wish = wishes[t->job->resources.collectives],
                                        .world = t->exec_options.world,
                                        .rank = t->assignment->rank,
                                        .ranks = t->assignment->ranks,
                                        .host = t->assignment->host,
                                        .plain = t->job->resources.network == JOB_TRUSTED,
                                        .backend = t->exec_options.backend,
                                        .device = t->device};
    return transport_choose(&o, &t->exec_options.transport, t->collectives, e);
}

// For the log, and for the next plan.
static void keep_library_memory(const struct trainer *t, const struct library_memory *took)
{
    struct device_info info;
    struct err why = {0};
    if (!took->bytes || !took->communicators || t->assignment->rank)
        return;
    t->exec_options.backend->device.info(t->device, &info);
    const uint64_t each = took->bytes / (uint64_t)took->communicators;
    log_info(
        "collectives",
        "%s took %.1f MiB of device memory for each of its communicators (%d), with what others "
        "took meanwhile",
        t->collectives, (double)each / 0x1p20, took->communicators);
    int rc = nccl_memory_keep(info.model, each, &why);
    if (rc && rc != ERR_NOTFOUND)
        log_warn("collectives", "what NCCL took is not kept for the next plan: %s", why.text);
}

// Libraries load code when it is first used. What they say when there is no room for it names anything
// but that.
static void warn_of_room(const struct trainer *t)
{
    enum { ROOM_MIB = 256 };
    const struct backend *b = t->exec_options.backend;
    uint64_t left;
    if (b->memory.left && !b->memory.left(t->device, &left, NULL) && left >> 20 < ROOM_MIB)
        log_warn("device",
                 "%llu MiB of the device are left for what its libraries load: another process may "
                 "hold the rest (nvidia-smi)",
                 (unsigned long long)(left >> 20));
}

static int open_sampling(struct trainer *t, struct err *e)
{
    int64_t count = t->job->eval.sample.count;
    t->texts = arena_array(&t->arena, struct buf, count);
    t->sample_text = arena_array(&t->arena, const char *, count);
    return sampling_open(&t->sampling, &t->exec_options, t->exec, t->job, t->tokenizer, e);
}

static int open_tokenizer(struct trainer *t, struct err *e)
{
    struct arena names = {0};
    if (t->job->data.format != JOB_DATA_TOKENS || (t->assignment->rank && !t->samples))
        return 0;
    int rc = tokenizer_open_beneath(&t->tokenizer, t->assignment->data_root,
                                    job_tokenizer(t->job, &names), e);
    if (rc)
        err_wrap(e, "data.tokenizer");
    arena_clear(&names);
    return rc;
}

static int open_data(struct trainer *t, struct err *e)
{
    const struct job *job = t->job;
    int rc = job_set_open(job, t->assignment->data_root, &job->data.train, &t->set, e);
    rc = rc ? rc : dataset_identify(&t->set, &t->data, e);
    if (rc)
        return rc;
    t->sampler = (struct sampler){
        .n = t->set.n, .batch = (uint64_t)job->data.batch, .seed = (uint64_t)job->train.seed};
    rc = inputs_open(&t->inputs, &t->exec_options, t->exec, PROGRAM_TRAIN, &t->set, e);
    t->evaluates = compiled_has(&t->compiled, PROGRAM_EVAL);
    if (!rc && t->evaluates)
        rc = evaluation_open(&t->evaluation, &t->exec_options, t->exec, job,
                             t->assignment->data_root, e);
    t->samples =
        compiled_has(&t->compiled, PROGRAM_FILL) || compiled_has(&t->compiled, PROGRAM_SAMPLE);
    if (!rc)
        rc = open_tokenizer(t, e);
    if (!rc && t->samples)
        rc = open_sampling(t, e);
    if (!rc && t->evaluates && t->assignment->rank == 0 && t->evaluation.left_out)
        log_info("data",
                 "an evaluation runs %llu batches of %llu: the last %llu samples are not used, "
                 "because the model takes those of a batch together",
                 (unsigned long long)t->evaluation.sampler.batches,
                 (unsigned long long)t->evaluation.sampler.batch,
                 (unsigned long long)t->evaluation.left_out);
    return rc;
}

// What the questions hold (asked.h): no file.
static int open_questions(struct trainer *t, struct err *e)
{
    const struct graph *g = t->compiled.global[t->compiled.holder];
    if (t->compiled.holder != PROGRAM_SCORE)
        return sampling_open(&t->sampling, &t->exec_options, t->exec, t->job, NULL, e);
    t->set = (struct dataset){.seq = t->job->model.facts->seq, .dtype = DT_I32};
    for (int v = 0; v < g->nvalues; v++)
        if (g->values[v].kind == VALUE_INPUT && strcmp(g->values[v].name, "images") == 0)
            t->set = (struct dataset){.features = (uint64_t)g->values[v].shape.dim[1],
                                      .dtype = g->values[v].dtype,
                                      .labelled = true};
    return inputs_open(&t->inputs, &t->exec_options, t->exec, PROGRAM_SCORE, &t->set, e);
}

static struct row_part *name_parts(struct trainer *t, const struct graph *g)
{
    struct row_part *parts = arena_array(&t->arena, struct row_part, g->nparts);
    for (int i = 0; i < g->nparts; i++)
        parts[i] = (struct row_part){g->parts[i].name, g->parts[i].count};
    return parts;
}

// Lists the parts of the metrics that the programs report beside the loss.
static void list_parts(struct trainer *t)
{
    const struct graph *g = compiled_program(&t->compiled, PROGRAM_TRAIN, 0)->graph;
    t->nparts = g->nparts;
    t->metrics_slots = METRIC_PARTS + graph_part_slots(g) + t->detail_slots;
    t->parts = name_parts(t, g);
    if (!compiled_has(&t->compiled, PROGRAM_EVAL))
        return;
    g = compiled_program(&t->compiled, PROGRAM_EVAL, 0)->graph;
    t->neval_parts = g->nparts;
    t->eval_parts = name_parts(t, g);
}

static int open_flight(struct trainer *t, struct in_flight *f, struct err *e)
{
    const struct backend *b = t->exec_options.backend;
    void *words = NULL;
    size_t bytes =
        sizeof(struct words) + sizeof(float) * (size_t)(t->metrics_slots + t->detail_slots);
    int rc = b->memory.host_alloc(t->device, bytes, &words, e);
    f->words = words;
    f->part_value = arena_array(&t->arena, double, t->metrics_slots - METRIC_PARTS);
    if (!rc)
        rc = b->event.create(t->device, &f->fed, e);
    return rc ? rc : b->event.create(t->device, &f->done, e);
}

static int open_exec(struct trainer *t, struct err *e)
{
    t->exec_options.rank = t->assignment->rank;
    t->exec_options.page = t->assignment->page;
    struct library_memory took = {0};
    t->exec_options.took = &took;
    int rc = exec_open(&t->exec_options, &t->exec, e);
    t->exec_options.took = NULL;
    if (rc)
        return rc;
    keep_library_memory(t, &took);
    warn_of_room(t);
    exec_buffer(t->exec, t->compiled.holder, "metrics", &t->metrics_device);
    if (t->assignment->only)
        return 0;
    exec_buffer(t->exec, PROGRAM_TRAIN, "hyper", &t->hyper);
    exec_buffer(t->exec, PROGRAM_TRAIN, "control", &t->control);
    exec_buffer(t->exec, PROGRAM_TRAIN, "step", &t->step);
    const struct buffer *detail = exec_buffer(t->exec, PROGRAM_TRAIN, "detail", &t->detail_device);
    t->detail_slots = detail ? shape_count(&detail->shape) : 0;
    list_parts(t);
    for (int i = 0; i < 2 && !rc; i++)
        rc = open_flight(t, &t->flight[i], e);
    return rc;
}

static int open_checkpoint(const struct trainer *t, struct store *store, struct load *load,
                           struct err *e)
{
    struct store_entry which;
    if (!store_entry_parse(t->assignment->restore, &which))
        return err_set(e, ERR_INTERNAL, "'%s' is not the name of a checkpoint",
                       t->assignment->restore);
    int rc = store_open(store, t->assignment->checkpoint_root, t->assignment->store, e);
    return rc ? rc : load_open(load, store, which.attempt, which.step, e);
}

// What is wrong in the checkpoint is told apart from what is wrong in the data: in its place the one
// before it is used.
static int blame_checkpoint(int rc, struct err *e)
{
    return rc == ERR_DATA ? (e->code = ERR_CORRUPT) : rc;
}

// Whether a step run twice gives the same bits.
static bool is_deterministic(const struct trainer *t)
{
    struct device_info info;
    t->exec_options.backend->device.info(t->device, &info);
    return info.deterministic;
}

static void warn_of_determinism(const struct trainer *t, const struct manifest_numerics *before)
{
    bool now = is_deterministic(t);
    if (before->deterministic != now)
        log_warn("numerics",
                 "the checkpoint's run was %sdeterministic, this one is%s "
                 "(precision.deterministic): from now on sums may round otherwise",
                 now ? "not " : "", now ? "" : " not");
    if (now && before->deterministic && *before->collectives && *t->collectives &&
        strcmp(before->collectives, t->collectives) != 0 && t->assignment->rank == 0)
        log_warn("numerics",
                 "the checkpoint's run had its collectives by %s, this one by %s: from now on sums "
                 "may round otherwise",
                 before->collectives, t->collectives);
}

// For the job's history; rank 0 logs it too.
__attribute__((format(printf, 2, 3))) static void add_note(struct trainer *t, const char *fmt, ...)
{
    char text[300];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    buf_printf(&t->note, "%s%s", t->note.len ? "; " : "", text);
    if (t->assignment->rank == 0)
        log_info("train", "%s", text);
}

static void keep_source(struct trainer *t, const struct manifest_source *s)
{
    if (s->folder)
        t->source = (struct manifest_source){arena_strdup(&t->arena, s->folder), s->attempt,
                                             s->step, arena_strdup(&t->arena, s->digest)};
}

// Samples are drawn on where the checkpoint's training left off. Where the job file names other data,
// or samples have another length, they are others: they are drawn from the first one on.
static int continue_data(struct trainer *t, const struct manifest *m, struct err *e)
{
    struct err why = {0};
    bool other = data_identity_check(&m->data, m->step, &t->data, &why) != 0;
    bool others = other || t->history.other_length;
    if (other && !t->history.names_other_data) {
        *e = why;
        return err_wrap(e, "data.train names the same files as before");
    }
    t->sampler.from = (uint64_t)m->step;
    t->sampler.drawn = others ? 0 : (uint64_t)m->samples;
    if (others)
        add_note(t, "from step %lld on samples are %s: they are drawn from the first one on",
                 (long long)m->step, other ? "of other data" : "of another length");
    return 0;
}

static void note_new_state(struct trainer *t, const struct manifest *m, bool shares)
{
    if (!shares)
        add_note(t, "the state of %s is left behind at step %lld: that of %s begins at zero",
                 m->optimizer, (long long)m->step, job_optimizer_name(t->job->optimizer.kind));
}

static int restore_state(struct trainer *t, struct err *e)
{
    struct store store = {0};
    struct load load = {0};
    bool trains = !t->assignment->only; // else parameters are all that it wants
    int rc = open_checkpoint(t, &store, &load, e);
    if (!rc && trains)
        rc = job_history_read(&t->history, &t->arena, &load.manifest, t->job,
                              t->assignment->job_hash, e);
    if (!rc && trains)
        rc = continue_data(t, &load.manifest, e);
    bool shares = !rc && job_optimizers_share_state(load.manifest.optimizer,
                                                    job_optimizer_name(t->job->optimizer.kind));
    if (!rc)
        rc = state_restore(&t->state, &load, shares, e);
    if (!rc && trains) {
        t->updates = shares ? load.manifest.updates : 0;
        note_new_state(t, &load.manifest, shares);
        keep_source(t, &load.manifest.source);
        warn_of_determinism(t, &load.manifest.numerics);
    }
    load_close(&load);
    store_close(&store);
    if (rc)
        err_wrap(e, "cannot restore %s", t->assignment->restore);
    return blame_checkpoint(rc, e);
}

// The algorithms that are recorded in the checkpoint to be restored, in the arena. *out stays null
// where that run and this one differ in being deterministic: what one chose is not for the other.
static int read_algorithms(struct trainer *t, const char **out, struct err *e)
{
    struct store store = {0};
    struct load load = {0};
    int rc = open_checkpoint(t, &store, &load, e);
    if (!rc && load.manifest.numerics.deterministic == is_deterministic(t))
        *out = arena_strdup(&t->arena, load.manifest.numerics.algorithms);
    load_close(&load);
    store_close(&store);
    return blame_checkpoint(rc, e);
}

static int open_algorithms(struct trainer *t, struct err *e)
{
    const struct assignment *a = t->assignment;
    struct algorithms_options o = {.backend = t->exec_options.backend,
                                   .device = t->device,
                                   .exec = t->exec,
                                   .compiled = &t->compiled,
                                   .link = t->link,
                                   .page = a->page,
                                   .rank = a->rank,
                                   .ranks = a->ranks};
    if (!o.backend->choice)
        return 0;
    int rc = a->restore ? read_algorithms(t, &o.before, e) : 0;
    return rc ? rc : algorithms_agree(&o, &t->algorithms, e);
}

// The hash on which all ranks must agree: the plan's, followed by that of the training data and of
// the algorithms where there is a choice.
static void format_hash(const struct trainer *t, char *out, size_t size)
{
    snprintf(out, size, "%s-%016llx", t->compiled.hash, (unsigned long long)t->data.digest.lo);
    if (t->algorithms.len)
        snprintf(out + strlen(out), size - strlen(out), "-%08x",
                 hash_fnv1a32(buf_str(&t->algorithms)));
}

static int open_state(struct trainer *t, struct err *e)
{
    int rc = state_open(&t->state, &t->arena, &t->compiled, t->exec, t->assignment->rank, e);
    if (rc)
        return rc;
    if (t->assignment->restore)
        return restore_state(t, e);
    rc = state_init(&t->state, (uint64_t)t->job->train.seed, world_cores(t->exec_options.world), e);
    return rc || !t->job->checkpoint.from ? rc : take_source(t, e);
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
                                                .algorithms = buf_str(&t->algorithms),
                                                .collectives = t->collectives,
                                                .changes = t->history.changes,
                                                .nchanges = t->history.n,
                                                .data = t->data,
                                                .tokenizer = t->tokenizer,
                                                .source = t->source},
                        &saver, e);
    if (rc)
        return rc;
    t->saver = saver;
    // From here on the loss of the leader ends whatever waits; if it is lost already, soon.
    link_on_lost(t->link, on_lost, t);
    return 0;
}

static void log_plan(const struct trainer *t)
{
    const struct memory *m = compiled_memory(&t->compiled, 0);
    if (t->assignment->rank == 0 && t->compiled.keyless)
        log_warn("sample", "no keys are kept, so each token takes a whole forward pass: %s",
                 t->compiled.keyless);
    if (t->assignment->rank == 0)
        log_info("plan",
                 "arena %.1f MiB a device: params %.1f grads %.1f optimizer %.1f copies %.1f "
                 "stash %.1f transient %.1f; %d instructions a step; hash %.12s",
                 (double)m->arena / 1048576, (double)m->params / 1048576,
                 (double)m->grads / 1048576, (double)m->optimizer / 1048576,
                 (double)m->copies / 1048576, (double)m->stash / 1048576,
                 (double)m->transient / 1048576,
                 compiled_program(&t->compiled, t->compiled.holder, 0)->ninstrs, t->compiled.hash);
}

int trainer_open(struct trainer *t, struct err *e)
{
    int rc = open_compiled(t, e);
    rc = rc ? rc : open_device(t, e);
    rc = rc ? rc : open_world(t, e);
    rc = rc ? rc : choose_transport(t, e);
    rc = rc ? rc : open_exec(t, e);
    rc = rc ? rc : open_algorithms(t, e);
    if (!rc)
        rc = t->assignment->only ? open_questions(t, e) : open_data(t, e);
    if (!rc)
        rc = open_state(t, e);
    if (!rc && t->assignment->only)
        link_on_lost(t->link, on_lost, t);
    else if (!rc)
        rc = open_saver(t, e);
    if (!rc && t->detail_slots)
        rc = detail_open(&t->compiled, &t->state, t->assignment->rank, &t->arena, &t->detail, e);
    if (!rc && t->assignment->metrics)
        rc = metrics_open(t->assignment->metrics, t->assignment->attempt, &t->metrics, e);
    if (rc)
        return rc;
    rc = exec_check_memory(t->exec, e);
    if (rc)
        return rc;
    log_plan(t);
    if (!t->assignment->only && t->assignment->rank == 0)
        device_use_init(&t->use, t->job, &t->compiled, t->exec_options.backend, t->device,
                        t->assignment->rank);
    page_state(t->assignment->page, RANK_READY);
    char hash[128];
    format_hash(t, hash, sizeof hash);
    return link_ready(t->link, hash, buf_str(&t->note), clock_mono_ns() + START_NS, e);
}

void trainer_close(struct trainer *t)
{
    const struct backend *b = t->exec_options.backend;
    link_on_lost(t->link, NULL, NULL);
    feed_close(t->feed);
    saver_close(t->saver);
    metrics_close(t->metrics);
    detail_close(t->detail);
    evaluation_close(&t->evaluation);
    sampling_close(&t->sampling);
    for (int64_t k = 0; t->texts && k < t->job->eval.sample.count; k++)
        buf_clear(&t->texts[k]);
    buf_clear(&t->algorithms);
    buf_clear(&t->note);
    inputs_close(&t->inputs);
    dataset_close(&t->set);
    tokenizer_close(t->tokenizer);
    for (int i = 0; i < 2; i++) {
        if (t->flight[i].fed)
            b->event.destroy(t->flight[i].fed);
        if (t->flight[i].done)
            b->event.destroy(t->flight[i].done);
        if (t->flight[i].words)
            b->memory.host_free(t->device, t->flight[i].words);
    }
    exec_close(t->exec);
    if (t->device) // before the world, whose window it may have pinned
        b->device.close(t->device);
    world_close(t->exec_options.world);
    arena_clear(&t->arena);
}
