// SPDX-License-Identifier: Apache-2.0
// What spans keys: defaults that follow from other keys, and settings that do not fit together.
// A check is skipped when one of the keys that it needs is itself wrong: that is reported already.
#include <string.h>

#include "common/job/job_model.h"
#include "common/job/reading.h"
#include "common/language/model_dims.h"
#include "common/language/model_facts.h"

static void check_version(struct reading *r)
{
    if (READING_OK(r, "schema") && r->job->schema_version != JOB_SCHEMA_VERSION)
        reading_error(r, reading_row(r, "schema"), "is %lld: this version of weft reads schema %d",
                      (long long)r->job->schema_version, JOB_SCHEMA_VERSION);
}

// The product of the axes whose size is given; *open is the one with −1, which takes what is left,
// or null. −1: more than JOB_MAX_DEVICES.
static int64_t count_known_devices(struct job_mesh *m, struct job_axis **open)
{
    int64_t product = 1;
    *open = NULL;
    for (int i = 0; i < m->n; i++) {
        struct job_axis *axis = &m->axis[i];
        if (axis->size == -1)
            *open = axis;
        else if ((product *= axis->size) > JOB_MAX_DEVICES)
            return -1;
    }
    return product;
}

static void report_mesh(struct reading *r, struct reading_row *mesh, const char *what)
{
    struct buf text = {0};
    setting_print_mesh(mesh->row, mesh->field, &text);
    reading_error(r, mesh, "%s %s", buf_str(&text), what);
    buf_clear(&text);
    mesh->ok = false;
}

static void resolve_mesh(struct reading *r)
{
    struct reading_row *mesh = reading_row(r, "mesh"),
                       *devices = reading_row(r, "resources.devices");
    struct job *job = r->job;
    if (!mesh->ok || !devices->ok)
        return;
    struct job_axis *open;
    if (!mesh->node) {
        job->mesh.n = 1;
        job->mesh.axis[0] = (struct job_axis){"dp", -1};
    }
    int64_t known = count_known_devices(&job->mesh, &open);
    if (known < 0) {
        report_mesh(r, mesh, arena_printf(r->arena, "has over %d devices", JOB_MAX_DEVICES));
        return;
    }
    if (open && mesh->node && !devices->node) {
        reading_error(r, mesh, "-1 is what is left of resources.devices: say how many");
        mesh->ok = false;
        return;
    }
    if (!devices->node)
        job->resources.devices = known;
    int64_t want = job->resources.devices;
    if (open && want % known == 0)
        open->size = want / known;
    else if (open)
        report_mesh(r, mesh,
                    arena_printf(r->arena,
                                 "leaves nothing whole: resources.devices, %lld, is not a multiple "
                                 "of %lld",
                                 (long long)want, (long long)known));
    else if (known != want)
        report_mesh(r, mesh,
                    arena_printf(r->arena, "is a mesh of %lld devices: resources.devices is %lld",
                                 (long long)known, (long long)want));
}

// The devices over which the batch is cut: the axes of act_ids' first dimension.
static int64_t count_batch_shards(const struct job *job)
{
    const struct job_sharding *s = &job->sharding;
    struct job_spec rule = {.n = 1, .dim = {{1, (const char *[]){"batch"}}}};
    const struct job_spec *spec = &rule;
    for (int i = 0; i < s->n_points; i++)
        if (strcmp(s->points[i].point, "act_ids") == 0)
            spec = &s->points[i].spec;
    unsigned used = 0;
    int64_t shards = 1;
    for (int i = 0; spec->n && i < spec->dim[0].n; i++) {
        const struct job_rule *named = job_rule_find(s, spec->dim[0].name[i]);
        const struct job_names one = {1, &spec->dim[0].name[i]};
        const struct job_names *axes = named ? &named->axes : &one;
        for (int k = 0; k < axes->n; k++) {
            int axis = job_axis_find(&job->mesh, axes->name[k]);
            shards *= axis >= 0 && !(used >> axis & 1) ? job->mesh.axis[axis].size : 1;
            used |= axis >= 0 ? 1u << axis : 0;
        }
    }
    return shards;
}

// Which of two keys that exclude each other was given last: an override comes after the file.
static bool is_later(const struct reading_row *one, const struct reading_row *other)
{
    return one->node && (!other->node || one->node->source->index > other->node->source->index);
}

// Makes the step's batch of data.batch_per_device: the rest of weft asks for that alone.
static void resolve_batch(struct reading *r)
{
    struct reading_row *batch = reading_row(r, "data.batch"),
                       *each = reading_row(r, "data.batch_per_device");
    struct job_data *d = &r->job->data;
    int64_t per_device = each->ok ? d->batch_per_device : 0;
    d->batch_per_device = 0;
    if (!batch->node && !per_device) {
        batch->ok = false;
        if (each->ok)
            reading_missing(r, batch);
        return;
    }
    if (!per_device || is_later(batch, each))
        return;
    batch->ok = false;
    if (batch->node && !is_later(each, batch)) {
        reading_error(r, each, "data.batch says how large the batch is: leave one of them out");
        return;
    }
    if (!READING_OK(r, "mesh", "sharding.rules", "sharding.activations", "resources.devices"))
        return;
    int64_t devices = count_batch_shards(r->job);
    d->batch = per_device * devices; // 2^24 times 2^16
    batch->ok = (double)d->batch <= batch->row->max;
    if (!batch->ok)
        reading_error(r, each, "%lld for each of %lld devices is %lld samples: try at most %lld",
                      (long long)per_device, (long long)devices, (long long)d->batch,
                      (long long)batch->row->max / devices);
}

static void check_batch(struct reading *r)
{
    if (!READING_OK(r, "mesh", "sharding.rules", "sharding.activations", "resources.devices",
                    "data.batch", "train.microbatches"))
        return;
    const struct job *job = r->job;
    int64_t batch = job->data.batch, shards = count_batch_shards(job),
            micro = job->train.microbatches;
    int64_t unit = shards * micro, below = batch / unit * unit; // shards and micro: at most 65536
    r->job->batch_unit = unit;
    if (below == batch)
        return;
    struct buf sizes = {0};
    if (below > 0)
        buf_printf(&sizes, "%lld or ", (long long)below);
    int64_t above = below + unit;
    buf_printf(&sizes, "%lld", (long long)above);
    reading_error(
        r, reading_row(r, "data.batch"),
        "%lld is not a multiple of %lld (%lld data-parallel devices x %lld microbatches): "
        "try %s",
        (long long)batch, (long long)unit, (long long)shards, (long long)micro, buf_str(&sizes));
    buf_clear(&sizes);
}

// The dimensions that a rule may name: those of every job, and the model's.
static const char **list_dimensions(struct reading *r, int *n)
{
    int ruled, own;
    const char *const *every = dimensions_ruled(&ruled);
    const char *const *dims = model_dims(r->job->model.read, r->arena, &own);
    const char **all = arena_array(r->arena, const char *, ruled + own);
    for (*n = 0; *n < ruled; ++*n)
        all[*n] = every[*n];
    for (int i = 0; i < own; i++)
        if (!dimension_known(dims[i]))
            all[(*n)++] = dims[i];
    return all;
}

static bool is_listed(const char *const *all, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(all[i], name) == 0)
            return true;
    return false;
}

static void check_rules(struct reading *r)
{
    struct reading_row *row = reading_row(r, "sharding.rules");
    int n;
    if (!r->model_ok || !row->ok || !row->node)
        return;
    const char **all = list_dimensions(r, &n);
    struct setting rules = {r->arena, &r->errors, row->row, row->node, row->row->path};
    for (const struct tree_node *m = row->node->first; m; m = m->next) {
        struct setting one = setting_member(&rules, m);
        if (!is_listed(all, n, m->key))
            row->ok = setting_unknown_key(&one, all, n, "rules cut");
    }
}

// Checks that the data is what the model reads.
static void check_data(struct reading *r)
{
    if (!r->model_ok || !READING_OK(r, "data.format"))
        return;
    const struct job_model *m = &r->job->model;
    if (m->facts->tokens != (r->job->data.format == JOB_DATA_TOKENS))
        reading_error(r, reading_row(r, "data.format"), "%s %s reads %s",
                      m->facts->tokens ? "must be tokens: program" : "must be idx or npy: program",
                      m->program, m->facts->tokens ? "them" : "images");
}

// Labels are given where the model reads them, with the images of each set that is given.
static void check_labels(struct reading *r)
{
    static const char *const files[][2] = {{"data.train.images", "data.train.labels"},
                                           {"data.eval.images", "data.eval.labels"}};
    if (!r->model_ok || !READING_OK(r, "data.format") || r->job->data.format == JOB_DATA_TOKENS)
        return;
    const struct job_model *m = &r->job->model;
    for (int set = 0; set < 2 && !m->facts->tokens; set++) {
        bool images = set == 0 || reading_given(r, files[set][0]),
             labels = reading_given(r, files[set][1]);
        if (images && !labels && m->facts->labels)
            reading_error(r, reading_row(r, files[set][1]),
                          set == 0 ? "is missing: file of their classes"
                                   : "is missing: data.eval.images is given");
        if (labels && !m->facts->labels)
            reading_error(r, reading_row(r, files[set][1]),
                          "acts only where the model reads "
                          "labels: program %s does not",
                          m->program);
        else if (labels && !images)
            reading_error(r, reading_row(r, files[set][0]), "is missing: %s is given",
                          files[set][1]);
    }
}

static void check_linear(struct reading *r)
{
    struct reading_row *steps = reading_row(r, "schedule.steps");
    struct job_schedule *s = &r->job->schedule;
    if (!steps->active || !READING_OK(r, "schedule.init", "schedule.end", "train.steps"))
        return;
    if (!steps->node)
        s->steps = r->job->train.steps ? r->job->train.steps : 1;
    if (s->init == 0 && s->end == 0)
        reading_error(r, reading_row(r, "schedule.init"),
                      "is 0 like end: nothing would be learned; init: 1e-3 would go down to 0");
}

static void check_schedule(struct reading *r)
{
    struct reading_row *decay = reading_row(r, "schedule.decay");
    struct job_schedule *s = &r->job->schedule;
    if (!decay->active || !READING_OK(r, "schedule.decay", "schedule.warmup", "train.steps"))
        return;
    if (!decay->node)
        s->decay = r->job->train.steps ? r->job->train.steps : s->warmup + 1;
    if (s->warmup < s->decay)
        return;
    bool by_warmup = reading_given(r, "schedule.warmup");
    reading_error(r, by_warmup ? reading_row(r, "schedule.warmup") : decay,
                  "warmup (%lld steps) must be less than decay (%lld%s), which counts it in",
                  (long long)s->warmup, (long long)s->decay,
                  decay->node ? "" : ", by default train.steps");
}

// A job without steps only evaluates.
static void check_no_steps(struct reading *r)
{
    bool evaluates = reading_given(r, "data.eval.images") || reading_given(r, "data.eval.tokens");
    if (!READING_OK(r, "train.steps", "checkpoint.first") || r->job->train.steps)
        return;
    if (!evaluates)
        reading_error(r, reading_row(r, "train.steps"), "is 0: then data.eval must be given");
    if (r->job->checkpoint.first)
        reading_error(r, reading_row(r, "checkpoint.first"),
                      "acts only when train.steps is more than 0");
}

static void check_keep_every(struct reading *r)
{
    if (!READING_OK(r, "checkpoint.every", "checkpoint.keep_every"))
        return;
    int64_t every = r->job->checkpoint.every, kept = r->job->checkpoint.keep_every;
    struct reading_row *row = reading_row(r, "checkpoint.keep_every");
    if (kept > 0 && every == 0)
        reading_error(r, row, "acts only when checkpoint.every is more than 0");
    else if (kept > 0 && kept % every != 0)
        reading_error(r, row,
                      "%lld is not a multiple of checkpoint.every (%lld): no checkpoint is "
                      "made at most of these steps",
                      (long long)kept, (long long)every);
}

// A checkpoint is compared by the evaluation at its step.
static void check_best(struct reading *r)
{
    struct reading_row *row = reading_row(r, "checkpoint.best");
    const struct job_checkpoint *c = &r->job->checkpoint;
    bool evaluates = reading_given(r, "data.eval.images") || reading_given(r, "data.eval.tokens");
    if (!READING_OK(r, "checkpoint.every", "checkpoint.best", "eval.every") ||
        c->best == JOB_BEST_NONE)
        return;
    if (!evaluates)
        reading_error(r, row, "acts only when data.eval is given");
    else if (c->every && (!r->job->eval.every || c->every % r->job->eval.every))
        reading_error(
            r, row,
            "checkpoint.every (%lld) is not a multiple of eval.every (%lld): no evaluation "
            "says how good most of the checkpoints are",
            (long long)c->every, (long long)r->job->eval.every);
}

// A checkpoint of GPUs may be used on CPUs, by an override of the kind alone: its job file says auto.
static void check_collectives(struct reading *r)
{
    const struct job_resources *j = &r->job->resources;
    if (READING_OK(r, "resources.kind", "resources.collectives") && j->kind != JOB_CUDA &&
        j->collectives == JOB_COLLECTIVES_NCCL)
        reading_error(r, reading_row(r, "resources.collectives"),
                      "nccl acts only when resources.kind is cuda");
}

static void check_backoff(struct reading *r)
{
    const int64_t *wait = r->job->restart.backoff;
    if (READING_OK(r, "restart.backoff") && wait[0] > wait[1])
        reading_error(r, reading_row(r, "restart.backoff"),
                      "the first wait is longer than the longest");
}

static void resolve_groups(struct reading *r)
{
    struct reading_row *row = reading_row(r, "optimizer.groups");
    const struct job_optimizer *o = &r->job->optimizer;
    if (!READING_OK(r, "optimizer.groups", "optimizer.kind", "optimizer.weight_decay"))
        return;
    for (int i = 0; i < o->n_groups; i++) {
        struct job_param_group *g = &o->groups[i];
        if (!g->own_decay)
            g->weight_decay = o->weight_decay;
        else if (o->kind != JOB_ADAMW)
            reading_error(r, row, "group %d: weight_decay acts only when optimizer.kind is adamw",
                          i);
    }
}

static void check_remat(struct reading *r)
{
    if (r->built && READING_OK(r, "train.remat") && r->job->train.remat != JOB_REMAT_NONE &&
        !r->layers.n && !r->layers.blocks)
        reading_error(r, reading_row(r, "train.remat"),
                      "acts on layers, turns of `repeat` or `layer` blocks, and with its sizes the "
                      "model has none: "
                      "try none");
}

void check_job(struct reading *r)
{
    static void (*const checks[])(struct reading *) = {
        check_version,  resolve_model, check_rules,       check_data,       check_labels,
        resolve_mesh,   resolve_batch, check_batch,       check_pipeline,   check_sample,
        check_remat,    check_linear,  check_schedule,    check_keep_every, check_best,
        check_no_steps, check_backoff, check_collectives, resolve_groups,
    };
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++)
        checks[i](r);
}
