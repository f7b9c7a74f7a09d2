// SPDX-License-Identifier: Apache-2.0
// Other meshes of the same devices. See fit_mesh.h.
//
// There are tens of them, so each is first looked at with remat and as many microbatches as are
// likely, and by an estimate: of few layers, and of few microbatches of the same size.
#include "common/explain/fit_mesh.h"

#include <string.h>

enum { TIMES = 16 }; // that microbatches may be multiplied

struct search {
    struct fitting *f;
    const char *batch, *stage, *heads; // names of the axes
    bool dealt[MESH_MAX_AXES];         // axes of the job whose devices are dealt out
    int64_t devices;
    struct settings helped; // the first that fits with remat and microbatches
    struct other_mesh *out;
};

struct candidate {
    struct settings mesh;  // nothing else, but the microbatches that stages need
    struct settings whole; // with remat and microbatches
    struct settings few;   // the same with few microbatches
    struct settings small; // and with a batch of so many, to look at first
};

static const char *find_axis(struct search *s, const char *usual)
{
    const struct job_mesh *mesh = &s->f->job->mesh;
    int at = job_axis_find(mesh, usual);
    if (at < 0)
        return usual;
    s->devices *= mesh->axis[at].size;
    s->dealt[at] = true;
    return mesh->axis[at].name;
}

// Whether weights are cut on the axis of the batch, by a rule of the user's own.
static bool cuts_weights(const struct job *job, const char *axis)
{
    const struct job_rule *embed = job_rule_find(&job->sharding, "embed");
    for (int i = 0; embed && i < embed->axes.n; i++)
        if (strcmp(embed->axes.name[i], axis) == 0)
            return true;
    return false;
}

// False if an axis is none of the usual ones.
static bool name_axes(struct search *s)
{
    const struct job *job = s->f->job;
    const struct job_mesh none = {0};
    const char *dp = find_axis(s, "dp");
    s->batch = find_axis(s, "fsdp");
    s->batch = cuts_weights(job, dp) ? dp : s->batch;
    s->stage = find_axis(s, "pp");
    s->heads = find_axis(s, "tp");
    for (int i = 0; i < job->mesh.n; i++)
        if (job_axis_find(&none, job->mesh.axis[i].name) != -1 && job->mesh.axis[i].size > 1)
            return false;
    return true;
}

static void put_axis(struct buf *b, const char *name, int64_t size)
{
    if (size > 1)
        buf_printf(b, "%s%s: %lld", b->data[b->len - 1] == '{' ? "" : ", ", name, (long long)size);
}

static const char *print_mesh(const struct search *s, int64_t stages, int64_t heads)
{
    const struct job_mesh *mesh = &s->f->job->mesh;
    struct buf b = {0};
    buf_puts(&b, "mesh={");
    put_axis(&b, s->batch, s->devices / stages / heads);
    put_axis(&b, s->stage, stages);
    put_axis(&b, s->heads, heads);
    for (int i = 0; i < mesh->n; i++)
        if (!s->dealt[i])
            put_axis(&b, mesh->axis[i].name, mesh->axis[i].size);
    buf_putc(&b, '}');
    return buf_keep(&b, s->f->arena);
}

static void put_number(const struct search *s, struct settings *to, const char *key, int64_t n)
{
    settings_put(to, arena_printf(s->f->arena, "%s=%lld", key, (long long)n));
}

// The least number of microbatches, a multiple of the job's, of at least `least` where the batch can
// be divided so; if not, the most.
static int64_t find_microbatches(const struct job *job, int64_t shards, int64_t least)
{
    int64_t micro = job->train.microbatches, n = micro;
    for (int64_t times = 2; times <= TIMES && n < least; times *= 2)
        if (job->data.batch % (shards * micro * times) == 0)
            n = micro * times;
    return n;
}

// False if the job cannot be on this mesh.
static bool make_candidate(const struct search *s, int64_t stages, int64_t heads,
                           struct candidate *c)
{
    const struct job *job = s->f->job;
    bool chunked =
        job->pipeline.schedule == JOB_INTERLEAVED || job->pipeline.schedule == JOB_CIRCULAR;
    int64_t micro = job->train.microbatches, batch = job->data.batch;
    *c = (struct candidate){0};
    c->mesh.places = stages > 1 && chunked ? stages * job->pipeline.chunks : stages;
    settings_put(&c->mesh, print_mesh(s, stages, heads));
    int64_t unit = fit_batch_unit(s->f, &c->mesh);
    if (!unit || batch % unit)
        return false;
    c->whole = c->mesh;
    int64_t fill = find_microbatches(job, unit / micro, stages);
    int64_t most = find_microbatches(job, unit / micro, INT64_MAX);
    int64_t few = find_microbatches(job, unit / micro, stages > 2 ? stages : 2);
    if (fill > micro)
        put_number(s, &c->mesh, "train.microbatches", fill);
    if (job->train.remat == JOB_REMAT_NONE)
        settings_put(&c->whole, "train.remat=block");
    c->few = c->whole;
    if (most > micro)
        put_number(s, &c->whole, "train.microbatches", most);
    if (few > micro)
        put_number(s, &c->few, "train.microbatches", few);
    c->small = c->few;
    put_number(s, &c->small, "data.batch", batch / most * few);
    return true;
}

// Looks at what a mesh needs at the least: of few layers, then of all, with few microbatches.
static bool may_fit(struct search *s, const struct candidate *c)
{
    uint64_t about = fit_about(s->f, &c->small);
    uint64_t need = fit_beyond(s->f, about) ? about : fit_need_with(s->f, &c->small);
    if (need && (!s->out->about || need < s->out->about)) {
        s->out->about = need;
        s->out->nearest = c->whole;
        s->out->few = c->few;
    }
    return need && need <= s->f->device->memory;
}

static void try_mesh(struct search *s, int64_t stages, int64_t heads)
{
    struct candidate c;
    if (!make_candidate(s, stages, heads, &c) || !may_fit(s, &c))
        return;
    if (fit_would(s->f, &c.mesh))
        s->out->fits = c.mesh;
    else if (!s->helped.n && fit_would(s->f, &c.whole))
        s->helped = c.whole;
}

void fit_mesh_find(struct fitting *f, struct other_mesh *out)
{
    struct search s = {.f = f, .devices = 1, .out = out};
    *out = (struct other_mesh){0};
    if (!name_axes(&s) || s.devices == 1)
        return;
    out->tried = true;
    for (int64_t stages = 1; stages <= s.devices && stages <= FIT_STAGES; stages++)
        for (int64_t heads = 1; s.devices % stages == 0 && heads <= s.devices / stages; heads++)
            if (s.devices / stages % heads == 0 && stages <= job_layers(f->job) && !out->fits.n)
                try_mesh(&s, stages, heads);
    out->fits = out->fits.n ? out->fits : s.helped;
}
