// SPDX-License-Identifier: Apache-2.0
// The models. Each is one short file that emits its forward graph with logical dimension names and
// knows nothing of meshes; this table finds it by the job's model.kind.
#pragma once
#include "common/compile/compile.h"

// Compiles the job with its model: compile_job() with the model's builder.
int model_compile(const struct job *job, struct arena *a, struct compiled *out, struct buf *dump,
                  struct err *e);

int mlp_build(struct graph *g, const struct job *job, enum program_kind kind, int64_t batch,
              int64_t step_batch);
int decoder_build(struct graph *g, const struct job *job, enum program_kind kind, int64_t batch,
                  int64_t step_batch);
int vae_build(struct graph *g, const struct job *job, enum program_kind kind, int64_t batch,
              int64_t step_batch);
