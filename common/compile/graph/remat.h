// SPDX-License-Identifier: Apache-2.0
// Rematerialisation: the backward makes again what the forward does not keep.
//
//   none   keeps everything
//   block  keeps what is made outside the layers and what leaves one
//   full   keeps what enters a stage
//
// The choices of experts and their places are always kept (TOPK's ids, what SLOTS makes): a decision
// is made once. Attention's log-sum-exp is kept where its output is. What the head makes or reads is
// always kept: its backward comes right after its forward. The head is the scope in which the forward
// ends; the layers are all scopes but that and `embed`.
//
// A pass over the unpartitioned graph, between grad and the optimiser. It puts a copy of a forward
// node in front of the first backward node that reads what it makes, and copies of what that one
// reads, down to what is kept; so only what the backward reads is made again, as late as can be. A
// copy is a node of the backward phase in its layer's scope, where it shares gathers with the vjps.
// Attributes are copied, so a random op draws the same bits.
#pragma once
#include "common/compile/graph/graph.h"
#include "common/job/job.h"

int remat_build(struct graph *g, enum job_remat mode); // 0 or the graph's failure
