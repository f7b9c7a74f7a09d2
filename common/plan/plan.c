// SPDX-License-Identifier: Apache-2.0
// The job's model as the compiler's builder. See plan.h.
#include "common/plan/plan.h"

#include "common/explain/fit.h"
#include "common/model/builder.h"

static struct model_run make_run(const struct job *job, enum program_kind kind, int64_t batch,
                                 int64_t step_batch)
{
    return (struct model_run){.kind = kind,
                              .batch = batch,
                              .step_batch = step_batch,
                              .seed = job->train.seed,
                              .bytes = job->data.dtype != JOB_DATA_F32};
}

int plan_build_job(struct graph *g, const struct job *job, enum program_kind kind, int64_t batch,
                   int64_t step_batch)
{
    const struct model_run run = make_run(job, kind, batch, step_batch);
    return model_build(g, job->model.sizes, &run);
}

int plan_count_layers(const struct job *job, struct job_layers *out)
{
    int64_t batch = job->data.batch / job->train.microbatches;
    struct model_run run = make_run(job, PROGRAM_TRAIN, batch ? batch : 1, job->data.batch);
    struct arena scratch = {0};
    struct graph g;
    struct err e = {0};
    run.layers = out;
    graph_init(&g, &scratch, NULL, &e);
    int rc = model_build(&g, job->model.sizes, &run);
    arena_clear(&scratch);
    return rc;
}

int plan_explain(const struct job *job, const struct compile_options *o, struct arena *a,
                 struct compiled *out, struct findings *found, struct buf *dump, struct err *e)
{
    return explain_job(job, plan_build_job, o, a, out, found, dump, e);
}

int plan_compile(const struct job *job, struct arena *a, struct compiled *out, struct buf *dump,
                 struct err *e)
{
    struct findings found;
    return plan_explain(job, &(struct compile_options){.hasty = true}, a, out, &found, dump, e);
}

void plan_fit(const struct job *job, const struct device_model *d, const struct compiled *c,
              struct findings *found, struct arena *a)
{
    fit_check(job, plan_build_job, d, c, found, a, FIT_WORK);
}
