// SPDX-License-Identifier: Apache-2.0
// Buckets: gradients that the same devices sum are summed by one all-reduce. A small one takes about
// as long to start as to send, and a model has many.
//
// An all-reduce of a gradient that is complete waits in its bucket for the next ones of the same
// devices and dtype, until they have graph.bucket bytes together, one of them is read, or the phase
// ends; then all stand next to each other, with one number (node.bucket). Lowering starts such
// neighbours as one, and the memory plan puts their buffers one behind the other, so that nothing is
// copied. The hosts sum element by element in the order of the coordinates (worker/collective), so
// no bit of theirs depends on what is in a bucket; NCCL's order depends on where an element lies.
//
// Not in buckets: what a microbatch's compute waits for anyhow, a stage group's sums, whose stages
// run other programs, and reduce-scatters and all-gathers, whose slices would have to be dealt anew.
#pragma once
#include "common/compile/graph/graph.h"

// Nodes change their places and get their buckets' numbers, nothing else. The graph has its stages
// and is checked afterwards like before.
void bucket_nodes(struct graph *g, const struct mesh *m);
