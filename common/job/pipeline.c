// SPDX-License-Identifier: Apache-2.0
// The pipeline of a job: which mesh axis its stages lie along, and how many layers each has.
#include "common/job/reading.h"
#include "common/model/language/model_facts.h"

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

int64_t job_stage_layers(const struct job *job, int stage)
{
    if (job->pipeline.stages.n)
        return ((const int64_t *)job->pipeline.stages.items)[stage];
    int64_t layers = job->model.facts->layers, stages = job_stages(job);
    return layers / stages + (stage < layers % stages);
}

static void check_axis(struct reading *r)
{
    const struct job_rule *rule = job_rule_find(&r->job->sharding, "layers");
    if (rule && rule->axes.n > 1)
        reading_error(r, reading_row(r, "sharding.rules"),
                      "layers: the stages of a pipeline lie along one axis, these are %d",
                      rule->axes.n);
}

// What is wrong with the number of stages. False after reporting.
static bool check_stages(struct reading *r, const char *axis, int64_t stages, int64_t layers)
{
    struct reading_row *mesh = reading_row(r, "mesh");
    if (stages > JOB_MAX_STAGES)
        reading_error(r, mesh, "%s: %lld stages: a pipeline has at most %d", axis,
                      (long long)stages, JOB_MAX_STAGES);
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

// The default, as the list of layers for each stage that would do.
static const char *print_even_stages(struct reading *r)
{
    struct job job = *r->job;
    struct buf b = {0};
    job.pipeline.stages.n = 0;
    for (int s = 0; s < job_stages(&job); s++)
        buf_printf(&b, "%s%lld", s ? ", " : "[", (long long)job_stage_layers(&job, s));
    buf_puts(&b, "]");
    return buf_keep(&b, r->arena);
}

void check_pipeline(struct reading *r)
{
    const struct job *job = r->job;
    if (!r->model_ok ||
        !READING_OK(r, "mesh", "sharding.rules", "resources.devices", "pipeline.stages"))
        return;
    check_axis(r);
    const struct schema_list *given = &job->pipeline.stages;
    struct reading_row *row = reading_row(r, "pipeline.stages");
    int axis = job_pipeline_axis(job), stages = job_stages(job);
    int64_t layers = job->model.facts->layers, sum = 0;
    for (int i = 0; i < given->n; i++)
        sum += ((const int64_t *)given->items)[i];
    if (axis >= 0 && !check_stages(r, job->mesh.axis[axis].name, stages, layers))
        return;
    if (given->n && axis < 0 && given->n != 1)
        reading_error(r, row, "names %d stages, the mesh has none: give it an axis pp: %d",
                      given->n, given->n);
    else if (given->n && given->n != stages)
        reading_error(r, row, "names %d stages, the mesh has %d (%s): %s would do", given->n,
                      stages, axis < 0 ? "no axis pp" : job->mesh.axis[axis].name,
                      print_even_stages(r));
    else if (given->n && sum != layers)
        reading_error(r, row,
                      "the stages have %lld layers together, the model has %lld: %s would do",
                      (long long)sum, (long long)layers, print_even_stages(r));
}
