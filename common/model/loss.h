// SPDX-License-Identifier: Apache-2.0
// What models share of their losses. Inside common/model/ only.
#pragma once
#include "common/compile/graph/graph.h"

// An op over the rows of its first operand, [.., n] → [..]. `limit`: from there on a row is
// padding; 0: none.
int loss_rows(struct graph *g, enum op op, int nin, const int *in, enum dtype t, int64_t limit);
// −ln softmax(logits)[target], a number a row.
int loss_cross_entropy(struct graph *g, int logits, int targets, int64_t limit);
