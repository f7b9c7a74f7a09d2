// SPDX-License-Identifier: Apache-2.0
// The models. Each is one short file that emits its forward graph with logical dimension names and
// knows nothing of meshes; this table finds it by the job's model.program.
#pragma once
#include "common/explain/device_models.h"
#include "common/explain/explain.h"

// Compiles the job with its model: explain_job() with the model's builder.
int model_explain(const struct job *job, const struct compile_options *o, struct arena *a,
                  struct compiled *out, struct findings *found, struct buf *dump, struct err *e);
// The same for callers that want no findings: the first error's message is in `e`.
int model_compile(const struct job *job, struct arena *a, struct compiled *out, struct buf *dump,
                  struct err *e);

// Adds what there is to say about a device that the plan does not fit: fit.h.
void model_fit(const struct job *job, const struct device_model *d, const struct compiled *c,
               struct findings *found, struct arena *a);

int mlp_build(struct graph *g, const struct job *job, enum program_kind kind, int64_t batch,
              int64_t step_batch);
int decoder_build(struct graph *g, const struct job *job, enum program_kind kind, int64_t batch,
                  int64_t step_batch);
int vae_build(struct graph *g, const struct job *job, enum program_kind kind, int64_t batch,
              int64_t step_batch);
