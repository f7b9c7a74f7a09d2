// SPDX-License-Identifier: Apache-2.0
// Fitting. See fit.h.
#include "common/explain/fit.h"

#include <string.h>

#include "common/explain/fit_batch.h"
#include "common/explain/fit_mesh.h"
#include "common/explain/picture.h"

// MOST_WORK, of nodes and instructions, is about fifteen seconds of a processor. It is no time, so
// that the same job gets the same advice everywhere.
enum { FIXES_MAX = 3, MOST_WORK = 3000000 };

bool fit_fits(const struct compiled *c, const struct device_model *d)
{
    return !d->memory || fit_need(c, d) <= d->memory;
}

// ---- what may help ------------------------------------------------------------------------------

static bool has_axis(const struct job *job, const struct job_names *names, int axis)
{
    for (int i = 0; i < names->n; i++)
        if (job_axis_find(&job->mesh, names->name[i]) == axis)
            return true;
    return false;
}

// Axes of more than one device that the rule of the batch names.
static bool is_batch_axis(const struct job *job, int axis)
{
    const struct job_rule *rule = job_rule_find(&job->sharding, "batch");
    return rule && job->mesh.axis[axis].size > 1 && has_axis(job, &rule->axes, axis);
}

// "KEY=[names, and the batch axes that are not among them]"; null when that
// adds none.
static const char *add_batch_axes(const struct fitting *f, const char *key,
                                  const struct job_names *names)
{
    const struct job *job = f->job;
    struct buf b = {0};
    int n = 0, added = 0;
    buf_printf(&b, "%s=[", key);
    for (int i = 0; names && i < names->n; i++)
        buf_printf(&b, "%s%s", n++ ? ", " : "", names->name[i]);
    for (int i = 0; i < job->mesh.n; i++) {
        if (!is_batch_axis(job, i) || (names && has_axis(job, names, i)))
            continue;
        buf_printf(&b, "%s%s", n++ ? ", " : "", job->mesh.axis[i].name);
        added++;
    }
    buf_putc(&b, ']');
    const char *text = buf_keep(&b, f->arena);
    return added ? text : NULL;
}

// The savings: each function adds settings that may save memory, or none where the job has them.
static void cut_state(const struct fitting *f, struct settings *s)
{
    const char *text = add_batch_axes(f, "sharding.optimizer", NULL);
    if (text)
        settings_put(s, text);
}

static void cut_grads(const struct fitting *f, struct settings *s)
{
    const char *text = add_batch_axes(f, "sharding.grads", NULL);
    cut_state(f, s);
    if (text)
        settings_put(s, text);
}

static void cut_weights(const struct fitting *f, struct settings *s)
{
    const struct job_rule *embed = job_rule_find(&f->job->sharding, "embed");
    const char *rule = add_batch_axes(f, "sharding.rules.embed", embed ? &embed->axes : NULL);
    const char *gather = add_batch_axes(f, "sharding.gather", &f->job->sharding.gather);
    if (!rule)
        return;
    settings_put(s, rule);
    if (gather)
        settings_put(s, gather);
}

static void remat_block(const struct fitting *f, struct settings *s)
{
    if (f->job->train.remat != JOB_REMAT_BLOCK && job_has_insides(f->job))
        settings_put(s, "train.remat=block");
}

static void remat_full(const struct fitting *f, struct settings *s)
{
    if (f->job->train.remat != JOB_REMAT_FULL && job_has_insides(f->job))
        settings_put(s, "train.remat=full");
}

// Counts the samples of a step on one device.
static int64_t count_samples(const struct job *job)
{
    int64_t shards = 1;
    for (int i = 0; i < job->mesh.n; i++)
        shards *= is_batch_axis(job, i) ? job->mesh.axis[i].size : 1;
    return job->data.batch / shards;
}

// ---- trying -------------------------------------------------------------------------------------

// What may save memory, in the order in which it is tried.
enum { SAVINGS = 5, WEIGHTS = 2 };
static void (*const savings[SAVINGS])(const struct fitting *, struct settings *) = {
    cut_state, cut_grads, cut_weights, remat_block, remat_full};

static void put_fix(struct buf *fix, const struct settings *s)
{
    buf_puts(fix, fix->len ? " or " : "");
    for (int i = 0; i < s->n; i++)
        buf_printf(fix, "%s%s", i ? " and " : "", s->text[i]);
}

// Doubles the number of microbatches until the job fits or the batch cannot be divided so.
static bool add_microbatches(struct fitting *f, struct settings *s)
{
    int64_t own = f->job->train.microbatches, samples = count_samples(f->job);
    for (int64_t n = fit_more_microbatches(samples, own); n && n <= own * FIT_TIMES;
         n = fit_more_microbatches(samples, n)) {
        struct settings one = *s;
        settings_put(&one, arena_printf(f->arena, "train.microbatches=%lld", (long long)n));
        if (!fit_would(f, &one))
            continue;
        *s = one;
        return true;
    }
    return false;
}

// Returns a text of the settings each of which is enough by itself; null: none is.
static const char *find_single_fixes(struct fitting *f)
{
    struct buf fix = {0};
    struct settings micro = {0};
    int found = 0;
    for (int i = 0; i < SAVINGS && found < FIXES_MAX; i++) {
        struct settings one = {0};
        savings[i](f, &one);
        if (!one.n || !fit_would(f, &one))
            continue;
        put_fix(&fix, &one);
        found++;
    }
    if (found < FIXES_MAX && add_microbatches(f, &micro)) {
        put_fix(&fix, &micro);
        found++;
    }
    return found ? buf_keep(&fix, f->arena) : NULL;
}

// Compiles the whole job with the settings of the smallest estimates, so that the least need in the
// message is no estimate. remat: full spares only what stages keep for their backward: a job without
// stages needs more with it than with remat: block, so there it is tried only if nothing else was.
static void settle_estimates(struct fitting *f)
{
    if (f->nearest.about)
        fit_try(f, &f->nearest.settings);
    if (f->nearest_full.about && (job_stages(f->job) > 1 || !f->nearest.about))
        fit_try(f, &f->nearest_full.settings);
}

// Adds the settings that keep mesh, dtype and batch, but for more microbatches: weights that are cut,
// and one kind of remat.
static void put_all(const struct fitting *f,
                    void (*remat)(const struct fitting *, struct settings *), struct settings *all)
{
    savings[WEIGHTS](f, all);
    remat(f, all);
}

// The largest number of microbatches that a batch and a step may be divided into.
static int64_t find_most_microbatches(const struct fitting *f, int64_t most)
{
    int64_t own = f->job->train.microbatches, n = own, more = own;
    while ((more = fit_more_microbatches(count_samples(f->job), more)) && more <= most &&
           more <= own * FIT_TIMES)
        n = more;
    return n;
}

// Whether it is worth while to try the savings one by one: whether all of them together would be
// enough, with the job's own number of microbatches or with as many as there may be.
static bool may_help(struct fitting *f)
{
    for (int i = SAVINGS - 2; i < SAVINGS; i++) {
        struct settings all = {0};
        int64_t most, none;
        put_all(f, savings[i], &all);
        if (fit_might(f, &all, &most))
            return true;
        int64_t n = find_most_microbatches(f, most ? most : INT64_MAX);
        if (n == f->job->train.microbatches)
            continue;
        settings_put(&all, arena_printf(f->arena, "train.microbatches=%lld", (long long)n));
        if (fit_might(f, &all, &none))
            return true;
    }
    return false;
}

// Adds one setting after the other until they are enough; false: all together are not.
static bool find_joint_fix(struct fitting *f, struct settings *all)
{
    for (int i = WEIGHTS; i < SAVINGS; i++) { // cutting weights cuts gradients and state too
        struct settings one = *all;
        bool full = savings[i] == remat_full;
        one.n -= full && one.n && strcmp(one.text[one.n - 1], "train.remat=block") == 0;
        int before = one.n;
        savings[i](f, &one);
        bool fits = one.n > before && (fit_would(f, &one) || add_microbatches(f, &one));
        if (fits || (one.n > before && (!full || job_stages(f->job) > 1)))
            *all = one;
        if (fits)
            return true;
    }
    return false;
}

// ---- advice ------------------------------------------------------------------------------------

struct advice {
    const char *fix;  // null: none
    const char *says; // what goes before or in place of it; null: nothing
    int64_t batch;    // the largest that fits without any of it; 0: none, or not looked for
    uint64_t least;   // the least need with all settings that keep mesh, dtype and batch
};

// Parameters, gradients and optimiser state do not shrink with the batch.
static bool state_fits(const struct fitting *f, const struct memory *m)
{
    uint64_t state = m->params + m->grads + m->optimizer + m->copies + f->device->libraries;
    return state <= f->device->memory;
}

// What all devices together hold at the least, however it is cut: parameters, gradients and the
// optimiser's moments.
static uint64_t count_state(const struct job *job, const struct compiled *c)
{
    static const int moments[] = {
        [JOB_SGD] = 0, [JOB_MOMENTUM] = 1, [JOB_ADAM] = 2, [JOB_ADAMW] = 2};
    const struct graph *g = c->global[PROGRAM_TRAIN];
    uint64_t count = 0, copies = 2 + (uint64_t)moments[job->optimizer.kind];
    for (int i = 0; i < g->nvalues; i++)
        count += g->values[i].kind == VALUE_PARAM ? (uint64_t)shape_count(&g->values[i].shape) : 0;
    for (int i = 0; i < job->optimizer.n_groups; i++)
        copies = job->optimizer.groups[i].freeze ? 1 : copies; // of which there may be no more
    return sizeof(float) * count * copies;
}

// The least number of devices that could hold that; 0: no number of them could.
static uint64_t count_devices(const struct fitting *f, const struct compiled *c)
{
    uint64_t free =
        f->device->memory > f->device->libraries ? f->device->memory - f->device->libraries : 0;
    return free ? (count_state(f->job, c) + free - 1) / free : 0;
}

static const char *keep_fix(const struct fitting *f, const struct settings *s)
{
    struct buf fix = {0};
    put_fix(&fix, s);
    return buf_keep(&fix, f->arena);
}

// What was looked at before bf16 or the batch, as the beginning of a sentence.
static const char *tell_meshes(const struct compiled *c, const struct other_mesh *other)
{
    if (other->tried)
        return "no other mesh that was looked at is enough; ";
    return mesh_ranks(&c->mesh) > 1 ? "no axis of the mesh can be dealt out; " : "";
}

// The settings to which bf16, or a smaller batch, is added: none, all others of the fix, and those
// of the mesh that needs the least. Each is tried in this order.
struct bases {
    int n;
    const struct settings *base[3];
    const char *meshes; // the beginning of the sentence: what was looked at before
};

static bool try_bf16(struct fitting *f, const struct bases *b, struct advice *to)
{
    for (int i = 0; i < b->n && f->job->precision.compute != JOB_BF16; i++) {
        struct settings s = *b->base[i];
        settings_put(&s, "precision.compute=bf16");
        // Another mesh has a number of microbatches of its own.
        bool other = s.n && strncmp(s.text[0], "mesh=", strlen("mesh=")) == 0;
        if (!fit_would(f, &s) && (other || !add_microbatches(f, &s)))
            continue;
        to->fix = keep_fix(f, &s);
        to->says = arena_printf(f->arena, "%sin bf16 it fits", b->meshes);
        return true;
    }
    return false;
}

static const char *name_batch(const struct fitting *f)
{
    return fit_ended(f) ? "a batch that fits" : "the largest batch that fits";
}

static bool try_batch(struct fitting *f, const struct bases *b, struct advice *to)
{
    for (int i = 0; i < b->n; i++) {
        struct settings s = *b->base[i];
        int64_t batch = fit_batch_largest(f, &s);
        if (!batch)
            continue;
        to->says =
            arena_printf(f->arena, "%sbf16 is not enough; %s%s is %lld", b->meshes, name_batch(f),
                         s.n ? " with the other settings of the fix" : "", (long long)batch);
        fit_batch_put(f, &s, batch);
        to->fix = keep_fix(f, &s);
        return true;
    }
    return false;
}

static const char *want_devices(const struct fitting *f, uint64_t least, const char *meshes)
{
    if (!least)
        return "libraries alone take all of it";
    if (!meshes)
        return arena_printf(f->arena,
                            "parameters, gradients and optimiser state alone fill %llu such "
                            "devices: it takes more of them, or larger ones",
                            (unsigned long long)least);
    return arena_printf(f->arena,
                        "%sbf16 is not enough and no smaller batch helps: it takes more "
                        "devices or larger ones",
                        meshes);
}

// What helps beyond the settings that keep mesh, dtype and batch.
static void advise_beyond(struct fitting *f, const struct compiled *c, const struct settings *all,
                          struct advice *to)
{
    static const struct settings none = {0};
    struct other_mesh other = {0};
    uint64_t least = count_devices(f, c);
    to->least = f->least;
    if (!least || least > (uint64_t)mesh_ranks(&c->mesh)) {
        to->says = want_devices(f, least, NULL);
        return;
    }
    fit_mesh_find(f, &other);
    struct bases bases = {1, {&none}, tell_meshes(c, &other)};
    if (all->n)
        bases.base[bases.n++] = all;
    if (other.nearest.n)
        bases.base[bases.n++] = &other.nearest;
    if (other.fits.n) {
        to->fix = keep_fix(f, &other.fits);
        to->says = "on another mesh of the same devices it fits";
        return;
    }
    if (try_bf16(f, &bases, to))
        return;
    if (other.nearest.n)
        bases.base[bases.n - 1] = &other.few;
    if (!try_batch(f, &bases, to))
        to->says = fit_ended(f) ? "nothing that was looked at is enough"
                                : want_devices(f, least, bases.meshes);
}

static struct advice find_advice(struct fitting *f, const struct compiled *c)
{
    static const struct settings none = {0};
    struct settings all = {0};
    struct advice to = {0};
    bool helps = may_help(f);
    if (helps)
        to.fix = find_single_fixes(f);
    else
        put_all(f, job_stages(f->job) > 1 ? remat_full : remat_block, &all);
    if (helps && !to.fix && find_joint_fix(f, &all))
        to.fix = keep_fix(f, &all);
    if (!to.fix) {
        settle_estimates(f);
        advise_beyond(f, c, &all, &to);
    }
    if (to.fix && state_fits(f, &c->memory))
        to.batch = fit_batch_largest(f, &none);
    return to;
}

// ---- the finding --------------------------------------------------------------------------------

// A part of what a device holds: which is the most decides what the message is about.
struct memory_part {
    const char *what;
    uint64_t bytes;
    enum buffer_kind kind; // whose largest buffer is named: of what follows from parameters, theirs
};
enum { PARTS = 6 };

static void list_parts(const struct memory *m, struct memory_part parts[PARTS])
{
    const struct memory_part all[PARTS] = {
        {"params", m->params, BUFFER_PARAM},       {"grads", m->grads, BUFFER_PARAM},
        {"optimizer", m->optimizer, BUFFER_PARAM}, {"copies", m->copies, BUFFER_PARAM},
        {"stash", m->stash, BUFFER_STASH},         {"transient", m->transient, BUFFER_TRANSIENT},
    };
    memcpy(parts, all, sizeof all);
}

static struct memory_part find_largest_part(const struct memory *m)
{
    struct memory_part parts[PARTS], most;
    list_parts(m, parts);
    most = parts[0];
    for (int i = 1; i < PARTS; i++)
        most = parts[i].bytes > most.bytes ? parts[i] : most;
    return most;
}

// Finds the largest buffer of a kind that can be named to the user; null: there is none.
static const struct buffer *find_largest(const struct compiled *c, enum buffer_kind kind)
{
    const struct buffer *most = NULL;
    for (int s = 0; s < c->nstages; s++) {
        const struct program *p = compiled_program(c, PROGRAM_TRAIN, s);
        for (int b = 0; b < p->nbuffers; b++)
            if (p->buffers[b].name && p->buffers[b].kind == kind &&
                (!most || p->buffers[b].bytes > most->bytes))
                most = &p->buffers[b];
    }
    return most;
}

static const char *write_message(const struct fitting *f, const struct memory *m,
                                 const struct memory_part *part, const struct buffer *most,
                                 uint64_t need, const struct advice *advice)
{
    struct memory_part parts[PARTS + 2];
    list_parts(m, parts);
    parts[PARTS] = (struct memory_part){"workspace", m->workspace, BUFFER_WORKSPACE};
    parts[PARTS + 1] = (struct memory_part){"libraries", f->device->libraries, BUFFER_WORKSPACE};
    struct buf b = {0};
    buf_puts(&b, "a device needs ");
    buf_bytes(&b, need);
    buf_puts(&b, " and has ");
    buf_bytes(&b, f->device->memory);
    buf_printf(&b, " (%s)", f->device->name);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!m->copies && strcmp(parts[i].what, "copies") == 0)
            continue;
        buf_printf(&b, "%s%s ", i ? ", " : ": ", parts[i].what);
        buf_bytes(&b, parts[i].bytes);
    }
    buf_printf(&b, "; the most is %s", part->what);
    if (most) {
        buf_printf(&b, "; the largest tensor, %s, takes ", most->name);
        buf_bytes(&b, most->bytes);
    }
    if (advice->says && advice->least < need) {
        buf_puts(&b, "; with weights cut on the batch's axes, remat and more microbatches it would "
                     "still be ");
        buf_bytes(&b, advice->least);
    }
    if (advice->says)
        buf_printf(&b, "; %s", advice->says);
    if (advice->batch)
        buf_printf(&b, "; as it stands %s is %lld", name_batch(f), (long long)advice->batch);
    if (fit_ended(f))
        buf_puts(&b,
                 "; not all that could help was looked at, since this job takes long to compile");
    return buf_keep(&b, f->arena);
}

void fit_check_within(const struct job *job, build_fn build, const struct device_model *d,
                      const struct compiled *c, struct findings *found, struct arena *a,
                      int64_t work)
{
    struct fitting f = {.job = job, .build = build, .device = d, .arena = a, .work = &work};
    struct buf text = {0};
    if (!c->whole || fit_fits(c, d))
        return;
    job_print(job, &text);
    f.resolved = buf_keep(&text, a);
    uint64_t need = f.least = fit_need(c, d);
    const struct advice advice =
        found->errors ? (struct advice){0} : find_advice(&f, c); // errors first
    const struct memory_part part = find_largest_part(&c->memory);
    const struct buffer *most = find_largest(c, part.kind);
    findings_add(found, &(struct finding){
                            .code = FINDING_DOES_NOT_FIT,
                            .tensor = most ? most->name : part.what,
                            .waste = need - d->memory,
                            .message = write_message(&f, &c->memory, &part, most, need, &advice),
                            .fix = advice.fix});
}

void fit_check(const struct job *job, build_fn build, const struct device_model *d,
               const struct compiled *c, struct findings *found, struct arena *a)
{
    fit_check_within(job, build, d, c, found, a, MOST_WORK);
}
