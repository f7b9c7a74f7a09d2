// SPDX-License-Identifier: Apache-2.0
// The table of models. See model.h.
#include "common/model/model.h"

#include <string.h>

#include "common/explain/fit.h"

static const struct {
    const char *program;
    build_fn build;
} models[] = {
    {"mlp", mlp_build},          {"gpt2", decoder_build}, {"llama", decoder_build},
    {"cookbook", decoder_build}, {"vae", vae_build},
};

static int refuse_model(struct graph *g, const struct job *job, enum program_kind kind,
                        int64_t batch, int64_t step_batch)
{
    (void)kind, (void)batch, (void)step_batch;
    return g->failed = err_set(g->err, ERR_UNSUPPORTED,
                               "model.program: %s is read, but this weft cannot build it yet",
                               job->model.program);
}

static build_fn find_model(const struct job *job)
{
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (strcmp(models[i].program, job->model.program) == 0)
            return models[i].build;
    return refuse_model;
}

int model_explain(const struct job *job, const struct compile_options *o, struct arena *a,
                  struct compiled *out, struct findings *found, struct buf *dump, struct err *e)
{
    return explain_job(job, find_model(job), o, a, out, found, dump, e);
}

int model_compile(const struct job *job, struct arena *a, struct compiled *out, struct buf *dump,
                  struct err *e)
{
    struct findings found;
    return model_explain(job, &(struct compile_options){0}, a, out, &found, dump, e);
}

void model_fit(const struct job *job, const struct device_model *d, const struct compiled *c,
               struct findings *found, struct arena *a)
{
    fit_check(job, find_model(job), d, c, found, a);
}
