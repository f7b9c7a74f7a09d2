// SPDX-License-Identifier: Apache-2.0
// The pipeline of a job: which mesh axis its stages lie along, and how many layers each has.
#include <stdlib.h>

#include "common/job/reading.h"

const char *const job_schedule_names[] = {
    [JOB_1F1B] = "1f1b",
    [JOB_GPIPE] = "gpipe",
    [JOB_INTERLEAVED] = "interleaved",
    [JOB_ZERO_BUBBLE] = "zero_bubble",
    [JOB_CIRCULAR] = "circular",
    NULL,
};

int job_pipeline_axis(const struct job *job)
{
    const struct job_rule *rule = job_rule_find(&job->sharding, "layers");
    for (int i = 0; rule && i < rule->axes.n; i++) {
        int axis = job_axis_find(&job->mesh, rule->axes.name[i]);
        if (axis >= 0 && job->mesh.axis[axis].size > 1)
            return axis;
    }
    return -1;
}

int job_stages(const struct job *job)
{
    int axis = job_pipeline_axis(job);
    return axis < 0 ? 1 : (int)job->mesh.axis[axis].size;
}

static bool has_chunks(const struct job *job)
{
    return job->pipeline.schedule == JOB_INTERLEAVED || job->pipeline.schedule == JOB_CIRCULAR;
}

int job_chunks(const struct job *job)
{
    return job_stages(job) > 1 && has_chunks(job) ? (int)job->pipeline.chunks : 1;
}

int64_t job_microbatches_within(const struct job *job, int64_t most)
{
    int64_t stages = job_stages(job);
    if (stages == 1 || !has_chunks(job))
        return most;
    if (job->pipeline.schedule == JOB_INTERLEAVED)
        return most / stages * stages;
    return most < stages ? 0 : most;
}

int64_t job_stage_layers(const struct job *job, int place)
{
    if (job->pipeline.stages.n)
        return ((const int64_t *)job->pipeline.stages.items)[place];
    int64_t layers = job->pipeline.layers, places = job_stages(job) * job_chunks(job);
    return layers / places + (place < layers % places);
}

// Reports what is wrong with the number of stages, and returns false then.
static bool check_stages(struct reading *r, const char *axis, int64_t stages, int64_t layers)
{
    struct reading_row *mesh = reading_row(r, "mesh");
    if (stages > JOB_MAX_STAGES)
        reading_error(r, mesh, "%s: %lld stages: a pipeline has at most %d", axis,
                      (long long)stages, JOB_MAX_STAGES);
    else if (layers == 0)
        reading_error(r, mesh,
                      "%s: %lld stages: a pipeline is cut between layers, turns of `repeat` or "
                      "`layer` blocks, and with its sizes the model has none: leave the axis out",
                      axis, (long long)stages);
    else if (stages > layers)
        reading_error(r, mesh, "%s: %lld stages are more than the model's %lld layers: %s", axis,
                      (long long)stages, (long long)layers,
                      layers > 1
                          ? arena_printf(r->arena, "at most %s: %lld", axis, (long long)layers)
                          : "leave the axis out");
    else
        return true;
    return false;
}

// The default, as the list of layers for each stage that fits.
static const char *print_even_stages(struct reading *r)
{
    struct job job = *r->job;
    struct buf b = {0};
    job.pipeline.stages.n = 0;
    for (int s = 0; s < job_stages(&job) * job_chunks(&job); s++)
        buf_printf(&b, "%s%lld", s ? ", " : "[", (long long)job_stage_layers(&job, s));
    buf_puts(&b, "]");
    return buf_keep(&b, r->arena);
}

// The number of chunks nearest to what the job asks for with which its layers divide; 0: none.
static int64_t find_even_chunks(const struct job *job)
{
    int64_t layers = job->pipeline.layers, stages = job_stages(job), best = 0;
    for (int64_t c = 2; c * stages <= layers; c++)
        if (layers % (c * stages) == 0 &&
            (!best || llabs(c - job->pipeline.chunks) < llabs(best - job->pipeline.chunks)))
            best = c;
    return best;
}

// Returns false if something was wrong, which it has reported.
static bool check_chunks(struct reading *r)
{
    const struct job *job = r->job;
    struct reading_row *row = reading_row(r, "pipeline.chunks");
    const char *schedule = job_schedule_names[job->pipeline.schedule];
    long long chunks = job->pipeline.chunks, stages = job_stages(job),
              layers = job->pipeline.layers;
    long long even = find_even_chunks(job);
    const char *fix =
        even ? arena_printf(r->arena, "try chunks: %lld", even) : "try schedule: 1f1b";
    if (!has_chunks(job) && chunks > 1)
        reading_error(r, row, "a stage has one chunk under %s: try schedule: interleaved",
                      schedule);
    else if (stages == 1 || !has_chunks(job))
        return true;
    else if (chunks == 1)
        reading_error(r, row, "%s passes the stages once for each chunk, and there is one: %s",
                      schedule, fix);
    else if (chunks * stages > layers)
        reading_error(r, row,
                      "%lld stages of %lld chunks are more than the model's %lld layers: %s",
                      stages, chunks, layers, fix);
    else if (!job->pipeline.stages.n && layers % (chunks * stages))
        reading_error(r, row,
                      "the model's %lld layers do not divide into %lld stages of %lld chunks: %s%s",
                      layers, stages, chunks, even ? fix : "",
                      even ? "" : arena_printf(r->arena, "try stages: %s", print_even_stages(r)));
    else
        return true;
    return false;
}

static void check_microbatches(struct reading *r)
{
    const struct job *job = r->job;
    struct reading_row *row = reading_row(r, "train.microbatches");
    long long have = job->train.microbatches, stages = job_stages(job);
    long long below = have / stages * stages, above = below + stages;
    if (stages == 1)
        return;
    if (job->pipeline.schedule == JOB_CIRCULAR && have < stages)
        reading_error(
            r, row,
            "%lld: a circular pipeline of %lld stages has as many under way: try at least "
            "%lld",
            have, stages, stages);
    if (job->pipeline.schedule == JOB_INTERLEAVED && have % stages)
        reading_error(
            r, row, "%lld: interleaved stages pass as many at a time as they are, %lld: try %s%lld",
            have, stages, below ? arena_printf(r->arena, "%lld or ", below) : "", above);
}

static int64_t sum_given(const struct job *job)
{
    const struct schema_list *given = &job->pipeline.stages;
    int64_t sum = 0;
    for (int i = 0; i < given->n; i++)
        sum += ((const int64_t *)given->items)[i];
    return sum;
}

// Takes the number of layers that a resolved job has; else the model is built to count them. Returns
// false if it cannot be built, which compiling the job will report.
static bool find_layers(struct reading *r)
{
    if (!r->file && reading_given(r, "pipeline.layers"))
        return true;
    struct job_graph graph = {0};
    r->built = !r->schema->build(r->job, &graph);
    r->layers = graph.layers;
    r->job->pipeline.layers = r->built ? r->layers.n : 0;
    return r->built;
}

void check_pipeline(struct reading *r)
{
    const struct job *job = r->job;
    if (!r->model_ok ||
        !READING_OK(r, "mesh", "sharding.rules", "resources.devices", "pipeline.stages",
                    "pipeline.schedule", "pipeline.chunks", "pipeline.layers", "data.batch",
                    "data.dtype", "train.microbatches", "eval.sample.prompt"))
        return;
    const struct job_rule *rule = job_rule_find(&r->job->sharding, "layers");
    if (rule && rule->axes.n > 1)
        reading_error(r, reading_row(r, "sharding.rules"),
                      "layers: the stages of a pipeline lie along one axis, these are %d",
                      rule->axes.n);
    if (!find_layers(r))
        return;
    const struct schema_list *given = &job->pipeline.stages;
    struct reading_row *row = reading_row(r, "pipeline.stages");
    int axis = job_pipeline_axis(job), stages = job_stages(job), chunks = job_chunks(job);
    int64_t layers = job->pipeline.layers, sum = sum_given(job);
    if (axis >= 0 && !check_stages(r, job->mesh.axis[axis].name, stages, layers))
        return;
    if (!check_chunks(r))
        return;
    check_microbatches(r);
    if (stages > 1 && job->eval.sample.prompt && r->layers.skipped)
        reading_error(
            r, reading_row(r, "eval.sample.prompt"),
            "sampling leaves out line %d of the model, a loss's or a report's, and with "
            "%d stages the layers behind it would lie elsewhere: bind its value in a line "
            "of its own, or leave the axis out",
            r->layers.skipped, stages);
    if (given->n && axis < 0 && given->n != 1)
        reading_error(r, row, "names %d stages, the mesh has none: give it an axis pp: %d",
                      given->n, given->n);
    else if (given->n && given->n != stages * chunks)
        reading_error(r, row, "names %d stages, the mesh has %d%s (%s): try %s", given->n, stages,
                      chunks > 1 ? arena_printf(r->arena, " of %d chunks", chunks) : "",
                      axis < 0 ? "no axis pp" : job->mesh.axis[axis].name, print_even_stages(r));
    else if (given->n && sum != layers)
        reading_error(r, row, "the stages have %lld layers together, the model has %lld: try %s",
                      (long long)sum, (long long)layers, print_even_stages(r));
}
