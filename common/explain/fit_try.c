// SPDX-License-Identifier: Apache-2.0
// Compiling with other settings. See fit_try.h.
#include "common/explain/fit_try.h"

#include <string.h>

#include "common/explain/explain.h"
#include "common/model/language/model_sizes.h"

// What a job of LARGE or more layers a stage needs is estimated from the same job with FEW and with
// MORE layers a stage, which compile much faster; on other meshes, of which there are many, already
// what has any more layers than that. The estimate is rough: settings are dropped uncompiled only if
// their estimate less one part in SLACK is still more than the device has.
enum { FEW = 2, MORE = 4, LARGE = 12, SLACK = 8 };
enum { MICROBATCHES = 1024 }; // that a job may have

void settings_put(struct settings *s, const char *text)
{
    PRE(s->n < SETTINGS_MAX);
    s->text[s->n++] = text;
}

uint64_t fit_need(const struct compiled *c, const struct device_model *d)
{
    return c->memory.arena + d->libraries;
}

static int read_with(const struct fitting *f, const struct settings *s, struct arena *a,
                     struct job *job)
{
    struct job_errors errs = {0};
    return job_parse(a, f->job->schema, "fix", f->job->base_dir, f->resolved, strlen(f->resolved),
                     s->text, s->n, job, &errs);
}

static bool has_indivisible(const struct findings *found)
{
    for (int i = 0; i < found->n; i++)
        if (found->items[i].code == FINDING_INDIVISIBLE ||
            found->items[i].code == FINDING_KEY_HEADS)
            return true;
    return false;
}

static void count_work(const struct fitting *f, const struct compiled *c)
{
    for (int k = 0; k < c->nprograms; k++) {
        *f->work -= c->global[k] ? c->global[k]->nnodes : 0;
        for (int s = 0; c->whole && s < c->nstages; s++)
            *f->work -= c->program[k][s].ninstrs;
    }
}

bool fit_ended(const struct fitting *f)
{
    return *f->work < 0;
}

// 0: the job cannot be, or looking has ended; FIT_NEVER: since a size does not divide.
static uint64_t compile_with(const struct fitting *f, const struct settings *s)
{
    struct arena scratch = {0};
    struct compiled c = {0};
    struct findings found = {0};
    struct err e = {0};
    if (fit_ended(f))
        return 0;
    struct job *job = arena_new(&scratch, struct job);
    int rc = read_with(f, s, &scratch, job);
    if (!rc)
        rc = explain_job(job, f->build, &(struct compile_options){.unhashed = true, .hasty = true},
                         &scratch, &c, &found, NULL, &e);
    count_work(f, &c);
    uint64_t need = !rc ? fit_need(&c, f->device) : has_indivisible(&found) ? FIT_NEVER : 0;
    arena_clear(&scratch);
    return need;
}

uint64_t fit_need_with(const struct fitting *f, const struct settings *s)
{
    uint64_t need = compile_with(f, s);
    return need == FIT_NEVER ? 0 : need;
}

uint64_t fit_need_smaller(const struct fitting *f, const struct settings *s)
{
    return compile_with(f, s);
}

int64_t fit_batch_unit(const struct fitting *f, const struct settings *s)
{
    struct arena scratch = {0};
    struct job *job = arena_new(&scratch, struct job);
    (void)read_with(f, s, &scratch, job); // a batch that does not divide is an error too
    int64_t unit = job->batch_unit;
    arena_clear(&scratch);
    return unit;
}

static uint64_t need_with_layers(const struct fitting *f, struct settings s, int64_t layers)
{
    settings_put(&s, arena_printf(f->arena, "model.layers=%lld", (long long)layers));
    return fit_need_smaller(f, &s);
}

bool fit_sets_layers(const struct fitting *f)
{
    return model_sizes_whole(f->job->model.sizes, "layers", -1) == job_layers(f->job);
}

uint64_t fit_about(const struct fitting *f, const struct settings *s)
{
    int64_t places = s->places ? s->places : job_stages(f->job) * job_chunks(f->job);
    // Of the place that has the most layers.
    int64_t layers =
        s->places ? (job_layers(f->job) + places - 1) / places : job_stage_layers(f->job, 0);
    int64_t large = s->places ? MORE + 1 : LARGE;
    uint64_t few =
        layers < large || !fit_sets_layers(f) ? 0 : need_with_layers(f, *s, FEW * places);
    if (few == FIT_NEVER)
        return few;
    uint64_t more = few ? need_with_layers(f, *s, MORE * places) : 0;
    return more < few ? 0 : more + (more - few) / (MORE - FEW) * (uint64_t)(layers - MORE);
}

bool fit_beyond(const struct fitting *f, uint64_t about)
{
    return about - about / SLACK > f->device->memory;
}

uint64_t fit_try(struct fitting *f, const struct settings *s)
{
    uint64_t need = fit_need_with(f, s);
    f->least = need && need < f->least ? need : f->least;
    return need;
}

static bool uses_full_remat(const struct fitting *f, const struct settings *s)
{
    bool all = f->job->train.remat == JOB_REMAT_FULL;
    for (int i = 0; i < s->n; i++)
        if (strncmp(s->text[i], "train.remat=", strlen("train.remat=")) == 0)
            all = strcmp(s->text[i], "train.remat=full") == 0;
    return all;
}

static void note_estimate(struct fitting *f, const struct settings *s, uint64_t about)
{
    struct estimate *to = uses_full_remat(f, s) ? &f->nearest_full : &f->nearest;
    if (about != FIT_NEVER && (!to->about || about < to->about))
        *to = (struct estimate){about, *s};
}

// How many microbatches show what more of them need: those under way at once, and one that follows.
// Under gpipe and circular all are under way.
static int64_t count_under_way(const struct job *job)
{
    int64_t stages = job_stages(job);
    int schedule = job->pipeline.schedule;
    if (stages > 1 && (schedule == JOB_GPIPE || schedule == JOB_CIRCULAR))
        return job->train.microbatches;
    return stages > 1 && schedule == JOB_1F1B ? stages + 1 : 2 * stages;
}

// `few`: the same settings with only count_under_way() microbatches of the same size, which compile
// faster; equal to the given settings if the job has no more than these.
struct lessened {
    struct settings few;
    int64_t microbatches, all; // of the few, and of the job; alike if these are all
};

static struct lessened reduce_microbatches(const struct fitting *f, const struct settings *s)
{
    struct arena scratch = {0};
    struct lessened to = {*s, 1, 1};
    struct job *job = arena_new(&scratch, struct job);
    int64_t n = INT64_MAX;
    if (!read_with(f, s, &scratch, job)) {
        n = count_under_way(job);
        to.microbatches = to.all = job->train.microbatches;
    }
    if (n < to.all) {
        settings_put(&to.few, arena_printf(f->arena, "train.microbatches=%lld", (long long)n));
        settings_put(&to.few,
                     arena_printf(f->arena, "data.batch=%lld",
                                  (long long)(job->data.batch / job->train.microbatches * n)));
        to.microbatches = n;
    }
    arena_clear(&scratch);
    return to;
}

// Returns what the job needs with few microbatches, and in *most about how many a step may have. 0: it
// cannot be, an estimate is far beyond the device, or the job has more microbatches than that.
static uint64_t try_few(struct fitting *f, const struct lessened *of, int64_t *most)
{
    uint64_t about = fit_about(f, &of->few);
    if (fit_beyond(f, about)) {
        note_estimate(f, &of->few, about);
        return 0;
    }
    int64_t before = *f->work;
    uint64_t need = fit_need_with(f, &of->few);
    int64_t each = (before - *f->work) / of->microbatches;
    *most = each ? COMPILE_MOST_INSTRS / each : 0;
    if (of->all > *most + *most / 2) // an evaluation and the update are counted too
        return 0;
    f->least = need && need < f->least ? need : f->least;
    return need;
}

bool fit_might(struct fitting *f, const struct settings *s, int64_t *most)
{
    const struct lessened of = reduce_microbatches(f, s);
    *most = 0;
    uint64_t need = try_few(f, &of, most);
    return need && need <= f->device->memory;
}

bool fit_would(struct fitting *f, const struct settings *s)
{
    const struct lessened of = reduce_microbatches(f, s);
    int64_t most = 0;
    uint64_t need = try_few(f, &of, &most);
    if (of.all > of.microbatches && need && need <= f->device->memory)
        need = fit_try(f, s);
    return need && need <= f->device->memory;
}

int64_t fit_more_microbatches(int64_t samples, int64_t than)
{
    for (int64_t n = 2 * than; n <= samples && n <= MICROBATCHES; n++)
        if (samples % n == 0)
            return n;
    return 0;
}
