// SPDX-License-Identifier: Apache-2.0
// Parameters' copies in the compute dtype: kept over the steps, written by the update.
//
// As built, a graph casts each f32 parameter once a step, in the first microbatch and in the
// parameter's own cut, and reads that (graph.h). This pass takes the casts out: the value becomes a
// leaf, VALUE_COPY, and the op that updates the parameter has an output more, which it writes in
// the same pass over memory, rounded as the cast does. What is read has the same bits. A cast reads
// 4 bytes an element and writes 2, a launch each; the update writes the 2 alone.
//
// A cast lives from the first forward that reads it to the last backward. Where the step's fullest
// moment lies between them, as it does when activations are kept, the memory is the same but for
// what the backward does not read (positions). Where it lies behind the head's backward, with remat
// or weights cut small, what was dead by then is still there: up to 2 bytes an element more, of
// GPT-2 124M under {fsdp: 2} and 8 samples 1.5 % of the arena, with remat: full 4.7 %.
//
// A copy is no state: no checkpoint has it; the rank makes all of them when it has put parameters
// there (exec_copies). That of a parameter that is frozen stays as it was made.
//
// The cast stays where it turns the dimensions (pack.h), and where the update does not see the whole
// local parameter: where the optimiser is cut further (ZeRO-1 and -2), the update writes a part and
// the rest is gathered in f32.
#pragma once
#include "common/compile/graph/graph.h"

// Works on a partitioned graph with its stages. `train` is the graph of the training program after
// this pass, whose copies the other programs read; null: this is the training program.
void copies_make(struct graph *g, const struct graph *train);
