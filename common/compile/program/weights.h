// SPDX-License-Identifier: Apache-2.0
// The backward in two: what makes cotangents, and what makes weights' gradients of them.
//
// Another stage waits for cotangents, nobody for the gradients of weights, so a schedule may put
// those where the stage would have nothing to do (schedule.h: zero_bubble). A node of the backward
// belongs to PHASE_WEIGHTS unless a send, or the backward of another layer, follows from it:
//
//   dy ──┬── matmul wᵀ ── dx ── send            backward
//        └── matmul xᵀ ── reduce ── sum of dw   weights: x and dy are kept until then
//
// The nodes stay in their order but for this: those of the weights come behind all others of the
// backward. So do the contributions to a sum that both parts add to, which is then a sum in another
// order, with other bits.
#pragma once
#include "common/compile/graph/graph.h"

// Works on a partitioned graph whose nodes have their stages and their order (order.h).
void weights_split(struct graph *g);
