// SPDX-License-Identifier: Apache-2.0
// The update: adds what happens once a step, after the last microbatch: the gradients' norm, the
// metrics vector with loss, norm and control word, the clip, and the optimiser on each parameter.
// Formulas are optax's. What changes from step to step is a device scalar: "control", "hyper", "detail".
#pragma once
#include "common/compile/graph/graph.h"
#include "common/job/job.h"

// Marks the parameters of frozen groups, before grad_build. ERR_INVALID: there is nothing left.
int optimiser_freeze(struct graph *g, const struct job_optimizer *o);
// detail: the metrics end with numbers of the host's, two for each group of parameters (norm_groups.h).
int optimiser_build(struct graph *g, const struct job_optimizer *o, bool detail);
// An evaluation's end: the metrics vector is the loss and its parts.
int optimiser_build_eval(struct graph *g);
