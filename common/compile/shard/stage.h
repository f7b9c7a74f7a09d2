// SPDX-License-Identifier: Apache-2.0
// Stages of a pipeline: which one runs what, and what crosses from one to the next.
//
// A model knows nothing of stages: a node's follows from its scope. `layers/N` is on the stage that
// has layer N, what comes before the layers is on the first, what comes after them on the last; a
// vjp inherits its op's. After partitioning, stages_cut() writes down which stages run each node
// and have each value (node.stages, value.stages) and puts in what ties stages together:
//   - a send wherever a value is read on another stage than its own: from stage to stage, so that a
//     boundary carries exactly what is live across it, once. Every device sends its own part.
//   - a sum over the stages of a parameter that several read (a tied embedding), in the update:
//     each then makes the same update of its copy. The norm counts the first stage's.
// What is summed over all devices (loss, norm, control) is run by every stage.
#pragma once
#include "common/compile/graph/graph.h"
#include "common/job/job.h"

// Gives every node of a forward graph its stage.
void stages_assign(struct graph *g, const struct job *job);
// `g`: partitioned, the whole step. One stage: only the marks are set.
int stages_cut(struct graph *g, int nstages, struct err *e);
