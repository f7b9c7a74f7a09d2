// SPDX-License-Identifier: Apache-2.0
// The passes in order. See compile.h.
#include "common/compile/compile.h"

#include <stdio.h>

#include "common/compile/graph/cached_keys.h"
#include "common/compile/graph/grad.h"
#include "common/compile/graph/optimiser.h"
#include "common/compile/graph/remat.h"
#include "common/compile/program/bucket.h"
#include "common/compile/program/copies.h"
#include "common/compile/program/dump.h"
#include "common/compile/program/fuse.h"
#include "common/compile/program/group.h"
#include "common/compile/program/lower.h"
#include "common/compile/program/order.h"
#include "common/compile/program/pack.h"
#include "common/compile/program/plan_hash.h"
#include "common/compile/program/verify.h"
#include "common/compile/program/weights.h"
#include "common/compile/shard/partition.h"
#include "common/compile/shard/stage.h"
#include "common/language/model_facts.h"
#include "common/op/collective_args.h"

struct compilation {
    const struct job *job;
    build_fn build;
    const struct compile_options *options;
    struct arena *arena;
    struct compiled *out;
    struct buf *dump;
    struct err *err;
};

// A failed check is a bug: who mends it needs the graph, and which pass had made it. What is refused says
// all of it.
static int report_failure(struct compilation *p, int rc, const char *pass, const struct graph *g,
                          const struct mesh *m)
{
    if (rc != ERR_INTERNAL)
        return rc;
    if (p->dump)
        dump_graph(g, m, p->dump);
    return err_wrap(p->err, "%s", pass);
}

// Into how many parts a mesh may cut a dimension at some point.
static int64_t count_shards(const struct compilation *p, enum dim dim)
{
    axis_set axes = 0;
    for (int i = POINT_NONE + 1; i < POINT_COUNT; i++) {
        struct value v = {.shape = {1, {1}}, .dims = {dim}, .point = (enum point)i};
        struct spec spec = sharding_spec(p->out->sharding, &p->out->mesh, &v);
        axes |= dim_axes(&spec.dim[0]);
    }
    return mesh_product(&p->out->mesh, axes);
}

// Returns the batch of the sample program, whose positions are one continuation each: as many as the
// job asks for, and so many more that every cut of the batch divides it.
static int64_t sample_batch(const struct compilation *p)
{
    int64_t shards = count_shards(p, DIM_BATCH);
    int64_t count = p->options->only ? p->job->data.batch : p->job->eval.sample.count;
    return (count + shards - 1) / shards * shards;
}

static const enum dtype dtype_of[] = {
    [JOB_F32] = DT_F32, [JOB_BF16] = DT_BF16, [JOB_TF32] = DT_F32};
static const enum backend_kind backend_of[] = {[JOB_CPU] = BACKEND_CPU, [JOB_CUDA] = BACKEND_CUDA};

static bool is_cached(enum program_kind kind)
{
    return kind == PROGRAM_FILL || kind == PROGRAM_STEP;
}

static bool is_sample(enum program_kind kind)
{
    return kind == PROGRAM_SAMPLE || is_cached(kind);
}

// Stages hold the same layers in each program; those of samples and scores end at their logits.
static int check_layers(struct compilation *p, enum program_kind kind, const struct graph *g)
{
    int64_t layers = p->job->pipeline.layers;
    if (p->out->nstages == 1 || g->nlayers == layers ||
        ((is_sample(kind) || kind == PROGRAM_SCORE) && g->nlayers < layers))
        return 0;
    return err_set(
        p->err, ERR_INVALID,
        "pipeline.layers: the %s program has %d layers and the job has %lld: stages want "
        "as many in each program: leave the axis out",
        program_name(kind), g->nlayers, (long long)layers);
}

static void init_graph(struct compilation *p, struct graph *g)
{
    const struct job *job = p->job;
    graph_init(g, p->arena, p->out->dims, p->err);
    g->compute = dtype_of[job->precision.compute];
    g->reduce = dtype_of[job->precision.reduce];
    g->tf32 = job->precision.compute == JOB_TF32;
    g->backend = backend_of[job->resources.kind];
    g->scratch = job->resources.scratch << 20;
    g->bucket = p->options->bucket ? p->options->bucket : job->resources.bucket << 20;
}

// FILL and STEP are derived from what the model is as a sample program.
static int derive_cached(struct compilation *p, enum program_kind kind, struct graph *g)
{
    const struct compiled *c = p->out;
    // One group of texts on a device, where groups are cut no further than texts.
    const int64_t batch = sample_batch(p), shards = count_shards(p, DIM_BATCH);
    const struct cached_keys sizes = {.rows = kind == PROGRAM_STEP ? 1 : c->rows,
                                      .widest = c->rows,
                                      .context = c->context,
                                      .group =
                                          shards % count_shards(p, DIM_GROUP) ? 1 : batch / shards};
    struct graph sample;
    init_graph(p, &sample);
    if (p->build(&sample, p->job, PROGRAM_SAMPLE, batch, p->job->data.batch))
        return sample.failed;
    return cached_keys_derive(&sample, &sizes, program_name(kind), g);
}

static int build_global(struct compilation *p, enum program_kind kind, struct graph *g)
{
    const struct job *job = p->job;
    int rc = 0;
    init_graph(p, g);
    if (kind == PROGRAM_TRAIN) {
        // Makes room for the graph of as many layers as the job has: what is not used is never touched.
        enum { NODES = 64, VALUES = 144, LAYERS = 4096 }; // of a layer with its backward and update
        int64_t layers = job->pipeline.layers < LAYERS ? job->pipeline.layers : LAYERS;
        graph_reserve(g, (int)(layers + 1) * NODES, (int)(layers + 1) * VALUES);
    }
    int64_t batch = job->data.batch / job->train.microbatches;
    if (kind == PROGRAM_SAMPLE)
        batch = sample_batch(p);
    if (is_cached(kind))
        rc = derive_cached(p, kind, g);
    else
        rc = p->build(g, job, kind, batch, job->data.batch);
    if (rc)
        return report_failure(p, rc, "graph", g, NULL);
    if (check_layers(p, kind, g))
        return ERR_INVALID;
    stages_assign(g, job);
    if (kind == PROGRAM_TRAIN) {
        optimiser_freeze(g, &job->optimizer);
        grad_build(g);
        remat_build(g, (enum job_remat)job->train.remat);
        optimiser_build(g, &job->optimizer, job->metrics.detail > 0);
    } else {
        optimiser_build_eval(g);
    }
    rc = g->failed ? g->failed : verify_graph(g, p->err);
    return report_failure(p, rc, "graph", g, NULL);
}

// A schedule for each stage, checked one by one and against each other.
static int schedule_program(struct compilation *p, enum program_kind kind)
{
    struct compiled *c = p->out;
    const struct job *job = p->job;
    struct schedule *s = arena_array(p->arena, struct schedule, c->nstages);
    const struct schedule_of of = {.program = kind,
                                   .kind = (enum job_pipeline_schedule)job->pipeline.schedule,
                                   .microbatches =
                                       is_sample(kind) ? 1 : (int)job->train.microbatches,
                                   .stages = c->nstages,
                                   .chunks = c->nchunks,
                                   .layers = c->layers};
    struct schedule_cost cost;
    c->schedule[kind] = s;
    int rc = schedule_build(s, p->arena, &of, p->err);
    for (int i = 0; i < c->nstages && !rc; i++)
        rc = schedule_verify(&s[i], &of, p->err);
    if (!rc)
        rc = schedule_simulate(s, &of, &cost, p->err);
    if (!rc && kind == PROGRAM_TRAIN)
        c->schedule_cost = cost;
    return rc;
}

// The most bytes of a step: they are counted in 64 bits.
static const double MOST_BYTES = (double)((uint64_t)1 << 60); // of all buffers of a device

// Refuses a program too long to be lowered.
static int check_length(struct compilation *p, const struct graph *cut, int64_t microbatches)
{
    int64_t each = 0;
    for (int i = 0; i < cut->nnodes; i++)
        each += cut->nodes[i].phase != PHASE_UPDATE && cut->nodes[i].when == EVERY_MICROBATCH;
    if (each * microbatches <= COMPILE_MOST_INSTRS)
        return 0;
    int64_t most = job_microbatches_within(p->job, COMPILE_MOST_INSTRS / each);
    char advice[80] = "try a smaller model, or another pipeline.schedule";
    if (most)
        snprintf(advice, sizeof advice, "try at most %lld", (long long)most);
    return err_set(p->err, ERR_LIMIT,
                   "train.microbatches: %lld, each of %lld operations, make a step of more than "
                   "%d: %s",
                   (long long)microbatches, (long long)each, COMPILE_MOST_INSTRS, advice);
}

static int lower_program(struct compilation *p, enum program_kind kind, const struct graph *cut)
{
    struct compiled *c = p->out;
    c->program[kind] = arena_array(p->arena, struct program, c->nstages);
    int rc = is_sample(kind) ? 0 : check_length(p, cut, p->job->train.microbatches);
    rc = rc ? rc : schedule_program(p, kind);
    if (rc)
        return rc;
    struct arena scratch = {0};
    const struct stage_part *parts = parts_find(cut, c->nstages, &scratch);
    for (int i = 0; i < c->nstages; i++) {
        struct program *to = &c->program[kind][i];
        lower_stage(cut, &c->mesh, &parts[i], &c->schedule[kind][i], i, kind, p->arena, to);
        if (p->job->train.fuse)
            fuse_updates(to);
        to->zigzag =
            sharding_zigzag(c->sharding, &c->mesh, c->global[kind], p->job->model.facts->seq);
    }
    arena_clear(&scratch);
    return verify_stages(c->program[kind], c->nstages, p->err);
}

// From the graph on global shapes to the one with specs, collectives and stages.
static int cut_graph(struct compilation *p, enum program_kind kind, struct graph *cut)
{
    struct compiled *c = p->out;
    graph_init(cut, p->arena, c->dims, p->err);
    int rc = partition(c->global[kind], &c->mesh, c->sharding, cut, p->err);
    rc = rc ? rc : stages_cut(cut, c->nstages, p->err);
    if (rc)
        return rc;
    if (p->job->train.fuse) {
        if (cut->backend == BACKEND_CUDA && p->job->train.pack_heads)
            pack_heads(cut);
        copies_make(cut, kind == c->holder ? NULL : c->program[c->holder][0].graph);
        fuse_nodes(cut);
    }
    if (!p->options->as_read)
        order_nodes(cut);
    if (kind == PROGRAM_TRAIN && c->nstages > 1 && p->job->pipeline.schedule == JOB_ZERO_BUBBLE)
        weights_split(cut);
    bucket_nodes(cut, &c->mesh);
    return verify_partitioned(cut, &c->mesh, p->err);
}

static int compile_program(struct compilation *p, enum program_kind kind)
{
    struct compiled *c = p->out;
    struct graph *g = arena_new(p->arena, struct graph);
    struct graph *cut = arena_new(p->arena, struct graph);
    c->sharding->rules.whole_seq = is_cached(kind);
    // A training's samples are drawn by all ranks alike; whoever asks sends each what others chose.
    c->sharding->own_rows = is_sample(kind) && p->options->only;
    int rc = build_global(p, kind, g);
    if (rc)
        return rc;
    c->global[kind] = g;
    if (kind == c->holder)
        sharding_check(c->sharding, &c->mesh, g);
    rc = cut_graph(p, kind, cut);
    if (rc)
        return report_failure(p, rc, "partitioned graph", cut, &c->mesh);
    return lower_program(p, kind, cut);
}

// The programs by which a job's samples are drawn: FILL and STEP, or SAMPLE where no keys can be kept.
static int compile_sampling(struct compilation *p)
{
    struct compiled *c = p->out;
    if (p->options->uncached)
        return compile_program(p, PROGRAM_SAMPLE);
    int rc = compile_program(p, PROGRAM_FILL);
    rc = rc ? rc : compile_program(p, PROGRAM_STEP);
    if (rc != ERR_UNSUPPORTED)
        return rc;
    c->keyless = arena_strdup(p->arena, p->err->text);
    *p->err = (struct err){0};
    for (int k = PROGRAM_FILL; k <= PROGRAM_STEP; k++) {
        c->program[k] = NULL;
        c->global[k] = NULL;
    }
    return compile_program(p, PROGRAM_SAMPLE);
}

static void hash_programs(struct compiled *c)
{
    struct plan_hash d;
    plan_hash_init(&d);
    for (int i = 0; i < PROGRAM_KINDS; i++)
        for (int k = 0; k < c->nstages && c->program[i]; k++)
            plan_hash_add(&d, compiled_program(c, (enum program_kind)i, k));
    plan_hash_end(&d, c->hash);
}

// Devices that carry their collectives themselves have communicators, and the memory for that in pieces.
static void add_communicators(const struct job *job, int groups, struct memory *m)
{
    uint64_t *shared = &m->region[REGION_SHARED], last = *shared % COLLECTIVE_PIECE;
    if (job->resources.kind != JOB_CUDA || job->resources.collectives == JOB_COLLECTIVES_HOST)
        return;
    m->communicators = groups;
    const uint64_t more = last ? COLLECTIVE_PIECE - last : 0;
    *shared += more;
    m->arena += more;
    m->transient += more;
}

// Gives the values of one stage's programs their places in one arena.
static int plan_stage(struct compilation *p, int stage)
{
    struct compiled *c = p->out;
    struct memory *m = &c->by_stage[stage];
    struct program *all[PROGRAM_KINDS], *before[PROGRAM_KINDS];
    const struct placed_stage like = {before, &c->by_stage[stage ? stage - 1 : 0]};
    int n = 0, groups = 0;
    for (int k = 0; k < PROGRAM_KINDS; k++)
        if (c->program[k]) {
            all[n] = &c->program[k][stage];
            before[n++] = &c->program[k][stage ? stage - 1 : 0];
        }
    // Refuses buffers so large that sums of their bytes would overflow.
    double bytes = 0;
    for (int k = 0; k < n; k++)
        for (int b = 0; b < all[k]->nbuffers; b++)
            bytes += (double)all[k]->buffers[b].bytes;
    if (bytes > MOST_BYTES)
        return err_set(p->err, ERR_LIMIT,
                       "the tensors of a step take %.3g bytes on a device, over 1 EiB: try a "
                       "smaller data.batch or model, or more devices that share it",
                       bytes);
    int rc = group_count(all, n, &groups, p->err);
    rc = rc ? rc : plan_memory(all, n, stage ? &like : NULL, p->arena, m, p->err);
    if (!rc)
        add_communicators(p->job, groups, m);
    for (int k = 0; k < n && !rc; k++) {
        rc = verify_program(all[k], m, p->err);
        if (rc && p->dump)
            dump_program(all[k], p->dump);
    }
    if (m->arena > c->memory.arena)
        c->memory = *m;
    return rc;
}

bool compiled_has(const struct compiled *c, enum program_kind k)
{
    return c->program[k] != NULL;
}

int compiled_stage(const struct compiled *c, int rank)
{
    return c->axis < 0 ? 0 : mesh_coord(&c->mesh, rank, c->axis);
}

const struct program *compiled_program(const struct compiled *c, enum program_kind k, int stage)
{
    PRE(stage >= 0 && stage < c->nstages);
    return &c->program[k][stage];
}

const struct memory *compiled_memory(const struct compiled *c, int stage)
{
    PRE(stage >= 0 && stage < c->nstages);
    return &c->by_stage[stage];
}

int compile_job(const struct job *job, build_fn build, const struct compile_options *o,
                struct arena *a, struct compiled *out, struct buf *dump, struct err *e)
{
    struct compilation p = {
        .job = job, .build = build, .options = o, .arena = a, .out = out, .dump = dump, .err = e};
    *out = (struct compiled){
        .nstages = job_stages(job), .nchunks = job_chunks(job), .axis = job_pipeline_axis(job)};
    out->by_stage = arena_array(a, struct memory, out->nstages);
    out->layers = arena_array(a, int64_t, out->nstages * out->nchunks);
    for (int i = 0; i < out->nstages * out->nchunks; i++)
        out->layers[i] = job_stage_layers(job, i);
    out->mesh.n = job->mesh.n;
    for (int i = 0; i < out->mesh.n; i++) {
        snprintf(out->mesh.axis[i].name, sizeof out->mesh.axis[i].name, "%s",
                 job->mesh.axis[i].name);
        out->mesh.axis[i].size = (int)job->mesh.axis[i].size;
    }
    int stages = job_pipeline_axis(job);
    out->mesh.stages = stages < 0 ? 0 : (axis_set)(1u << stages);
    out->sharding = arena_new(a, struct sharding);
    out->dims = arena_new(a, struct dims);
    dims_init(out->dims, a);
    sharding_resolve(out->sharding, job, &out->mesh, out->dims, a);
    out->holder = o->only;
    const int64_t seq = job->model.facts->seq;
    out->context = o->context && o->context < seq ? o->context : seq;
    const int64_t rows = o->only || o->rows ? o->rows : COMPILE_CHUNK;
    out->rows = rows && rows < out->context ? rows : out->context;
    bool evaluates = job->data.eval.images || job->data.eval.tokens;
    int rc = compile_program(&p, out->holder);
    if (!rc && out->holder == PROGRAM_FILL)
        rc = compile_program(&p, PROGRAM_STEP);
    if (!rc && !o->only && evaluates)
        rc = compile_program(&p, PROGRAM_EVAL);
    if (!rc && !o->only && evaluates && job->eval.sample.prompt)
        rc = compile_sampling(&p);
    out->sharding->rules.whole_seq = is_cached(out->holder); // what is explained is the holder
    for (int s = 0; s < out->nstages && !rc; s++)
        rc = plan_stage(&p, s);
    if (rc)
        return rc;
    if (!o->unhashed)
        hash_programs(out);
    out->whole = true;
    return out->sharding->facts.errors
               ? err_set(e, ERR_INVALID, "the sharding asks for what cannot be")
               : 0;
}
