// SPDX-License-Identifier: Apache-2.0
// Reverse mode: adds the backward part to a graph that has a forward part and a loss.
//
// The nodes are walked from last to first; each output's cotangent is the sum of what its readers
// contributed, and the op's vjp rule turns it into contributions to the inputs. Cotangents carry
// their value's activation point, and the scope and stage of the earliest reader, where the sum is
// made. A parameter's contributions go into its gradient sum, "grad/<name>", over all microbatches.
#pragma once
#include "common/compile/graph/graph.h"

int grad_build(struct graph *g); // 0 or the graph's failure
