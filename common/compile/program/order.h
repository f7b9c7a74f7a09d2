// SPDX-License-Identifier: Apache-2.0
// Order: where collectives stand in a partitioned graph. The gathers of a layer's parameters move
// to the start of the layer before it, so that they cross while that one computes; what reads a
// gradient's reduction moves behind the layer after it, so that the reduction runs beside that
// one's backward. Lowering waits where a result is read, so this is all that overlap takes.
//
// The memory it costs, the next layer's whole parameters and the last one's gradients, is the
// plan's to count. No number changes: contributions to a sum keep their order.
#pragma once
#include "common/compile/graph/graph.h"

// Nodes change their places, nothing else. The graph is checked afterwards like before.
void order_nodes(struct graph *g);
