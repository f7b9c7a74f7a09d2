// SPDX-License-Identifier: Apache-2.0
// The vjp rules: how a cotangent passes an op. Inside graph/ only.
#pragma once
#include "common/compile/graph/tape.h"

// Whether the op has a gradient.
bool vjp_has(enum op op);
// Adds the ops that carry `cotangent`, of the node's first output, to the inputs that need one. The
// cotangents of other outputs are on the tape. 0 or the graph's failure.
int vjp_apply(struct tape *t, const struct node *n, int cotangent);
