// SPDX-License-Identifier: Apache-2.0
// The groups of parameters whose norms a row of metrics shows (metrics.detail): each layer is one,
// "layers/0"; of parameters outside of layers those whose first name is the same.
#pragma once
#include "common/compile/graph/graph.h"

// How long the group's name is at the begin of a parameter's.
size_t norm_group_len(const char *param);
// Lists the groups in the order in which their first parameters stand in the graph; returns how many.
int norm_groups(const struct graph *g, struct arena *a, const char ***out);
