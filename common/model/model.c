// SPDX-License-Identifier: Apache-2.0
// The table of models. See model.h.
#include "common/model/model.h"

#include "common/explain/fit.h"

static const build_fn models[] = {
    [JOB_MODEL_MLP] = mlp_build,
    [JOB_MODEL_DECODER] = decoder_build,
    [JOB_MODEL_VAE] = vae_build,
};

int model_explain(const struct job *job, const struct compile_options *o, struct arena *a,
                  struct compiled *out, struct findings *found, struct buf *dump, struct err *e)
{
    PRE((size_t)job->model.kind < sizeof models / sizeof *models);
    return explain_job(job, models[job->model.kind], o, a, out, found, dump, e);
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
    fit_check(job, models[job->model.kind], d, c, found, a);
}
