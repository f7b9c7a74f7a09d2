// SPDX-License-Identifier: Apache-2.0
// Other meshes of the same devices. See fit_mesh.h.
//
// There are tens of them, so each is first looked at with remat and as many microbatches as are
// likely, and by an estimate: of few layers, and of few microbatches of the same size.
#include "common/explain/fit_mesh.h"

#include "common/explain/fit_axes.h"

enum { MANY = 8, FEW_STAGES = 2, SOME_STAGES = 4 }; // of more than MANY, these are looked at first

struct mesh_search {
    struct fitting *f;
    struct fit_axes axes;
    struct settings helped; // the first that fits with remat and microbatches
    struct other_mesh *out;
};

struct candidate {
    struct settings mesh;         // nothing else, but the microbatches that stages need
    struct settings whole;        // with remat and microbatches
    struct settings few;          // the same with few microbatches
    struct settings small;        // and with fewer still of the same size, to look at first
    int64_t stages, heads, batch; // sizes of axes
    int64_t microbatches;         // of `small`
    int64_t samples;              // of each of these, over all devices
};

// An axis of one device is left out, unless the job's rules could not name it then.
static void put_axis(struct buf *b, const char *name, int64_t size)
{
    if (name && (size > 1 || fit_axis_own(name)))
        buf_printf(b, "%s%s: %lld", b->data[b->len - 1] == '{' ? "" : ", ", name, (long long)size);
}

static bool is_named(const struct fit_axes *axes, const char *name)
{
    const char *const all[] = {axes->batch, axes->stage, axes->heads};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i] && fit_axis_same(all[i], name))
            return true;
    return false;
}

static const char *print_mesh(const struct mesh_search *s, const struct candidate *c,
                              int64_t stages)
{
    const struct job_mesh *mesh = &s->f->job->mesh;
    const struct fit_axes *axes = &s->axes;
    struct buf b = {0};
    buf_puts(&b, "mesh={");
    put_axis(&b, axes->batch, c->batch);
    put_axis(&b, axes->stage, stages);
    put_axis(&b, axes->heads, c->heads);
    for (int i = 0; i < mesh->n; i++)
        if (!is_named(axes, mesh->axis[i].name))
            put_axis(&b, mesh->axis[i].name, axes->dealt[i] ? 1 : mesh->axis[i].size);
    buf_putc(&b, '}');
    return buf_keep(&b, s->f->arena);
}

static void put_number(const struct mesh_search *s, struct settings *to, const char *key, int64_t n)
{
    settings_put(to, arena_printf(s->f->arena, "%s=%lld", key, (long long)n));
}

static void put_microbatches(const struct mesh_search *s, struct settings *to, int64_t n)
{
    if (n != s->f->job->train.microbatches)
        put_number(s, to, "train.microbatches", n);
}

// "KEY=[names, axis]"
static void put_axis_among(const struct mesh_search *s, struct settings *to, const char *key,
                           const struct job_names *names, const char *axis)
{
    struct buf b = {0};
    if (fit_axis_among(names, axis))
        return;
    buf_printf(&b, "%s=[", key);
    for (int i = 0; names && i < names->n; i++)
        buf_printf(&b, "%s, ", names->name[i]);
    buf_printf(&b, "%s]", axis);
    settings_put(to, buf_keep(&b, s->f->arena));
}

// Weights are cut on the axis of the batch, by the job's rules or by ones that are put beside it.
static void put_weights(const struct mesh_search *s, struct settings *to)
{
    const struct job_sharding *sharding = &s->f->job->sharding;
    const struct job_rule *embed = job_rule_find(sharding, "embed");
    put_axis_among(s, to, "sharding.rules.embed", embed ? &embed->axes : NULL, s->axes.batch);
    put_axis_among(s, to, "sharding.gather", &sharding->gather, s->axes.batch);
}

// A list of layers is one of the job's own stages, and so are chunks.
static void put_pipeline(const struct mesh_search *s, struct settings *to, int64_t stages)
{
    const struct job *job = s->f->job;
    if (job->pipeline.stages.n)
        settings_put(to, "pipeline.stages=[]");
    to->places = stages;
    if (stages > 1 && stages == job_stages(job))
        to->places *= job_chunks(job);
    else if (stages > 1 && job->pipeline.chunks > 1) {
        settings_put(to, "pipeline.schedule=1f1b");
        settings_put(to, "pipeline.chunks=1");
    }
}

static struct settings make_settings(const struct mesh_search *s, const struct candidate *c,
                                     int64_t stages)
{
    struct settings to = {0};
    settings_put(&to, print_mesh(s, c, stages));
    if (c->batch > 1)
        put_weights(s, &to);
    put_pipeline(s, &to, stages);
    return to;
}

// Adds the kind of remat that needs the least memory. Without stages full needs more than block.
static void put_remat(const struct mesh_search *s, struct settings *to, int64_t stages)
{
    int remat = s->f->job->train.remat;
    if (job_has_insides(s->f->job) &&
        (remat == JOB_REMAT_NONE || (remat == JOB_REMAT_FULL && stages == 1)))
        settings_put(to, "train.remat=block");
}

// The job's own number of microbatches or, if the samples of a device do not divide so, the next
// smaller one.
static int64_t find_own_microbatches(const struct job *job, int64_t samples)
{
    int64_t n = job->train.microbatches;
    while (samples % n)
        n--;
    return n;
}

// The least number of microbatches of at least `least` into which the samples of a device divide; if
// there is none, the most.
static int64_t find_microbatches(int64_t own, int64_t samples, int64_t least)
{
    int64_t n = own, more;
    while (n < least && (more = fit_more_microbatches(samples, n)) && more <= own * FIT_TIMES)
        n = more;
    return n;
}

// False if the job cannot be on this mesh.
static bool make_candidate(const struct mesh_search *s, int64_t stages, int64_t heads,
                           struct candidate *c)
{
    const struct job *job = s->f->job;
    *c = (struct candidate){
        .stages = stages, .heads = heads, .batch = s->axes.devices / stages / heads};
    c->mesh = make_settings(s, c, stages);
    int64_t shards = fit_batch_unit(s->f, &c->mesh) / job->train.microbatches;
    int64_t samples = shards ? job->data.batch / shards : 0;
    if (!shards || job->data.batch % shards)
        return false;
    int64_t own = find_own_microbatches(job, samples);
    int64_t most = find_microbatches(own, samples, INT64_MAX);
    int64_t few = find_microbatches(own, samples, stages > 2 ? stages : 2);
    int64_t enough = job->pipeline.schedule == JOB_1F1B ? stages + 1 : 2 * stages;
    c->microbatches = few < enough ? few : enough;
    c->samples = job->data.batch / most;
    c->whole = c->mesh;
    put_microbatches(s, &c->mesh, find_microbatches(own, samples, stages));
    put_remat(s, &c->whole, stages);
    c->few = c->whole;
    put_microbatches(s, &c->whole, most);
    put_microbatches(s, &c->few, few);
    c->small = c->few;
    if (c->microbatches != few)
        put_number(s, &c->small, "train.microbatches", c->microbatches);
    put_number(s, &c->small, "data.batch", c->samples * c->microbatches);
    return true;
}

// The job of a few of its stages, each with as many layers as a stage of the whole.
static uint64_t need_with_stages(const struct mesh_search *s, const struct candidate *c,
                                 int64_t stages, int64_t microbatches)
{
    const struct job *job = s->f->job;
    int64_t layers = (job_layers(job) + c->stages - 1) / c->stages;
    struct settings one = make_settings(s, c, stages);
    put_remat(s, &one, stages);
    put_microbatches(s, &one, microbatches);
    put_number(s, &one, "data.batch", c->samples * microbatches);
    put_number(s, &one, "resources.devices", job->resources.devices / c->stages * stages);
    put_number(s, &one, "model.layers", layers * stages);
    return fit_need_smaller(s->f, &one);
}

// Estimates what many stages need from what few of them do: the first of n stages holds what the
// backward reads of n microbatches, if there are as many. As in fit_about(), 0: there is no estimate.
static uint64_t estimate_stages(const struct mesh_search *s, const struct candidate *c)
{
    int64_t n = c->microbatches, fewer = n < FEW_STAGES ? n : FEW_STAGES,
            some = n < SOME_STAGES ? n : SOME_STAGES;
    uint64_t few = need_with_stages(s, c, FEW_STAGES, fewer);
    uint64_t more = few && few != FIT_NEVER ? need_with_stages(s, c, SOME_STAGES, some) : few;
    if (more <= few || some == fewer)
        return more;
    return more + (more - few) / (uint64_t)(some - fewer) *
                      (uint64_t)((n < c->stages ? n : c->stages) - some);
}

// Looks at what a mesh needs at the least: of few layers or stages, then of all, with few
// microbatches.
static bool may_fit(struct mesh_search *s, const struct candidate *c)
{
    bool many = c->stages > MANY && fit_sets_layers(s->f);
    uint64_t about = many ? estimate_stages(s, c) : fit_about(s->f, &c->small);
    uint64_t need = fit_beyond(s->f, about) ? about : fit_need_with(s->f, &c->small);
    if (need && need != FIT_NEVER && (!s->out->about || need < s->out->about)) {
        s->out->about = need;
        s->out->nearest = c->whole;
        s->out->few = c->few;
    }
    return need && need <= s->f->device->memory;
}

static void try_mesh(struct mesh_search *s, int64_t stages, int64_t heads)
{
    struct candidate c;
    if (!make_candidate(s, stages, heads, &c) || !may_fit(s, &c))
        return;
    if (fit_would(s->f, &c.mesh))
        s->out->fits = c.mesh;
    else if (!s->helped.n && fit_would(s->f, &c.whole))
        s->helped = c.whole;
}

// Whether the rules have an axis for each part that has more than one device.
static bool has_axes(const struct fit_axes *axes, int64_t stages, int64_t heads)
{
    return (axes->batch || stages * heads == axes->devices) && (axes->stage || stages == 1) &&
           (axes->heads || heads == 1);
}

static bool is_possible(const struct mesh_search *s, int64_t stages, int64_t heads)
{
    return s->axes.devices % stages == 0 && s->axes.devices / stages % heads == 0 &&
           has_axes(&s->axes, stages, heads) && (stages == 1 || stages <= job_layers(s->f->job));
}

static void search_meshes(struct mesh_search *s)
{
    int64_t devices = s->axes.devices, most = devices < JOB_MAX_STAGES ? devices : JOB_MAX_STAGES;
    s->out->tried = true;
    for (int64_t stages = 1; stages <= most && (stages <= MANY || !s->helped.n); stages++)
        for (int64_t heads = 1; heads <= devices / stages && !s->out->fits.n; heads++)
            if (is_possible(s, stages, heads))
                try_mesh(s, stages, heads);
}

void fit_mesh_find(struct fitting *f, struct other_mesh *out)
{
    struct mesh_search s = {.f = f, .out = out};
    int64_t searched = 1;
    *out = (struct other_mesh){0};
    for (int all = 0; all <= 1; all++) {
        fit_axes_find(f->job, all, &s.axes);
        if (s.axes.devices > searched && !out->fits.n && !s.helped.n)
            search_meshes(&s);
        searched = s.axes.devices;
    }
    out->fits = out->fits.n ? out->fits : s.helped;
}
