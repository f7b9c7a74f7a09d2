// SPDX-License-Identifier: Apache-2.0
// How much one node works: on one device of a mesh, or on whole values where the mesh is null.
#pragma once
#include "common/compile/graph/graph.h"
#include "common/compile/layout/mesh.h"

double node_flops(const struct graph *g, const struct mesh *m, const struct node *n);
double node_bytes(const struct graph *g, const struct mesh *m, const struct node *n); // of an op
