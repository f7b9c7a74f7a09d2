// SPDX-License-Identifier: Apache-2.0
// Fitting. See fit.h.
#include "common/explain/fit.h"

#include <string.h>

#include "common/explain/explain.h"
#include "common/explain/picture.h"

enum { SETTINGS_MAX = 8, FIXES_MAX = 3, MICROBATCH_STEPS = 4 };
// What a job of LARGE or more layers a stage needs is estimated from the same job with FEW and with
// MORE layers a stage, which compile much faster. The estimate is rough: settings are dropped
// uncompiled only if their estimate less one part in SLACK is still more than the device has.
enum { FEW = 2, MORE = 4, LARGE = 12, SLACK = 8 };

struct settings { // texts for -s
    int n;
    const char *text[SETTINGS_MAX];
};

struct fitting {
    const struct job *job;
    build_fn build;
    const struct device_model *device;
    struct arena *arena; // the texts of settings are kept here
    const char *resolved;
    uint64_t least;          // the smallest need of what was compiled so far
    struct settings nearest; // those of the smallest estimate among the ones dropped uncompiled
    uint64_t about;          // that estimate; 0: none were dropped
};

static uint64_t count_need(const struct compiled *c, const struct device_model *d)
{
    return c->memory.arena + d->libraries;
}

bool fit_fits(const struct compiled *c, const struct device_model *d)
{
    return !d->memory || count_need(c, d) <= d->memory;
}

// ---- what may help ------------------------------------------------------------------------------

static void put_setting(struct settings *s, const char *text)
{
    PRE(s->n < SETTINGS_MAX);
    s->text[s->n++] = text;
}

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

// Each adds its settings, or none where the job has them already.
static void cut_state(const struct fitting *f, struct settings *s)
{
    const char *text = add_batch_axes(f, "sharding.optimizer", NULL);
    if (text)
        put_setting(s, text);
}

static void cut_grads(const struct fitting *f, struct settings *s)
{
    const char *text = add_batch_axes(f, "sharding.grads", NULL);
    cut_state(f, s);
    if (text)
        put_setting(s, text);
}

static void cut_weights(const struct fitting *f, struct settings *s)
{
    const struct job_rule *embed = job_rule_find(&f->job->sharding, "embed");
    const char *rule = add_batch_axes(f, "sharding.rules.embed", embed ? &embed->axes : NULL);
    const char *gather = add_batch_axes(f, "sharding.gather", &f->job->sharding.gather);
    if (!rule)
        return;
    put_setting(s, rule);
    if (gather)
        put_setting(s, gather);
}

static void remat_block(const struct fitting *f, struct settings *s)
{
    if (f->job->train.remat == JOB_REMAT_NONE)
        put_setting(s, "train.remat=block");
}

static void remat_full(const struct fitting *f, struct settings *s)
{
    if (f->job->train.remat != JOB_REMAT_FULL)
        put_setting(s, "train.remat=full");
}

static const char *multiply_microbatches(const struct fitting *f, int64_t times)
{
    const struct job *job = f->job;
    int64_t n = job->train.microbatches * times, ways = 1;
    for (int i = 0; i < job->mesh.n; i++)
        ways *= is_batch_axis(job, i) ? job->mesh.axis[i].size : 1;
    return job->data.batch % (ways * n)
               ? NULL
               : arena_printf(f->arena, "train.microbatches=%lld", (long long)n);
}

// ---- trying -------------------------------------------------------------------------------------

// What the job needs with these settings; 0: it cannot be.
static uint64_t need_with(const struct fitting *f, const struct settings *s)
{
    struct arena scratch = {0};
    struct compiled c = {0};
    struct findings found;
    struct job_errors errs = {0};
    struct err e = {0};
    struct job *job = arena_new(&scratch, struct job);
    int rc = job_parse(&scratch, f->job->schema, "fix", f->job->base_dir, f->resolved,
                       strlen(f->resolved), s->text, s->n, job, &errs);
    if (!rc)
        rc = explain_job(job, f->build, &(struct compile_options){0}, &scratch, &c, &found, NULL,
                         &e);
    uint64_t need = rc ? 0 : count_need(&c, f->device);
    arena_clear(&scratch);
    return need;
}

static uint64_t need_with_layers(const struct fitting *f, struct settings s, int64_t of_a_place)
{
    put_setting(&s,
                arena_printf(f->arena, "model.layers=%lld",
                             (long long)(of_a_place * job_stages(f->job) * job_chunks(f->job))));
    return need_with(f, &s);
}

// Estimates what the job needs with these settings. Layers are alike: each further one adds the
// same number of bytes, except for buffers that fit into gaps. Returns 0 where there is no
// estimate: the job has few layers, or the small jobs cannot be compiled.
static uint64_t need_about(const struct fitting *f, const struct settings *s)
{
    int64_t layers = job_stage_layers(f->job, 0); // the most of all places
    uint64_t few = layers < LARGE ? 0 : need_with_layers(f, *s, FEW);
    uint64_t more = few ? need_with_layers(f, *s, MORE) : 0;
    return more < few ? 0 : more + (more - few) / (MORE - FEW) * (uint64_t)(layers - MORE);
}

static uint64_t try_settings(struct fitting *f, const struct settings *s)
{
    uint64_t need = need_with(f, s);
    f->least = need && need < f->least ? need : f->least;
    return need;
}

static bool would_fit(struct fitting *f, const struct settings *s)
{
    uint64_t about = need_about(f, s), need = 0;
    if (about - about / SLACK <= f->device->memory)
        need = try_settings(f, s);
    else if (!f->about || about < f->about) {
        f->about = about;
        f->nearest = *s;
    }
    return need && need <= f->device->memory;
}

static void put_fix(struct buf *fix, const struct settings *s)
{
    buf_puts(fix, fix->len ? " or " : "");
    for (int i = 0; i < s->n; i++)
        buf_printf(fix, "%s%s", i ? " and " : "", s->text[i]);
}

// Doubles the number of microbatches until the job fits or the batch cannot be divided so.
static bool with_microbatches(struct fitting *f, struct settings *s)
{
    int64_t times = 2;
    for (int i = 0; i < MICROBATCH_STEPS; i++, times *= 2) {
        const char *text = multiply_microbatches(f, times);
        if (!text)
            return false;
        struct settings one = *s;
        put_setting(&one, text);
        if (!would_fit(f, &one))
            continue;
        *s = one;
        return true;
    }
    return false;
}

// Tries the usual settings one by one and, where none is enough, one on top of the other.
static const char *find_fix(struct fitting *f)
{
    static void (*const ways[])(const struct fitting *, struct settings *) = {
        cut_state, cut_grads, cut_weights, remat_block, remat_full};
    enum { WAYS = sizeof ways / sizeof *ways, WEIGHTS = 2 };
    struct buf fix = {0};
    struct settings all = {0}, micro = {0};
    int found = 0;
    for (int i = 0; i < WAYS && found < FIXES_MAX; i++) {
        struct settings one = {0};
        ways[i](f, &one);
        if (!one.n || !would_fit(f, &one))
            continue;
        put_fix(&fix, &one);
        found++;
    }
    if (found < FIXES_MAX && with_microbatches(f, &micro)) {
        put_fix(&fix, &micro);
        found++;
    }
    for (int i = WEIGHTS; i < WAYS && !found; i++) { // cutting weights cuts gradients and state too
        all.n -= i == WAYS - 1 && all.n && strcmp(all.text[all.n - 1], "train.remat=block") == 0;
        int before = all.n;
        ways[i](f, &all);
        found = all.n > before && (would_fit(f, &all) || with_microbatches(f, &all));
        if (found)
            put_fix(&fix, &all);
    }
    if (!found && f->about)
        try_settings(f, &f->nearest); // so that the least need in the message is no estimate
    return found ? buf_keep(&fix, f->arena) : NULL;
}

// Parameters, gradients and optimiser state do not shrink with the batch.
static bool state_fits(const struct fitting *f, const struct memory *m)
{
    uint64_t state = m->params + m->grads + m->optimizer + m->copies + f->device->libraries;
    return state <= f->device->memory;
}

// Halves the batch until the job fits; 0: it cannot be halved so often.
static int64_t find_batch(const struct fitting *f)
{
    for (int64_t batch = f->job->data.batch; batch % 2 == 0;) {
        struct settings one = {0};
        batch /= 2;
        put_setting(&one, arena_printf(f->arena, "data.batch=%lld", (long long)batch));
        uint64_t need = need_with(f, &one);
        if (!need || need <= f->device->memory)
            return need ? batch : 0;
    }
    return 0;
}

// ---- the finding --------------------------------------------------------------------------------

// A part of what a device holds: which is the most decides what the message is about.
struct part {
    const char *what;
    uint64_t bytes;
    enum buffer_kind kind; // whose largest buffer is named: of what follows from parameters, theirs
};
enum { PARTS = 6 };

static void list_parts(const struct memory *m, struct part parts[PARTS])
{
    const struct part all[PARTS] = {
        {"params", m->params, BUFFER_PARAM},       {"grads", m->grads, BUFFER_PARAM},
        {"optimizer", m->optimizer, BUFFER_PARAM}, {"copies", m->copies, BUFFER_PARAM},
        {"stash", m->stash, BUFFER_STASH},         {"transient", m->transient, BUFFER_TRANSIENT},
    };
    memcpy(parts, all, sizeof all);
}

static struct part find_largest_part(const struct memory *m)
{
    struct part parts[PARTS], most;
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
                                 const struct part *part, const struct buffer *most, uint64_t need,
                                 bool fixed, int64_t batch)
{
    struct part parts[PARTS + 2];
    list_parts(m, parts);
    parts[PARTS] = (struct part){"workspace", m->workspace, BUFFER_WORKSPACE};
    parts[PARTS + 1] = (struct part){"libraries", f->device->libraries, BUFFER_WORKSPACE};
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
    if (!fixed) {
        buf_puts(&b, "; with weights cut on the batch's axes, remat and more microbatches it would "
                     "still be ");
        buf_bytes(&b, f->least);
        if (batch)
            buf_printf(&b, ": halved until it fits, the batch is data.batch=%lld",
                       (long long)batch);
        else
            buf_puts(&b, " and no smaller batch helps: more devices would do");
    }
    return buf_keep(&b, f->arena);
}

void fit_check(const struct job *job, build_fn build, const struct device_model *d,
               const struct compiled *c, struct findings *found, struct arena *a)
{
    struct fitting f = {.job = job, .build = build, .device = d, .arena = a};
    struct buf text = {0};
    if (!c->whole || fit_fits(c, d))
        return;
    job_print(job, &text);
    f.resolved = buf_keep(&text, a);
    uint64_t need = f.least = count_need(c, d);
    const char *fix = found->errors ? NULL : find_fix(&f); // errors first
    bool stuck = !fix && !found->errors;
    int64_t batch = stuck && state_fits(&f, &c->memory) ? find_batch(&f) : 0;
    const struct part part = find_largest_part(&c->memory);
    const struct buffer *most = find_largest(c, part.kind);
    findings_add(found, &(struct finding){.code = FINDING_DOES_NOT_FIT,
                                          .tensor = most ? most->name : part.what,
                                          .waste = need - d->memory,
                                          .message = write_message(&f, &c->memory, &part, most,
                                                                   need, !stuck, batch),
                                          .fix = fix});
}
