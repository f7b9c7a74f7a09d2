// SPDX-License-Identifier: Apache-2.0
// The job's model, compiled: its program (language/model_program.h) and sizes become the graph that
// the compiler cuts (builder.h).
#pragma once
#include "common/ckpt/match.h"
#include "common/explain/device_models.h"
#include "common/explain/explain.h"

// Compiles the job with its model: explain_job() with the model's builder.
int plan_explain(const struct job *job, const struct compile_options *o, struct arena *a,
                 struct compiled *out, struct findings *found, struct buf *dump, struct err *e);
// Compiles as plan_explain() does, for callers that want no findings: `e` has the first error.
// `o` (null: as a training) is hasty, whatever it says.
int plan_compile(const struct job *job, const struct compile_options *o, struct arena *a,
                 struct compiled *out, struct buf *dump, struct err *e);

// The parameters of a compiled job, as a checkpoint is held against them (ckpt/match.h). Returns how
// many they are. A vocabulary may be longer than the checkpoint's.
int plan_params(const struct compiled *c, struct arena *a, struct match_param **out);

// Adds what there is to say about a device that the plan does not fit: fit.h.
void plan_fit(const struct job *job, const struct device_model *d, const struct compiled *c,
              struct findings *found, struct arena *a);

// How many texts side by side a device has room for, as compiled with `o`: of FILL. At most a million.
int64_t plan_rows_that_fit(const struct job *job, const struct compile_options *o,
                           const struct device_model *d);
// How many tokens a text may have of which a device has room for one, as compiled with `o`; 0: none.
int64_t plan_context_that_fits(const struct job *job, const struct compile_options *o,
                               const struct device_model *d);

// Builds the train program for what only its graph shows (weft_schema.build).
int plan_look_at_model(const struct job *job, struct job_graph *out);

// The builder that the above hand to the compiler (build_fn).
int plan_build_job(struct graph *g, const struct job *job, enum program_kind kind, int64_t batch,
                   int64_t step_batch);
