// SPDX-License-Identifier: Apache-2.0
// Stages of a pipeline: which one runs what, and what crosses from one to the next.
//
// A model knows nothing of stages: it says where its layers begin (graph_layer), and the job how many
// layers each place on the way has. Where stages have chunks the way leads round the ring of stages
// once for each: place p is chunk p / stages of stage p % stages. What comes before the layers is at
// the first place, what comes after a layer is where that is; a vjp inherits its op's.
//
//   layers  0 1   2 3   4 5   6 7       2 stages of 2 chunks each
//   place    0     1     2     3        stage 0 has places 0 and 2, stage 1 has 1 and 3
//
// After partitioning, stages_cut() writes down which stages run each node and have each value
// (node.stages, value.stages) and puts in what ties stages together:
//   - a send wherever a value is read on a stage that does not have it: from place to place, so that
//     a boundary carries exactly what is live across it, once. Every device sends its own part.
//   - a sum over the stages of a parameter that several read (a tied embedding), in the update:
//     each then makes the same update of its copy. The norm counts the first stage's.
// What is summed over all devices (loss, norm, control) is run by every stage.
#pragma once
#include "common/compile/graph/graph.h"
#include "common/job/job.h"

// Gives every node of a forward graph its place.
void stages_assign(struct graph *g, const struct job *job);
// `g` is the partitioned graph of a whole step. With one stage only the marks are set.
int stages_cut(struct graph *g, int nstages, struct err *e);
