// SPDX-License-Identifier: Apache-2.0
// Compiling with other settings. See fit_try.h.
#include "common/explain/fit_try.h"

#include <string.h>

#include "common/explain/explain.h"

// What a job of LARGE or more layers a stage needs is estimated from the same job with FEW and with
// MORE layers a stage, which compile much faster; on other meshes, of which there are many, already
// what has any more layers than that. The estimate is rough: settings are dropped uncompiled only if
// their estimate less one part in SLACK is still more than the device has.
enum { FEW = 2, MORE = 4, LARGE = 12, SLACK = 8 };

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

uint64_t fit_need_with(const struct fitting *f, const struct settings *s)
{
    struct arena scratch = {0};
    struct compiled c = {0};
    struct findings found;
    struct err e = {0};
    struct job *job = arena_new(&scratch, struct job);
    int rc = read_with(f, s, &scratch, job);
    if (!rc)
        rc = explain_job(job, f->build, &(struct compile_options){0}, &scratch, &c, &found, NULL,
                         &e);
    uint64_t need = rc ? 0 : fit_need(&c, f->device);
    arena_clear(&scratch);
    return need;
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
    return fit_need_with(f, &s);
}

uint64_t fit_about(const struct fitting *f, const struct settings *s)
{
    int64_t places = s->places ? s->places : job_stages(f->job) * job_chunks(f->job);
    // The most of all places.
    int64_t layers =
        s->places ? (job_layers(f->job) + places - 1) / places : job_stage_layers(f->job, 0);
    int64_t large = s->places ? MORE + 1 : LARGE;
    uint64_t few = layers < large ? 0 : need_with_layers(f, *s, FEW * places);
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

bool fit_would(struct fitting *f, const struct settings *s)
{
    uint64_t about = fit_about(f, s), need = 0;
    if (!fit_beyond(f, about))
        need = fit_try(f, s);
    else if (!f->about || about < f->about) {
        f->about = about;
        f->nearest = *s;
    }
    return need && need <= f->device->memory;
}
