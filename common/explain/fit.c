// SPDX-License-Identifier: Apache-2.0
// Fitting. See fit.h.
#include "common/explain/fit.h"

#include <string.h>

#include "common/explain/explain.h"

// ---- the candidates -----------------------------------------------------------------------------

// What is cut on the batch's axes too. Gradients are cut with the optimiser's state, weights with both.
enum cut { CUT_NOTHING, CUT_STATE, CUT_GRADS, CUT_WEIGHTS };

// What a candidate changes. A column of 0 leaves the job as it is.
struct candidate {
    enum cut cut;
    int remat;        // enum job_remat
    int microbatches; // at least so many times the job's own, if the samples divide so far
    int heads;        // devices that heads are cut over; the batch and weights over the others
    bool bf16;
    int batch; // the job's own divided by this
};

// Cheapest first: what costs a step the least, then what changes the mesh, then the results.
static const struct candidate candidates[] = {
    {CUT_STATE, 0, 0, 0, false, 0},
    {CUT_GRADS, 0, 0, 0, false, 0},
    {CUT_NOTHING, 0, 2, 0, false, 0},
    {CUT_NOTHING, 0, 8, 0, false, 0},
    {CUT_NOTHING, 0, 64, 0, false, 0},
    {CUT_WEIGHTS, 0, 0, 0, false, 0},
    {CUT_NOTHING, JOB_REMAT_BLOCK, 0, 0, false, 0},
    {CUT_NOTHING, JOB_REMAT_BLOCK, 64, 0, false, 0},
    {CUT_WEIGHTS, JOB_REMAT_BLOCK, 0, 0, false, 0},
    {CUT_WEIGHTS, JOB_REMAT_BLOCK, 64, 0, false, 0},
    {CUT_WEIGHTS, JOB_REMAT_FULL, 64, 0, false, 0},
    {CUT_NOTHING, JOB_REMAT_BLOCK, 64, 2, false, 0},
    {CUT_NOTHING, JOB_REMAT_BLOCK, 64, 8, false, 0},
    {CUT_WEIGHTS, JOB_REMAT_BLOCK, 64, 0, true, 0},
    {CUT_NOTHING, JOB_REMAT_BLOCK, 64, 8, true, 0},
    {CUT_WEIGHTS, JOB_REMAT_BLOCK, 64, 0, true, 4},
};
enum {
    CANDIDATES = sizeof candidates / sizeof *candidates,
    MOST_MICROBATCHES = 1024
}; // that a job may have

struct settings { // texts for -s
    int n;
    const char *text[8];
};

struct fitting {
    const struct job *job;
    build_fn build;
    const struct device_model *device;
    struct arena *arena;
    const char *resolved; // the job's text
    int64_t work;         // that is left; below 0: the search has ended
    uint64_t least;       // need of the candidate that needs the least
    const char *nearest;  // that candidate's settings
};

static void put_setting(struct settings *s, const char *text)
{
    PRE(s->n < (int)(sizeof s->text / sizeof *s->text));
    s->text[s->n++] = text;
}

static bool has_axis(const struct job *job, const struct job_names *names, int axis)
{
    for (int i = 0; names && i < names->n; i++)
        if (job_axis_find(&job->mesh, names->name[i]) == axis)
            return true;
    return false;
}

// "KEY=[names, and the axes of the batch that are not among them]", if there are any.
static void put_batch_axes(const struct fitting *f, const char *key, const struct job_names *names,
                           struct settings *s)
{
    const struct job *job = f->job;
    const struct job_rule *batch = job_rule_find(&job->sharding, "batch");
    struct buf b = {0};
    int n = 0, added = 0;
    buf_printf(&b, "%s=[", key);
    for (int i = 0; names && i < names->n; i++)
        buf_printf(&b, "%s%s", n++ ? ", " : "", names->name[i]);
    for (int i = 0; batch && i < job->mesh.n; i++) {
        if (job->mesh.axis[i].size == 1 || !has_axis(job, &batch->axes, i) ||
            has_axis(job, names, i))
            continue;
        buf_printf(&b, "%s%s", n++ ? ", " : "", job->mesh.axis[i].name);
        added++;
    }
    buf_putc(&b, ']');
    const char *text = buf_keep(&b, f->arena);
    if (added)
        put_setting(s, text);
}

static void put_cut(const struct fitting *f, enum cut cut, struct settings *s)
{
    const struct job_sharding *sharding = &f->job->sharding;
    const struct job_rule *embed = job_rule_find(sharding, "embed");
    if (cut == CUT_STATE || cut == CUT_GRADS)
        put_batch_axes(f, "sharding.optimizer", NULL, s);
    if (cut == CUT_GRADS)
        put_batch_axes(f, "sharding.grads", NULL, s);
    if (cut != CUT_WEIGHTS)
        return;
    put_batch_axes(f, "sharding.rules.embed", embed ? &embed->axes : NULL, s);
    put_batch_axes(f, "sharding.gather", &sharding->gather, s);
}

// All devices on two axes: heads, by the name that the job has for them, and the batch with weights.
// Returns the devices of the batch; 0: they do not divide so.
static int64_t put_mesh(const struct fitting *f, int heads, struct settings *s)
{
    const struct job_mesh *mesh = &f->job->mesh;
    int64_t devices = f->job->resources.devices, cut = devices < heads ? devices : heads;
    int axis = job_axis_find(mesh, "tp");
    if (devices == 1 || devices % cut)
        return 0;
    const char *batch =
        devices == cut ? "" : arena_printf(f->arena, "fsdp: %lld, ", (long long)(devices / cut));
    put_setting(s, arena_printf(f->arena, "mesh={%s%s: %lld}", batch,
                                axis < 0 ? "tp" : mesh->axis[axis].name, (long long)cut));
    return devices / cut;
}

// The settings of a candidate; none: the job cannot be changed so, or is so already.
static struct settings make_settings(const struct fitting *f, const struct candidate *c)
{
    const struct job *job = f->job;
    const struct settings none = {0};
    struct settings s = none;
    int64_t own = job->train.microbatches, most = own * (c->microbatches ? c->microbatches : 1);
    int64_t shards = c->heads ? put_mesh(f, c->heads, &s) : job->batch_unit / own;
    int64_t samples = shards ? job->data.batch / shards / (c->batch ? c->batch : 1) : 0, n = 1;
    if (!samples)
        return none;
    put_cut(f, c->cut, &s);
    if (c->remat && c->remat != job->train.remat)
        put_setting(&s, c->remat == JOB_REMAT_FULL ? "train.remat=full" : "train.remat=block");
    for (int64_t i = 2; i <= samples && i <= MOST_MICROBATCHES && n < most; i++)
        n = samples % i ? n : i;
    if (n != own)
        put_setting(&s, arena_printf(f->arena, "train.microbatches=%lld", (long long)n));
    if (c->bf16 && job->precision.compute != JOB_BF16)
        put_setting(&s, "precision.compute=bf16");
    if (c->batch)
        put_setting(&s, arena_printf(f->arena, "data.batch=%lld", (long long)(samples * shards)));
    return s;
}

// ---- the search ---------------------------------------------------------------------------------

uint64_t fit_nccl(const struct memory *m, const struct device_model *d)
{
    return (uint64_t)m->communicators * d->communicator;
}

uint64_t fit_need(const struct memory *m, const struct device_model *d)
{
    return m->arena + d->libraries + fit_nccl(m, d);
}

const struct memory *fit_fullest(const struct compiled *c, const struct device_model *d)
{
    const struct memory *most = &c->memory;
    for (int s = 0; s < c->nstages; s++)
        if (fit_need(&c->by_stage[s], d) > fit_need(most, d))
            most = &c->by_stage[s];
    return most;
}

bool fit_fits(const struct compiled *c, const struct device_model *d)
{
    return !d->memory || fit_need(fit_fullest(c, d), d) <= d->memory;
}

// What a device needs with these settings; 0: the job cannot be.
static uint64_t compile_with(struct fitting *f, const struct settings *s)
{
    static const struct compile_options options = {.unhashed = true, .hasty = true};
    struct arena scratch = {0};
    struct compiled c = {0};
    struct findings found = {0};
    struct job_errors errors = {0};
    struct err e = {0};
    struct job *job = arena_new(&scratch, struct job);
    int rc = job_parse(&scratch, f->job->schema, "fix", f->job->base_dir, f->resolved,
                       strlen(f->resolved), s->text, s->n, job, &errors);
    if (!rc)
        rc = explain_job(job, f->build, &options, &scratch, &c, &found, NULL, &e);
    for (int k = 0; k < PROGRAM_KINDS; k++) {
        f->work -= c.global[k] ? c.global[k]->nnodes : 0;
        for (int i = 0; c.whole && c.program[k] && i < c.nstages; i++)
            f->work -= c.program[k][i].ninstrs;
    }
    uint64_t need = rc ? 0 : fit_need(fit_fullest(&c, f->device), f->device);
    arena_clear(&scratch);
    return need;
}

// Returns the first candidate that fits, as a fix; null: none does.
static const char *find_fix(struct fitting *f)
{
    const char *fixes[CANDIDATES] = {NULL};
    for (int i = 0; i < CANDIDATES && f->work >= 0; i++) {
        const struct settings s = make_settings(f, &candidates[i]);
        struct buf b = {0};
        bool tried = false;
        for (int k = 0; k < s.n; k++)
            buf_printf(&b, "%s%s", k ? " and " : "", s.text[k]);
        fixes[i] = buf_keep(&b, f->arena);
        for (int k = 0; k < i; k++)
            tried |= strcmp(fixes[k], fixes[i]) == 0;
        if (!s.n || tried)
            continue;
        uint64_t need = compile_with(f, &s);
        if (need && need <= f->device->memory)
            return fixes[i];
        if (need && need < f->least) {
            f->least = need;
            f->nearest = fixes[i];
        }
    }
    return NULL;
}

// The least number of devices that hold parameters, gradients and the optimiser's moments, however
// these are cut; 0: no number of them does.
static uint64_t count_devices(const struct fitting *f, const struct compiled *c)
{
    static const int moments[] = {
        [JOB_SGD] = 0, [JOB_MOMENTUM] = 1, [JOB_ADAM] = 2, [JOB_ADAMW] = 2};
    const struct job_optimizer *o = &f->job->optimizer;
    const struct graph *g = c->global[PROGRAM_TRAIN];
    uint64_t count = 0, copies = 2 + (uint64_t)moments[o->kind];
    if (f->device->memory <= f->device->libraries)
        return 0;
    for (int i = 0; i < g->nvalues; i++)
        count += g->values[i].kind == VALUE_PARAM ? (uint64_t)shape_count(&g->values[i].shape) : 0;
    for (int i = 0; i < o->n_groups; i++)
        copies = o->groups[i].freeze ? 1 : copies; // at the least: of frozen ones there is no more
    uint64_t room = f->device->memory - f->device->libraries;
    return (sizeof(float) * count * copies + room - 1) / room;
}

// ---- the finding --------------------------------------------------------------------------------

// A part of what a device holds: the message is about the largest.
struct memory_part {
    const char *what;
    uint64_t bytes;
    enum buffer_kind kind; // whose largest buffer is named: of what follows from parameters, theirs
};

// Finds the largest buffer of a kind, and the program that it is of; null: there is none.
static const struct buffer *find_largest(const struct compiled *c, enum buffer_kind kind,
                                         const struct program **of)
{
    const struct buffer *most = NULL;
    for (int s = 0; s < c->nstages; s++) {
        const struct program *p = compiled_program(c, PROGRAM_TRAIN, s);
        for (int b = 0; b < p->nbuffers; b++)
            if (p->buffers[b].kind == kind && (!most || p->buffers[b].bytes > most->bytes)) {
                most = &p->buffers[b];
                *of = p;
            }
    }
    return most;
}

// Says what a device needs of what, and returns what takes the most.
static const char *write_need(const struct fitting *f, const struct compiled *c, uint64_t need,
                              struct buf *b)
{
    const struct memory *m = fit_fullest(c, f->device);
    const struct memory_part parts[] = {
        {"params", m->params, BUFFER_PARAM},
        {"grads", m->grads, BUFFER_PARAM},
        {"optimizer", m->optimizer, BUFFER_PARAM},
        {"copies", m->copies, BUFFER_PARAM},
        {"stash", m->stash, BUFFER_STASH},
        {"transient", m->transient, BUFFER_TRANSIENT},
        {"workspace", m->workspace, BUFFER_WORKSPACE},
        {"libraries", f->device->libraries, BUFFER_WORKSPACE},
        {"NCCL", fit_nccl(m, f->device), BUFFER_WORKSPACE},
    };
    const struct memory_part *most = parts;
    buf_puts(b, "a device needs ");
    buf_bytes(b, need);
    buf_puts(b, " and has ");
    buf_bytes(b, f->device->memory);
    buf_printf(b, " (%s)", f->device->name);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (parts[i].kind != BUFFER_WORKSPACE && parts[i].bytes > most->bytes)
            most = &parts[i];
        if (!parts[i].bytes &&
            (strcmp(parts[i].what, "copies") == 0 || strcmp(parts[i].what, "NCCL") == 0))
            continue;
        buf_printf(b, "%s%s ", i ? ", " : ": ", parts[i].what);
        buf_bytes(b, parts[i].bytes);
    }
    buf_printf(b, "; the most is %s", most->what);
    const struct program *of = NULL;
    const struct buffer *largest = find_largest(c, most->kind, &of);
    if (!largest)
        return most->what;
    const char *name = findings_name_buffer(of, largest, f->arena);
    buf_printf(b, "; the largest %s, %s, takes ",
               most->kind == BUFFER_PARAM ? "parameter" : "tensor of it", name);
    buf_bytes(b, largest->bytes);
    return name;
}

// Says why there is no fix.
static void write_no_fix(const struct fitting *f, uint64_t devices, struct buf *b)
{
    if (!devices)
        buf_puts(b, "; libraries alone take all of it");
    else if (devices > (uint64_t)f->job->resources.devices)
        buf_printf(b,
                   "; parameters, gradients and optimiser state alone fill %llu such devices: use "
                   "more of them, or larger ones",
                   (unsigned long long)devices);
    else if (f->work < 0)
        buf_puts(b, "; not all settings were tried, since this job takes long to compile");
    else
        buf_puts(b, "; no setting that was tried is enough: use more devices, or larger ones");
    if (!f->nearest)
        return;
    buf_printf(b, "; with %s a device would still need ", f->nearest);
    buf_bytes(b, f->least);
}

void fit_check(const struct job *job, build_fn build, const struct device_model *d,
               const struct compiled *c, struct findings *found, struct arena *a, int64_t work)
{
    struct fitting f = {.job = job, .build = build, .device = d, .arena = a, .work = work};
    struct finding one = {.code = FINDING_DOES_NOT_FIT};
    struct buf text = {0}, message = {0};
    if (!c->whole || fit_fits(c, d))
        return;
    job_print(job, &text);
    f.resolved = buf_keep(&text, a);
    f.least = fit_need(fit_fullest(c, d), d);
    one.waste = f.least - d->memory;
    one.tensor = write_need(&f, c, f.least, &message);
    if (!found->errors) { // which come first
        uint64_t devices = count_devices(&f, c);
        if (devices && devices <= (uint64_t)job->resources.devices)
            one.fix = find_fix(&f);
        if (!one.fix)
            write_no_fix(&f, devices, &message);
    }
    one.message = buf_keep(&message, a);
    findings_add(found, &one);
}
